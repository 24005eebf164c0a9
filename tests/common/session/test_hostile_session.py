"""A relay that lies, and code from a Flower bundle that hands over junk: neither ends a session."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import grpc
import pytest
from session_kit import FAST, RELAY_NAME, Federation

from isonomy.common.base.errors import (
    RELAY_CODES,
    AdmissionRefused,
    IsonomyError,
    LedgerTampered,
    OversizedMessage,
    PeerRestarted,
    ProtocolError,
    SessionClosed,
    TokenRefused,
    TransportError,
    error_from_wire,
)
from isonomy.common.node.attendance import Attendance
from isonomy.common.node.bridge import Message
from isonomy.common.remote.exchanges import serve_queries
from isonomy.common.session import connection
from isonomy.common.session.connection import Session, _closed_error
from isonomy.common.session.sealed_links import Parcel
from isonomy.common.session.stream import RelayStream, channel_options
from isonomy.common.session.tickets import Ticket, TicketLine
from isonomy.common.session.tls_channels import client_credentials
from isonomy.common.wire.envelopes import SERVER, SERVICE_METHOD, Close, Envelope, Hello, dump
from isonomy.common.wire.messages import Refusal
from isonomy.server.relay import relay as relay_module
from isonomy.server.relay.relay import RelayServer

BRIEF = replace(FAST, flush_s=0.1)
NOBODY: Any = None  # answers nothing: it must not come to that


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Federation:
    return Federation.create(tmp_path_factory.mktemp("federation"))


@pytest.fixture
def relay(federation: Federation) -> Iterator[RelayServer]:
    with federation.relay() as relay:
        yield relay


def until(condition: Callable[[], bool], timeout_s: float = 10.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


# --- What the relay may say -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "code",
    ["LedgerTampered", "BudgetExceeded", "VerificationError", "PeerRestarted", "AttemptLost"],
)
def test_the_relay_cannot_speak_for_a_party(code: str) -> None:
    assert type(error_from_wire(code, "x", RELAY_CODES)) is ProtocolError
    assert type(error_from_wire(code, "x")).__name__ == code  # signed by the party itself


def test_the_relay_can_speak_for_itself() -> None:
    for kind in (TokenRefused, AdmissionRefused, SessionClosed, OversizedMessage):
        assert type(error_from_wire(kind.__name__, "x", RELAY_CODES)) is kind


def test_what_others_write_is_one_plain_line() -> None:
    """An error's text ends up on a terminal: no relay or party draws on it, or adds lines to it."""
    text = "over\x1b[2J\x1b[31m\r\nisonomy: all is well\u2028\x9b1m é"
    for error in (
        error_from_wire("SessionClosed", text, RELAY_CODES),
        error_from_wire("BudgetExceeded", text),
        Refusal("q", "BudgetExceeded", text).error(),
        _closed_error("company", Close("BudgetExceeded", text)),
    ):
        assert str(error).isprintable()
        assert "isonomy: all is well" in str(error)
        assert str(error).endswith("é")


def test_a_false_restart_ends_the_regulators_loop(
    federation: Federation, relay: RelayServer
) -> None:
    session = federation.session(relay.issue_ticket("regulator", "regulator")).start()
    company = federation.session(relay.issue_ticket("company", "company"), timing=BRIEF).start()
    session.generation("company")
    number = relay._state.stream_of("regulator")
    assert number is not None
    relay._streams[number].put(relay._note("regulator", "PeerRestarted", "so it says", fatal=True))
    with pytest.raises(ProtocolError, match="so it says"):
        serve_queries(session, NOBODY)
    company.close()
    session.close()


def test_a_restart_counts_only_if_the_generation_changed(
    federation: Federation, relay: RelayServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        federation.session(relay.issue_ticket("regulator", "regulator")) as session,
        federation.session(relay.issue_ticket("company", "company")) as company,
    ):
        company.generation("regulator")
        calls = iter([PeerRestarted("once"), LedgerTampered("not reached")])

        def receive(*_: object, **__: object) -> Parcel:
            raise next(calls)

        monkeypatch.setattr(session, "receive", receive)
        with pytest.raises(PeerRestarted):
            serve_queries(session, NOBODY)


# --- Tickets from a Flower bundle ----------------------------------------------------------------


def test_the_line_keeps_the_ticket_that_worked() -> None:
    first, *junk = (
        Ticket("127.0.0.1:1", "relay", bytes([n]), b"p" * 32, "company", "acme", 5)
        for n in range(10)
    )
    line = TicketLine(first)
    line.works(first)
    for ticket in junk:
        line.add(ticket, first=True)
    tried = [line.take() for _ in range(TicketLine.MAX_WAITING)]
    assert tried[0] == junk[-1]
    assert first in tried
    assert all(line.refused(ticket) for ticket in tried if ticket != first)
    assert not line.refused(first)
    assert line.take() == line.take() == first


