"""What a ledger record says, and how it becomes a line and back.

Records are events (what happened): one small class per type, checked when it is created. What they
mean for anybody's budget is the business of state.py. Hashes of people, and answers, never appear
in a `repr`.

A line is canonical JSON and a newline. Around the fields of its type it carries `seq` (from 0),
`prev` (hash of the line before), `time` (Unix seconds), `type`, and `hash`: SHA-256 with domain
over the canonical record without `hash`. Hashes are written in hexadecimal digits, other bytes in
base64, each in its one canonical form.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, ClassVar, get_args

from isonomy.common.base.canonical import (
    HASH_BYTES,
    MAX_INTEGER,
    MAX_TIME,
    MEMBER_BYTES,
    canonical_json,
    hash_bytes,
    parse_canonical,
)
from isonomy.common.base.errors import (
    ConfigError,
    DataError,
    ProtocolError,
    UnknownSchema,
    VerificationError,
)
from isonomy.common.base.merkle import merkle_root

SCHEMA = 1
MAX_QUERY_ID_CHARS = 128
MAX_EVENT_BYTES = 1 << 18  # a declaration of 4096 events, and everything beside it
ADJACENCIES = ("attribute", "sample")
STEPS = ("demanded", "opened", "overdue", "passed", "failed")  # of an inspection, in order
NO_RECORD = bytes(HASH_BYTES)  # `prev` of the first record

MAX_LINE_BYTES = 1 << 28  # 256 MiB: twelve million people in one record

_KIND = re.compile(r"[a-z][a-z-]{0,31}")
_ENVELOPE = frozenset({"seq", "prev", "time", "type", "hash"})
_HASHES = frozenset({"ledger_id", "tag", "root", "parent", "plan", "request_hash"})
_BYTES = frozenset({"members", "positions", "answer", "salt"})
_HEX64 = re.compile(r"[0-9a-f]{64}")

Event = Mapping[str, str | int]


@dataclass(frozen=True)
class _Record:
    """Checks the fields that records of several types have, by their names."""

    TYPE: ClassVar[str]

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if name in _HASHES and (type(value) is not bytes or len(value) != HASH_BYTES):
                raise ConfigError(f"{name} must be {HASH_BYTES} bytes")
            if name in ("units", "cap_units"):
                need_number(name, value)
            if name == "query_id" and (
                type(value) is not str or not 1 <= len(value) <= MAX_QUERY_ID_CHARS
            ):
                raise ConfigError(f"a query id is text of 1 to {MAX_QUERY_ID_CHARS} characters")
            if name == "officer" and type(value) is not str:
                raise ConfigError("an officer's name is text")
            if name == "adjacency" and value not in ADJACENCIES:
                raise ConfigError(f"adjacency must be one of {', '.join(ADJACENCIES)}")
            if name == "answer" and (type(value) is not bytes or not value):  # (9) answer present
                raise DataError("a debit needs its answer as non-empty bytes")
        if "event" in vars(self):
            object.__setattr__(self, "event", _checked_event(vars(self)["event"]))


@dataclass(frozen=True)
class Open(_Record):
    """The first record: the cap in units of μ² for every person, and δ as decimal text."""

    TYPE: ClassVar[str] = "open"
    ledger_id: bytes
    cap_units: int
    delta: str
    schema: int = SCHEMA

    def __post_init__(self) -> None:
        super().__post_init__()
        check_schema(self.schema)
        try:
            canonical = 0 < float(self.delta) < 1 and repr(float(self.delta)) == self.delta
        except (TypeError, ValueError):
            canonical = False
        if not canonical:
            raise ConfigError("delta must be a number between 0 and 1, such as 1e-05")


@dataclass(frozen=True)
class PeopleList(_Record):
    """A membership, stored once: the concatenated 16-byte keyed hashes of ids, in row order."""

    TYPE: ClassVar[str] = "people"
    root: bytes
    members: bytes = field(repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.members or len(self.members) % MEMBER_BYTES:
            raise DataError(f"people must be one or more hashes of {MEMBER_BYTES} bytes each")

    def split(self) -> Iterator[bytes]:
        """Return the members one by one."""
        data, step = self.members, MEMBER_BYTES
        return (data[at : at + step] for at in range(0, len(data), step))


@dataclass(frozen=True)
class Subset(_Record):
    """Some people of a stored root: ascending positions as little-endian 32-bit integers.

    A secret subset (of a plan that protects whole records) has a salt: its root commits to who is
    in it, and a copy for others is without positions and salt.
    """

    TYPE: ClassVar[str] = "subset"
    root: bytes
    parent: bytes
    positions: bytes = field(repr=False)
    salt: bytes = field(default=b"", repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.positions) % 4 or (self.salt and len(self.salt) != HASH_BYTES):
            raise DataError("a subset has positions of 4 bytes each, and perhaps a salt")
        if self.salt and not self.positions:
            raise DataError("a subset needs one or more positions")

    @property
    def is_secret(self) -> bool:
        """Is it salted, or was it salted in the original?"""
        return bool(self.salt) or not self.positions


@dataclass(frozen=True)
class Key(_Record):
    """Names the key under which people are hashed: another key would reset every budget."""

    TYPE: ClassVar[str] = "key"
    tag: bytes


@dataclass(frozen=True)
class Reserve(_Record):
    """A plan's budget, set aside for every person of `root`."""

    TYPE: ClassVar[str] = "reserve"
    plan: bytes
    root: bytes
    units: int
    individual: bool

    def __post_init__(self) -> None:
        super().__post_init__()
        if type(self.individual) is not bool:
            raise ConfigError("individual must be true or false")


