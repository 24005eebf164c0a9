"""A party that does not look into its inbox: the other waits, however often the stream breaks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from session_kit import FAST, CuttableProxy, Federation

from isonomy.common.base.errors import PartyTimeout
from isonomy.common.session import connection, sealed_links
from isonomy.common.session.connection import Session
from isonomy.common.session.sealed_links import Parcel

WINDOW = 1 << 20
SIZE = 100_000
FRAMES = 60  # six windows
RECONNECTS = 6


def frame(number: int, recipient: str) -> Parcel:
    return Parcel(recipient, "columns", "q", 1, number, number == FRAMES - 1, bytes(SIZE))


def until(ready: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 20
    while not ready():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


@pytest.mark.parametrize("chatty", [False, True])
def test_inbox_stays_bounded_over_many_reconnections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chatty: bool
) -> None:
    """Neither agreements on new streams nor data of its own (`chatty`) let the other send on."""
    monkeypatch.setattr(sealed_links, "WINDOW_BYTES", WINDOW)
    monkeypatch.setattr(connection, "WINDOW_BYTES", WINDOW)
    monkeypatch.setattr(connection, "MAX_INBOX_BYTES", 2 * WINDOW + 2 * SIZE)
    federation = Federation.create(tmp_path)
    with federation.relay() as relay:
        proxy = CuttableProxy(relay.address)
        tickets = [
            replace(relay.issue_ticket(role, role), relay_address=proxy.address)
            for role in ("regulator", "company")
        ]
        regulator, company = (federation.session(ticket) for ticket in tickets)
        with regulator, company:
            sender = threading.Thread(target=send_all, args=(regulator,), daemon=True)
            sender.start()
            inbox = company._mailbox.inbox_bytes
            until(lambda: inbox["regulator"] > WINDOW, "the inbox never filled")
            for number in range(RECONNECTS):
                proxy.cut()
                proxy.heal()
                back = number + 1
                for party in (company, regulator):
                    until(lambda s=party, n=back: s.reconnects >= n, "a party did not come back")
                if chatty:
                    company.send(
                        "regulator", Parcel("regulator", "query", "q", number, 0, True, b"?")
                    )
                    assert regulator.receive("company", timeout_s=20).exchange == number
                time.sleep(0.1)
            assert inbox["regulator"] <= 2 * WINDOW + SIZE
            assert sender.is_alive(), "the other should wait"
            got = [company.receive("regulator", timeout_s=20).index for _ in range(FRAMES)]
            assert got == list(range(FRAMES)), "each frame once, in order"
            sender.join(20)
        proxy.close()


def test_a_party_that_takes_nothing_does_not_hold_the_other_for_ever(tmp_path: Path) -> None:
    federation = Federation.create(tmp_path)
    with federation.relay() as relay:
        tickets = [relay.issue_ticket(role, role) for role in ("regulator", "company")]
        impatient = replace(FAST, absence_s=1.0)
        with (
            federation.session(tickets[1]),
            federation.session(tickets[0], timing=impatient) as regulator,
            pytest.raises(PartyTimeout, match="nothing came from company for 1 s"),
        ):
            send_all(regulator, 400)


def send_all(regulator: Session, frames: int = FRAMES) -> None:
    for number in range(frames):
        regulator.send("company", frame(number, "company"))
