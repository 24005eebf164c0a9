"""What is counted when a few-shot model is measured on tasks, and how far one sample moves it.

A task is adapted to on its support set and then decides about its query set. Cell 2·A + y holds
the queries of group A whose class is of half y. Of each of the four cells of a task

    decided   queries for which a positive class was predicted       ŷ = 1
    right     queries whose own class was predicted
    people    queries, times a public weight w

and the twelve numbers are summed over tasks that share no sample. So a sample moves one task's:

    a support sample   can turn every prediction of its task, and no query's group or class:
                       Δ² <= Σ_cells 2·n_cell² <= 2·(q0² + q1²)        q: queries of either half
    a query sample     can change its own predictions and its group:
                       Δ² <= 2 (decided) + 2 (right) + 2·w² (people)

The same bounds hold whether the sample is left out or exchanged for another of its class. w is
chosen so that the second is not above the first: the cells' sizes come almost without noise, and
cost nothing beside the predictions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

CELLS = 4  # (A, y) = (0, 0), (0, 1), (1, 0), (1, 1)
SCALE = 2**20  # whole-number noise is exact from a deviation of 2^13 on
COLUMNS = ("decided", "right", "people")


@dataclass(frozen=True)
class TaskCounts:
    """The counts of tasks with so many classes, and so many queries of each."""

    ways: int
    queries: int

    @property
    def halves(self) -> tuple[int, int]:
        """Queries of a task in the smaller and in the larger half of its classes."""
        small = self.ways // 2
        return small * self.queries, (self.ways - small) * self.queries

    @property
    def _of_support(self) -> int:
        return 2 * sum(size * size for size in self.halves)

    @property
    def weight(self) -> int:
        """w: the largest that makes a query sample cost no more than a support sample, or 1."""
        return max(1, math.isqrt(max(0, (self._of_support - 4) // 2)))

    @property
    def sensitivity_squared(self) -> int:
        """Δ² of one sample, in counts."""
        return max(self._of_support, 4 + 2 * self.weight**2)

    def most(self, tasks: int) -> int:
        """The largest that one of the twelve numbers can be over so many tasks, without noise."""
        return tasks * self.weight * self.ways * self.queries

    def of_queries(
        self,
        groups: NDArray[np.int8],  # (n,) A
        halves: NDArray[np.bool_],  # (n,) y
        decided: NDArray[np.bool_],  # (n,) ŷ
        right: NDArray[np.bool_],  # (n,)
    ) -> NDArray[np.int64]:
        """(12,) decided, right and people·w of each cell."""
        cells = 2 * groups.astype(np.int64) + halves
        columns = (
            np.bincount(cells[decided], minlength=CELLS),
            np.bincount(cells[right], minlength=CELLS),
            np.bincount(cells, minlength=CELLS) * self.weight,
        )
        return np.concatenate(columns).astype(np.int64)