@dataclass(frozen=True)
class ClosePlan(_Record):
    """A plan was closed: no more debits. What it did not spend is free again, unless `in_full`.

    `in_full`: all that was set aside counts as spent, because nobody knows what was (a restore).
    `officer`: who closed it.
    """

    TYPE: ClassVar[str] = "close"
    plan: bytes
    in_full: bool = False
    officer: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if type(self.in_full) is not bool:
            raise ConfigError("in_full must be true or false")


@dataclass(frozen=True)
class Debit(_Record):
    """One answered query: who is concerned, what it cost, what was answered."""

    TYPE: ClassVar[str] = "debit"
    plan: bytes
    query_id: str
    request_hash: bytes
    root: bytes
    units: int
    adjacency: str
    event: Event
    answer: bytes = field(repr=False)


@dataclass(frozen=True)
class DebitRecord(Debit):
    """A debit in its place in the ledger; its `answer` is what left, byte for byte."""

    seq: int
    time: int
    hash: bytes

    def __post_init__(self) -> None:
        """Nothing to check: its fields are those of a debit that was."""


@dataclass(frozen=True)
class Inspection(_Record):
    """One step in the inspection of a request: on disk before anybody hears of it.

    `officer`: who brought an auditor's verdict; empty where the regulator's daemon acted alone.
    """

    TYPE: ClassVar[str] = "inspection"
    plan: bytes
    query_id: str
    request_hash: bytes
    step: str
    officer: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.step not in STEPS:
            raise ConfigError(f"an inspection's step must be one of {', '.join(STEPS)}")


@dataclass(frozen=True)
class Note(_Record):
    """An act that costs nothing: an approval, a deletion, a rotation, a clock set back.

    `event` names the officer who acted.
    """

    TYPE: ClassVar[str] = "note"
    kind: str
    event: Event

    def __post_init__(self) -> None:
        if type(self.kind) is not str or not _KIND.fullmatch(self.kind):
            raise ConfigError("a note's kind is a word of at most 32 lower-case letters")
        super().__post_init__()


Body = Open | Key | PeopleList | Subset | Reserve | ClosePlan | Debit | Inspection | Note


@dataclass(frozen=True)
class Sealed:
    """A record in its place in the chain."""

    seq: int
    prev: bytes
    time: int
    hash: bytes
    body: Body


def check_schema(value: object) -> None:
    """Raise UnknownSchema for a ledger of another version."""
    if type(value) is not int or value != SCHEMA:
        raise UnknownSchema(
            f"the ledger has another schema than {SCHEMA}; open it with the version of Isonomy "
            "that wrote it"
        )


def need_number(name: str, value: object, most: int = MAX_INTEGER) -> None:
    """Raise unless the value is a whole number up to `most`; by default one that JSON keeps."""
    if type(value) is not int or not 0 <= value <= most:
        raise ConfigError(f"{name} must be a whole number from 0 to {most}")


def _checked_event(event: Event) -> Event:
    """A copy that nobody can change; ConfigError for other values, or too many of them."""
    size = 0
    for name, value in event.items():
        if type(value) not in (str, int):
            raise ConfigError("an event holds strings and integers only")
        size += len(str(name)) + len(str(value)) + 8
    copy = dict(event)
    # A character takes six bytes at most (\u00xx), so a short event need not be written out.
    if 6 * size > MAX_EVENT_BYTES and len(canonical_json(copy)) > MAX_EVENT_BYTES:
        raise ConfigError(f"an event of more than {MAX_EVENT_BYTES} bytes")
    return MappingProxyType(copy)


# --- Lines ---------------------------------------------------------------------------------------

_TYPES: dict[object, type[Body]] = {record.TYPE: record for record in get_args(Body)}


def seal(body: Body, *, seq: int, prev: bytes, time: int) -> tuple[Sealed, bytes]:
    """Put `body` into the chain; returns the record and its line, newline included."""
    need_number("the time of the clock", time, MAX_TIME)  # what is written can be read
    record: dict[str, Any] = dict(vars(body))
    for name in record.keys() & _HASHES:
        record[name] = record[name].hex()
    for name in record.keys() & _BYTES:
        record[name] = base64.b64encode(record[name]).decode("ascii")
    if "event" in record:
        record["event"] = dict(record["event"])
    record |= {"seq": seq, "prev": prev.hex(), "time": time, "type": body.TYPE}
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
    need_number("seq", record["seq"])
    need_number("the time of the clock", record["time"], MAX_TIME)
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
        # Strictly: a lenient reader would give one record many lines, and its hash many meanings.
        data = base64.b64decode(value, validate=True) if isinstance(value, str) else b""
    except (binascii.Error, ValueError):
        data = b""
    # Base64 has several texts for one value (loose padding bits): only the canonical one counts.
    if base64.b64encode(data).decode("ascii") != value:
        raise ProtocolError("not base64 in canonical form")
    return data
