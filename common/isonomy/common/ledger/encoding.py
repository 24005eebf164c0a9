"""How hashes and bytes stand in a ledger line: one text per value, nothing loose."""

from __future__ import annotations

import base64
import binascii
import re

from isonomy.common.base.errors import ProtocolError

_HEX64 = re.compile(r"[0-9a-f]{64}")


def from_hex(value: object) -> bytes:
    """Read a hash: 64 lower-case hexadecimal digits, or ProtocolError."""
    if not isinstance(value, str) or not _HEX64.fullmatch(value):
        raise ProtocolError("a hash that is not 64 lower-case hex digits")
    return bytes.fromhex(value)


def to_base64(data: bytes) -> str:
    """Write bytes as base64."""
    return base64.b64encode(data).decode("ascii")


def from_base64(value: object) -> bytes:
    """Read base64 in its one canonical form, or ProtocolError."""
    if not isinstance(value, str):
        raise ProtocolError("base64 text expected")
    try:
        data = base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise ProtocolError("base64 text expected") from None
    if to_base64(data) != value:  # one text per value: no loose padding bits
        raise ProtocolError("base64 text that is not in canonical form")
    return data
