"""The relay's rules, (1) to (9), one by one, without a network."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from session_kit import plan_fields

from isonomy.common.agreements.plan import Plan
from isonomy.common.base.canonical import canonical_json
from isonomy.common.base.errors import (
    ConfigError,
    OrderViolation,
    PlanMismatch,
    ProtocolError,
    RoleRefused,
    TokenRefused,
    TruncatedMessage,
)
from isonomy.common.crypto.params import DEFAULT_PARAMETERS, add_answers, split_total
from isonomy.common.keys.identity import Identity
from isonomy.common.keys.party import PartyKeys
from isonomy.common.session.sealed_links import Parcel, Peer
from isonomy.common.session.tickets import sign_token
from isonomy.common.wire.envelopes import (
    SEQUENCED,
    Close,
    Data,
    Envelope,
    Heartbeat,
    Hello,
    HelloReply,
    dump,
    parse,
)
from isonomy.common.wire.messages import SumHeader, SumPart, decode, encode
from isonomy.server.relay._state import Checkpoint, RelayState

KEYS = {
    "company": PartyKeys.generate("company", "company"),
    "second": PartyKeys.generate("second", "company"),
    "regulator": PartyKeys.generate("regulator", "regulator"),
}
TOKEN_KEY = Identity.generate()
RELAY_KEY = b"k" * 32
NOW = 1_000_000


def make_plan(*companies: str) -> Plan:
    share = {"people": 50, "cohort_root": "aa" * 32}
    return Plan.of(
        {
            **plan_fields(),
            "companies": [KEYS[name].card() for name in companies],
            "regulator": KEYS["regulator"].card(),
            "cohort_root": "ab" * 32,
            "cohort_size": 100,
            "shares": [share, share] if len(companies) > 1 else [],
        }
    )


PLAN = make_plan("company")
JOINT = make_plan("company", "second")


def token(name: str, plan: Plan = PLAN, **changes: object) -> bytes:
    claims = {
        "plan_hash": plan.hash,
        "role": KEYS[name].role,
        "party": name,
        "relay_key": RELAY_KEY,
        "expires": NOW + 60,
        **changes,
    }
    return sign_token(TOKEN_KEY, **claims)  # type: ignore[arg-type]


class Bench:
    """A relay's state with parties on numbered streams."""

    def __init__(self, plan: Plan = PLAN) -> None:
        self.plan = plan
        self.state = RelayState(plan.public(), TOKEN_KEY.public, RELAY_KEY)
        self.stream = 0
        self.hellos: dict[str, Hello] = {}
        self.at: dict[str, int] = {}
        self.peers: dict[tuple[str, str], Peer] = {}

    def hello(self, party: str, own: bytes | None = None, **changes: object) -> Envelope:
        body = Hello(KEYS[party].role, own or token(party, self.plan), os.urandom(32))
        return replace(Envelope(party, "server", self.plan.hash, body), **changes)  # type: ignore

    def join(self, party: str) -> HelloReply:
        """In with the party's token, or again with its secret."""
        self.stream += 1
        hello = self.hello(party)
        body = self.hellos.setdefault(party, hello.body)  # type: ignore[arg-type]
        raw = self.state.admit(self.stream, replace(hello, body=body), party, NOW)
        self.at[party] = self.stream
        reply = parse(raw).body
        assert isinstance(reply, HelloReply)
        return reply

    def link(self, one: str, other: str) -> None:
        """Both parties agree through the relay."""
        for own, peer in ((one, other), (other, one)):
            fresh = X25519PrivateKey.generate()
            summing = len(self.plan.companies) > 1
            self.peers[own, peer] = Peer(
                KEYS[own], fresh, KEYS[peer].card(), self.plan.hash, summing=summing
            )
        asked = dump(self.peers[one, other].agreement(reply_wanted=True))
        (passed,) = self.send(one, asked)
        reply = self.peers[other, one].on_agreement(parse(passed), parse(passed).body)  # type: ignore
        (back,) = self.send(other, reply[0])
        self.peers[one, other].on_agreement(parse(back), parse(back).body)  # type: ignore[arg-type]

    def send(self, party: str, raw: bytes) -> list[bytes]:
        envelope = parse(raw)
        passed = self.state.pass_on(self.at[party], envelope, raw)
        if passed and isinstance(envelope.body, SEQUENCED):
            self.state.note(envelope, len(raw))
        return [] if passed is None else [passed.raw]

    def pack(self, one: str, other: str, payload: bytes, purpose: str = "query") -> bytes:
        frame = Parcel("", purpose, "q", 1, 0, True, payload)  # type: ignore[arg-type]
        return self.peers[one, other].pack_chunk(frame, 0)


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    bench.join("company")
    bench.join("regulator")
    bench.link("company", "regulator")
    return bench


