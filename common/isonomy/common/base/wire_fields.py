"""Checks of single fields that a peer sent: what every message reader uses."""

from __future__ import annotations

import struct
from typing import Any, get_args

import numpy as np

from isonomy.common.base.errors import ProtocolError

MAX_TEXT = 128


def text_field(value: str, field: str, *, limit: int = MAX_TEXT, empty: bool = False) -> str:
    """Printable text of at most `limit` characters; none at all only if `empty` allows it."""
    if len(value) > limit or (not value and not empty) or not value.isprintable():
        raise ProtocolError(f"{field} must be 1 to {limit} printable characters")
    return value


def fixed_field(value: bytes, size: int, field: str, *, empty: bool = False) -> bytes:
    """Bytes of exactly that size; none at all only if `empty` allows it."""
    if len(value) != size and (value or not empty):
        raise ProtocolError(f"{field} must have {size} bytes; got {len(value)}")
    return value


def choice_field(value: str, kind: Any, field: str) -> str:
    """One of a Literal's values."""
    if value not in get_args(kind):
        raise ProtocolError(f"{field} must be one of {', '.join(get_args(kind))}")
    return value


def double_bits(value: float) -> int:
    """A real number as its IEEE-754 bits: no floats travel."""
    bits: int = struct.unpack("<Q", struct.pack("<d", value))[0]
    return bits


def double_field(bits: int, field: str) -> float:
    """The finite real number with these bits."""
    value: float = struct.unpack("<d", struct.pack("<Q", bits))[0]
    if not np.isfinite(value):
        raise ProtocolError(f"{field} must be finite")
    return value
