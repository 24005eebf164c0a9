"""Enrolling people: every line checked before anybody is enrolled, then one new vault.

| call | takes | refuses |
|---|---|---|
| `enroll FILE` | people of a new cohort | anybody who is enrolled already |
| `enroll --update` | further people, and further attributes | another value for a known person |
| `enroll --replace` | new values too (implies --update) | – |
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, compress

import numpy as np
from numpy.typing import NDArray

from isonomy.common.base.errors import ConfigError, DataError
from isonomy.common.people.cohort import (
    NOT_STATED,
    Ids,
    id_key,
    no_place,
    normalise_id,
    takes_missing,
    with_not_stated,
    written_as,
)
from isonomy.common.people.id_summary import looks_damaged
from isonomy.regulator.config.config import check_groups
from isonomy.regulator.config.faults import AlreadyEnrolled
from isonomy.regulator.vault.tables import MAX_SHOWN, Problems, Row
from isonomy.regulator.vault.vault import MISSING, UNKNOWN, Codes, VaultTable

MAX_LABELS = 1 << 12


@dataclass(frozen=True)
class Order:
    """The officer's order: whom to enroll, and how."""

    cohort: str
    groups: Mapping[str, tuple[str, ...]]  # the attributes of the file, each with its groups
    unknown_values: Sequence[str] = ()
    update: bool = False
    replace: bool = False


@dataclass(frozen=True)
class Damaged:
    """Lines with new ids that a spreadsheet seems to have damaged; never the ids."""

    written: tuple[str, ...] = ()  # as a number, an error or an empty cell of a spreadsheet
    zeros: tuple[str, ...] = ()  # without the leading zeros that an id of somebody else has

    def describe(self) -> list[str]:
        """Return the warnings, in words."""
        return [
            f"new ids that {why}: {len(where)} ({', '.join(where[:MAX_SHOWN])}"
            f"{', …' if len(where) > MAX_SHOWN else ''}). Save ids as text; no company finds "
            "somebody by a damaged id"
            for where, why in (
                (self.written, "look damaged by a spreadsheet, such as 1.0E+05, #N/A or NULL"),
                (self.zeros, "equal another one but for leading zeros, and count as other people"),
            )
            if where
        ]


@dataclass(frozen=True)
class Enrolled:
    """How many people were enrolled, without any attribute."""

    added: int
    unchanged: int
    replaced: int
    people: int
    damaged: Damaged = Damaged()


@dataclass
class _Read:
    """A file's people, checked."""

    ids: list[str]
    keys: list[str]  # as ids are compared
    where: list[str]
    codes: dict[str, list[int]]


def _damaged(table: VaultTable, read: _Read, fresh: NDArray[np.bool_]) -> Damaged:
    """Return which new ids a spreadsheet seems to have damaged."""
    new = list(compress(zip(read.keys, read.where, strict=False), fresh))
    keys = chain(map(id_key, filter(_is_padded, table.ids)), filter(_is_padded, read.keys))
    stripped = {key.lstrip("0") for key in keys}
    return Damaged(
        tuple(where for key, where in new if looks_damaged(key)),
        tuple(where for key, where in new if key in stripped),
    )


def _is_padded(key: str) -> bool:
    return key.startswith("0")


def enrol(
    table: VaultTable, order: Order, rows: Iterable[Row], problems: Problems
) -> tuple[VaultTable, Enrolled]:
    """Return the vault with the file's people in it, and counts. Raises before any change."""
    _check_order(table, order)
    read = _read(order, rows, problems)
    problems.check()
    if not read.ids:
        raise DataError(f"{problems.path} holds nobody; nothing was changed")
    places = table.find(read.ids)
    enrolled = int((places >= 0).sum())
    if enrolled and not (order.update or order.replace):
        raise AlreadyEnrolled(
            f"{enrolled} of the {len(places)} people in {problems.path} are enrolled already; "
            "nothing was changed. Add --update to enroll the others too"
        )
    return _merge(table, order, read, places, problems)


def declared_groups(
    attributes: Sequence[str],
    options: Mapping[str, tuple[str, ...]],
    policy: Mapping[str, tuple[str, ...]],
    enrolled: Mapping[str, tuple[str, ...]],
) -> dict[str, tuple[str, ...]]:
    """Return each attribute's groups. Command line, policy and vault must agree on them.

    Only this may differ: the enrolled all have a value, and the policy now adds "not stated".
    """
    strangers = set(options) - set(attributes)
    if strangers:
        raise ConfigError(f"--groups names {sorted(strangers)}, which no --attribute chooses")
    groups = {}
    for name in attributes:
        sources = [source[name] for source in (options, policy) if name in source]
        if name in enrolled:
            extended = with_not_stated(enrolled[name])
            sources.append(extended if policy.get(name) == extended else enrolled[name])
        if not sources:
            known = ", ".join(dict.fromkeys([*policy, *enrolled])) or "none"
            raise ConfigError(
                f"{name!r} is not declared; declared are: {known}. A column "
                "must have the name of its attribute: rename it in the file. For a new attribute "
                f"write its groups into [groups] of regulator.toml, or add --groups {name}=LABEL,"
                "LABEL. They are not read off the data, because whether a rare group has anybody "
                "in it is itself private"
            )
        if any(labels != sources[0] for labels in sources):
            raise ConfigError(
                f"{name!r} is declared with different groups (or another order) in regulator.toml, "
                "on the command line or among the enrolled; they must agree"
            )
        try:
            check_groups(name, sources[0])
        except ValueError as error:
            raise ConfigError(str(error)) from None
        if len(sources[0]) > MAX_LABELS:
            raise ConfigError(f"{name!r} has more than {MAX_LABELS} groups")
        groups[name] = sources[0]
    return groups


