"""The aligned people, and the regulator's attributes of them.

Both parties hold the same `Cohort`: distinct ids in one agreed order. A person is named by their
position in it. Only the regulator holds an `AttributeTable`.
"""

from __future__ import annotations

import hmac
import math
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from typing import SupportsIndex, overload

import numpy as np
from numpy.typing import NDArray

from isonomy.common.base.canonical import MEMBER_BYTES, hash_bytes
from isonomy.common.base.errors import ConfigError, DataError
from isonomy.common.base.merkle import Digests, Places, digests_of, merkle_root

MAX_GROUPS = 1 << 12
_BATCH = 1 << 12
INTERSECTION = "*"
_LABEL_JOIN = " × "
NOT_STATED = "not stated"  # as an attribute's last group: people without a value, and nobody else
_MERGED = f" or {NOT_STATED}"  # at the end of the last group's label: it takes them in


def id_key(person: str) -> str:
    """What equal ids have in common: NFKC, case folded, trimmed. One key, one person, one budget.

    So "KUNDE-7", "Kunde-7" and "Ｋｕｎｄｅ-7" are one person, at enrolment, in cohorts, in an
    alignment and in the ledger. Ids that differ in case only cannot name two people.
    """
    if person.isascii():
        return person.strip().lower()
    # Folding can undo the normal form, so it is taken again.
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", person).casefold()).strip()


def normalise_id(person: object) -> str:
    """An id as it is kept and shown: NFC text without blanks at its ends, the owner's spelling.

    Ids compare by `id_key`.
    """
    text = unicodedata.normalize("NFC", str(person)).strip()
    if not text or not text.isprintable():
        raise DataError("an id is empty, or holds characters that cannot be printed; clean the ids")
    return text


class Ids(Sequence[str]):
    """Ids as one text, a line each: 25 bytes a person where a tuple of strings takes 70."""

    def __init__(self, ids: Iterable[str]) -> None:
        source, parts, number = iter(ids), list[bytes](), 0
        while batch := list(islice(source, _BATCH)):
            parts.append("".join(f"{person}\n" for person in batch).encode())
            number += len(batch)
        self.text = b"".join(parts)
        self._ends = np.flatnonzero(np.frombuffer(self.text, np.uint8) == ord("\n"))
        if len(self._ends) != number:
            raise DataError("an id holds a line break; clean the id column")

    def __len__(self) -> int:
        return len(self._ends)

    def __iter__(self) -> Iterator[str]:
        for start in range(0, len(self), _BATCH):
            yield from self._between(start, min(start + _BATCH, len(self)))

    @overload
    def __getitem__(self, place: SupportsIndex) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[str, ...]: ...
    def __getitem__(self, place: SupportsIndex | slice) -> str | tuple[str, ...]:
        if isinstance(place, slice):
            return tuple(self[each] for each in range(len(self))[place])
        place = range(len(self))[place]
        return self._between(place, place + 1)[0]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Ids):
            return self.text == other.text
        return isinstance(other, tuple) and tuple(self) == other

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return f"Ids({len(self)} people)"

    def _between(self, start: int, stop: int) -> list[str]:
        first = int(self._ends[start - 1]) + 1 if start else 0
        return self.text[first : int(self._ends[stop - 1])].decode().split("\n")


def id_digests(ids: Iterable[str]) -> Digests:
    """(people, 2) what equal ids have in common, in 16 bytes."""
    return digests_of(b"".join(_leaf(person)[:16] for person in ids))


def _leaf(person: str) -> bytes:
    return hash_bytes("isonomy/id/v1", id_key(person).encode())


