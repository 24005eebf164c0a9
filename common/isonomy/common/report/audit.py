"""An audit: noised counts by group and (label, decision), and the tables that are shown of them.

The finest level asked for (say sex*race) is released once. Coarser tables (sex, race) are sums of
its groups, so that all tables agree and nothing more is spent. A table's groups are sets S of the
released groups 1..k; the last released group is the public total minus the others, so in terms of
the k − 1 independent noises the set S has

    a_S = 1_{S \\ k} − 1[k ∈ S]·(1, …, 1)            cov(S, T) = a_S·a_T  (in units of σ²)

Small groups, judged by their *noised* size only, are pooled if together they are large enough,
otherwise withheld. That is about what few people can show; privacy is kept by the noise, and
nobody should take a withheld number for a secret one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from isonomy.common.base.errors import DataError
from isonomy.common.people.cohort import (
    INTERSECTION,
    group_count,
    group_labels,
    split_expression,
    without_value,
)
from isonomy.common.report._audit_rates import Findings, GroupCounts, findings_of
from isonomy.common.report.audit_cells import Cells
from isonomy.common.report.audit_intervals import Estimate

SMALLEST_GROUP = 50  # where neither policy nor caller says otherwise
MAX_TABLES = 15  # four attributes and all their intersections
MAX_SHOWN_GROUPS = 128  # beyond that a table tells nobody anything, and takes minutes to compare
MILLION = 1_000_000
QUANTILE = 1.959964  # 95 % of a normal distribution lie within so many deviations

Floats = NDArray[np.float64]


class Labelled(Protocol):
    """Anything with a group's name."""

    @property
    def label(self) -> str: ...


@dataclass(frozen=True)
class ShownGroup:
    """A group of a table: which released groups it is made of."""

    label: str
    members: tuple[int, ...]


@dataclass(frozen=True)
class AuditTable:
    """One attribute or intersection as it is shown."""

    attribute: str
    groups: tuple[ShownGroup, ...]
    withheld: tuple[str, ...]
    counts: GroupCounts

    def findings(self) -> Findings:
        return findings_of(self.counts)


@dataclass(frozen=True)
class NoisedCounts:
    """A release: counts[g, c] = people of released group g in cell c, plus noise.

    `counts` are kept to millionths of a person, as reports hold them, so that whoever recomputes
    a report from its numbers gets the same rates.
    """

    expression: str
    groups: Mapping[str, Sequence[str]]  # all attributes of the plan
    cells: Cells
    counts: Floats  # (k, cells)
    sigma: float

    def __post_init__(self) -> None:
        released = group_count(self.expression, self.groups)
        if self.counts.ndim != 2 or len(self.counts) != released:
            raise DataError("an audit's counts do not fit its groups")
        object.__setattr__(self, "counts", np.round(self.counts * MILLION) / MILLION)

    def tables(self, smallest_group: float = SMALLEST_GROUP) -> list[AuditTable]:
        """Every attribute, then every intersection, of the released expression."""
        names = split_expression(self.expression, self.groups)
        check_shown(self.expression, self.groups)
        sizes = range(1, len(names) + 1)
        crossings = [crossed for size in sizes for crossed in combinations(names, size)]
        return [self._table(INTERSECTION.join(crossed), smallest_group) for crossed in crossings]

    def without_value(self) -> dict[str, Estimate]:
        """How many people have no value, by attribute that has a group for them alone.

        Whatever its size: a number that was shown only if it came out large would be too large.
        The interval holds the noise; nothing is said about other people than these.
        """
        return {
            name: self._size(group)
            for name in split_expression(self.expression, self.groups)
            for group in self._sets(name)
            if without_value(group.label)
        }

    def _size(self, group: ShownGroup) -> Estimate:
        """A group's size; each of its cells has noise of its own."""
        released, cells = self.counts.shape
        scale = float(noise_covariance([group.members], released)[0, 0])
        reach = QUANTILE * self.sigma * math.sqrt(cells * scale)
        size, everybody = self._people(group), float(self.counts.sum())
        parts = (min(max(part, 0.0), everybody) for part in (size, size - reach, size + reach))
        return Estimate(*parts)

    def _table(self, attribute: str, smallest_group: float) -> AuditTable:
        """Return one table; its small groups are pooled, or withheld if the pool is small too."""
        large, small = list[ShownGroup](), list[ShownGroup]()
        for group in self._sets(attribute):
            (large if self._people(group) >= smallest_group else small).append(group)
        # People without a value are nobody's pool: they would change what the others show.
        pooled = [group for group in small if not without_value(group.label)]
        pool = ShownGroup(
            " or ".join(group.label for group in pooled),
            tuple(sorted(member for group in pooled for member in group.members)),
        )
        if len(pooled) > 1 and self._people(pool) >= smallest_group:
            large, small = [*large, pool], [group for group in small if group not in pooled]
        return AuditTable(
            attribute,
            tuple(large),
            tuple(group.label for group in small),
            self._counts_of(large),
        )

    def _people(self, group: ShownGroup) -> float:
        return float(self.counts[list(group.members)].sum())

    def _counts_of(self, groups: Sequence[ShownGroup]) -> GroupCounts:
        """The counts of sets of released groups, with the covariance of their noise."""
        sets = [group.members for group in groups]
        counts = np.array([self.counts[list(members)].sum(axis=0) for members in sets])
        counts = np.round(counts.reshape(len(sets), self.counts.shape[1]) * MILLION) / MILLION
        covariance = noise_covariance(sets, len(self.counts))
        return GroupCounts(self.cells, counts, covariance, self.sigma, left_out_of(groups))

    def _sets(self, attribute: str) -> list[ShownGroup]:
        """The groups of a coarser attribute as sets of the released ones."""
        names = split_expression(self.expression, self.groups)
        shape = [len(self.groups[name]) for name in names]
        index = np.indices(shape).reshape(len(names), -1)  # (names, k): the code per attribute
        code = np.zeros(index.shape[1], dtype=np.int64)
        for name in split_expression(attribute, self.groups):
            code = code * len(self.groups[name]) + index[names.index(name)]
        return [
            ShownGroup(label, tuple(np.flatnonzero(code == number).tolist()))
            for number, label in enumerate(group_labels(attribute, self.groups))
        ]


def left_out_of(groups: Sequence[Labelled]) -> tuple[int, ...]:
    """Numbers of the groups of people without a value, whom comparisons leave out."""
    return tuple(number for number, group in enumerate(groups) if without_value(group.label))


def check_shown(expression: str, groups: Mapping[str, Sequence[str]]) -> None:
    """Raise DataError for more tables or groups than an audit shows; before anything is asked."""
    names = split_expression(expression, groups)
    if 2 ** len(names) - 1 > MAX_TABLES:
        raise DataError(f"an audit crosses at most 4 attributes, got {len(names)}")
    count = group_count(expression, groups)
    if count > MAX_SHOWN_GROUPS:
        raise DataError(
            f"{expression!r} has {count} groups; an audit compares at most {MAX_SHOWN_GROUPS}. "
            "Cross fewer attributes, or merge groups"
        )


def noise_covariance(sets: Sequence[Sequence[int]], released: int) -> Floats:
    """(sets, sets) a_S·a_T, see the module's docstring."""
    rows = np.zeros((len(sets), released - 1))
    for row, members in zip(rows, sets, strict=True):
        row[[member for member in members if member < released - 1]] = 1.0
        if released - 1 in members:
            row -= 1.0
    return rows @ rows.T
