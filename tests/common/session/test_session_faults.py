"""kill −9 of each party at each step, and networks that break: the run goes on, nothing twice.

Real processes with real TLS on loopback (tests/kits/fault_party.py). After each scenario:
    * the company finished its script;
    * a query id has one answer, however often the script was run;
    * the ledger verifies, holds each query once, and its debit is what the company counted.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from session_kit import FAST, CuttableProxy, Federation, serving

from isonomy.common.base.errors import PartyTimeout
from isonomy.common.ledger.ledger import verify_ledger
from isonomy.common.remote.exchanges import remote_oracle
from isonomy.common.session.stream import Timing
from isonomy.common.sums.openings import FolderOpenings

SCRIPT = Path(__file__).parents[2] / "kits" / "fault_party.py"
QUERIES = 3
SHORT_STEPS = {"company": (4, 17, 23, 38), "regulator": (7, 16, 21, 34), "relay": (5, 19, 26, 41)}


def run(
    folder: Path, *scenarios: str, timeout_s: float, companies: str = "company"
) -> list[dict[str, Any]]:
    command = [sys.executable, str(SCRIPT), str(folder), companies, *scenarios]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(results) == len(scenarios), done.stderr[-2000:]
    return results


def check(result: dict[str, Any]) -> None:
    where = f"{result['victim']} killed at step {result['step']}"
    assert not result["failed"], f"{where}: {result['failed']}"
    answers: dict[str, set[str]] = {}
    for line in result["answers"]:
        assert result["sequences"][line["id"]] == line["sequence"], where
        answers.setdefault(line["id"], set()).add(json.dumps(line["values"]))
    assert len(answers) == QUERIES, where
    assert all(len(values) == 1 for values in answers.values()), f"{where}: two answers for one id"
    units = {line["id"]: line["units"] for line in result["answers"]}
    assert result["spent"] == sum(units.values()), where
    assert result["debits"] == QUERIES, where


def test_killed_at_some_steps(tmp_path: Path) -> None:
    scenarios = [f"{role}:{step}" for role, steps in SHORT_STEPS.items() for step in steps]
    results = run(tmp_path, *scenarios, timeout_s=120)
    for result in results:
        check(result)
    assert sum(result["killed"] for result in results) == len(scenarios)


def test_killed_by_pads(tmp_path: Path) -> None:
    """Keys and requests outlive every process: nothing is answered or paid twice."""
    scenarios = ["company:9", "company:21", "regulator:8", "regulator:17", "relay:22"]
    results = run(tmp_path, *scenarios, timeout_s=120, companies="company@pads")
    for result in results:
        check(result)
    assert sum(result["killed"] for result in results) == len(scenarios)


def test_killed_with_two_companies(tmp_path: Path) -> None:
    scenarios = ["relay:44", "regulator:40", "second:31"]
    results = run(tmp_path, *scenarios, timeout_s=120, companies="first,second")
    for result in results:
        check(result)
    assert sum(result["killed"] for result in results) == len(scenarios)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("companies", "stride"), [("company", 1), ("company@pads", 1), ("first,second", 5)]
)
def test_killed_at_every_step(tmp_path: Path, companies: str, stride: int) -> None:
    (calm,) = run(tmp_path / "calm", ":", timeout_s=60, companies=companies)
    check(calm)
    for role, events in calm["events"].items():
        assert events > 30
        scenarios = [f"{role}:{step}" for step in range(1, events + 1, stride)]
        results = run(tmp_path / role, *scenarios, timeout_s=1200, companies=companies)
        for result in results:
            check(result)
        # The last events (heartbeats, the end) may not occur in every run.
        assert sum(result["killed"] for result in results) >= len(scenarios) - 6


def cut_off(folder: Path, how: str, seconds: float, timing: Timing) -> float:
    """Both parties lose the relay in the middle of a query; nobody notices above.

    Returns how long after the network was back the next answer came.
    """
    federation = Federation.create(folder)
    with federation.relay() as relay:
        proxy = CuttableProxy(relay.address)
        tickets = [
            replace(relay.issue_ticket(role, role), relay_address=proxy.address)
            for role in ("regulator", "company")
        ]
        with (
            serving(federation, tickets[0], timing=timing),
            federation.session(tickets[1], timing=timing) as session,
        ):
            oracle = remote_oracle(session, federation.cohort)
            before = oracle.counts(share=0.1)
            back = time.monotonic() + 0.02 + seconds
            threading.Timer(0.02, proxy.cut if how == "reset" else proxy.swallow).start()
            threading.Timer(0.02 + seconds, proxy.heal).start()
            releases, took_s = [], 0.0
            for _ in range(4):
                releases.append(oracle.blind_sum(federation.rows(), norm=2.0, share=0.1))
                took_s = took_s or max(0.0, time.monotonic() - back)
            assert took_s > 0, "the cut came too late to matter"
            assert session.reconnects >= 1
            receipts = [release.receipt for release in (before, *releases)]
            assert [receipt.sequence for receipt in receipts] == sorted(
                {receipt.sequence for receipt in receipts}
            )
        proxy.close()
    ledger = verify_ledger(folder / "regulator" / "ledger.jsonl")
    assert ledger.debits == len(receipts), "each question was paid once"
    return took_s


@pytest.mark.parametrize("how", ["reset", "silent"])
def test_network_cut(tmp_path: Path, how: str) -> None:
    alert = replace(FAST, silence_s=1.0)
    assert cut_off(tmp_path, how, 2.5, alert) < 10


@pytest.mark.slow
@pytest.mark.parametrize("how", ["reset", "silent"])
def test_network_cut_for_30_seconds(tmp_path: Path, how: str) -> None:
    """With the settings that are used in earnest."""
    assert cut_off(tmp_path, how, 30.0, Timing()) < 60


def test_party_that_never_comes_back(tmp_path: Path) -> None:
    """A clear time-out, state kept; the same script resumes later with the same ticket."""
    federation = Federation.create(tmp_path)
    impatient = replace(FAST, absence_s=1.0)
    openings = FolderOpenings(tmp_path / "company" / "openings")
    with federation.relay() as relay:
        mine, theirs = (relay.issue_ticket(role, role) for role in ("company", "regulator"))
        with (
            pytest.raises(PartyTimeout, match=r"regulator did not come back within 1 s.*resume"),
            federation.session(mine, timing=impatient) as session,
        ):
            remote_oracle(session, federation.cohort, openings=openings).counts(share=0.1)
        with serving(federation, theirs), federation.session(mine) as session:
            oracle = remote_oracle(session, federation.cohort, openings=openings)
            assert oracle.counts(share=0.1).receipt.units > 0


def test_relay_that_never_comes_back(tmp_path: Path) -> None:
    federation = Federation.create(tmp_path)
    with federation.relay() as relay:
        ticket = relay.issue_ticket("company", "company")
        session = federation.session(ticket, timing=replace(FAST, absence_s=1.0)).start()
    with pytest.raises(PartyTimeout, match="the relay did not come back"):
        session.receive("regulator")
    session.close()


def test_both_sides_hear_why_a_session_ended(tmp_path: Path) -> None:
    federation = Federation.create(tmp_path)
    with federation.relay() as relay:
        mine, theirs = (relay.issue_ticket(role, role) for role in ("company", "regulator"))
        with federation.session(theirs) as regulator:
            company = federation.session(mine).start()
            company.generation("regulator")
            company.fail(PartyTimeout("gave up waiting"))
            with pytest.raises(Exception, match="company ended the session: PartyTimeout: gave up"):
                regulator.receive("company")
