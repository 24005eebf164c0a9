"""How a ledger record becomes a line and back.

A line is canonical JSON and a newline. Around the fields of its type it carries `seq` (from 0),
`prev` (hash of the line before), `time` (Unix seconds), `type`, and `hash`: SHA-256 with domain
over the canonical record without `hash`. Hashes are written in hexadecimal digits, other bytes in
base64, each in its one canonical form.
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import fields
from typing import Any, get_args

from isonomy.common.base.canonical import canonical_json, hash_bytes, parse_canonical
from isonomy.common.base.errors import DataError, ProtocolError, VerificationError
from isonomy.common.base.merkle import merkle_root
from isonomy.common.ledger.records import (
    Body,
    Open,
    PeopleList,
    Sealed,
    Subset,
    check_schema,
    need_units,
)

MAX_LINE_BYTES = 1 << 28  # 256 MiB: twelve million people in one record

_TYPES: dict[object, type[Body]] = {record.TYPE: record for record in get_args(Body)}
_ENVELOPE = frozenset({"seq", "prev", "time", "type", "hash"})
_HASHES = frozenset({"ledger_id", "tag", "root", "parent", "plan", "request_hash"})
_BYTES = frozenset({"members", "positions", "answer", "salt"})
_HEX64 = re.compile(r"[0-9a-f]{64}")


def seal(body: Body, *, seq: int, prev: bytes, time: int) -> tuple[Sealed, bytes]:
    """Put `body` into the chain; returns the record and its line, newline included."""
    values = {each.name: _to_json(each.name, getattr(body, each.name)) for each in fields(body)}
    record = {"seq": seq, "prev": prev.hex(), "time": time, "type": body.TYPE, **values}
    digest = _record_hash(record)
    line = canonical_json({**record, "hash": digest.hex()}) + b"\n"
    if len(line) > MAX_LINE_BYTES:
        raise DataError(f"a record of {len(line)} bytes; at most {MAX_LINE_BYTES} are stored")
    return Sealed(seq, prev, time, digest, body), line


def unseal(line: bytes) -> Sealed:
    """Read one line (without its newline), trusting nothing: form, fields, roots and hash."""
    record: Any = parse_canonical(line, max_bytes=MAX_LINE_BYTES)  # (2) canonical
    if not isinstance(record, dict) or not record.keys() >= _ENVELOPE:
        raise ProtocolError("a record without seq, prev, time, type or hash")
    digest = _hash_of(record.pop("hash"))
    if _record_hash(record) != digest:  # (5) hash
        raise VerificationError("the record's hash does not match its content")
    need_units("seq", record["seq"])
    need_units("time", record["time"])
    values = {name: value for name, value in record.items() if name not in _ENVELOPE}
    body = _body(record["type"], values)
    return Sealed(record["seq"], _hash_of(record["prev"]), record["time"], digest, body)


def subset_root(parent: bytes, positions: bytes, salt: bytes = b"") -> bytes:
    """Return a subset's root. Cheap on purpose: the parent's root already binds the people."""
    if salt:  # who does not know it cannot try out who is in the subset
        return hash_bytes("isonomy/secret-subset", parent, salt, positions)
    return hash_bytes("isonomy/subset", parent, positions)


def shared(line: bytes) -> bytes:
    """Return a line as others may hold it: a secret subset without the people in it."""
    record: Any = parse_canonical(line, max_bytes=MAX_LINE_BYTES)
    if record.get("salt"):
        record |= {"positions": "", "salt": ""}
    return canonical_json(record)


def _record_hash(record: dict[str, object]) -> bytes:
    # The root of a secret subset commits to its people, so the chain holds without them.
    if record["type"] == Subset.TYPE and (record.get("salt") or not record.get("positions")):
        record = {**record, "positions": "", "salt": ""}
    return hash_bytes("isonomy/ledger/record", canonical_json(record))


def _body(kind: object, values: dict[str, Any]) -> Body:
    """Build the body of a line: exactly the fields of its type, and roots that fit their people."""
    record = _TYPES.get(kind) if isinstance(kind, str) else None
    if record is Open:  # (1) schema, before the fields: a newer schema may have others
        check_schema(values.get("schema"))
    if record is None or values.keys() != {each.name for each in fields(record)}:
        raise ProtocolError("a record of an unknown type, or with other fields than its type has")
    body = record(**{name: _from_json(name, value) for name, value in values.items()})
    if isinstance(body, PeopleList) and merkle_root(body.split()) != body.root:  # (6) lists' roots
        raise VerificationError("the people do not match their Merkle root")
    match body:
        case Subset(root, parent, positions, salt) if positions:  # (6)
            if subset_root(parent, positions, salt) != root:
                raise VerificationError("the positions do not match the subset's root")
    return body


def _to_json(name: str, value: Any) -> object:
    if name in _HASHES:
        return value.hex()
    if name in _BYTES:
        return base64.b64encode(value).decode("ascii")
    return dict(value) if name == "event" else value


def _from_json(name: str, value: object) -> Any:
    if name in _HASHES:
        return _hash_of(value)
    if name in _BYTES:
        return _bytes_of(value)
    if name == "event" and not isinstance(value, dict):
        raise ProtocolError("an event that is not an object")
    return value


def _hash_of(value: object) -> bytes:
    if not isinstance(value, str) or not _HEX64.fullmatch(value):
        raise ProtocolError("a hash that is not 64 lower-case hex digits")
    return bytes.fromhex(value)


def _bytes_of(value: object) -> bytes:
    try:
        data = base64.b64decode(value, validate=True) if isinstance(value, str) else b""
    except (binascii.Error, ValueError):
        data = b""
    # Base64 has several texts for one value (loose padding bits): only the canonical one counts.
    if base64.b64encode(data).decode("ascii") != value:
        raise ProtocolError("not base64 in canonical form")
    return data
