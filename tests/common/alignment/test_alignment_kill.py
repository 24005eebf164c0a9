"""Either side of an alignment, a process of its own, is killed in the middle and comes back."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from session_kit import RELAY_NAME, Federation

from isonomy.common.alignment.alignment import AlignmentPlan
from isonomy.common.crypto.params import DEFAULT_PARAMETERS
from isonomy.common.crypto.ristretto import POINT_BYTES
from isonomy.common.keys.identity import Identity
from isonomy.server.relay.relay import RelayServer

RECORD_HEAD = 36  # bytes before the points of a batch on disk

PARTY = """
import json, sys
from pathlib import Path
folder, name, first, people, batch = Path(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:])
from isonomy.common.alignment import alignment
from isonomy.common.alignment.session import align
from isonomy.common.alignment.store import Alignments
from isonomy.common.keys.certificates import TlsFiles
from isonomy.common.keys.party import PartyKeys
from isonomy.common.session.connection import Session
from isonomy.common.session.stream import Timing
from isonomy.common.session.tickets import Ticket
alignment.BATCH = batch
computed = {"blind": 0, "multiply": 0}
def counted(function):
    def count(*given):
        points = function(*given)
        computed[function.__name__] += len(points) // 32
        return points
    return count
alignment.blind, alignment.multiply = counted(alignment.blind), counted(alignment.multiply)
plan = alignment.AlignmentPlan.load(folder / "alignment.json")
ids = alignment.checked_ids([f"person-{n:07d}" for n in range(first, first + people)])
store = Alignments(folder / name / "alignments")
keys = PartyKeys.load(folder / name / "keys")
store.approve(plan, keys)
ticket = Ticket.from_json((folder / f"{name}.ticket").read_bytes())
tls = TlsFiles.of(folder / name / "tls")
with Session(ticket, tls, keys, plan, timing=Timing(absence_s=120)) as session:
    common = align(session, ids, store)
print(json.dumps({"common": len(common), "root": common.root.hex(), **computed}))
"""


class Street:
    """A relay, and the two parties' processes."""

    def __init__(self, folder: Path, people: int, batch: int) -> None:
        self.folder, self.people, self.batch = folder, people, batch
        federation = Federation.create(folder, size=4)
        self.plan = AlignmentPlan.of(
            {
                "name": "customers",
                "companies": [federation.plan.companies[0]],
                "regulator": federation.plan.regulator,
                "relay_name": RELAY_NAME,
                "parameters": DEFAULT_PARAMETERS.name,
                "company_people": people,
                "regulator_people": people,
            }
        )
        self.plan.save(folder / "alignment.json")
        key = Identity.load(folder / "server" / "token.key")
        tls = federation.tls("server")
        self.relay = RelayServer("127.0.0.1:0", tls, self.plan.public(), key, folder / "relay")
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, name: str) -> subprocess.Popen[str]:
        ticket = self.relay.issue_ticket(name, name)
        (self.folder / f"{name}.ticket").write_bytes(ticket.to_json())
        first = 0 if name == "company" else self.people // 2
        arguments = map(str, (self.folder, name, first, self.people, self.batch))
        command = [sys.executable, "-c", PARTY, *arguments]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.processes.append(process)
        return process

    def work(self, name: str, stage: str) -> int:
        """How many points of a stage are on this party's disk in whole batches."""
        path = self.folder / name / "alignments" / f"{self.plan.hash.hex()}.{stage}.partial"
        record = RECORD_HEAD + self.batch * POINT_BYTES
        return path.stat().st_size // record * self.batch if path.exists() else 0

    def result(self, process: subprocess.Popen[str]) -> dict[str, Any]:
        text, _ = process.communicate(timeout=600)
        assert process.returncode == 0
        return dict(json.loads(text))


@pytest.fixture
def street(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Street]:
    street = Street(tmp_path, *request.param)
    with street.relay:
        yield street
        for process in street.processes:
            process.kill()
            process.communicate()


SHORT, LONG = (1500, 50), (100_000, 4096)


@pytest.mark.parametrize(
    ("street", "victim", "stage"),
    [
        pytest.param(SHORT, "company", "doubled"),
        pytest.param(SHORT, "regulator", "blinded"),
        pytest.param(LONG, "company", "blinded", marks=pytest.mark.slow),
        pytest.param(LONG, "regulator", "doubled", marks=pytest.mark.slow),
    ],
    indirect=["street"],
)
def test_nothing_is_lost(street: Street, victim: str, stage: str) -> None:
    other = "regulator" if victim == "company" else "company"
    survivor, first = street.start(other), street.start(victim)
    deadline = time.monotonic() + 300
    while not street.work(victim, stage):
        assert time.monotonic() < deadline
        assert first.poll() is None
        time.sleep(0.002)
    first.send_signal(signal.SIGKILL)
    first.wait()
    saved = street.work(victim, stage)
    assert 0 < saved < street.people, "it was killed in the middle"
    second = street.result(street.start(victim))
    stayed = street.result(survivor)
    assert second["common"] == stayed["common"] == street.people // 2
    assert second["root"] == stayed["root"]
    assert stayed["blind"] == stayed["multiply"] == street.people, (
        "the other computes nothing twice"
    )
    function = "blind" if stage == "blinded" else "multiply"
    assert second[function] == street.people - saved
    assert second["blind"] == (street.people - saved if stage == "blinded" else 0)
