"""A chunk's payload where it lies: half a megabyte that protobuf would copy twice more each way.

    Envelope bytes  =  head ‖ 0x6a ‖ size ‖ place ‖ 0x3a ‖ size ‖ payload
                       └ all fields but `data`      └ all of Data's fields but the payload

`join` writes this, which is an ordinary serialisation of the message in session.proto. `split`
takes apart what has exactly this form, and gives up (None) on everything else, which protobuf may
then read: the outcome is the same for any bytes (tests/common/wire/test_payload_view.py).
"""

from __future__ import annotations

_DATA_TAG, _PAYLOAD_TAG = 0x6A, 0x3A  # fields 13 of Envelope and 7 of Data: length, then bytes
_VARINT, _LENGTH = 0, 2  # wire types
_MAX_FIELDS = 16  # more than Envelope and Data have
_MAX_VARINT_BYTES = 4  # lengths below 2^28: more than an envelope may have


def join(head: bytes, place: bytes, payload: bytes | memoryview) -> bytes:
    """One copy of the payload, into place."""
    place = b"".join((place, bytes((_PAYLOAD_TAG,)), _varint(len(payload))))
    size = _varint(len(place) + len(payload))
    return b"".join((head, bytes((_DATA_TAG,)), size, place, payload))


def split(raw: bytes) -> tuple[bytes, bytes, memoryview] | None:
    """Head, place and payload of what `join` wrote; None if it was not written like that."""
    outer = _last_field(raw, 0, _DATA_TAG)
    inner = None if outer is None else _last_field(raw, outer[1], _PAYLOAD_TAG)
    if outer is None or inner is None:
        return None
    return raw[: outer[0]], raw[outer[1] : inner[0]], memoryview(raw)[inner[1] :]


def _last_field(raw: bytes, start: int, tag: int) -> tuple[int, int] | None:
    """Where the field with this tag begins, and its content, if that ends where `raw` does."""
    position = start
    for _ in range(_MAX_FIELDS):
        begin = position
        if position >= len(raw):
            return None
        found = raw[position]
        value = _read_varint(raw, position + 1, 10 if found & 7 == _VARINT else _MAX_VARINT_BYTES)
        if value is None or found > 0x7F:
            return None
        number, position = value
        if found == tag:
            return (begin, position) if position + number == len(raw) else None
        if found & 7 == _LENGTH:
            position += number
        elif found & 7 != _VARINT:
            return None
    return None


def _read_varint(raw: bytes, position: int, longest: int) -> tuple[int, int] | None:
    value = 0
    for shift, byte in enumerate(raw[position : position + longest]):
        value |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:
            return value, position + shift + 1
    return None


def _varint(value: int) -> bytes:
    """Protobuf's variable-length integer: seven bits a byte, lowest first."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*encoded, value))
