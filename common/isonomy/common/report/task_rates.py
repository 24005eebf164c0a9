"""From the noised counts of measured tasks to rates by group, each with its 95 % interval.

Whole tasks are the observations: what one support set teaches turns all decisions of its task, so
its queries are not independent. In units of tasks, with n_t the share of a task's queries that are
of a group, and h_t <= n_t the share of hits among them,

    rate = Σ h_t/Σ n_t,     x = Σ h_t + noise,     n = Σ n_t + noise
    Var(h_t − p·n_t) <= p(1 − p)·E n_t

whatever the queries of a task have in common: the square is convex, and (h, n) lies in the
triangle of (0, 0), (0, 1) and (1, 1), so it is largest where all queries of a task are of one group
and fall alike. That is a binomial of n tasks, which `rate_limits` takes. Two groups share a task's
queries (n_t + n'_t <= 1), and by the same argument on their joint corners the variance of a
difference is at most the sum of both: the groups count as independent.

Rates of one half of the classes have the larger half of a task's queries as their unit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from isonomy.common.privacy.task_counts import COLUMNS, SCALE, TaskCounts
from isonomy.common.report._audit_rates import Rates, impact_ratios, largest_difference
from isonomy.common.report.audit_cells import NOTION_RATES
from isonomy.common.report.audit_intervals import Z_95, NoisedRate
from isonomy.common.report.schema import Group, ShownTable, limits_of

GROUPS = ("group 0", "group 1")
_RATES: dict[str, tuple[int, tuple[int, ...]]] = {  # column, halves y
    "selection_rate": (0, (0, 1)),
    "true_positive_rate": (0, (1,)),
    "false_positive_rate": (0, (0,)),
    "accuracy": (1, (0, 1)),
}


def task_table(values: Sequence[int], counts: TaskCounts, sigma: int) -> ShownTable:
    """The rates by group that follow from the twelve released numbers; a pure function of them."""
    released = np.array(values, np.float64).reshape(len(COLUMNS), len(GROUPS), 2) / SCALE
    rates = {
        name: Rates([_rate(released[:, a], *of, counts, sigma / SCALE) for a in range(len(GROUPS))])
        for name, of in _RATES.items()
    }
    return ShownTable(
        attribute="group",
        groups=tuple(
            Group(label=label, members=(a,), counts=None) for a, label in enumerate(GROUPS)
        ),
        withheld=(),
        rates={name: tuple(map(limits_of, rate.estimates())) for name, rate in rates.items()},
        impact_ratios=tuple(map(limits_of, impact_ratios(rates["selection_rate"]))),
        differences={
            notion: limits_of(largest_difference([rates[name] for name in names]))
            for notion, names in NOTION_RATES.items()
        },
    )


def _rate(
    released: NDArray[np.float64],  # (3, 2) columns by half, of one group
    column: int,
    halves: tuple[int, ...],
    counts: TaskCounts,
    sigma: float,
) -> NoisedRate | None:
    """One group's rate in units of tasks; None where one of a half could be anything.

    That depends on the number of tasks and on the noise alone, not on the rate: were an interval
    left out for what it says, those that are shown would cover less often than they promise.
    """
    unit = sum(counts.halves) if len(halves) == 2 else max(counts.halves)
    picked = list(halves)
    x, n = released[column, picked].sum() / unit, released[2, picked].sum() / counts.weight / unit
    noise = len(picked) * (sigma / unit) ** 2
    if n <= 0 or Z_95 * math.sqrt(n / 4 + noise) > n / 2:
        return None
    return NoisedRate(float(x), float(n), noise, 0.0, noise / counts.weight**2)
