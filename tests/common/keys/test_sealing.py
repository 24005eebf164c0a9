"""What the relay, an outsider and a thief can do with sealed messages: nothing.

Each test names a guarantee of sealed_links.py or boxes.py.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from isonomy.common.base.errors import (
    IsonomyError,
    OrderViolation,
    OversizedMessage,
    PlanMismatch,
    ProtocolError,
    TruncatedMessage,
    VerificationError,
)
from isonomy.common.keys.boxes import open_box, seal_to
from isonomy.common.keys.party import PartyKeys
from isonomy.common.session.sealed_links import Parcel, Peer, derive_link
from isonomy.common.wire.envelopes import (
    CHUNK_BYTES,
    Data,
    PlanAgreement,
    dump,
    parse,
    payload_digest,
)

PLAN = b"p" * 32
COMPANY = PartyKeys.generate("company", "company")
REGULATOR = PartyKeys.generate("regulator", "regulator")
THIEF = PartyKeys.generate("regulator", "regulator")


def peer(own: PartyKeys, other: PartyKeys, plan: bytes = PLAN) -> Peer:
    return Peer(own, X25519PrivateKey.generate(), other.card(), plan, summing=False)


def agree(one: Peer, other: Peer) -> None:
    """`one`'s stream is new."""
    asked = one.agreement(reply_wanted=True)
    assert isinstance(asked.body, PlanAgreement)
    reply = parse(other.on_agreement(asked, asked.body)[0])
    assert isinstance(reply.body, PlanAgreement)
    one.on_agreement(reply, reply.body)


def linked() -> tuple[Peer, Peer]:
    company, regulator = peer(COMPANY, REGULATOR), peer(REGULATOR, COMPANY)
    agree(company, regulator)
    return company, regulator


def frame(payload: bytes, purpose: str = "query") -> Parcel:
    return Parcel("", purpose, "q", 1, 0, True, payload)  # type: ignore[arg-type]


