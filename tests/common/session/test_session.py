"""Sessions over real gRPC and TLS on loopback: who gets in, what ends a stream, what is told."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from authority_kit import authority
from session_kit import FAST, RELAY_NAME, CuttableProxy, Federation, people, raw_exchange, serving
from structlog.testing import CapturingLogger

from isonomy.common.agreements.plan import Plan
from isonomy.common.base.errors import (
    AdmissionRefused,
    BudgetExceeded,
    CertificateError,
    ConfigError,
    PlanMismatch,
    PortInUse,
    ProtocolError,
    SessionClosed,
    TokenRefused,
)
from isonomy.common.keys.certificates import TlsFiles, issue, renew
from isonomy.common.remote.exchanges import remote_oracle
from isonomy.common.session.connection import Session
from isonomy.common.session.sealed_links import Parcel
from isonomy.common.session.tickets import Ticket
from isonomy.common.wire.envelopes import (
    MAX_ENVELOPE_BYTES,
    Envelope,
    ErrorNote,
    Hello,
    HelloReply,
    dump,
    parse,
    parse_dual,
)
from isonomy.server.relay import relay as relay_module
from isonomy.server.relay.relay import RelayServer


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Federation:
    return Federation.create(tmp_path_factory.mktemp("federation"))


@pytest.fixture
def relay(federation: Federation):
    with federation.relay() as relay:
        yield relay


def tickets(relay: RelayServer) -> tuple[Ticket, Ticket]:
    return relay.issue_ticket("company", "company"), relay.issue_ticket("regulator", "regulator")


# --- What it is for -------------------------------------------------------------------------------


def test_queries_through_the_relay(federation: Federation, relay: RelayServer) -> None:
    mine, theirs = tickets(relay)
    rows = federation.rows()
    with serving(federation, theirs), federation.session(mine) as session:
        oracle = remote_oracle(session, federation.cohort)
        release = oracle.blind_sum(rows, norm=2.0, share=0.05)
        assert release.values.shape == (2, 3)
        assert release.deviation.shape == (2,)
        total = release.values.sum(axis=0)
        clipped = rows * np.minimum(1, 2.0 / np.linalg.norm(rows, axis=1))[:, None]
        np.testing.assert_allclose(total, clipped.sum(axis=0), atol=1e-3)
        with pytest.raises(BudgetExceeded):
            oracle.counts(share=1.0)
        assert oracle.counts(share=0.05).receipt.sequence > release.receipt.sequence
    deadline = time.monotonic() + 5
    while not relay.closed() and time.monotonic() < deadline:
        time.sleep(0.01)
    summary = relay.summary()
    assert summary["closed"] == {"company": "done"}
    assert set(summary["by_purpose"]) == {"query", "columns", "sum", "answer", "close"}


def test_refusal_of_the_regulator_reaches_the_company(
    federation: Federation, relay: RelayServer
) -> None:
    mine, theirs = tickets(relay)
    with serving(federation, theirs), federation.session(mine) as session:
        oracle = remote_oracle(session, federation.cohort)
        oracle.groups["sex"] = ("f", "m", "x")  # the company believes in another group
        with pytest.raises(ProtocolError):
            oracle.counts(share=0.01)


def test_large_frames_and_multipliers(federation: Federation, relay: RelayServer) -> None:
    mine, theirs = tickets(relay)
    with federation.session(mine) as company, federation.session(theirs) as regulator:
        payload = os.urandom(5 << 20)
        company.send("regulator", Parcel("", "opening", "q", 1, 0, True, payload))
        assert regulator.receive("company").payload == payload
        regulator.send_dual("company", "q", 3, (0.1, -2.0))
        frame = company.receive("regulator")
        assert frame.purpose == "dual"
        assert parse_dual(frame.payload) == (3, (0.1, -2.0))


def test_a_large_frame_shows_how_fast_the_link_is(
    federation: Federation, relay: RelayServer
) -> None:
    mine, theirs = tickets(relay)
    proxy = CuttableProxy(relay.address)
    slow = replace(mine, relay_address=proxy.address)
    with federation.session(slow) as company, federation.session(theirs) as regulator:
        company.generation("regulator")
        proxy.megabits = 10.0  # what is sent next takes .2 s and more
        for size in (1000, 1 << 18):
            parcel = Parcel("", "opening", "q", 1, 0, True, bytes(size))
            company.send("regulator", parcel)
            regulator.receive("company")
            until = time.monotonic() + (5 if size > 1000 else 0.3)
            while time.monotonic() < until and not company.megabits:
                time.sleep(0.01)
            assert (company.megabits > 0) == (size > 1000)
        proxy.megabits = 0.0
    assert company.megabits < 10.5  # never above: a busy machine can only be slower
    proxy.close()


def test_more_than_the_window(federation: Federation, relay: RelayServer) -> None:
    """The sender waits for the receiver, and neither loses anything."""
    mine, theirs = tickets(relay)
    with federation.session(mine) as company, federation.session(theirs) as regulator:
        company.generation("regulator")

        def stream() -> None:
            for index in range(60):
                payload = bytes([index]) * (1 << 20)
                regulator.send(
                    "company", Parcel("", "columns", "q", 1, index, index == 59, payload)
                )

        sender = threading.Thread(target=stream)
        sender.start()
        time.sleep(0.3)
        found = [company.receive("regulator") for _ in range(60)]
        sender.join(10)
        assert [frame.payload[0] for frame in found] == list(range(60))


def test_one_leg_of_two_megabytes(federation: Federation, relay: RelayServer) -> None:
    """The target is a median below 20 ms; here only that nothing waits for a timer (`bench`)."""
    mine, theirs = tickets(relay)
    with federation.session(mine) as company, federation.session(theirs) as regulator:
        payload = os.urandom(2 << 20)
        legs = []
        for number in range(9):
            begun = time.perf_counter()
            company.send("regulator", Parcel("", "query", "q", number, 0, True, payload))
            regulator.receive("company")
            legs.append(time.perf_counter() - begun)
        assert statistics.median(legs) < FAST.heartbeat_s


def test_server_needs_no_encryption_library() -> None:
    program = (
        "import sys, isonomy.server.relay.relay, isonomy.common.session; "
        "sys.exit('tenseal' in sys.modules or 'torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


# --- Who does not get in --------------------------------------------------------------------------


def outsider(federation: Federation, name: str, folder: Path) -> TlsFiles:
    return issue(authority(folder / "ca"), folder / "tls", name, name)


def test_certificate_of_another_authority(
    federation: Federation, relay: RelayServer, tmp_path: Path
) -> None:
    mine, _ = tickets(relay)
    foreign = outsider(federation, "company", tmp_path)
    trusting = TlsFiles(federation.tls("company").ca, foreign.cert, foreign.key)
    with pytest.raises(CertificateError, match="refused our certificate"):
        Session(mine, trusting, federation.keys("company"), federation.plan, timing=FAST).start()


def test_relay_of_another_authority(
    federation: Federation, relay: RelayServer, tmp_path: Path
) -> None:
    mine, _ = tickets(relay)
    foreign = outsider(federation, "company", tmp_path)
    with pytest.raises(CertificateError, match="does not show a certificate"):
        Session(mine, foreign, federation.keys("company"), federation.plan, timing=FAST).start()


def test_missing_certificate(federation: Federation, relay: RelayServer, tmp_path: Path) -> None:
    mine, _ = tickets(relay)
    nothing = TlsFiles.of(tmp_path)
    with pytest.raises(CertificateError, match="cannot read"):
        Session(mine, nothing, federation.keys("company"), federation.plan, timing=FAST).start()


def test_certificate_of_the_other_party(federation: Federation, relay: RelayServer) -> None:
    mine, _ = tickets(relay)
    keys, tls = federation.keys("company"), federation.tls("regulator")
    with pytest.raises(AdmissionRefused, match="belongs to 'regulator'"):
        Session(mine, tls, keys, federation.plan, timing=FAST).start()


def test_certificate_of_the_partys_node(
    federation: Federation, relay: RelayServer, tmp_path: Path
) -> None:
    """The node sees the ticket, so its certificate must not open the relay."""
    mine, _ = tickets(relay)
    tls = issue(authority(federation.folder / "ca"), tmp_path / "node", "company", "node")
    with pytest.raises(AdmissionRefused, match="not to 'company'"):
        Session(mine, tls, federation.keys("company"), federation.plan, timing=FAST).start()


def test_expired_token(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_module, "TICKET_LIFE_S", -5)
    with federation.relay() as relay:
        mine, _ = tickets(relay)
        with pytest.raises(TokenRefused, match="expired"):
            federation.session(mine).start()


def test_used_token(federation: Federation, relay: RelayServer) -> None:
    mine, _ = tickets(relay)
    with federation.session(mine):
        pass
    thief = Session(
        mine, federation.tls("company"), federation.keys("company"), federation.plan, timing=FAST
    )
    with pytest.raises(TokenRefused, match="used before"):
        thief.start()
    with federation.session(mine) as again:  # the owner, who kept the secret
        assert again.reconnects == 0


def test_used_token_stays_used_after_a_restart(federation: Federation) -> None:
    with federation.relay() as relay:
        mine, _ = tickets(relay)
        with federation.session(mine):
            pass
    with federation.relay(relay.address) as relay:
        thief = federation.session(mine, state=False)
        with pytest.raises(TokenRefused, match="used before"):
            thief.start()


def test_token_of_a_foreign_relay(
    federation: Federation, relay: RelayServer, tmp_path: Path
) -> None:
    """Same plan, same signing key, another TLS key: somebody moved the ticket."""
    ca = authority(federation.folder / "ca")
    issue(ca, tmp_path / "tls", "server", "server", [RELAY_NAME])
    mine, _ = tickets(relay)
    other = RelayServer(
        "127.0.0.1:0",
        TlsFiles.of(tmp_path / "tls"),
        federation.plan.public(),
        relay._token_key,
        tmp_path / "state",
    )
    with other:
        moved = replace(mine, relay_address=other.address)
        with pytest.raises(TokenRefused, match="another relay"):
            federation.session(moved, state=False).start()


def test_token_outlives_a_renewed_certificate(federation: Federation, relay: RelayServer) -> None:
    mine, _ = tickets(relay)
    relay.stop()
    renew(authority(federation.folder / "ca"), federation.folder / "server" / "tls")
    with federation.relay(relay.address), federation.session(mine) as session:
        assert session.reconnects == 0


def test_second_process_of_one_party(federation: Federation, relay: RelayServer) -> None:
    mine, _ = tickets(relay)
    first = federation.session(mine).start()
    with federation.session(mine):
        with pytest.raises(AdmissionRefused, match="another process of this party"):
            first.receive("regulator")
        first.close()


def test_ticket_for_another_plan_or_party(federation: Federation, relay: RelayServer) -> None:
    mine, theirs = tickets(relay)
    with pytest.raises(PlanMismatch):
        federation.session(replace(mine, plan_hash=bytes(32)))
    keys, tls = federation.keys("company"), federation.tls("company")
    with pytest.raises(ConfigError, match="not for 'company'"):
        Session(theirs, tls, keys, federation.plan)
    with pytest.raises(ConfigError, match="no regulator called"):
        relay.issue_ticket("regulator", "company")


def test_other_plan_at_the_relay(federation: Federation, relay: RelayServer) -> None:
    mine, _ = tickets(relay)
    other = Plan.of({**federation.plan.model_dump(mode="json"), "name": "another"})
    moved = replace(mine, plan_hash=other.hash)
    keys, tls = federation.keys("company"), federation.tls("company")
    with pytest.raises(PlanMismatch, match="this session runs plan"):
        Session(moved, tls, keys, other, timing=FAST).start()


def test_other_people_than_the_plan_binds(federation: Federation, relay: RelayServer) -> None:
    mine, _ = tickets(relay)
    with federation.session(mine) as session, pytest.raises(ConfigError, match="not the cohort"):
        remote_oracle(session, people(63))


def test_port_in_use(federation: Federation, relay: RelayServer) -> None:
    with pytest.raises(PortInUse, match="choose another port"):
        federation.relay(relay.address).start()


# --- What ends a stream ---------------------------------------------------------------------------


def hello(federation: Federation, ticket: Ticket) -> bytes:
    body = Hello(ticket.role, ticket.token, os.urandom(32))
    return dump(Envelope(ticket.party, "server", federation.plan.hash, body))


def note(replies: list[Envelope]) -> ErrorNote:
    body = replies[-1].body
    assert isinstance(body, ErrorNote)
    assert body.fatal
    return body


def test_wrong_protocol_version(federation: Federation, relay: RelayServer) -> None:
    mine, _ = tickets(relay)
    body = Hello(mine.role, mine.token, os.urandom(32), protocol=99)
    raw = dump(Envelope("company", "server", federation.plan.hash, body))
    told = note(raw_exchange(federation, "company", relay.address, [raw]))
    assert told.code == "VersionMismatch"
    assert "protocol 99" in told.text
    assert "install matching versions" in told.text


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("TruncatedMessage", b"\x0a\xff\xff"),
        ("TruncatedMessage", b""),
        ("OversizedMessage", bytes(MAX_ENVELOPE_BYTES + 1)),
    ],
    ids=["truncated", "empty", "oversized"],
)
def test_bad_bytes(federation: Federation, relay: RelayServer, code: str, message: bytes) -> None:
    mine, _ = tickets(relay)
    messages = [hello(federation, mine), message]
    replies = raw_exchange(federation, "company", relay.address, messages)
    assert isinstance(replies[0].body, HelloReply)
    assert note(replies).code == code


def test_data_before_hello_and_hello_twice(federation: Federation, relay: RelayServer) -> None:
    mine, _ = tickets(relay)
    first = hello(federation, mine)
    replies = raw_exchange(federation, "company", relay.address, [first, first])
    assert note(replies).code in ("OrderViolation", "ProtocolError")
    beat = dump(replace(parse(first), body=ErrorNote("x", "y")))
    assert note(raw_exchange(federation, "company", relay.address, [beat])).code == "OrderViolation"


def test_others_are_told_that_a_party_was_cut_off(
    federation: Federation, relay: RelayServer
) -> None:
    mine, theirs = tickets(relay)
    log = CapturingLogger()
    with federation.session(theirs, log=log):
        raw_exchange(federation, "company", relay.address, [hello(federation, mine), b"\xff"])
        deadline = time.monotonic() + 3
        while len(log.calls) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
    assert log.calls[0].args == ("session connected",)
    assert log.calls[1].method_name == "warning"
    text = log.calls[1].kwargs["text"]
    assert text.startswith("the relay ended company's stream: a message could not be parsed")


def test_tampering_on_the_way_ends_the_session(
    federation: Federation, relay: RelayServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relay that drops a message is found out: the next one has the wrong number."""
    mine, theirs = tickets(relay)
    with federation.session(mine) as company, federation.session(theirs) as regulator:
        company.generation("regulator")
        original, dropped = relay._state.pass_on, []

        def pass_on(stream, envelope, raw):
            outgoing = original(stream, envelope, raw)
            if envelope.sequence == 1 and not dropped:
                dropped.append(raw)
                return None
            return outgoing

        monkeypatch.setattr(relay._state, "pass_on", pass_on)
        for number in range(2):
            company.send("regulator", Parcel("", "query", "q", number, 0, True, b"x"))
        with pytest.raises(ProtocolError, match="expected message 1"):
            regulator.receive("company")


def test_closed_session(federation: Federation, relay: RelayServer) -> None:
    mine, theirs = tickets(relay)
    with federation.session(theirs) as regulator:
        with federation.session(mine) as company:
            company.generation("regulator")
        with pytest.raises(SessionClosed, match="company ended the session: done"):
            regulator.receive("company")
    with pytest.raises(SessionClosed, match="on this side"):
        company.receive("regulator")


def test_new_ticket_while_running(federation: Federation) -> None:
    """The relay moved: a party goes on with the new ticket, in the same process."""
    with federation.relay() as first:
        mine, _ = tickets(first)
        session = federation.session(mine).start()
    with federation.relay() as second, session:
        fresh, theirs = tickets(second)
        session.renew(fresh)
        with federation.session(theirs):
            assert session.generation("regulator") == 1
            assert session.reconnects == 1
