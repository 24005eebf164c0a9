"""What a ledger record says: one small class per type, each checked when it is created.

Records are events (what happened). How they become lines is the business of lines.py, what they
mean for anybody's budget that of state.py. Hashes of people, and answers, never appear in a `repr`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import ClassVar

from isonomy.common.base.canonical import HASH_BYTES, MAX_INTEGER, MEMBER_BYTES, canonical_json
from isonomy.common.base.errors import ConfigError, DataError, UnknownSchema

SCHEMA = 1
MAX_QUERY_ID_CHARS = 128
MAX_EVENT_BYTES = 1 << 18  # a declaration of 4096 events, and everything beside it
ADJACENCIES = ("attribute", "sample")
STEPS = ("demanded", "opened", "overdue", "passed", "failed")  # of an inspection, in order
NO_RECORD = bytes(HASH_BYTES)  # `prev` of the first record

_KIND = re.compile(r"[a-z][a-z-]{0,31}")

Event = Mapping[str, str | int]


@dataclass(frozen=True)
class Open:
    """The first record: the cap in units of μ² for every person, and δ as decimal text."""

    TYPE: ClassVar[str] = "open"
    ledger_id: bytes
    cap_units: int
    delta: str
    schema: int = SCHEMA

    def __post_init__(self) -> None:
        check_schema(self.schema)
        _need_hashes(ledger_id=self.ledger_id)
        need_units("cap_units", self.cap_units)
        try:
            canonical = 0 < float(self.delta) < 1 and repr(float(self.delta)) == self.delta
        except (TypeError, ValueError):
            canonical = False
        if not canonical:
            raise ConfigError("delta must be a number between 0 and 1, such as 1e-05")


@dataclass(frozen=True)
class PeopleList:
    """A membership, stored once: the concatenated 16-byte keyed hashes of ids, in row order."""

    TYPE: ClassVar[str] = "people"
    root: bytes
    members: bytes = field(repr=False)

    def __post_init__(self) -> None:
        _need_hashes(root=self.root)
        if not self.members or len(self.members) % MEMBER_BYTES:
            raise DataError(f"people must be one or more hashes of {MEMBER_BYTES} bytes each")

    def split(self) -> list[bytes]:
        """Return the members one by one."""
        data, step = self.members, MEMBER_BYTES
        return [data[at : at + step] for at in range(0, len(data), step)]


@dataclass(frozen=True)
class Subset:
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
        _need_hashes(root=self.root, parent=self.parent)
        if len(self.positions) % 4 or (self.salt and len(self.salt) != HASH_BYTES):
            raise DataError("a subset has positions of 4 bytes each, and perhaps a salt")
        if self.salt and not self.positions:
            raise DataError("a subset needs one or more positions")

    @property
    def is_secret(self) -> bool:
        """Is it salted, or was it salted in the original?"""
        return bool(self.salt) or not self.positions


@dataclass(frozen=True)
class Key:
    """Names the key under which people are hashed: another key would reset every budget."""

    TYPE: ClassVar[str] = "key"
    tag: bytes

    def __post_init__(self) -> None:
        _need_hashes(tag=self.tag)


@dataclass(frozen=True)
class Reserve:
    """A plan's budget, set aside for every person of `root`."""

    TYPE: ClassVar[str] = "reserve"
    plan: bytes
    root: bytes
    units: int
    individual: bool

    def __post_init__(self) -> None:
        _need_hashes(plan=self.plan, root=self.root)
        need_units("units", self.units)
        if type(self.individual) is not bool:
            raise ConfigError("individual must be true or false")


@dataclass(frozen=True)
class ClosePlan:
    """A plan was closed: no more debits. What it did not spend is free again, unless `in_full`.

    `in_full`: all that was set aside counts as spent, because nobody knows what was (a restore).
    """

    TYPE: ClassVar[str] = "close"
    plan: bytes
    in_full: bool = False

    def __post_init__(self) -> None:
        _need_hashes(plan=self.plan)
        if type(self.in_full) is not bool:
            raise ConfigError("in_full must be true or false")


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
    event: Event
    answer: bytes = field(repr=False)

    def __post_init__(self) -> None:
        _need_hashes(plan=self.plan, request_hash=self.request_hash, root=self.root)
        need_units("units", self.units)
        _need_query_id(self.query_id)
        if self.adjacency not in ADJACENCIES:
            raise ConfigError(f"adjacency must be one of {', '.join(ADJACENCIES)}")
        if type(self.answer) is not bytes or not self.answer:  # (9) answer present
            raise DataError("a debit needs its answer as non-empty bytes")
        object.__setattr__(self, "event", _checked_event(self.event))


@dataclass(frozen=True)
class DebitRecord(Debit):
    """A debit in its place in the ledger; its `answer` is what left, byte for byte."""

    seq: int
    time: int
    hash: bytes


@dataclass(frozen=True)
class Inspection:
    """One step in the inspection of a request: on disk before anybody hears of it."""

    TYPE: ClassVar[str] = "inspection"
    plan: bytes
    query_id: str
    request_hash: bytes
    step: str

    def __post_init__(self) -> None:
        _need_hashes(plan=self.plan, request_hash=self.request_hash)
        _need_query_id(self.query_id)
        if self.step not in STEPS:
            raise ConfigError(f"a step of an inspection is one of {', '.join(STEPS)}")


@dataclass(frozen=True)
class Note:
    """Something that happened and costs nothing: a deletion, a rotation, a clock set back."""

    TYPE: ClassVar[str] = "note"
    kind: str
    event: Event

    def __post_init__(self) -> None:
        if type(self.kind) is not str or not _KIND.fullmatch(self.kind):
            raise ConfigError("a note's kind is a word of at most 32 lower-case letters")
        object.__setattr__(self, "event", _checked_event(self.event))


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


def need_units(name: str, value: object) -> None:
    """Raise unless the value is a whole number that every JSON reader keeps."""
    if type(value) is not int or not 0 <= value <= MAX_INTEGER:
        raise ConfigError(f"{name} must be a whole number from 0 to 2^53 − 1")


def _need_hashes(**values: object) -> None:
    for name, value in values.items():
        if type(value) is not bytes or len(value) != HASH_BYTES:
            raise ConfigError(f"{name} must be {HASH_BYTES} bytes")


def _need_query_id(value: object) -> None:
    if type(value) is not str or not 1 <= len(value) <= MAX_QUERY_ID_CHARS:
        raise ConfigError(f"a query id is text of 1 to {MAX_QUERY_ID_CHARS} characters")


def _checked_event(event: Event) -> Event:
    """A copy that nobody can change; ConfigError for other values, or too many of them."""
    if not all(type(value) in (str, int) for value in event.values()):
        raise ConfigError("an event holds strings and integers only")
    copy = dict(event)
    # A character takes six bytes at most (\u00xx), so a short event need not be written out.
    size = sum(len(str(part)) + 4 for item in copy.items() for part in item)
    if 6 * size > MAX_EVENT_BYTES and len(canonical_json(copy)) > MAX_EVENT_BYTES:
        raise ConfigError(f"an event of more than {MAX_EVENT_BYTES} bytes")
    return MappingProxyType(copy)