def pack(sender: Peer, payload: bytes, purpose: str = "query") -> list[bytes]:
    own = frame(payload, purpose)
    chunks = max(1, -(-len(payload) // CHUNK_BYTES))
    return [sender.pack_chunk(own, chunk, chunks) for chunk in range(chunks)]


def take(receiver: Peer, raw: bytes) -> Parcel | None:
    return receiver.on_sequenced(parse(raw), len(raw))


def changed(raw: bytes, **changes: object) -> bytes:
    """The message as a tampering relay would pass it on, with a hash that fits."""
    envelope = parse(raw)
    data = {key: changes.pop(key) for key in list(changes) if hasattr(envelope.body, key)}
    return dump(replace(envelope, body=replace(envelope.body, **data), **changes))  # type: ignore


class TestSealed:
    @settings(max_examples=20, deadline=None)
    @given(st.binary(max_size=100), st.sampled_from(["query", "columns", "answer", "sum"]))
    def test_arrives_whole(self, payload: bytes, purpose: str) -> None:
        company, regulator = linked()
        (raw,) = pack(company, payload, purpose)
        found = take(regulator, raw)
        assert found is not None
        assert (found.payload, found.purpose, found.sender) == (payload, purpose, "company")

    def test_large_frames_travel_in_chunks(self) -> None:
        company, regulator = linked()
        payload = bytes(range(256)) * 5000
        raws = pack(company, payload)
        assert len(raws) == 3
        found = [take(regulator, raw) for raw in raws]
        assert found[:2] == [None, None]
        assert found[2] is not None
        assert found[2].payload == payload

    def test_relay_reads_nothing_but_sums(self) -> None:
        company, _ = linked()
        secret = b"somebody's attribute" * 3
        assert secret not in pack(company, secret, "query")[0]
        assert secret in pack(company, secret, "sum")[0]  # an encrypted sum, which the relay adds

    @pytest.mark.parametrize(
        "change",
        [
            {"query_id": "other"},
            {"purpose": "columns"},
            {"exchange": 2},
            {"frame": 1},
            {"last": False},
            {"chunks": 2},
        ],
        ids=str,
    )
    @pytest.mark.parametrize("purpose", ["query", "sum"])
    def test_opens_only_in_its_own_place(self, change: dict[str, object], purpose: str) -> None:
        company, regulator = linked()
        (raw,) = pack(company, b"payload", purpose)
        with pytest.raises(IsonomyError):
            take(regulator, changed(raw, **change))
        assert take(regulator, raw) is not None, "a message that does not open was not received"

    def test_changed_payload(self) -> None:
        company, regulator = linked()
        (raw,) = pack(company, b"payload")
        body = parse(raw).body
        assert isinstance(body, Data)
        other = bytes(len(body.payload))
        with pytest.raises(VerificationError):
            take(regulator, changed(raw, payload=other))

    def test_changed_sum(self) -> None:
        company, regulator = linked()
        (raw,) = pack(company, b"payload", "sum")
        with pytest.raises(TruncatedMessage, match="hash"):
            parse(raw.replace(b"payload", b"another"))
        forged = changed(raw, payload=b"another", digest=payload_digest(b"another"))
        with pytest.raises(VerificationError):
            take(regulator, forged)
        with pytest.raises(ProtocolError, match="must carry its hash"):
            take(regulator, changed(raw, payload=b"another", digest=b""))

    def test_unsigned_sum(self) -> None:
        company, regulator = linked()
        (raw,) = pack(company, b"payload", "sum")
        with pytest.raises(VerificationError):
            take(regulator, changed(raw, signature=bytes(64)))

    def test_relay_may_not_sum_in_a_plan_of_one_company(self) -> None:
        company, regulator = linked()
        (raw,) = pack(company, b"payload", "sum")
        with pytest.raises(ProtocolError):
            take(regulator, changed(raw, summed=True, payload=b"", total=b"forged"))

    def test_directions_have_their_own_keys(self) -> None:
        a, b = X25519PrivateKey.generate(), X25519PrivateKey.generate()
        public = [key.public_key().public_bytes_raw() for key in (a, b)]
        one = derive_link(COMPANY, a, REGULATOR.card(), public[1], PLAN)
        two = derive_link(REGULATOR, b, COMPANY.card(), public[0], PLAN)
        assert one.link == two.link
        sealed = one.seal(1, b"h", b"x")
        assert two.open(1, b"h", sealed) == b"x"
        with pytest.raises(VerificationError):
            one.open(1, b"h", sealed)  # reflected
        elsewhere = derive_link(REGULATOR, b, COMPANY.card(), public[0], b"q" * 32)
        with pytest.raises(VerificationError):
            elsewhere.open(1, b"h", sealed)  # another plan

    def test_no_nonce_twice(self) -> None:
        company, _ = linked()
        pack(company, b"one")
        keys = company._link_keys
        assert keys is not None
        with pytest.raises(ProtocolError, match="twice"):
            keys.seal(1, b"h", b"other")

    def test_small_order_key(self) -> None:
        with pytest.raises(ProtocolError, match="X25519"):
            derive_link(COMPANY, X25519PrivateKey.generate(), REGULATOR.card(), bytes(32), PLAN)


class TestAgreement:
    def test_thief_without_the_pinned_key(self) -> None:
        company, thief = peer(COMPANY, REGULATOR), peer(THIEF, COMPANY)
        forged = thief.agreement(reply_wanted=True)
        with pytest.raises(VerificationError):
            company.on_agreement(forged, forged.body)  # type: ignore[arg-type]
        assert company.generation == 0

    def test_other_plan(self) -> None:
        company, other = peer(COMPANY, REGULATOR), peer(REGULATOR, COMPANY, b"q" * 32)
        came = other.agreement(reply_wanted=True)
        with pytest.raises(PlanMismatch, match="approve the same file"):
            company.on_agreement(came, came.body)  # type: ignore[arg-type]

    def test_restart_begins_a_new_generation(self) -> None:
        company, _ = linked()
        old = pack(company, b"under way")
        again = peer(REGULATOR, COMPANY)
        agree(again, company)
        assert company.generation == 2
        assert company.all_acknowledged
        assert take(again, old[0]) is None, "from the old link: dropped"
        (new,) = pack(company, b"asked again")
        assert take(again, new) is not None

    def test_old_incarnation_is_never_taken_up_again(self) -> None:
        company, regulator = linked()
        replayed = regulator.agreement(reply_wanted=True)
        agree(peer(REGULATOR, COMPANY), company)
        assert company.on_agreement(replayed, replayed.body) == []  # type: ignore[arg-type]
        assert company.generation == 2


class TestOrder:
    def test_lost_messages_are_sent_again_and_taken_once(self) -> None:
        company, regulator = linked()
        raws = [pack(company, bytes([n]))[0] for n in range(5)]
        for raw in raws[:2]:
            take(regulator, raw)
        for one in (company, regulator):
            one.stream_lost()
        asked = regulator.agreement(reply_wanted=True)
        _, *again = company.on_agreement(asked, asked.body)  # type: ignore[arg-type]
        assert again == raws[2:], "byte for byte: nothing is sealed anew"
        assert [take(regulator, raw) is None for raw in raws] == [True, True, False, False, False]

    def test_gap(self) -> None:
        company, regulator = linked()
        _, second = pack(company, b"1"), pack(company, b"2")
        with pytest.raises(OrderViolation, match="expected message 1"):
            take(regulator, second[0])

    def test_mixed_chunks(self) -> None:
        company, regulator = linked()
        large = frame(bytes(2 * CHUNK_BYTES))
        take(regulator, company.pack_chunk(large, 0, 2))
        with pytest.raises(OrderViolation, match="chunk"):
            take(regulator, company.pack_chunk(frame(b"other"), 0))

    def test_window_fills_and_empties(self) -> None:
        company, regulator = linked()
        count = 0
        while company.has_room():
            take(regulator, company.pack_chunk(frame(bytes(CHUNK_BYTES)), 0))
            count += 1
        assert count * CHUNK_BYTES >= 1 << 24
        ack = parse(regulator.ack(1))
        company.on_ack(ack)
        assert company.has_room()
        assert company.all_acknowledged

    def test_acknowledging_the_future(self) -> None:
        company, regulator = linked()
        for raw in pack(company, b"1"):
            take(regulator, raw)
        ack = replace(parse(regulator.ack(1)), ack=9)
        company.on_ack(ack)
        assert not company.all_acknowledged


class TestBox:
    def test_for_the_auditor_only(self) -> None:
        auditor, other = X25519PrivateKey.generate(), X25519PrivateKey.generate()
        box = seal_to(auditor.public_key().public_bytes_raw(), b"query 7", b"rows")
        assert open_box(auditor, b"query 7", box) == b"rows"
        for key, context, came in (
            (other, b"query 7", box),
            (auditor, b"query 8", box),
            (auditor, b"query 7", box[:-1] + bytes([box[-1] ^ 1])),
        ):
            with pytest.raises(VerificationError):
                open_box(key, context, came)
        with pytest.raises(ProtocolError):
            open_box(auditor, b"query 7", box[:20])


@given(st.binary(max_size=300))
def test_parser_is_total(raw: bytes) -> None:
    with pytest.raises(ProtocolError):
        parse(raw)


def test_parser_looks_at_the_size_first() -> None:
    with pytest.raises(OversizedMessage):
        parse(bytes(2 << 20))