class Cohort:
    """Distinct people in an agreed order."""

    def __init__(self, ids: Iterable[str]) -> None:
        self.ids = Ids(ids)
        if not len(self.ids):
            raise DataError("a cohort needs at least one person")
        self._places = Places(id_digests(self.ids))
        repeats = self._places.repeats
        if len(repeats):
            number = int(repeats[0])
            first = int(self._places.find(id_digests([self.ids[number]]))[0])
            raise DataError(
                f"{len(repeats)} ids occur more than once (lines {first + 1} and {number + 1} name "
                "one person), perhaps written differently: case, width and ligatures make no "
                "difference. Each person stands once in a cohort (rows of one person are grouped "
                "in the query)"
            )

    @classmethod
    def of(cls, ids: Iterable[object]) -> Cohort:
        return cls(_numbered(ids))

    def __len__(self) -> int:
        return len(self.ids)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Cohort) and self.ids == other.ids

    def __hash__(self) -> int:
        return hash(self.ids)

    @property
    def keys(self) -> Iterator[str]:
        """What these people are compared by, one after the other."""
        return map(id_key, self.ids)

    @cached_property
    def root(self) -> bytes:
        """Merkle root of the people in order: what a plan binds, whatever the spelling."""
        return merkle_root(map(_leaf, self.ids))

    def find(self, ids: Iterable[str]) -> NDArray[np.int64]:
        """(n,) positions of these people; −1 for who is not in the cohort."""
        return self._places.find(id_digests(ids))

    def positions(self, ids: Iterable[object]) -> NDArray[np.int64]:
        """Positions of these people; unknown ones are an error that counts them."""
        positions = self.find(normalise_id(person) for person in ids)
        unknown = int((positions < 0).sum())
        if unknown:
            cure = "align the records again or leave these rows out"
            if unknown == len(positions):  # hardly a matter of alignment
                cure = "are the ids of the same kind and spelling? They are compared as text"
            raise DataError(
                f"{unknown} of {len(positions)} people are not in the agreed cohort of "
                f"{len(self)}; {cure}"
            )
        return positions

    def member_hashes(self, key: bytes) -> list[bytes]:
        """Keyed hashes under which the ledger knows these people; useless without the key."""
        return [
            hmac.digest(key, b"isonomy/member/v1" + person.encode(), "sha256")[:MEMBER_BYTES]
            for person in self.keys
        ]


def _numbered(ids: Iterable[object]) -> Iterator[str]:
    """Normalise ids; an error names the place of the first bad one."""
    number = 0
    try:
        for number, person in enumerate(ids, 1):  # noqa: B007  (the handler reads it)
            yield normalise_id(person)
    except DataError as error:
        raise DataError(f"line {number}: {error}") from None


class AttributeTable:
    """The regulator's attributes of a cohort. Group labels are public, who is in them is not.

    A group's label list (`groups`) is declared, not read off the data: whether anybody has a rare
    value is itself private. People without a value (None) are in the last group, whose label says
    so: NOT_STATED holds nobody else, "male or not stated" is a merged one. An attribute without
    such a label has a value for everybody.
    """

    def __init__(
        self,
        cohort: Cohort,
        values: Mapping[str, Sequence[str | None]],
        groups: Mapping[str, Sequence[str]],
    ) -> None:
        self.cohort = cohort
        self.groups: dict[str, tuple[str, ...]] = {}  # public labels of every attribute
        self._codes: dict[str, NDArray[np.int64]] = {}
        if set(values) != set(groups):
            raise ConfigError("every attribute needs its values and its declared groups")
        for name, column in values.items():
            self._add(name, column, tuple(groups[name]))

    def _add(self, name: str, column: Sequence[str | None], labels: tuple[str, ...]) -> None:
        """Store one attribute as group numbers; DataError if a value is not declared."""
        if INTERSECTION in name or not name:
            raise ConfigError(f"an attribute's name is not empty and holds no {INTERSECTION!r}")
        fault = labels_fault(labels)
        if fault:
            raise DataError(f"attribute {name!r} {fault}")
        if len(column) != len(self.cohort):
            raise DataError(
                f"attribute {name!r} has {len(column)} values for {len(self.cohort)} people"
            )
        code: dict[str | None, int] = {label: index for index, label in enumerate(labels)}
        if takes_missing(labels):
            code |= {None: len(labels) - 1, written_as(labels[-1]): len(labels) - 1}
        elif any(value is None for value in column):
            raise DataError(f"attribute {name!r}: {no_place(labels)}")
        codes = np.array([code.get(value, -1) for value in column], dtype=np.int64)
        if (codes < 0).any():
            raise DataError(
                f"attribute {name!r} has {int((codes < 0).sum())} values outside its declared "
                "groups; declare them or map them first"
            )
        self.groups[name], self._codes[name] = labels, codes

    def codes(self, expression: str) -> NDArray[np.int64]:
        """(people,) group number of each person for an attribute or an intersection."""
        total = np.zeros(len(self.cohort), dtype=np.int64)
        for name in split_expression(expression, self.groups):
            total = total * len(self.groups[name]) + self._codes[name]
        return total