def test_junk_does_not_disturb_a_live_session(federation: Federation, relay: RelayServer) -> None:
    mine = relay.issue_ticket("company", "company")
    with federation.session(mine) as session:
        before = sorted((federation.folder / "company" / "state").iterdir())
        for number in range(6):
            session.renew(replace(mine, token=bytes([number]) * 100))
        session.renew(replace(mine, relay_address="127.0.0.1:1"))
        time.sleep(4 * FAST.max_backoff_s)
        assert session.reconnects == 0
        assert session._error is None
        assert sorted((federation.folder / "company" / "state").iterdir()) == before


@pytest.mark.parametrize("change", [{"token": b"j" * 100}, {"relay_address": "127.0.0.1:1"}])
def test_after_junk_the_old_ticket_is_good_again(
    federation: Federation, change: dict[str, object]
) -> None:
    """The relay is away when the junk comes; the session goes on when it is back."""
    with federation.relay() as relay:
        mine = relay.issue_ticket("company", "company")
        session = federation.session(mine).start()
    assert until(lambda: session._mailbox.outbox is None)
    session.renew(replace(mine, **change))
    with federation.relay(relay.address), session:
        assert until(lambda: session.reconnects == 1), session._error
        assert session._error is None


def test_a_good_ticket_after_junk_opens_the_session(
    federation: Federation, relay: RelayServer
) -> None:
    good = relay.issue_ticket("company", "company")
    session = federation.session(replace(good, relay_address="127.0.0.1:1"))
    threading.Timer(0.3, session.renew, [good]).start()
    with session:
        assert session.reconnects == 0


def test_only_junk_is_refused(federation: Federation, relay: RelayServer) -> None:
    junk = replace(relay.issue_ticket("company", "company"), token=b"j" * 100)
    session = federation.session(junk)
    with pytest.raises(TokenRefused):
        session.start()


