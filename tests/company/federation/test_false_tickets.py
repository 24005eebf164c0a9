"""Tickets that lead elsewhere: anybody's code may hand them to a company that waits for its run."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from session_kit import FAST, Federation

from isonomy.common.node.bridge import DaemonFailed, Message, call
from isonomy.common.session.tickets import Ticket
from isonomy.company.federation.home import Home
from isonomy.company.federation.joining import Attendee


@pytest.fixture
def waiting(tmp_path: Path) -> Iterator[tuple[Federation, Attendee, Path]]:
    """A company whose script waits for a ticket."""
    federation = Federation.create(tmp_path / "ours", size=8)
    home = Home(tmp_path / "ours" / "company")
    home.approvals.approve(federation.plan, federation.cohort, home.keys())
    attendee = Attendee(federation.plan, home, replace(FAST, absence_s=1.0))
    attendee.listen(tmp_path / "s", None)
    yield federation, attendee, tmp_path / "s"
    attendee.end()


def hand_over(path: Path, ticket: Ticket) -> Message:
    return call(path, {"type": "session", "ticket": ticket.to_json().decode()})


@pytest.mark.parametrize("lead", ["to a foreign authority", "nowhere"])
def test_a_waiting_company_outlives_a_false_ticket(
    waiting: tuple[Federation, Attendee, Path], tmp_path: Path, lead: str
) -> None:
    federation, attendee, path = waiting
    foreign = Federation.create(tmp_path / "theirs", size=8)
    with federation.relay() as relay, foreign.relay() as trap:
        good = relay.issue_ticket("company", "company")
        address = trap.address if lead == "to a foreign authority" else "127.0.0.1:1"
        with pytest.raises(DaemonFailed):
            hand_over(path, replace(good, relay_address=address))
        threading.Thread(target=hand_over, args=(path, good), daemon=True).start()
        assert attendee.session(10.0).reconnects == 0
        attendee.end()


def test_a_company_waits_for_the_next_run_if_the_regulator_never_came(
    waiting: tuple[Federation, Attendee, Path],
) -> None:
    """The officer approves later than the company: its script need not be started again."""
    federation, attendee, path = waiting
    reason = "the server ended the session: regulator has not approved the plan (code 15)"
    with ThreadPoolExecutor(3) as pool:
        script = pool.submit(attendee.begin, 20.0, visible=False)
        with federation.relay() as relay:
            node = pool.submit(hand_over, path, relay.issue_ticket("company", "company"))
            until(lambda: "company" in relay.present())
            relay.end(reason)
            assert isinstance(node.exception(10), DaemonFailed)
        until(lambda: (wait := attendee.look()) is not None and reason in str(wait.text))
        assert not script.done()
        with federation.relay() as relay:
            again = pool.submit(hand_over, path, relay.issue_ticket("company", "company"))
            regulator = federation.session(relay.issue_ticket("regulator", "regulator")).start()
            session = script.result(10)
            assert session.present() == {"regulator"}
            attendee.end()
            regulator.close()
            assert again.result(10) == {"exchanges": 0, "reconnects": 0}


def until(ready: object) -> None:
    assert callable(ready)
    end = time.monotonic() + 10
    while not ready():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives folders to groups")
def test_a_home_of_a_kit_knows_the_nodes_group(tmp_path: Path) -> None:
    home = Home(tmp_path / "company")
    assert home.group is None
    run = home.socket.parent
    run.mkdir(parents=True)
    for mode, group, expected in (
        (0o755, 4321, None),
        (0o750, os.getgid(), None),
        (0o700, 4321, None),
        (0o750, 4321, "4321"),
    ):
        run.chmod(mode)
        os.chown(run, -1, group)
        assert home.group == expected