def as_text(name: str, column: Iterable[object]) -> list[str | None]:
    """An attribute's values as group labels: text stays, True, 1 and 1.0 become "True", "1", "1".

    None, NaN and pandas' NA mean that nothing is known. A column that holds gaps often has its
    whole numbers as 1.0, so they are written without the point. DataError for other kinds, and for
    text among numbers: 1 and "1" could be meant as two groups, or as one.
    """
    values = [None if _unknown(value) else _plain(value) for value in column]
    kinds = {isinstance(value, str) for value in values if value is not None}
    if len(kinds) > 1 or not all(isinstance(v, str | bool | int | float | None) for v in values):
        raise DataError(f"attribute {name!r} has values of several kinds; make all text")
    return [None if value is None else _written(value) for value in values]


def _plain(value: object) -> object:
    """A numpy scalar as Python's own number or text."""
    return value.item() if isinstance(value, np.generic) else value


def _unknown(value: object) -> bool:
    return value is None or type(value).__name__ == "NAType" or bool(value != value)


def _written(value: object) -> str:
    whole = isinstance(value, float) and value.is_integer()
    return str(int(value)) if whole else str(value)  # type: ignore[call-overload]


def takes_missing(labels: Sequence[str]) -> bool:
    """Whether the last group takes people without a value, alone or merged."""
    return labels[-1] == NOT_STATED or labels[-1].endswith(_MERGED)


def with_not_stated(labels: Sequence[str]) -> tuple[str, ...]:
    """The groups, and NOT_STATED behind them unless the last one takes people without a value."""
    return tuple(labels) if takes_missing(labels) else (*labels, NOT_STATED)


def written_as(label: str) -> str:
    """How data spell a group: "male" for the merged group "male or not stated"."""
    return label.removesuffix(_MERGED)


def groups_in(column: Sequence[str | None]) -> tuple[str, ...]:
    """The groups of known values: sorted, then NOT_STATED if somebody has none."""
    values = set(column)
    labels = tuple(sorted(value for value in values - {None, NOT_STATED} if value is not None))
    return labels if len(labels) == len(values) else (*labels, NOT_STATED)


def labels_fault(labels: Sequence[str]) -> str:
    """What is wrong with an attribute's groups, as the end of a sentence; empty if nothing is."""
    if len(labels) < 2 or len({*map(written_as, labels)} - {""}) != len(labels):
        return f"needs at least two distinct groups, declared {len(labels)}: nothing to compare"
    if any(takes_missing([label]) for label in labels[:-1]) or [*labels[1:]] == [NOT_STATED]:
        return f"has {NOT_STATED!r}, alone or merged, as its last group only, after others"
    return ""


def no_place(labels: Sequence[str]) -> str:
    """What to declare where somebody has no value and no group takes them."""
    return (
        "somebody has no value, and no group takes them. Declare the last group as "
        f"{NOT_STATED!r}, or merge it: {labels[-1] + _MERGED!r}"
    )


def without_value(label: str) -> bool:
    """Whether a group, or one part of an intersection, is of people without a value."""
    return NOT_STATED in label.split(_LABEL_JOIN)


def split_expression(expression: str, groups: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """ "sex*race" -> ("sex", "race"), each known."""
    names = tuple(expression.split(INTERSECTION))
    unknown = [name for name in names if name not in groups]
    if unknown or len(set(names)) != len(names):
        raise ConfigError(
            f"unknown or repeated attribute in {expression!r}; the regulator offers "
            f"{', '.join(sorted(groups))} and intersections such as 'a*b'"
        )
    return names


def group_count(expression: str, groups: Mapping[str, Sequence[str]]) -> int:
    """How many groups an attribute or an intersection has, at most MAX_GROUPS."""
    count = math.prod(len(groups[name]) for name in split_expression(expression, groups))
    if count > MAX_GROUPS:
        raise ConfigError(
            f"{expression!r} has {count} groups; one query carries {MAX_GROUPS}. Cross fewer "
            "attributes, or merge groups."
        )
    return count


def group_labels(expression: str, groups: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Labels of an attribute or an intersection, in the order of the codes."""
    group_count(expression, groups)  # before anything of that size is made
    labels: tuple[str, ...] = ("",)
    for name in split_expression(expression, groups):
        labels = tuple(
            f"{prefix}{_LABEL_JOIN}{label}" if prefix else label
            for prefix in labels
            for label in groups[name]
        )
    return labels