class TestAdmission:
    def refused(
        self, error: type[Exception], hello: Envelope, name: str, *, now: int = NOW
    ) -> None:
        bench = Bench()
        with pytest.raises(error):
            bench.state.admit(1, hello, name, now)
        assert bench.state.present() == ()

    def test_first_message_must_be_hello(self) -> None:
        beat = Envelope("company", "server", PLAN.hash, Heartbeat())
        self.refused(OrderViolation, beat, "company")

    def test_other_plan(self) -> None:
        self.refused(PlanMismatch, Bench().hello("company", plan=b"x" * 32), "company")

    def test_unknown_party_wrong_role_wrong_certificate(self) -> None:
        bench = Bench()
        self.refused(RoleRefused, bench.hello("company", sender="nobody"), "nobody")
        body = Hello("regulator", token("company"), bytes(32))
        self.refused(RoleRefused, bench.hello("company", body=body), "company")
        self.refused(RoleRefused, bench.hello("company"), "regulator")
        self.refused(RoleRefused, bench.hello("company"), "")

    @pytest.mark.parametrize(
        "changes",
        [
            {"plan_hash": b"x" * 32},
            {"role": "regulator"},
            {"party": "regulator"},
            {"relay_key": b"x" * 32},
            {"expires": NOW - 1},
        ],
        ids=str,
    )
    def test_token_for_something_else(self, changes: dict[str, object]) -> None:
        hello = Bench().hello("company", token("company", **changes))
        self.refused(TokenRefused, hello, "company")

    def test_forged_token(self) -> None:
        real = token("company")
        forged = bytes([real[0] ^ 1]) + real[1:]
        for bad in (forged, b"x", b"y" * 300, real[:64] + canonical_json({"party": "company"})):
            self.refused(TokenRefused, Bench().hello("company", bad), "company")

    def test_token_opens_one_session(self) -> None:
        bench = Bench()
        used = token("company")
        bench.state.admit(1, bench.hello("company", used), "company", NOW)
        thief = bench.hello("company", used)  # the token, but not the secret
        with pytest.raises(TokenRefused, match="used before"):
            bench.state.admit(2, thief, "company", NOW)
        assert bench.state.stream_of("company") == 1

    def test_holder_of_the_secret_comes_back_even_late(self) -> None:
        bench = Bench()
        hello = bench.hello("company")
        bench.state.admit(1, hello, "company", NOW)
        bench.state.admit(2, hello, "company", NOW + 10**6)
        assert bench.state.stream_of("company") == 2
        bench.state.leave(1)  # the old stream's end changes nothing
        assert bench.state.stream_of("company") == 2

    def test_new_ticket_replaces_the_old_one(self) -> None:
        bench = Bench()
        old = bench.hello("company")
        bench.state.admit(1, old, "company", NOW)
        bench.state.admit(2, bench.hello("company"), "company", NOW)
        with pytest.raises(TokenRefused, match="used before"):
            bench.state.admit(3, old, "company", NOW)

    def test_who_is_here(self) -> None:
        bench = Bench()
        assert bench.join("company").present == ()
        assert bench.join("regulator").present == ("company",)


