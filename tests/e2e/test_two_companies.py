"""Two companies and a regulator through Flower, as docs/deploy.md has it: every command, for real.

Server, three nodes, the regulator's daemon and two companies' scripts are
processes of their own, with TLS between them and keys that never left their owners. Only the
daemon's noise is a test's: counted, so that the same questions put to one company that holds
everybody must give the same bits.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from federation import CountedNoise, custodian_with_noise
from server_kit import certify, make_server, run, start_node

from isonomy.common.ledger.ledger import Ledger, verify_ledger
from isonomy.common.people.cohort import AttributeTable, Cohort
from isonomy.common.privacy.accounting import units_for
from isonomy.common.sums.local import LocalChannel
from isonomy.common.sums.oracle import GroupOracle
from isonomy.company.cli.company import app as company_app
from isonomy.company.demo.processes import Processes, Running
from isonomy.regulator.cli import app as regulator_app

COMPANIES = ("first", "second")
SIZES = {"first": 90, "second": 170}
PEOPLE = [f"person-{number}" for number in range(sum(SIZES.values()))]
GROUPS = {"sex": ("f", "m")}
VALUES = ["f" if number % 3 else "m" for number in range(len(PEOPLE))]
ROWS = np.random.default_rng(11).normal(size=(len(PEOPLE), 4))
SHARE, EPSILON, DELTA = 0.1, "2", "1e-6"

COMPANY = """
import sys
from pathlib import Path
sys.path[:0] = sys.argv[3].split(":")
from isonomy.company.federation.joining import join
from test_two_companies import save, script, share_of
root, name = Path(sys.argv[1]), sys.argv[2]
with join(root / "plan.json", home=root / name, wait_s=120) as oracle:
    save(root / name / "values.json", script(oracle, share_of(name)))
"""
REGULATOR = """
import sys
sys.path[:0] = sys.argv[2].split(":")
from federation import CountedNoise, custodian_with_noise
from isonomy.regulator.serving import _plan_desks as plan_desks
from isonomy.regulator.cli import app
def counted(*given, **options):
    return custodian_with_noise(*given, **options, source=CountedNoise(1))
