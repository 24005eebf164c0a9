"""How far one sample moves the counts of measured tasks: every case of small tasks, by force."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from isonomy.common.privacy.task_counts import TaskCounts


def outcomes(counts: TaskCounts, groups: tuple[int, ...]) -> np.ndarray:
    """(k, 12) the counts of a task under every prediction of every query, for these groups."""
    truth = np.arange(counts.ways).repeat(counts.queries)
    positive = np.arange(counts.ways) < counts.ways // 2
    rows = []
    for predicted in product(range(counts.ways), repeat=len(truth)):
        guess = np.array(predicted)
        found = (positive[truth], positive[guess], guess == truth)
        rows.append(counts.of_queries(np.array(groups, np.int8), *found))
    return np.unique(np.array(rows), axis=0)


def largest(one: np.ndarray, two: np.ndarray) -> int:
    """max ‖a − b‖² over all pairs of rows."""
    return int(((one[:, None, :] - two[None, :, :]) ** 2).sum(-1).max())


@pytest.mark.parametrize(("ways", "queries"), [(2, 1), (2, 2), (2, 3), (3, 1), (4, 1)])
def test_no_sample_moves_the_counts_further_and_one_moves_them_so_far(
    ways: int, queries: int
) -> None:
    counts = TaskCounts(ways, queries)
    size = ways * queries
    by_groups = {g: outcomes(counts, g) for g in product((0, 1), repeat=size)}
    # A support sample: other predictions, the same groups.
    support = max(largest(rows, rows) for rows in by_groups.values())
    # A query sample: another group and another prediction of its own; the others stay. Exact by
    # going through single queries: the change is that of a task with this query alone.
    alone = TaskCounts(ways, queries)
    query = 0
    for y, (a, b) in product((0, 1), product((0, 1), repeat=2)):
        for (d, r), (e, s) in product(product((0, 1), repeat=2), repeat=2):
            one, two = (
                alone.of_queries(
                    np.array([group], np.int8), np.array([bool(y)]), np.array([bool(decided)]),
                    np.array([bool(right)]),
                )
                for group, decided, right in ((a, d, r), (b, e, s))
            )  # fmt: skip
            query = max(query, int(((one - two) ** 2).sum()))
            query = max(query, int((one**2).sum()))  # left out
    assert support == 2 * sum(half * half for half in counts.halves)
    assert query == 4 + 2 * counts.weight**2
    assert max(support, query) == counts.sensitivity_squared


def test_the_sizes_of_cells_cost_nothing_beside_the_predictions() -> None:
    for ways, queries in product((2, 3, 4, 5, 20), (2, 5, 15)):
        counts = TaskCounts(ways, queries)
        assert counts.sensitivity_squared == 2 * sum(half * half for half in counts.halves)
        assert 4 + 2 * (counts.weight + 1) ** 2 > counts.sensitivity_squared, "w could be larger"


def test_cells_are_group_and_half() -> None:
    counts = TaskCounts(2, 2)
    row = counts.of_queries(
        np.array([0, 1, 1, 0], np.int8),
        np.array([False, False, True, True]),
        np.array([True, False, True, True]),
        np.array([False, True, True, False]),
    )
    assert row[:4].tolist() == [1, 1, 0, 1]  # ŷ = 1 in (0,0), (0,1), (1,1)
    assert row[4:8].tolist() == [0, 0, 1, 1]
    assert row[8:].tolist() == [counts.weight] * 4
