"""Whose rows a fit is about, where new people join those of an earlier plan.

The rows of the earlier people come first, in the order of their own fit; their fingerprint says so.
The others are people of the new plan, and the regulator is asked about them alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import _safe_indexing

from isonomy.common.base.errors import DataError
from isonomy.common.people.cohort import id_key, normalise_id
from isonomy.common.privacy.quantise import quantise
from isonomy.common.sums.oracle import GroupOracle
from isonomy.company.fair.inputs.feature_rows import FeatureRows
from isonomy.company.fair.inputs.people import People
from isonomy.company.fair.tilt.releases import Releases, fingerprint
from isonomy.company.fair.tilt.strategy import Newcomers

Ints = NDArray[np.int64]

SAME_SUM = 1e-4  # a hundred units: on another machine a few numbers may round otherwise


@dataclass(frozen=True)
class Rows:
    """(rows,) each row's person: a position in the cohort, or a number beyond it."""

    positions: Ints
    asked: slice  # the rows that the plan is about
    identity: bytes  # fingerprint of all rows

    def newcomers(self, strata: Ints, earlier: Releases | None) -> Newcomers | None:
        """Whom to ask about; None: everybody."""
        if earlier is None:
            return None
        people = People.of(self.positions[self.asked], strata[self.asked])
        return Newcomers(people, self.asked, earlier)


def rows_of_people(
    oracle: GroupOracle,
    ids: Sequence[object] | None,
    y: Ints,
    earlier: Releases | None,
    releases: Releases | None,
    *tables: object,
) -> Rows:
    """Whose rows these are; DataError where they do not fit the plan or the earlier releases.

    `releases`: those that are used again without asking. If they are about people of several
    plans, no cohort has them all. `tables`: what the rows stand in, whose index is looked at if
    there are no ids.
    """
    rows = len(y)
    if earlier is None and releases is not None and releases.earlier and ids is not None:
        persons = [id_key(normalise_id(person)) for person in ids]
        numbers = np.unique(persons, return_inverse=True)[1]
        return Rows(numbers, slice(None), fingerprint(persons, y))
    if earlier is None:
        positions = oracle.people_of(ids, rows, *tables)
        named = oracle.cohort.ids
        return Rows(positions, slice(None), fingerprint((id_key(named[p]) for p in positions), y))
    n = len(earlier.score)
    if ids is None or len(ids) != rows or rows <= n:
        raise DataError(
            f"with earlier=… one id per row is needed, first those of the {n:,} earlier rows, then "
            f"those of new people; got {rows:,} rows. Nothing was asked."
        )
    persons = [id_key(normalise_id(person)) for person in ids]
    if fingerprint(persons[:n], y[:n]) != earlier.fingerprint:
        raise DataError(
            f"the first {n:,} rows must be those of the earlier fit: the same people and labels in "
            "the same order. Nothing was asked."
        )
    both = len(set(persons[:n]) & set(oracle.cohort.keys))
    if both:
        raise DataError(
            f"{both:,} of the earlier people are in the new plan too. They would be counted twice: "
            "make the plan about new people alone. Nothing was asked."
        )
    _, before = np.unique(persons[:n], return_inverse=True)
    new = oracle.people_of(ids[n:], rows - n)
    positions = np.concatenate([len(oracle.cohort) + before, new])
    return Rows(positions, slice(n, None), fingerprint(persons, y))


def check_features(
    earlier: Releases, X: Any, positions: Ints, strata: Ints, row_bound: int
) -> None:
    """Refuse a table whose first rows have other features than the earlier releases are sums of.

    The groups of a moment add up to Σφ over all rows, without noise, because the last group is the
    public total less the others. So the sum of the integers that were sent is made again. Changes
    that cancel in it are not noticed.
    """
    n = len(earlier.score)
    features, groups = earlier.features.without_bins(), earlier.blocks[0]
    people = People.of(positions[:n], strata[:n])
    rows = FeatureRows(features, _safe_indexing(X, np.arange(n)), None, people)
    for stratum, moments in enumerate(earlier.moments):
        inside = np.flatnonzero(people.stratum == stratum)
        total = np.zeros(features.width)
        for _, part in rows.parts(inside):
            total += quantise(part, 1.0, row_bound).rows.sum(axis=0, dtype=np.int64)
        before = features.columns(moments)[groups].sum(axis=0)
        if (np.abs(total / row_bound - before) > SAME_SUM).any():
            raise DataError(
                f"the first {n:,} rows have other features than in the earlier fit; give them as "
                "they were then. Nothing was asked."
            )
