"""φ of everybody: kept while it is small, else made anew for each use, thousands at a time.

φ has some 230 columns, so that a million people's rows take 1.8 GB. Everything that is made of them
(moments, Gram matrix, memberships) is a sum over people or a few numbers per person.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import _safe_indexing

from isonomy.common.privacy.row_sources import RowSource
from isonomy.company.fair.inputs.features import FeatureMap
from isonomy.company.fair.inputs.people import People

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

KEPT_CELLS = 1 << 24  # 128 MB: 70,000 people
PART_CELLS = 1 << 19  # 4 MB; φ has several arrays of this size on its way


class RowMaker(Protocol):
    """What makes rows of a table: φ, or φ beside something else."""

    @property
    def width(self) -> int: ...
    def rows(self, X: Any, score: Floats | None = None) -> Floats: ...


class FeatureRows:
    """(entries, d) φ, folded to entries (people.py). `rows[indices]` takes ascending indices."""

    def __init__(self, features: RowMaker, X: Any, score: Floats | None, people: People) -> None:
        self._features, self._score, self._people = features, score, people
        self.width, self._step = features.width, max(1, PART_CELLS // features.width)
        small = len(people.entry) * self.width <= KEPT_CELLS
        self._kept = people.fold(features.rows(X, score)) if small else None
        self._X = None if small else X  # a fitted model is pickled with these rows

    def __len__(self) -> int:
        return self._people.entries

    def __getitem__(self, entries: Ints) -> Floats:
        if self._kept is not None:
            return self._kept[entries]
        if len(entries) > self._step:
            result = np.empty((len(entries), self.width))
            for part, some in self.parts(entries):
                result[part] = some
            return result
        people = self._people
        if not people.repeated:
            return self._made(entries)
        inside = np.zeros(len(self), np.bool_)
        inside[entries] = True
        rows = np.flatnonzero(inside[people.entry])
        folded = np.zeros((len(entries), self.width))
        weighted = self._made(rows) * people.weight[rows, None]
        np.add.at(folded, np.searchsorted(entries, people.entry[rows]), weighted)
        return folded

    def parts(self, entries: Ints) -> Iterator[tuple[slice, Floats]]:
        """Slices of `entries`, each with its rows."""
        step = self._step if self._kept is None else len(self)
        for start in range(0, len(entries), step):
            part = slice(start, min(start + step, len(entries)))
            yield part, self[entries[part]]

    def chosen(self, entries: Ints) -> Floats | RowSource:
        """The rows of these entries, as a question takes them."""
        if self._kept is not None:
            return self._kept[entries]
        return RowSource((len(entries), self.width), self._step, lambda part: self[entries[part]])

    def _made(self, rows: Ints) -> Floats:
        score = None if self._score is None else self._score[rows]
        return self._features.rows(_safe_indexing(self._X, rows), score)


def by_parts(
    function: Callable[[Floats], Floats], features: FeatureMap, X: Any, score: Floats | None, n: int
) -> Floats:
    """(…, n, …) a function of φ row by row, whose second to last axis is the rows'."""
    step = max(1, PART_CELLS // features.width)
    if n <= step:
        return function(features.rows(X, score))
    parts = []
    for start in range(0, n, step):
        rows = np.arange(start, min(start + step, n))
        part = None if score is None else score[rows]
        parts.append(function(features.rows(_safe_indexing(X, rows), part)))
    return np.concatenate(parts, axis=-2)