def _check_order(table: VaultTable, order: Order) -> None:
    if order.cohort in table.cohort_names and not (order.update or order.replace):
        raise AlreadyEnrolled(
            f"there are people in cohort {order.cohort!r} already; nothing was changed. Add "
            "--update to enroll further people, or name another --cohort"
        )
    further = set(order.groups) - set(table.groups)
    if len(table) and further and not (order.update or order.replace):
        raise ConfigError(
            f"{', '.join(sorted(further))}: no enrolled person has this attribute. With --update "
            "it is added, and counts as missing for everybody who is not in the file"
        )


def _read(order: Order, rows: Iterable[Row], problems: Problems) -> _Read:
    """Return a file's people and codes; what is wrong with a line goes to `problems`."""
    coders = [_Coder(name, labels, order.unknown_values) for name, labels in order.groups.items()]
    read = _Read([], [], [], {name: [] for name in order.groups})
    places: dict[str, str] = {}
    columns = list(read.codes.values())
    for row in rows:
        try:
            person = normalise_id(row.person)
        except DataError as error:
            problems.add(row.where, str(error))
            continue
        first = places.setdefault(id_key(person), row.where)
        if first is not row.where:
            problems.add(row.where, f"the same id as in {first}")
            continue
        for coder, value, column in zip(coders, row.values, columns, strict=True):
            code = coder.code(value)
            if code is None:
                problems.add(
                    row.where,
                    f"the value of {coder.name!r} is none of its declared groups "
                    f"({', '.join(coder.labels[:8])}), nor one that means unknown "
                    "(--map VALUE=GROUP translates)",
                )
            elif code >= UNKNOWN and not takes_missing(coder.labels):
                problems.add(row.where, f"{coder.name!r}: {no_place(coder.labels)}")
            column.append(UNKNOWN if code is None else code)
        read.ids.append(person)
        read.where.append(row.where)
    read.keys = list(places)
    return read


class _Coder:
    """Turns the values of one attribute into codes; each spelling is normalised once."""

    def __init__(self, name: str, labels: Sequence[str], unknown: Sequence[str]) -> None:
        self.name, self.labels = name, labels
        self._codes: dict[str | None, int | None] = {None: MISSING}
        for number, label in enumerate(labels):
            code = UNKNOWN if label == NOT_STATED else number
            self._codes |= {label: code, written_as(label): code}
        self._unknown = {value.casefold() for value in unknown}

    def code(self, value: str | None) -> int | None:
        if value not in self._codes:
            text = unicodedata.normalize("NFC", value or "")
            unknown = UNKNOWN if text.casefold() in self._unknown else None
            self._codes[value] = self._codes.get(text, unknown)
        return self._codes[value]


def _merge(
    table: VaultTable, order: Order, read: _Read, at: NDArray[np.int64], problems: Problems
) -> tuple[VaultTable, Enrolled]:
    """Return a new table with the people of the file, `at` these rows (−1: new), and counts."""
    old = len(table)
    fresh = at < 0
    groups = {**table.groups, **order.groups}
    names = (*table.cohort_names, *({order.cohort} - set(table.cohort_names)))
    targets = at.copy()
    targets[fresh] = old + np.arange(int(fresh.sum()))
    changed = np.zeros(len(at), bool)
    codes: dict[str, Codes] = {}
    for name in groups:
        column = np.full(old + int(fresh.sum()), MISSING, np.uint16)
        column[:old] = table.codes.get(name, np.full(old, MISSING, np.uint16))
        if name in read.codes:
            values = np.array(read.codes[name], np.uint16)
            if name in table.groups:  # a new attribute contradicts nobody
                changed |= ~fresh & (column[targets] != values)
            column[targets] = values
        if not takes_missing(groups[name]) and (column >= UNKNOWN).any():
            raise DataError(
                f"{name!r}, of people who are not in the file: {no_place(groups[name])}"
            )
        codes[name] = column
    # Nothing is lost here: the old table is unchanged, and the new one has not been returned.
    if changed.any() and not order.replace:
        where = [read.where[number] for number in np.flatnonzero(changed)[:MAX_SHOWN]]
        raise AlreadyEnrolled(
            f"{int(changed.sum())} people in {problems.path} are enrolled under another value "
            f"({', '.join(where)}); nothing was changed. Correct the file, or add --replace"
        )
    ids = Ids(chain(table.ids, compress(read.ids, fresh)))
    cohorts = np.full(len(ids), names.index(order.cohort), np.uint16)
    cohorts[:old] = table.cohorts
    added, replaced = int(fresh.sum()), int(changed.sum())
    damaged = _damaged(table, read, fresh)
    counts = Enrolled(added, len(at) - added - replaced, replaced, len(ids), damaged)
    return VaultTable(ids, names, cohorts, groups, codes), counts
