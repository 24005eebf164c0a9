"""Taking an envelope apart by hand gives what protobuf gives, whatever the bytes are."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from isonomy.common.base.errors import ProtocolError
from isonomy.common.wire import envelopes, payload_view
from isonomy.common.wire.envelopes import CHUNK_BYTES, Data, Envelope, dump, parse
from isonomy.wire.v1 import session_pb2 as wire

PLAN, LINK = bytes(range(32)), bytes(range(16))


def chunk(payload: bytes, **fields: int) -> Envelope:
    body = Data(fields.get("exchange", 3), 1, True, 0, fields.get("chunks", 2), payload)
    return Envelope("regulator", "company", PLAN, body, 7, 5, LINK, "q-1", "columns")


def outcome(raw: bytes) -> object:
    """The envelope, or the kind and text of the refusal."""
    try:
        return parse(raw)
    except ProtocolError as error:
        return type(error), str(error)


def by_protobuf(raw: bytes) -> object:
    """The same without the shortcut."""
    shortcut = payload_view.split
    payload_view.split = lambda raw: None
    try:
        return outcome(raw)
    finally:
        payload_view.split = shortcut


class TestSplit:
    @given(st.binary(max_size=300), st.integers(0, 2**64 - 1))
    def test_what_join_wrote_comes_back(self, payload: bytes, exchange: int) -> None:
        raw = dump(chunk(payload, exchange=exchange))
        pieces = payload_view.split(raw)
        assert pieces is not None
        assert bytes(pieces[2]) == payload
        assert parse(raw) == chunk(payload, exchange=exchange)

    def test_what_join_wrote_is_what_protobuf_writes(self) -> None:
        for size in (0, 1, 127, 128, 16_383, 16_384, CHUNK_BYTES):
            raw = dump(chunk(bytes(size)))
            found = wire.Envelope.FromString(raw)
            assert len(found.data.payload) == size
            assert found.ByteSize() == len(raw) + (
                -2 if size == 0 else 0
            )  # an empty field is left out

    def test_the_payload_is_not_copied(self) -> None:
        raw = dump(chunk(bytes(1000)))
        body = parse(raw).body
        assert isinstance(body, Data)
        assert isinstance(body.payload, memoryview)
        assert body.payload.obj is raw


class TestSameOutcomeAsProtobuf:
    @given(st.binary(max_size=200))
    def test_of_any_bytes(self, raw: bytes) -> None:
        assert outcome(raw) == by_protobuf(raw)

    @settings(max_examples=400)
    @given(st.binary(max_size=40), st.data())
    def test_of_an_envelope_with_changed_bytes(self, payload: bytes, data: st.DataObject) -> None:
        raw = bytearray(dump(chunk(payload)))
        for _ in range(data.draw(st.integers(1, 3))):
            raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
        assert outcome(bytes(raw)) == by_protobuf(bytes(raw))

    @given(st.binary(max_size=40), st.data())
    def test_of_truncated_and_extended_ones(self, payload: bytes, data: st.DataObject) -> None:
        raw = dump(chunk(payload))
        cut = raw[: data.draw(st.integers(0, len(raw)))] + data.draw(st.binary(max_size=20))
        assert outcome(cut) == by_protobuf(cut)

    def test_of_two_bodies_and_two_payloads(self) -> None:
        raw, other = dump(chunk(b"one")), dump(chunk(b"another", chunks=9))
        beat = wire.Envelope(heartbeat=wire.Heartbeat(present=["a"])).SerializeToString()
        head, place, payload = payload_view.split(raw) or (b"", b"", b"")
        twice = payload_view.join(head, place + b"\x3a\x03abc", payload)
        for both in (raw + other, beat + raw, raw + beat, twice):
            assert outcome(both) == by_protobuf(both)
        assert isinstance(outcome(twice), Envelope)

    def test_an_unknown_field_does_not_matter(self) -> None:
        unknown = b"\x98\x06\x01"  # field 99
        raw = dump(chunk(b"payload"))
        assert payload_view.split(unknown + raw) is None
        assert parse(unknown + raw) == parse(raw) == envelopes.parse(raw + unknown)
