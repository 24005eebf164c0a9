"""What a ledger line says, and how it becomes bytes and back.

A line is canonical JSON and a newline. Around the fields of its type it carries `seq` (from 0),
`prev` (hash of the line before), `time` (Unix seconds), `type`, and `hash`: SHA-256 with domain
over the canonical record without `hash`. Records are events (what happened); what they mean for
anybody's budget is ledger_state's business, where they are kept is ledger's.

Members' hashes and answers never appear in a `repr` or an error text.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, ClassVar, cast

from isonomy.common.canonical import MAX_INTEGER, canonical_json, hash_bytes, parse_canonical
from isonomy.common.errors import ConfigError, DataError, ProtocolError, VerificationError
from isonomy.common.merkle import merkle_root

SCHEMA = 1
MEMBER_BYTES = 16
HASH_BYTES = 32
MAX_QUERY_ID_CHARS = 128
MAX_EVENT_BYTES = 4096
MAX_LINE_BYTES = 1 << 28  # 256 MiB: twelve million people in one record
ADJACENCIES = ("attribute", "sample")
NO_RECORD = bytes(HASH_BYTES)  # `prev` of the first record

_ENVELOPE = frozenset({"seq", "prev", "time", "type", "hash"})
_HEX64 = re.compile(r"[0-9a-f]{64}")


class UnknownSchema(ConfigError):  # noqa: N818
    """The ledger was written by a version of Isonomy that this one does not know."""


@dataclass(frozen=True)
class Open:
    """The first record: the cap in units of μ² for every person, and δ as decimal text."""

    TYPE: ClassVar[str] = "open"
    ledger_id: bytes
    cap_units: int
    delta: str

    def __post_init__(self) -> None:
        _need_hash("ledger id", self.ledger_id)
        _need_units("cap_units", self.cap_units)
        try:
            canonical = 0 < float(self.delta) < 1 and repr(float(self.delta)) == self.delta
        except (TypeError, ValueError):
            canonical = False
        if not canonical:
            raise ConfigError("delta must be a number between 0 and 1, such as 1e-05")


@dataclass(frozen=True)
class People:
    """A membership, stored once: the concatenated 16-byte keyed hashes of ids, in row order."""

    TYPE: ClassVar[str] = "people"
    root: bytes
    members: bytes = field(repr=False)

    def __post_init__(self) -> None:
        _need_hash("root", self.root)
        if not self.members or len(self.members) % MEMBER_BYTES:
            raise DataError(f"people must be one or more hashes of {MEMBER_BYTES} bytes each")

    def split(self) -> list[bytes]:
        """Return the members one by one."""
        data, step = self.members, MEMBER_BYTES
        return [data[at : at + step] for at in range(0, len(data), step)]


@dataclass(frozen=True)
class Subset:
    """Some people of a stored root: ascending positions as little-endian 32-bit integers."""

    TYPE: ClassVar[str] = "people"
    root: bytes
    parent: bytes
    positions: bytes = field(repr=False)

    def __post_init__(self) -> None:
        _need_hash("root", self.root)
        _need_hash("parent", self.parent)
        if not self.positions or len(self.positions) % 4:
            raise DataError("a subset needs one or more positions of 4 bytes each")


@dataclass(frozen=True)
class Key:
    """Names the key under which people are hashed: another key would reset every budget."""

    TYPE: ClassVar[str] = "key"
    tag: bytes

    def __post_init__(self) -> None:
        _need_hash("key tag", self.tag)


@dataclass(frozen=True)
class Reserve:
    """A plan's budget, set aside for every person of `root`."""

    TYPE: ClassVar[str] = "reserve"
    plan: bytes
    root: bytes
    units: int
    individual: bool

    def __post_init__(self) -> None:
        _need_hash("plan", self.plan)
        _need_hash("root", self.root)
        _need_units("units", self.units)
        if type(self.individual) is not bool:
            raise ConfigError("individual must be true or false")


@dataclass(frozen=True)
class Release:
    """A plan was closed: no more debits, and what it did not spend is free again."""

    TYPE: ClassVar[str] = "release"
    plan: bytes

    def __post_init__(self) -> None:
        _need_hash("plan", self.plan)


@dataclass(frozen=True)
class Debit:
    """One answered query: who is concerned, what it cost, what was answered."""

    TYPE: ClassVar[str] = "debit"
    plan: bytes
    query_id: str
    request_hash: bytes
    root: bytes
    units: int
    adjacency: str
    event: Mapping[str, str | int]
    answer: bytes = field(repr=False)

    def __post_init__(self) -> None:
        _need_hash("plan", self.plan)
        _need_hash("request hash", self.request_hash)
        _need_hash("root", self.root)
        _need_units("units", self.units)
        if type(self.query_id) is not str or not 1 <= len(self.query_id) <= MAX_QUERY_ID_CHARS:
            raise ConfigError(f"a query id is text of 1 to {MAX_QUERY_ID_CHARS} characters")
        if self.adjacency not in ADJACENCIES:
            raise ConfigError(f"adjacency must be one of {', '.join(ADJACENCIES)}")
        if not all(type(value) in (str, int) for value in self.event.values()):
            raise ConfigError("an event holds strings and integers only")
        if len(canonical_json(dict(self.event))) > MAX_EVENT_BYTES:
            raise ConfigError(f"an event of more than {MAX_EVENT_BYTES} bytes")
        if type(self.answer) is not bytes or not self.answer:  # (9) answer present
            raise DataError("a debit needs its answer as non-empty bytes")
        object.__setattr__(self, "event", MappingProxyType(dict(self.event)))


