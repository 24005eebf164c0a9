"""Canonical JSON and domain-separated hashes: one byte string per value, one hash per meaning.

Everything that is hashed or signed (plans, ledger records, reports) goes through this module, so
that two parties who mean the same thing hash the same bytes, and bytes made for one purpose can
never pass for another.

The form is RFC 8785 (JCS) restricted to null, booleans, integers within ±(2^53 − 1), strings,
lists and objects. Floats are refused rather than formatted: their shortest decimal form is the one
part of JCS that implementations get wrong.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NoReturn

from isonomy.common.base.errors import ConfigError, ProtocolError

MAX_INTEGER = 2**53 - 1  # the integers that every JSON reader keeps exactly
MAX_TIME = 253_402_300_799  # the last second of the year 9999: calendars end there
MAX_DEPTH = 32
HASH_BYTES = 32
MEMBER_BYTES = 16  # a person in the ledger: the beginning of a keyed hash of their id
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def canonical_json(obj: object) -> bytes:
    """Return the RFC 8785 bytes of `obj`; ConfigError for what the restricted form leaves out.

    Guarantees: equal values give equal bytes; parse_canonical(canonical_json(x)) == x.
    """
    ordered = _ordered(obj, 0)
    # With ensure_ascii off, json escapes exactly what RFC 8785 §3.2.2.2 asks for: quote, backslash,
    # the five short forms, and \u00xx in lower case for the other control characters.
    return _ENCODER.encode(ordered).encode("utf-8")


def parse_canonical(data: bytes, *, max_bytes: int) -> object:
    """Read bytes that `canonical_json` could have written; ProtocolError for all others.

    Total: whatever the bytes are, the result is a value or a ProtocolError. The size is checked
    before anything is parsed. The error never quotes the content.
    """
    if len(data) > max_bytes:
        raise ProtocolError(f"JSON of {len(data)} bytes; at most {max_bytes} are accepted")
    try:
        value: object = json.loads(
            bytes(data).decode("utf-8"),
            object_pairs_hook=_unique_keys,
            parse_float=_no_float,
            parse_constant=_no_float,
            parse_int=_safe_integer,
        )
        canonical = canonical_json(value)
    except (ValueError, RecursionError):  # bad UTF-8, bad JSON, nested beyond the interpreter
        raise ProtocolError("not JSON of the restricted canonical form") from None
    except ConfigError as error:
        raise ProtocolError(f"not canonical JSON: {error}") from None
    if canonical != data:
        raise ProtocolError("JSON that is not in canonical form (RFC 8785)")
    return value


@dataclass(frozen=True)
class Pieces:
    """So many bytes, which come piece by piece: they never are in memory all at once."""

    size: int
    pieces: Iterable[bytes | memoryview]

    def __len__(self) -> int:
        return self.size


Data = bytes | memoryview | Pieces


def pieces_of(data: Data) -> Iterable[bytes | memoryview]:
    """The pieces of something that may be whole."""
    return data.pieces if isinstance(data, Pieces) else (data,)


def hash_bytes(domain: str, *parts: Data) -> bytes:
    """SHA-256 over `domain` and `parts`, each preceded by its length in 8 bytes.

    The lengths make the encoding injective: no two (domain, parts) give the same hash input.
    """
    name = domain.encode("utf-8")
    digest = hashlib.sha256(len(name).to_bytes(8, "big") + name)
    for part in parts:
        digest.update(len(part).to_bytes(8, "big"))
        for piece in pieces_of(part):
            digest.update(piece)
    return digest.digest()


def _ordered(obj: object, depth: int) -> object:
    """Copy `obj` with every object's keys in UTF-16 order, refusing what has no canonical form."""
    if depth > MAX_DEPTH:
        raise ConfigError(f"nested deeper than {MAX_DEPTH} levels")
    kind = type(obj)  # exact types: a subclass may print differently from what it equals
    if isinstance(obj, str) and kind is str:
        if not obj.isascii():
            _utf16(obj)
        return obj
    if obj is None or kind is bool:
        return obj
    if isinstance(obj, int) and kind is int:
        if not -MAX_INTEGER <= obj <= MAX_INTEGER:
            raise ConfigError("an integer beyond ±(2^53 − 1); write it as a string")
        return obj
    if isinstance(obj, list) and kind is list:
        items = []
        for item in obj:
            items.append(_ordered(item, depth + 1))
        return items
    if isinstance(obj, dict) and kind is dict:
        if set(map(type, obj)) - {str}:
            raise ConfigError("an object key that is not a string")
        ordered = {}
        # UTF-16 and ASCII order agree where both exist.
        for key in sorted(obj, key=None if "".join(obj).isascii() else _utf16):
            ordered[key] = _ordered(obj[key], depth + 1)
        return ordered
    raise ConfigError(
        f"{kind.__name__} has no canonical form; use null, booleans, integers, strings, "
        "lists and objects (a float as an integer in fixed units or as a string)"
    )


def _utf16(text: str) -> bytes:
    """Return the sort key of RFC 8785 §3.2.3; refuse a lone surrogate, which is no Unicode text."""
    try:
        return text.encode("utf-16-be")
    except UnicodeEncodeError:
        raise ConfigError("a string with a lone surrogate") from None


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ConfigError("an object with the same key twice")
    return result


def _no_float(_: str) -> NoReturn:
    raise ConfigError("a number that is not an integer")


def _safe_integer(digits: str) -> int:
    if len(digits) > 17:  # sign and 16 digits; also keeps int() away from huge numbers
        raise ConfigError("an integer beyond ±(2^53 − 1)")
    return int(digits)
