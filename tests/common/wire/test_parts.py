"""Parts of a request have a quick way in and out: the same bytes as the parser's."""

from __future__ import annotations

import pytest

from isonomy.common.base.errors import ProtocolError
from isonomy.common.wire.messages import Refusal, SumPart, decode_part, encode, encode_part


@pytest.mark.parametrize("index", [0, 1, 127, 128, 4_000_000])
@pytest.mark.parametrize("size", [1, 100, 127, 128, 20_000, 393_216])
def test_the_same_bytes(index: int, size: int) -> None:
    body = bytes(range(256)) * (size // 256 + 1)
    first, second = memoryview(body)[: size // 3], memoryview(body)[size // 3 : size]
    frame = encode(SumPart(index, body[:size]))
    assert encode_part(index, first, second) == frame
    assert bytes(decode_part(frame, index, size)) == body[:size]
    assert bytes(decode_part(frame, index, size + 1)) == body[:size]  # the caller's to compare


def test_other_frames_are_refused() -> None:
    frame = encode(SumPart(3, b"body"))
    with pytest.raises(ProtocolError, match="expected part 2"):
        decode_part(frame, 2, 4)
    with pytest.raises(ProtocolError, match=r"canonical|parsed"):
        decode_part(frame[:-1], 3, 4)
    with pytest.raises(ProtocolError, match="no room"):
        decode_part(encode(Refusal("", "ProtocolError", "no room")), 3, 4)
