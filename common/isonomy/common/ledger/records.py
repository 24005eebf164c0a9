"""How a ledger record becomes a line and back.

A line is canonical JSON and a newline. Around the fields of its type it carries `seq` (from 0),
`prev` (hash of the line before), `time` (Unix seconds), `type`, and `hash`: SHA-256 with domain
over the canonical record without `hash`. The types are in ledger_bodies; where lines are kept is
ledger's business.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, cast

from isonomy.common.base.canonical import canonical_json, hash_bytes, parse_canonical
from isonomy.common.base.errors import DataError, ProtocolError, VerificationError
from isonomy.common.base.merkle import merkle_root
from isonomy.common.ledger.bodies import (
    ADJACENCIES,
    MAX_LINE_BYTES,
    NO_RECORD,
    SCHEMA,
    SCHEMAS,
    STEPS,
    Body,
    Debit,
    Inspection,
    Key,
    Migrate,
    Note,
    Open,
    People,
    Release,
    Reserve,
    Subset,
    UnknownSchema,
    need_units,
    other_schema,
)
from isonomy.common.ledger.encoding import from_base64, from_hex, to_base64

__all__ = [
    "ADJACENCIES",
    "MAX_LINE_BYTES",
    "NO_RECORD",
    "SCHEMA",
    "STEPS",
    "Body",
    "Debit",
    "Inspection",
    "Key",
    "Migrate",
    "Note",
    "Open",
    "People",
    "Release",
    "Reserve",
    "Sealed",
    "Subset",
    "UnknownSchema",
    "seal",
    "subset_root",
    "unseal",
]

_ENVELOPE = frozenset({"seq", "prev", "time", "type", "hash"})


@dataclass(frozen=True)
class Sealed:
    """A record in its place in the chain."""

    seq: int
    prev: bytes
    time: int
    hash: bytes
    body: Body


def seal(body: Body, *, seq: int, prev: bytes, time: int) -> tuple[Sealed, bytes]:
    """Put `body` into the chain; returns the record and its line, newline included."""
    record = {"seq": seq, "prev": prev.hex(), "time": time, "type": body.TYPE, **_fields(body)}
    before = canonical_json({key: value for key, value in record.items() if key < "hash"})
    after = canonical_json({key: value for key, value in record.items() if key > "hash"})
    # Keys stand in order, so the line is the hashed text with "hash" between its two halves.
    begin = before[:-1] + b"," if before != b"{}" else b"{"
    digest = hash_bytes("isonomy/ledger/record", begin + after[1:])
    line = begin + f'"hash":"{digest.hex()}",'.encode() + after[1:] + b"\n"
    if len(line) > MAX_LINE_BYTES:
        raise DataError(f"a record of {len(line)} bytes; at most {MAX_LINE_BYTES} are kept")
    return Sealed(seq, prev, time, digest, body), line


def unseal(line: bytes) -> Sealed:
    """Read one line (without its newline), trusting nothing: form, fields, roots and hash."""
    record = parse_canonical(line, max_bytes=MAX_LINE_BYTES)  # (2) canonical
    if not isinstance(record, dict) or not record.keys() >= _ENVELOPE:
        raise ProtocolError("a record without seq, prev, time, type or hash")
    digest = from_hex(record.pop("hash"))
    if _record_hash(record) != digest:  # (5) hash
        raise VerificationError("the record's hash does not match its content")
    seq, time = _units(record["seq"]), _units(record["time"])
    prev = from_hex(record["prev"])
    given = {key: value for key, value in record.items() if key not in _ENVELOPE}
    return Sealed(seq, prev, time, digest, _body(record["type"], given))


def subset_root(parent: bytes, positions: bytes) -> bytes:
    """Return a subset's root. Cheap on purpose: the parent's root already binds the people."""
    return hash_bytes("isonomy/subset", parent, positions)


def _record_hash(record: dict[str, object]) -> bytes:
    return hash_bytes("isonomy/ledger/record", canonical_json(record))


def _fields(body: Body) -> dict[str, object]:
    match body:
        case Open(ledger_id, cap_units, delta, schema):
            identity = {"schema": schema, "ledger_id": ledger_id.hex()}
            return {**identity, "cap_units": cap_units, "delta": delta}
        case Key(tag):
            return {"tag": tag.hex()}
        case People(root, members):
            return {"root": root.hex(), "members": to_base64(members)}
        case Subset(root, parent, positions):
            return {"root": root.hex(), "parent": parent.hex(), "positions": to_base64(positions)}
        case Reserve(plan, root, units, individual):
            what = {"units": units, "individual": individual}
            return {"plan": plan.hex(), "root": root.hex(), **what}
        case Release(plan):
            return {"plan": plan.hex()}
        case Note(kind, event):
            return {"kind": kind, "event": dict(event)}
        case Migrate(schema):
            return {"schema": schema}
        case Debit():
            return {
                "plan": body.plan.hex(),
                "query_id": body.query_id,
                "request_hash": body.request_hash.hex(),
                "root": body.root.hex(),
                "units": body.units,
                "adjacency": body.adjacency,
                "event": dict(body.event),
                "answer": to_base64(body.answer),
            }
        case Inspection(plan, query_id, request_hash, step):
            named = {"plan": plan.hex(), "query_id": query_id}
            return {**named, "request_hash": request_hash.hex(), "step": step}


def _body(kind: object, given: dict[str, Any]) -> Body:
    """Build the body of a line; exactly the fields of its type, each of its own type."""
    names = set(given)
    if kind in ("open", "migrate") and _units(given.get("schema")) not in SCHEMAS:  # (1) schema
        raise UnknownSchema(other_schema())
    if kind == "open" and names == {"schema", "ledger_id", "cap_units", "delta"}:
        terms = (given["cap_units"], given["delta"], given["schema"])
        return Open(from_hex(given["ledger_id"]), *terms)
    if kind == "key" and names == {"tag"}:
        return Key(from_hex(given["tag"]))
    if kind == "people" and names == {"root", "members"}:
        people = People(from_hex(given["root"]), from_base64(given["members"]))
        if merkle_root(people.split()) != people.root:  # (6) memberships' roots
            raise VerificationError("the people do not match their Merkle root")
        return people
    if kind == "people" and names == {"root", "parent", "positions"}:
        parent, positions = from_hex(given["parent"]), from_base64(given["positions"])
        if subset_root(parent, positions) != from_hex(given["root"]):  # (6) subsets' roots
            raise VerificationError("the positions do not match the subset's root")
        return Subset(from_hex(given["root"]), parent, positions)
    if kind == "reserve" and names == {"plan", "root", "units", "individual"}:
        plan, root = from_hex(given["plan"]), from_hex(given["root"])
        return Reserve(plan, root, given["units"], given["individual"])
    if kind == "release" and names == {"plan"}:
        return Release(from_hex(given["plan"]))
    if kind == "migrate" and names == {"schema"}:
        return Migrate(given["schema"])
    if kind == "note" and names == {"kind", "event"}:
        return Note(given["kind"], _event(given["event"]))
    if kind == "debit" and names == {each.name for each in fields(Debit)}:
        given["event"] = _event(given["event"])
        for name in ("plan", "request_hash", "root"):
            given[name] = from_hex(given[name])
        given["answer"] = from_base64(given["answer"])
        return Debit(**given)
    if kind == "inspection" and names == {each.name for each in fields(Inspection)}:
        plan, request_hash = from_hex(given["plan"]), from_hex(given["request_hash"])
        return Inspection(plan, given["query_id"], request_hash, given["step"])
    raise ProtocolError("a record of an unknown type, or with other fields than its type has")


def _event(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ProtocolError("an event that is not an object")
    return value


def _units(value: object) -> int:
    need_units("a number", value)
    return cast(int, value)
