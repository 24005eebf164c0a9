"""Rows, entries and persons: the unit of privacy is a person, the unit of learning a row.

A person with m rows enters every release once, with the mean of their rows (weight 1/m each), so
that the norm bound holds per person and rates are rates among persons. An *entry* is the part of a
person in one stratum (label). Without repeated people rows, entries and persons are the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class People:
    """Who the rows belong to."""

    position: Ints  # (entries,) the person's position in the cohort
    stratum: Ints  # (entries,) the label of the entry, 0 where labels do not matter
    entry: Ints  # (rows,) the entry of a row
    weight: Floats  # (rows,) 1 / number of rows of the same person

    @classmethod
    def of(cls, rows_of: Ints, stratum: Ints) -> People:
        """From each row's position in the cohort and its stratum."""
        # The weight 1/m keeps a person's total at norm 1, whatever the number m of their rows.
        persons, person, times = np.unique(rows_of, return_inverse=True, return_counts=True)
        if len(persons) == len(rows_of):
            return cls(rows_of, stratum, np.arange(len(rows_of)), np.ones(len(rows_of)))
        keys, first, entry = np.unique(
            np.column_stack([person, stratum]), axis=0, return_index=True, return_inverse=True
        )
        del keys
        return cls(rows_of[first], stratum[first], entry.reshape(-1), 1.0 / times[person])

    @property
    def entries(self) -> int:
        return len(self.position)

    @cached_property  # asked for each piece of φ, and it reads everybody's weight
    def repeated(self) -> bool:
        return self.entries < len(self.entry) or bool((self.weight < 1).any())

    def fold(self, rows: Floats) -> Floats:
        """(entries, …) weighted sum of each entry's rows."""
        if not self.repeated:
            return rows
        folded = np.zeros((self.entries, *rows.shape[1:]))
        np.add.at(folded, self.entry, (rows.T * self.weight).T)
        return folded

    def unfold(self, values: Floats) -> Floats:
        """(rows, …) each row its entry's value times the row's weight."""
        if not self.repeated:
            return values
        return np.asarray((values[self.entry].T * self.weight).T)

    def by_person(self, entries: Floats) -> tuple[Floats, Ints]:
        """(persons, …) sums over entries, and the persons' positions: what a query takes."""
        if not self.repeated:
            return entries, self.position
        positions, person = np.unique(self.position, return_inverse=True)
        summed = np.zeros((len(positions), *entries.shape[1:]))
        np.add.at(summed, person, entries)
        return summed, positions
