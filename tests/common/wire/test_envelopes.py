"""Envelopes come back as they were sent; whatever else arrives is refused with a typed error."""

from __future__ import annotations

import math
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isonomy.common.base.errors import OversizedMessage, ProtocolError, TruncatedMessage
from isonomy.common.wire.envelopes import (
    CHUNK_BYTES,
    Body,
    Close,
    Data,
    Envelope,
    ErrorNote,
    Heartbeat,
    Hello,
    HelloReply,
    PlanAgreement,
    dump,
    dump_dual,
    parse,
    parse_dual,
)
from isonomy.wire.v1 import session_pb2 as wire

PLAN, LINK = bytes(range(32)), bytes(range(16))
UNSEQUENCED: list[Body] = [
    Hello("company", b"token", bytes(32)),
    HelloReply(("company", "regulator")),
    PlanAgreement(bytes(32), True, bytes(64)),
    Heartbeat(("company",)),
    ErrorNote("TokenRefused", "why", fatal=False),
]
SEQUENCED: list[Body] = [Close("done", "", bytes(64))]


def chunk(payload: bytes, exchange: int = 3) -> Envelope:
    body = Data(exchange, 1, True, 0, 2, payload)
    return Envelope("regulator", "company", PLAN, body, 7, 5, LINK, "q-1", "columns")


class TestRoundTrip:
    @given(st.binary(max_size=300), st.integers(0, 2**64 - 1))
    def test_of_a_chunk(self, payload: bytes, exchange: int) -> None:
        assert parse(dump(chunk(payload, exchange))) == chunk(payload, exchange)

    @pytest.mark.parametrize("body", UNSEQUENCED + SEQUENCED, ids=lambda body: type(body).__name__)
    def test_of_every_other_body(self, body: Body) -> None:
        number, link = (9, LINK) if body in SEQUENCED else (0, b"")
        envelope = Envelope("company", "regulator", PLAN, body, number, 2, link)
        assert parse(dump(envelope)) == envelope

    def test_the_payload_is_not_copied(self) -> None:
        raw = dump(chunk(bytes(1000)))
        body = parse(raw).body
        assert isinstance(body, Data)
        assert isinstance(body.payload, memoryview)
        assert body.payload.obj is raw

    def test_of_multipliers(self) -> None:
        assert parse_dual(dump_dual(4, (0.1, -3.0))) == (4, (0.1, -3.0))
        with pytest.raises(ProtocolError, match="finite"):
            parse_dual(dump_dual(4, (math.nan,)))


class TestTotal:
    """Whatever the bytes are: an envelope or a ProtocolError."""

    @staticmethod
    def outcome(raw: bytes) -> None:
        with suppress(ProtocolError):
            assert isinstance(parse(raw), Envelope)

    @given(st.binary(max_size=200))
    def test_for_any_bytes(self, raw: bytes) -> None:
        self.outcome(raw)
        self.outcome(len(raw).to_bytes(4, "big") + raw)

    @settings(max_examples=400)
    @given(st.binary(max_size=40), st.data())
    def test_for_changed_bytes(self, payload: bytes, data: st.DataObject) -> None:
        raw = bytearray(dump(chunk(payload)))
        for _ in range(data.draw(st.integers(1, 3))):
            raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
        self.outcome(bytes(raw))

    def test_for_a_size_beyond_the_end(self) -> None:
        raw = dump(chunk(b""))
        for cut in range(len(raw)):
            with pytest.raises(TruncatedMessage):
                parse(raw[:cut])

    def test_for_a_payload_behind_another_body(self) -> None:
        beat = dump(Envelope("company", "server", PLAN, Heartbeat()))
        with pytest.raises(ProtocolError, match="payload"):
            parse(beat + b"x")

    def test_for_too_much(self) -> None:
        with pytest.raises(OversizedMessage):
            parse(dump(chunk(bytes(CHUNK_BYTES + 65))))
        with pytest.raises(OversizedMessage):
            parse(bytes(4 * CHUNK_BYTES))

    def test_for_two_bodies(self) -> None:
        """Protobuf keeps the last one; no payload can then belong to the first."""
        first = wire.Envelope(data=wire.Data(chunks=1)).SerializeToString()
        head = first + wire.Envelope(heartbeat=wire.Heartbeat()).SerializeToString()
        with pytest.raises(ProtocolError):
            parse(len(head).to_bytes(4, "big") + head + b"payload")