class TestPassing:
    def test_bytes_pass_unchanged(self, bench: Bench) -> None:
        raw = bench.pack("company", "regulator", b"payload")
        assert bench.send("company", raw) == [raw]
        assert bench.state.passed.envelopes == 1

    def test_foreign_sender_or_recipient(self, bench: Bench) -> None:
        envelope = parse(bench.pack("company", "regulator", b"payload"))
        for changes in ({"sender": "regulator"}, {"recipient": "nobody"}, {"recipient": "company"}):
            with pytest.raises(ProtocolError):
                bench.send("company", dump(replace(envelope, **changes)))  # type: ignore[arg-type]
        with pytest.raises(PlanMismatch):
            bench.send("company", dump(replace(envelope, plan=b"x" * 32)))
        with pytest.raises(OrderViolation):
            bench.send("company", dump(bench.hello("company", recipient="regulator")))

    def test_replayed_and_left_out(self, bench: Bench) -> None:
        first, second, third = (bench.pack("company", "regulator", b"x") for _ in range(3))
        bench.send("company", first)
        with pytest.raises(OrderViolation, match="expected message 2"):
            bench.send("company", first)
        with pytest.raises(OrderViolation, match="expected message 2"):
            bench.send("company", third)
        assert bench.send("company", second) == [second]

    def test_data_before_agreement(self, bench: Bench) -> None:
        raw = bench.pack("company", "regulator", b"x")
        bench.join("company")
        with pytest.raises(OrderViolation, match="before the plan was agreed"):
            bench.send("company", raw)

    def test_absent_recipient(self, bench: Bench) -> None:
        bench.state.leave(bench.at["regulator"])
        assert bench.send("company", bench.pack("company", "regulator", b"x")) == []
        assert bench.state.passed.envelopes == 0, "what did not pass is not in the chain"

    def test_recipient_with_a_newer_stream_hears_an_agreement_first(self, bench: Bench) -> None:
        """Otherwise it would see a gap where messages were lost with its old stream."""
        first, second = (bench.pack("company", "regulator", b"x") for _ in range(2))
        bench.send("company", first)
        bench.join("regulator")
        assert bench.send("company", second) == []
        agreement = dump(bench.peers["company", "regulator"].agreement(reply_wanted=False))
        assert bench.send("company", agreement) == [agreement]
        assert bench.send("company", first) == [first], (
            "after it, the sender may begin further back"
        )
        assert bench.send("company", second) == [second]

    def test_old_stream_is_not_heard(self, bench: Bench) -> None:
        old = bench.at["company"]
        bench.join("company")
        raw = bench.pack("company", "regulator", b"x")
        assert bench.state.pass_on(old, parse(raw), raw) is None

    def test_heartbeat_is_answered(self, bench: Bench) -> None:
        (raw,) = bench.send("company", dump(Envelope("company", "server", PLAN.hash, Heartbeat())))
        assert parse(raw).body == Heartbeat(("company", "regulator"))

    def test_unsigned_sum(self, bench: Bench) -> None:
        envelope = parse(bench.pack("company", "regulator", b"x", "sum"))
        body = replace(envelope.body, signature=bytes(64))  # type: ignore[type-var]
        with pytest.raises(ProtocolError, match="not signed"):
            bench.send("company", dump(replace(envelope, body=body)))

    def test_truncated_sum(self, bench: Bench) -> None:
        envelope = parse(bench.pack("company", "regulator", b"xyz", "sum"))
        body = replace(envelope.body, payload=b"xy")  # type: ignore[type-var]
        with pytest.raises(TruncatedMessage):
            bench.send("company", dump(replace(envelope, body=body)))

    def test_close_is_noted(self, bench: Bench) -> None:
        raw = bench.peers["company", "regulator"].pack_close("done", "")
        assert isinstance(parse(raw).body, Close)
        assert bench.send("company", raw) == [raw]
        assert bench.state.closed == {"company": "done"}


class TestChain:
    def test_says_what_passed_in_which_order(self) -> None:
        heads = []
        for order in ((b"1", b"2"), (b"2", b"1"), (b"1",)):
            bench = Bench()
            bench.join("company")
            bench.join("regulator")
            bench.link("company", "regulator")
            for payload in order:
                bench.send("company", bench.pack("company", "regulator", payload))
            heads.append(bench.state.passed.head)
        assert len(set(heads)) == 3

    def test_checkpoint_goes_on(self, bench: Bench) -> None:
        bench.send("company", bench.pack("company", "regulator", b"x"))
        saved = Checkpoint.from_json(bench.state.checkpoint().to_json())
        again = RelayState(PLAN.public(), TOKEN_KEY.public, RELAY_KEY)
        again.restore(saved)
        assert again.checkpoint() == bench.state.checkpoint()
        hello = bench.hello("company", body=bench.hellos["company"])
        again.admit(1, hello, "company", NOW + 10**6)  # its secret is still good
        thief = replace(bench.hellos["company"], resume_secret=bytes(32))
        with pytest.raises(TokenRefused):
            again.admit(2, bench.hello("company", body=thief), "company", NOW)

    def test_a_damaged_checkpoint_is_refused_by_name(self, bench: Bench) -> None:
        bench.send("company", bench.pack("company", "regulator", b"x"))
        whole = json.loads(bench.state.checkpoint().to_json())
        damages: list[dict[str, object]] = [{}]
        for key, value in whole.items():
            damages.append({name: whole[name] for name in whole if name != key})
            for junk in (None, True, -1, "x", "ab", [], [1], {}, {"a": 1}, {"a": []}):
                damages.append({**whole, key: junk})
                if isinstance(value, dict):
                    damages.append({**whole, key: {**value, "company": junk}})
        for damage in damages:
            with suppress(ConfigError, PlanMismatch):  # nothing but these two
                again = RelayState(PLAN.public(), TOKEN_KEY.public, RELAY_KEY)
                again.restore(Checkpoint.from_json(canonical_json(damage)))
                again.checkpoint().to_json()

    def test_checkpoint_of_another_plan(self, bench: Bench) -> None:
        with pytest.raises(PlanMismatch):
            RelayState(JOINT.public(), TOKEN_KEY.public, RELAY_KEY).restore(
                bench.state.checkpoint()
            )


