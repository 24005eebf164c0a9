"""Rates of measured tasks: intervals that cover, however alike the queries of a task are."""

from __future__ import annotations

from collections import defaultdict
from itertools import product

import numpy as np
import pytest

from isonomy.common.privacy.accounting import sigma_for, units_for
from isonomy.common.privacy.task_counts import SCALE, TaskCounts
from isonomy.common.report.audit_cells import NOTION_RATES
from isonomy.common.report.schema import Limits
from isonomy.common.report.task_rates import task_table

COUNTS = TaskCounts(4, 5)
Chances = tuple[tuple[float, float], tuple[float, float]]  # of ŷ = 1, by group and half
SHARES = ((0.5, 0.5), (0.1, 0.9))  # of group 1, by half
CHANCES: tuple[Chances, ...] = (
    ((0.0, 1.0), (0.0, 1.0)),
    ((0.05, 0.95), (0.05, 0.95)),
    ((0.5, 0.5), (0.5, 0.5)),
    ((0.1, 0.6), (0.3, 0.9)),
    ((0.0, 0.0), (0.0, 1.0)),
)
HOW = ("alike", "opposed", "free")


def noise(epsilon: float) -> int:
    return sigma_for(units_for(epsilon, 1e-5), COUNTS.sensitivity_squared * SCALE**2)


def counted(rng: np.random.Generator, tasks: int, share: tuple[float, float], p: Chances, how: str):
    """(12,) the exact counts of tasks.

    alike: all queries of a half are of one group and fall alike, the worst that there is; opposed:
    both groups are in each task, each falls alike, one against the other; free: all independent.
    """
    total = np.zeros(12)
    for y, size in enumerate(COUNTS.halves):
        fate = rng.random(tasks)
        if how == "alike":
            ones = size * (rng.random(tasks) < share[y])
        else:
            ones = rng.binomial(size, share[y], tasks)
        people = (size - ones, ones)
        for a in (0, 1):
            if how == "free":
                decided = rng.binomial(people[a], p[a][y])
            else:
                turned = 1 - fate if how == "opposed" and a else fate
                decided = np.where(turned < p[a][y], people[a], 0)
            right = decided if y else people[a] - decided
            cell = 2 * a + y
            total[[cell, 4 + cell, 8 + cell]] = (
                decided.sum(), right.sum(), COUNTS.weight * people[a].sum()
            )  # fmt: skip
    return total


def truth(share: tuple[float, float], p: Chances) -> dict[str, list[float]]:
    size = [[(1 - s) * q, s * q] for s, q in zip(share, COUNTS.halves, strict=True)]  # [y][a]

    def over_halves(of: list[list[float]], a: int) -> float:
        return sum(size[y][a] * of[a][y] for y in (0, 1)) / sum(size[y][a] for y in (0, 1))

    right = [[1 - p[a][0], p[a][1]] for a in (0, 1)]
    return {
        "selection_rate": [over_halves([list(x) for x in p], a) for a in (0, 1)],
        "accuracy": [over_halves(right, a) for a in (0, 1)],
        "true_positive_rate": [p[a][1] for a in (0, 1)],
        "false_positive_rate": [p[a][0] for a in (0, 1)],
    }


def coverage(
    tasks: int, epsilon: float, share: tuple[float, float], p: Chances, how: str, runs: int
) -> dict[str, tuple[float, int]]:
    """Share of covered truths among what is shown, and how often it is, by kind of interval."""
    rng, sigma, true = np.random.default_rng([tasks, runs]), noise(epsilon), truth(share, p)
    tally: dict[str, list[bool]] = defaultdict(list)

    def note(kind: str, limits: Limits | None, value: float) -> None:
        if limits is not None:
            tally[kind].append(limits[1] - 1 <= value * 1e6 <= limits[2] + 1)

    for _ in range(runs):
        exact = counted(rng, tasks, share, p, how)
        values = np.rint(exact * SCALE + rng.normal(0, sigma, 12)).astype(np.int64)
        table = task_table(values.tolist(), COUNTS, sigma)
        for name, found in table.rates.items():
            for a in (0, 1):
                note(f"{name} {a}", found[a], true[name][a])
        for notion, names in NOTION_RATES.items():
            gap = max(abs(true[name][0] - true[name][1]) for name in names)
            note(notion, table.differences[notion], gap)
        most = max(true["selection_rate"])
        if most:
            for a in (0, 1):
                note(f"ratio {a}", table.impact_ratios[a], true["selection_rate"][a] / most)
    return {kind: (float(np.mean(covered)), len(covered)) for kind, covered in tally.items()}


def test_intervals_cover_in_a_few_simulated_runs() -> None:
    for case in (
        (30, 8.0, SHARES[1], CHANCES[3], "alike"),
        (8, 8.0, SHARES[0], CHANCES[1], "alike"),
    ):
        for kind, (share, shown) in coverage(*case, runs=300).items():
            if shown >= 100:
                assert share > 0.90, (case, kind)


@pytest.mark.slow
@pytest.mark.parametrize("tasks", [5, 10, 20, 50, 200])
@pytest.mark.parametrize("epsilon", [1.0, 8.0])
def test_intervals_cover_93_percent_for_few_tasks(tasks: int, epsilon: float) -> None:
    """Also where every query of a task falls as the first one: 1,500 runs each."""
    for share, chances, how in product(SHARES, CHANCES, HOW):
        for kind, (covered, shown) in coverage(tasks, epsilon, share, chances, how, 1500).items():
            if shown >= 300:
                error = 2.6 * (0.95 * 0.05 / shown) ** 0.5  # of the simulation itself
                assert covered > 0.93 - error, (share, chances, how, kind, shown)


def test_nothing_is_said_where_everything_is_possible() -> None:
    """ε = 0.1 over 10 tasks: noise of 6 tasks' queries. And a group that is hardly there."""
    rng = np.random.default_rng(0)
    exact = counted(rng, 10, (0.5, 0.5), CHANCES[2], "free")
    for _ in range(20):
        sigma = noise(0.1)
        values = np.rint(exact * SCALE + rng.normal(0, sigma, 12)).astype(np.int64)
        table = task_table(values.tolist(), COUNTS, sigma)
        shown = (*table.rates.values(), table.impact_ratios, tuple(table.differences.values()))
        assert all(limits is None for each in shown for limits in each)
    few = counted(rng, 40, (0.01, 0.01), CHANCES[3], "free")
    table = task_table((few * SCALE).astype(np.int64).tolist(), COUNTS, noise(8.0))
    assert table.rates["accuracy"][0] is not None
    assert table.rates["accuracy"][1] is None
    assert table.differences["accuracy_parity"] is None


def test_without_noise_rates_are_the_ratios_of_the_counts() -> None:
    exact = counted(np.random.default_rng(1), 500, SHARES[1], CHANCES[3], "free")
    table = task_table((exact * SCALE).astype(np.int64).tolist(), COUNTS, noise(1000.0))
    people = exact[8:] / COUNTS.weight
    for a in (0, 1):
        limits = table.rates["accuracy"][a]
        assert limits is not None
        cells = [2 * a, 2 * a + 1]
        assert limits[0] == pytest.approx(
            1e6 * exact[4:8][cells].sum() / people[cells].sum(), abs=2
        )
        odds = table.rates["true_positive_rate"][a]
        assert odds is not None
        assert odds[0] == pytest.approx(1e6 * exact[2 * a + 1] / people[2 * a + 1], abs=2)
