"""Tickets that lead elsewhere: anybody's code may hand them to a company that waits for its run."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from session_kit import FAST, Federation

from isonomy.common.node.bridge import DaemonFailed, Message, call
from isonomy.common.node.bridge_server import Callers
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
    attendee.listen(tmp_path / "s", Callers())
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