class TestSums:
    """(9): several companies' ciphertexts are added; the regulator sees one sum and every hash."""

    @pytest.fixture
    def joint(self) -> Bench:
        bench = Bench(JOINT)
        for party in ("company", "second", "regulator"):
            bench.join(party)
        for company in ("company", "second"):
            bench.link(company, "regulator")
        return bench

    @staticmethod
    def header(attempt: bytes = b"a" * 16) -> bytes:
        zero = bytes(32)
        return encode(SumHeader("q", attempt, zero, zero, zero, zero, 1))

    @staticmethod
    def part(value: int) -> bytes:
        word = value.to_bytes(8, "little")
        return word * (DEFAULT_PARAMETERS.answer_bytes // 8)

    def send_sum(self, bench: Bench, company: str, value: int, attempt: bytes = b"a" * 16) -> Data:
        bench.send(company, bench.pack(company, "regulator", self.header(attempt), "sum"))
        frame = encode(SumPart(0, self.part(value)))
        (raw,) = bench.send(company, bench.pack(company, "regulator", frame, "sum"))
        body = parse(raw).body
        assert isinstance(body, Data)
        return body

    def test_last_company_carries_the_total(self, joint: Bench) -> None:
        first = self.send_sum(joint, "company", 5)
        assert (first.summed, first.payload, first.total) == (True, b"", b"")
        last = self.send_sum(joint, "second", 7)
        added, frame = split_total(last.total, 2)
        assert added == (first.digest, last.digest)
        total = decode(frame, SumPart).ciphertext
        assert total == self.part(12)
        assert total == add_answers(DEFAULT_PARAMETERS, [self.part(5), self.part(7)])

    def test_hash_and_signature_stay(self, joint: Bench) -> None:
        joint.send("company", joint.pack("company", "regulator", self.header(), "sum"))
        raw = joint.pack("company", "regulator", encode(SumPart(0, self.part(5))), "sum")
        (passed,) = joint.send("company", raw)
        before, after = parse(raw).body, parse(passed).body
        assert isinstance(before, Data)
        assert after == replace(before, payload=b"", summed=True)
        peer = joint.peers["regulator", "company"]
        peer._last_received = 1  # the header
        parcel = peer.on_sequenced(parse(passed), 1)
        assert parcel is not None
        assert parcel.digest == before.digest

    def test_attempts_are_not_mixed(self, joint: Bench) -> None:
        self.send_sum(joint, "company", 5, b"a" * 16)
        assert self.send_sum(joint, "second", 7, b"b" * 16).total == b""
        _, total = split_total(self.send_sum(joint, "company", 6, b"b" * 16).total, 2)
        assert total == encode(SumPart(0, self.part(13)))

    def test_total_is_there_when_asked_for_again(self, joint: Bench) -> None:
        self.send_sum(joint, "company", 5)
        first = self.send_sum(joint, "second", 7)
        assert self.send_sum(joint, "second", 7).total == first.total != b""

    def test_not_a_sum(self, joint: Bench) -> None:
        with pytest.raises(ProtocolError):
            joint.send("company", joint.pack("company", "regulator", b"junk", "sum"))

    def test_residue_above_q0(self, joint: Bench) -> None:
        self.send_sum(joint, "company", 5)
        with pytest.raises(ProtocolError, match="q0"):
            self.send_sum(joint, "second", 2**61)
