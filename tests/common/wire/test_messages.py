"""Parsers are total: whatever bytes come, a checked message or a ProtocolError."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isonomy.common.base.errors import (
    BudgetExceeded,
    ConfigError,
    IsonomyError,
    ProtocolError,
)
from isonomy.common.crypto.params import DEFAULT_PARAMETERS as P
from isonomy.common.crypto.params import Seeded, add_answers
from isonomy.common.privacy.queries import Query, pack_positions
from isonomy.common.wire.messages import (
    MAX_FRAME_BYTES,
    Answer,
    Column,
    ColumnsHeader,
    Message,
    OpeningDemand,
    OpeningHeader,
    OpeningPart,
    Refusal,
    SumHeader,
    SumPart,
    decode,
    decode_any,
    encode,
    frame_hash,
    frames_hash,
)
from isonomy.wire.v1 import sums_pb2

H = bytes(range(32))
SOME = pack_positions((0, 7))
COLUMN = Seeded(b"body", b"seed")
EXAMPLES: list[Message] = [
    Query("id-é", H, "why", "open", "groups", ("sex", "sex*race"), 3, "laplace", 5, 1.5),
    Query("q", H, "", "blind", "weighted", ("a",), 1, "gaussian", 9000, 0.1, (0.1, -2.0), SOME),
    ColumnsHeader("q", H[:16], H, 1024, 3, 2, COLUMN),
    Column(0, 2, COLUMN),
    SumHeader("q", H[:16], H, H, H, H, 1),
    SumPart(3, b"ciphertext"),
    Answer("q", H, H, np.array([1, -2, 2**40]), 5, 6, H, H + H),
    Refusal("q", "BudgetExceeded", "too much"),
    OpeningDemand("q", H, H, H, H + H),
    OpeningHeader("q", H, 5_000_000, 2, H, H + H),
    OpeningPart(1, b"box"),
]


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda m: type(m).__name__)
def test_round_trip(message: Message) -> None:
    frame = encode(message)
    found = decode_any(frame)
    assert encode(found) == frame
    assert type(found) is type(message)
    if not isinstance(message, Answer):
        assert found == message


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda m: type(m).__name__)
def test_every_truncation_and_extension_is_refused_or_canonical(message: Message) -> None:
    frame = encode(message)
    for changed in [*(frame[:cut] for cut in range(len(frame))), frame + b"\x00", frame * 2]:
        try:
            assert encode(decode_any(changed)) == changed
        except ProtocolError:
            continue
    with pytest.raises(ProtocolError):
        decode_any(frame[:-1])


@given(st.binary(max_size=300))
def test_any_bytes_are_a_message_or_a_protocol_error(data: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        assert encode(decode_any(data)) == data


@given(st.sampled_from(EXAMPLES), st.data())
def test_any_changed_byte_is_a_message_or_a_protocol_error(
    message: Message, data: st.DataObject
) -> None:
    frame = bytearray(encode(message))
    position = data.draw(st.integers(0, len(frame) - 1))
    frame[position] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ProtocolError):
        assert encode(decode_any(bytes(frame))) == bytes(frame)


def test_oversize_is_refused_before_parsing() -> None:
    with pytest.raises(ProtocolError, match="at most"):
        decode_any(bytes(MAX_FRAME_BYTES + 1))


@pytest.mark.parametrize("frame", ["1a00", "1a021a00", "1200", "0a00", ""])
def test_a_frame_without_content_is_refused(frame: str) -> None:
    with pytest.raises(ProtocolError):
        decode_any(bytes.fromhex(frame))


def test_unknown_fields_are_not_canonical() -> None:
    inner = encode(SumPart(1, b"x"))
    foreign = inner + b"\x98\x06\x01"  # field 99 of the frame
    assert sums_pb2.Frame.FromString(foreign).WhichOneof("body") == "sum_part"
    with pytest.raises(ProtocolError, match="canonical"):
        decode_any(foreign)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("protocol", 1),
        ("query_id", ""),
        ("query_id", "x" * 129),
        ("query_id", "new\nline"),
        ("purpose", "\x1b[2J"),
        ("plan", b"short"),
        ("kind", "sideways"),
        ("shape", "round"),
        ("mechanism", "none"),
        ("parameters", "bfv-tiny"),
        ("columns", 0),
        ("noise", 0),
        ("norm_bits", 0x7FF8000000000000),  # NaN
        ("norm_bits", 0x8000000000000000),  # −0
        ("positions", b"123"),
        ("positions", b"\x01\x00\x00\x00\x01\x00\x00\x00"),  # one person twice
    ],
)
def test_bad_fields_of_a_query(field: str, value: object) -> None:
    frame = sums_pb2.Frame.FromString(encode(EXAMPLES[1]))
    setattr(frame.query, field, value)
    with pytest.raises(ProtocolError):
        decode(frame.SerializeToString(deterministic=True), Query)


def test_a_refusal_is_raised_as_the_error_it_names() -> None:
    with pytest.raises(BudgetExceeded, match="too much"):
        decode(encode(Refusal("q", "BudgetExceeded", "too much")), Answer)
    for code in ("Nonsense", "annotations", "__name__", "PeerRestarted", "TokenRefused"):
        with pytest.raises(ProtocolError):
            decode(encode(Refusal("q", code, "text")), Answer)
    assert Refusal.of("q", ConfigError("x")).code == "ConfigError"

    class LocalError(ConfigError):
        """A class of one room, without a wire code."""

    assert Refusal.of("q", LocalError("x")).code == "ConfigError"
    assert issubclass(BudgetExceeded, IsonomyError)


def test_hashes_tell_frames_from_their_concatenation() -> None:
    assert frames_hash([b"ab", b"c"]) != frames_hash([b"a", b"bc"])
    assert frames_hash([b"ab"]) != frame_hash(b"ab")
    hashed = [frame_hash(b"ab"), frame_hash(b"c")]
    assert frames_hash(hashed, hashed=True) == frames_hash([b"ab", b"c"])


def test_answers_of_several_companies_add_up() -> None:
    q0 = P.primes[0]
    words = [np.full(P.answer_bytes // 8, value, dtype=np.uint64) for value in (q0 - 1, 5, 7)]
    total = np.frombuffer(add_answers(P, [w.tobytes() for w in words]), "<u8")
    assert set(total.tolist()) == {11}
    with pytest.raises(ConfigError, match="1 to 7"):
        add_answers(P, [words[0].tobytes()] * 8)
    with pytest.raises(ProtocolError, match="not below q0"):
        add_answers(P, [(words[0] + np.uint64(1)).tobytes()])