Body = Open | Key | People | Subset | Reserve | Release | Debit


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
    digest = _record_hash(record)
    line = canonical_json({**record, "hash": digest.hex()}) + b"\n"
    if len(line) > MAX_LINE_BYTES:
        raise DataError(f"a record of {len(line)} bytes; at most {MAX_LINE_BYTES} are kept")
    return Sealed(seq, prev, time, digest, body), line


def unseal(line: bytes) -> Sealed:
    """Read one line (without its newline), trusting nothing: form, fields, roots and hash."""
    record = parse_canonical(line, max_bytes=MAX_LINE_BYTES)  # (2) canonical
    if not isinstance(record, dict) or not record.keys() >= _ENVELOPE:
        raise ProtocolError("a record without seq, prev, time, type or hash")
    digest = _from_hex(record.pop("hash"))
    if _record_hash(record) != digest:  # (5) hash
        raise VerificationError("the record's hash does not match its content")
    seq, time = _units(record["seq"]), _units(record["time"])
    prev = _from_hex(record["prev"])
    given = {key: value for key, value in record.items() if key not in _ENVELOPE}
    return Sealed(seq, prev, time, digest, _body(record["type"], given))


def subset_root(parent: bytes, positions: bytes) -> bytes:
    """Return a subset's root. Cheap on purpose: the parent's root already binds the people."""
    return hash_bytes("isonomy/subset", parent, positions)


def _record_hash(record: dict[str, object]) -> bytes:
    return hash_bytes("isonomy/ledger/record", canonical_json(record))


def _fields(body: Body) -> dict[str, object]:
    match body:
        case Open(ledger_id, cap_units, delta):
            identity = {"schema": SCHEMA, "ledger_id": ledger_id.hex()}
            return {**identity, "cap_units": cap_units, "delta": delta}
        case Key(tag):
            return {"tag": tag.hex()}
        case People(root, members):
            return {"root": root.hex(), "members": _to_base64(members)}
        case Subset(root, parent, positions):
            return {"root": root.hex(), "parent": parent.hex(), "positions": _to_base64(positions)}
        case Reserve(plan, root, units, individual):
            what = {"units": units, "individual": individual}
            return {"plan": plan.hex(), "root": root.hex(), **what}
        case Release(plan):
            return {"plan": plan.hex()}
        case Debit():
            return {
                "plan": body.plan.hex(),
                "query_id": body.query_id,
                "request_hash": body.request_hash.hex(),
                "root": body.root.hex(),
                "units": body.units,
                "adjacency": body.adjacency,
                "event": dict(body.event),
                "answer": _to_base64(body.answer),
            }


def _body(kind: object, given: dict[str, Any]) -> Body:
    """Build the body of a line; exactly the fields of its type, each of its own type."""
    names = set(given)
    if kind == "open" and _units(given.get("schema")) != SCHEMA:  # (1) schema
        raise UnknownSchema(
            f"the ledger has another schema than {SCHEMA}; open it with the version of Isonomy "
            "that wrote it, or a newer one"
        )
    if kind == "open" and names == {"schema", "ledger_id", "cap_units", "delta"}:
        return Open(_from_hex(given["ledger_id"]), given["cap_units"], given["delta"])
    if kind == "key" and names == {"tag"}:
        return Key(_from_hex(given["tag"]))
    if kind == "people" and names == {"root", "members"}:
        people = People(_from_hex(given["root"]), _from_base64(given["members"]))
        if merkle_root(people.split()) != people.root:  # (6) memberships' roots
            raise VerificationError("the people do not match their Merkle root")
        return people
    if kind == "people" and names == {"root", "parent", "positions"}:
        parent, positions = _from_hex(given["parent"]), _from_base64(given["positions"])
        if subset_root(parent, positions) != _from_hex(given["root"]):  # (6) subsets' roots
            raise VerificationError("the positions do not match the subset's root")
        return Subset(_from_hex(given["root"]), parent, positions)
    if kind == "reserve" and names == {"plan", "root", "units", "individual"}:
        plan, root = _from_hex(given["plan"]), _from_hex(given["root"])
        return Reserve(plan, root, given["units"], given["individual"])
    if kind == "release" and names == {"plan"}:
        return Release(_from_hex(given["plan"]))
    if kind == "debit" and names == {each.name for each in fields(Debit)}:
        if not isinstance(given["event"], dict):
            raise ProtocolError("an event that is not an object")
        for name in ("plan", "request_hash", "root"):
            given[name] = _from_hex(given[name])
        given["answer"] = _from_base64(given["answer"])
        return Debit(**given)
    raise ProtocolError("a record of an unknown type, or with other fields than its type has")


def _need_hash(name: str, value: object) -> None:
    if type(value) is not bytes or len(value) != HASH_BYTES:
        raise ConfigError(f"{name} must be {HASH_BYTES} bytes")


def _need_units(name: str, value: object) -> None:
    if type(value) is not int or not 0 <= value <= MAX_INTEGER:
        raise ConfigError(f"{name} must be a whole number from 0 to 2^53 − 1")


def _units(value: object) -> int:
    _need_units("a number", value)
    return cast(int, value)


def _from_hex(value: object) -> bytes:
    if not isinstance(value, str) or not _HEX64.fullmatch(value):
        raise ProtocolError("a hash that is not 64 lower-case hex digits")
    return bytes.fromhex(value)


def _to_base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _from_base64(value: object) -> bytes:
    if not isinstance(value, str):
        raise ProtocolError("base64 text expected")
    try:
        data = base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise ProtocolError("base64 text expected") from None
    if _to_base64(data) != value:  # one text per value: no loose padding bits
        raise ProtocolError("base64 text that is not in canonical form")
    return data