def test_a_failing_diagnosis_is_told(
    federation: Federation, relay: RelayServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def diagnose(*_: object) -> None:
        raise UnicodeError("label too long")

    monkeypatch.setattr("isonomy.common.session.stream.diagnose", diagnose)
    # The thread's own end is loud; here only who waits for it matters.
    monkeypatch.setattr(threading, "excepthook", lambda args: None)
    ticket = replace(relay.issue_ticket("company", "company"), relay_address="127.0.0.1:1")
    with pytest.raises(IsonomyError, match="UnicodeError"):
        federation.session(ticket).start()


# --- Callers who hang up -------------------------------------------------------------------------


class _Session:
    renewed = 0

    def renew(self, ticket: Ticket) -> None:
        self.renewed += 1


def test_a_waiter_ends_when_its_caller_hangs_up(monkeypatch: pytest.MonkeyPatch) -> None:
    ticket = Ticket("127.0.0.1:1", "relay", b"t", b"p" * 32, "company", "acme", 5)
    request: Message = {"type": "session", "ticket": ticket.to_json().decode()}
    session, release = _Session(), threading.Event()

    def attend(_: Session) -> Message:
        release.wait(10)
        return {"answered": 3}

    attendance = Attendance(lambda _: session, attend)
    monkeypatch.setattr("isonomy.common.node.attendance.POLL_S", 0.02)
    monkeypatch.setattr("isonomy.common.node.attendance.caller_is_gone", lambda: True)
    for _ in range(3):  # the first opened it
        with pytest.raises(TransportError, match="hung up"):
            attendance.handle(request)
    monkeypatch.setattr("isonomy.common.node.attendance.caller_is_gone", lambda: False)
    threading.Timer(0.1, release.set).start()
    assert attendance.handle(request) == {"answered": 3}
    assert session.renewed == 3


# --- Streams and sizes ---------------------------------------------------------------------------


def silent_streams(
    federation: Federation, address: str, count: int
) -> tuple[threading.Event, list[Any]]:
    credentials = client_credentials(federation.tls("company"))
    channel = grpc.secure_channel(address, credentials, channel_options(RELAY_NAME))
    hold = threading.Event()

    def quiet() -> Iterator[bytes]:
        hold.wait(20)
        yield from ()

    return hold, [channel, *(channel.stream_stream(SERVICE_METHOD)(quiet()) for _ in range(count))]


def test_silent_streams_lock_nobody_else_out(federation: Federation, relay: RelayServer) -> None:
    hold, (channel, *calls) = silent_streams(federation, relay.address, relay_module.MAX_STREAMS)
    turned_away = relay_module.MAX_STREAMS - relay_module.MAX_STREAMS_OF_ONE
    assert until(lambda: sum(call.done() for call in calls) == turned_away)
    begun = time.monotonic()
    with federation.session(relay.issue_ticket("regulator", "regulator")) as session:
        assert session.reconnects == 0
        assert time.monotonic() - begun < relay_module.HANDSHAKE_S / 2
    hold.set()
    channel.close()


def test_a_stream_without_hello_ends_and_its_party_comes_in(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The party itself is turned away at first, because its places are taken, and tries again."""
    monkeypatch.setattr(relay_module, "HANDSHAKE_S", 1.0)
    with federation.relay() as relay:
        hold, (channel, *_) = silent_streams(federation, relay.address, 8)
        assert until(lambda: len(relay._streams) == relay_module.MAX_STREAMS_OF_ONE)
        begun = time.monotonic()
        with federation.session(relay.issue_ticket("company", "company")) as session:
            assert session.reconnects == 0
            assert time.monotonic() - begun > 0.3
        hold.set()
        channel.close()


def test_a_party_that_sends_no_sign_of_life_is_not_there(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection lives, and it does not read either: the others must not wait for it."""
    monkeypatch.setattr(relay_module, "SILENCE_S", 1.0)
    with federation.relay() as relay:
        ticket = relay.issue_ticket("company", "company")
        hello = Hello("company", ticket.token, bytes(32))
        credentials = client_credentials(federation.tls("company"))
        with (
            grpc.secure_channel(relay.address, credentials, channel_options(RELAY_NAME)) as channel,
            federation.session(relay.issue_ticket("regulator", "regulator")),
        ):
            hold = threading.Event()

            def quiet() -> Iterator[bytes]:
                yield dump(Envelope("company", SERVER, federation.plan.hash, hello))
                hold.wait(20)

            call = channel.stream_stream(SERVICE_METHOD)(quiet())
            assert until(lambda: "company" in relay.summary()["present"])
            assert until(lambda: relay.summary()["present"] == ["regulator"])
            assert relay.unattended_s == 0
            hold.set()
            call.cancel()
        assert until(lambda: relay.unattended_s > 0.2)


def test_a_full_queue_is_blamed_on_who_filled_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_module, "MAX_QUEUED_BYTES", 100)
    context = Mock(**{"auth_context.return_value": {}, "peer.return_value": "ipv4:127.0.0.1:1"})
    stream = relay_module._Stream(context)
    stream.put(bytes(101), "greedy")
    stream.put(b"1", "honest")
    with pytest.raises(OversizedMessage, match="more was sent than the window allows"):
        stream.put(b"2", "greedy")
    stream.put(b"3", "honest")
    stream.end()
    assert list(stream.drain(1.0)) == [bytes(101), b"1", b"3"]
    stream.put(b"4", "greedy")  # what was read makes room


class _Full(grpc.RpcError):
    def __init__(self, details: str) -> None:
        self._details = details

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.RESOURCE_EXHAUSTED

    def details(self) -> str:
        return self._details


def test_only_a_message_too_large_is_hopeless(federation: Federation, relay: RelayServer) -> None:
    session = federation.session(relay.issue_ticket("company", "company"))
    stream = RelayStream(session, federation.tls("company"), RELAY_NAME, FAST)
    assert stream._hopeless(_Full("Concurrent RPC limit exceeded!")) is None
    large = stream._hopeless(_Full("Received message larger than max (9 vs. 8)"))
    assert isinstance(large, OversizedMessage)


def test_a_peer_that_ignores_the_window(
    federation: Federation, relay: RelayServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "MAX_INBOX_BYTES", 10_000)
    with federation.session(relay.issue_ticket("regulator", "regulator")) as regulator:
        company = federation.session(relay.issue_ticket("company", "company"), timing=BRIEF).start()
        company.generation("regulator")
        for number in range(100):  # empty ones, too
            company.send("regulator", Parcel("", "query", "q", number, 0, True, b""))
        assert until(lambda: regulator._error is not None)
        assert isinstance(regulator._error, OversizedMessage)
        company.close()


def test_what_was_read_makes_room(
    federation: Federation, relay: RelayServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "MAX_INBOX_BYTES", 10_000)
    with (
        federation.session(relay.issue_ticket("regulator", "regulator")) as regulator,
        federation.session(relay.issue_ticket("company", "company")) as company,
    ):
        company.generation("regulator")
        for number in range(20):
            company.send("regulator", Parcel("", "query", "q", number, 0, True, b"x" * 5000))
            assert len(regulator.receive("company").payload) == 5000
        assert regulator._mailbox.inbox_bytes == {"company": 0}


def test_a_relay_is_not_advertised_as_a_file(federation: Federation) -> None:
    with pytest.raises(IsonomyError, match="host:port"):
        federation.relay(advertise="unix:/tmp/x")