plan_desks.Custodian = counted
sys.argv[1:] = ["serve", "--home", sys.argv[1]]
app()
"""
TESTS = ":".join(
    str(folder) for folder in (Path(__file__).parents[1] / "kits", Path(__file__).parent)
)


def share_of(name: str) -> slice:
    start = 0 if name == "first" else SIZES["first"]
    return slice(start, start + SIZES[name])


def script(oracle: GroupOracle, own: slice) -> list[list[str]]:
    """What every company asks, each about its own people; the answers as exact text."""
    places = np.arange(own.start, own.stop)
    some = places[places % 4 != 0]
    releases = [
        oracle.counts(share=SHARE),
        oracle.counts(places % 3, share=SHARE),
        oracle.blind_sum(ROWS[own], norm=2.3, share=SHARE),
        oracle.open_sum(ROWS[own] / 7, norm=0.7, share=SHARE),
        oracle.blind_sum(ROWS[some], norm=1.1, people=some - own.start, share=SHARE),
    ]
    return [[float(value).hex() for value in release.values.ravel()] for release in releases]


def save(path: Path, values: list[list[str]]) -> None:
    path.write_text(json.dumps(values))


def alone(folder: Path) -> list[list[str]]:
    """The same script at one company that holds everybody, with the same noise."""
    table = AttributeTable(Cohort.of(PEOPLE), {"sex": VALUES}, GROUPS)
    cap, plan = units_for(float(EPSILON), float(DELTA)), bytes(32)
    with Ledger.create(folder / "alone.jsonl", cap_units=cap, delta=float(DELTA)) as ledger:
        custodian = custodian_with_noise(
            table, ledger, plan=plan, member_key=b"k" * 32, source=CountedNoise(1)
        )
        custodian.reserve(cap)
        channel = LocalChannel(table, custodian, plan=plan, cap_units=cap, delta=float(DELTA))
        return script(GroupOracle(channel), slice(0, len(PEOPLE)))


class Town:
    """The folders of all parties below one root, and their processes."""

    def __init__(self, root: Path, processes: Processes) -> None:
        self.root, self.processes = root, processes
        self.config = str(root / "server" / "server.toml")

    # --- Once: keys, certificates, people, plan, approvals ------------------------------------

    def prepare(self) -> None:
        root, home = self.root, str(self.root / "regulator")
        make_server(root)
        run(
            regulator_app,
            *("init", home, "--epsilon", EPSILON, "--delta", DELTA, "--groups", "sex=f,m"),
            *("--complete", "sex"),
            *("--unlock-file", str(root / "unlock.key")),
        )
        for name in COMPANIES:
            run(company_app, "keys", "--name", name, "--home", str(root / name))
            run(company_app, "tls-request", "--home", str(root / name))
        certify(root, (*COMPANIES, "regulator"))
        self.enrol()
        self.agree()

    def enrol(self) -> None:
        path = self.root / "attributes.csv"
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([("id", "sex"), *zip(PEOPLE, VALUES, strict=True)])
        home = str(self.root / "regulator")
        run(regulator_app, "enroll", str(path), "--attribute", "sex", "--home", home)

    def agree(self) -> None:
        root = self.root
        for name in COMPANIES:
            ids = PEOPLE[share_of(name)]
            (root / f"{name}.txt").write_text("".join(f"{person}\n" for person in ids))
        card = root / "regulator" / "keys" / "card.json"
        other = f"{root / 'second' / 'keys' / 'card.json'}={root / 'second.txt'}"
        plan = str(root / "plan.json")
        run(
            company_app,
            *("plan", "--home", str(root / "first"), "--regulator", str(card)),
            *("--people", str(root / "first.txt"), "--other", other, "--relay", "localhost"),
            *("--attribute", "sex=f,m", "--epsilon", EPSILON, "--delta", DELTA, "-o", plan),
        )
        for name in COMPANIES:
            people = ("--people", str(root / f"{name}.txt"))
            run(company_app, "approve", plan, *people, "--home", str(root / name), "--yes")
        run(regulator_app, "approve", plan, "--home", str(root / "regulator"), "--yes")

    # --- A session ----------------------------------------------------------------------------

    def hold_session(self) -> dict[str, Any]:
        """Everything up, a whole session, its outcome as the server prints it."""
        processes = self.processes
        server = processes.start("server", ["isonomy-server", "serve", "-c", self.config])
        daemon = self.python("regulator", REGULATOR, str(self.root / "regulator"), TESTS)
        scripts = [self.python(name, COMPANY, str(self.root), name, TESTS) for name in COMPANIES]
        for name in (*COMPANIES, "regulator"):
            start_node(processes, self.root, name)
        processes.until(lambda: server.says('"ready"'), "the server", 90.0)
        processes.until(lambda: daemon.says('"ready"'), "the regulator", 90.0)
        public = str(self.root / "plan.public.json")
        session = processes.start("run", ["isonomy-server", "run", public, "-c", self.config])
        for running in scripts:
            processes.finish(running, 180.0)
        processes.finish(session, 90.0)
        lines = [line for line in session.log.read_text().splitlines() if line.startswith("{")]
        return dict(json.loads(lines[-1]))

    def python(self, name: str, text: str, *arguments: str) -> Running:
        return self.processes.start(name, [Path(sys.executable).name, "-c", text, *arguments])


@pytest.fixture
def town(tmp_path: Path) -> Iterator[Town]:
    with Processes(tmp_path / "logs") as processes:
        made = Town(tmp_path, processes)
        made.prepare()
        yield made


def test_same_group_sums_as_one_company_with_everybody(town: Town) -> None:
    outcome = town.hold_session()
    expected = alone(town.root)
    for name in COMPANIES:
        got = json.loads((town.root / name / "values.json").read_text())
        assert got == expected, f"{name} got other sums than one company would"
    assert verify_ledger(town.root / "regulator" / "ledger.jsonl").debits == len(expected)
    assert {party["code"] for party in outcome["parties"].values()} == {0}
    no_key_left_its_owner(town.root)


def no_key_left_its_owner(root: Path) -> None:
    for name in (*COMPANIES, "regulator"):
        key = (root / name / "tls" / "tls.key").read_bytes()
        holders = [file for file in root.rglob("*") if file.is_file()]
        assert [f for f in holders if f.read_bytes() == key] == [root / name / "tls" / "tls.key"]
