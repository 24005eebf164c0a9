"""What a ledger record says: one small class per type, each checked when it is made.

Records are events (what happened); how they become lines is ledger_records' business, what they
mean for anybody's budget ledger_state's. Members' hashes and answers never appear in a `repr`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import ClassVar

from isonomy.common.base.canonical import HASH_BYTES, MAX_INTEGER, MEMBER_BYTES, canonical_json
from isonomy.common.base.errors import ConfigError, DataError

SCHEMA = 2  # 2 added `inspection`, `note` and `migrate`
SCHEMAS = (1, 2)  # what this version reads; an older ledger is migrated by a record, not rewritten
MAX_QUERY_ID_CHARS = 128
MAX_EVENT_BYTES = 4096
MAX_LINE_BYTES = 1 << 28  # 256 MiB: twelve million people in one record
ADJACENCIES = ("attribute", "sample")
STEPS = ("demanded", "opened", "passed", "failed")  # of an inspection, in order
NO_RECORD = bytes(HASH_BYTES)  # `prev` of the first record

_KIND = re.compile(r"[a-z][a-z-]{0,31}")


class UnknownSchema(ConfigError):  # noqa: N818
    """The ledger was written by a version of Isonomy that this one does not know."""


@dataclass(frozen=True)
class Open:
    """The first record: the cap in units of μ² for every person, and δ as decimal text."""

    TYPE: ClassVar[str] = "open"
    ledger_id: bytes
    cap_units: int
    delta: str
    schema: int = SCHEMA

    def __post_init__(self) -> None:
        _need_hash("ledger id", self.ledger_id)
        need_units("cap_units", self.cap_units)
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
        need_units("units", self.units)
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
        need_units("units", self.units)
        if type(self.query_id) is not str or not 1 <= len(self.query_id) <= MAX_QUERY_ID_CHARS:
            raise ConfigError(f"a query id is text of 1 to {MAX_QUERY_ID_CHARS} characters")
        if self.adjacency not in ADJACENCIES:
            raise ConfigError(f"adjacency must be one of {', '.join(ADJACENCIES)}")
        if type(self.answer) is not bytes or not self.answer:  # (9) answer present
            raise DataError("a debit needs its answer as non-empty bytes")
        object.__setattr__(self, "event", _checked_event(self.event))


@dataclass(frozen=True)
class Inspection:
    """One step in the inspection of a request: on disk before anybody hears of it."""

    TYPE: ClassVar[str] = "inspection"
    plan: bytes
    query_id: str
    request_hash: bytes
    step: str

    def __post_init__(self) -> None:
        _need_hash("plan", self.plan)
        _need_hash("request hash", self.request_hash)
        if type(self.query_id) is not str or not 1 <= len(self.query_id) <= MAX_QUERY_ID_CHARS:
            raise ConfigError(f"a query id is text of 1 to {MAX_QUERY_ID_CHARS} characters")
        if self.step not in STEPS:
            raise ConfigError(f"a step of an inspection is one of {', '.join(STEPS)}")


@dataclass(frozen=True)
class Note:
    """Something that happened and costs nothing: a deletion, a rotation, a clock set back."""

    TYPE: ClassVar[str] = "note"
    kind: str
    event: Mapping[str, str | int]

    def __post_init__(self) -> None:
        if type(self.kind) is not str or not _KIND.fullmatch(self.kind):
            raise ConfigError("a note's kind is a word of at most 32 lower-case letters")
        object.__setattr__(self, "event", _checked_event(self.event))


@dataclass(frozen=True)
class Migrate:
    """From here on the ledger holds records of a newer schema. Heads before it stay as they are."""

    TYPE: ClassVar[str] = "migrate"
    schema: int

    def __post_init__(self) -> None:
        if self.schema not in SCHEMAS:
            raise UnknownSchema(other_schema())


Body = Open | Key | People | Subset | Reserve | Release | Debit | Inspection | Note | Migrate


def _checked_event(event: Mapping[str, str | int]) -> Mapping[str, str | int]:
    if not all(type(value) in (str, int) for value in event.values()):
        raise ConfigError("an event holds strings and integers only")
    own = dict(event)
    if not _is_short(own) and len(canonical_json(own)) > MAX_EVENT_BYTES:
        raise ConfigError(f"an event of more than {MAX_EVENT_BYTES} bytes")
    return MappingProxyType(own)


def _is_short(event: dict[str, str | int]) -> bool:
    """Does the event surely have a canonical form within the limit? Then it need not be made here.

    An ASCII character takes at most six bytes there, an integer within ±2^53 at most seventeen.
    """
    size = 2
    for key, value in event.items():
        if type(key) is not str or not key.isascii():
            return False
        if isinstance(value, int):
            if not -MAX_INTEGER <= value <= MAX_INTEGER:
                return False
            size += 6 * len(key) + 24
        elif not value.isascii():
            return False
        else:
            size += 6 * (len(key) + len(value)) + 8
    return size <= MAX_EVENT_BYTES


def other_schema() -> str:
    """The sentence about a ledger of another version."""
    return (
        f"the ledger has another schema than {' or '.join(map(str, SCHEMAS))}; open it with the "
        "version of Isonomy that wrote it, or a newer one"
    )


def _need_hash(name: str, value: object) -> None:
    if type(value) is not bytes or len(value) != HASH_BYTES:
        raise ConfigError(f"{name} must be {HASH_BYTES} bytes")


def need_units(name: str, value: object) -> None:
    """Raise unless the value is a whole number that every JSON reader keeps."""
    if type(value) is not int or not 0 <= value <= MAX_INTEGER:
        raise ConfigError(f"{name} must be a whole number from 0 to 2^53 − 1")
