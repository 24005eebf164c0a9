"""The randomised rule of DP-postprocessing, and the linear program that finds it.

With q(ŷ, a, y) the (noisy) share of people with base decision ŷ, group a and label y, and
p(ŷ, a) = P[decide 1 given ŷ, a]:

    minimise    Σ_{ŷ,a} q(ŷ,a,0)·p(ŷ,a) + q(ŷ,a,1)·(1 − p(ŷ,a))                         LP (1)
    subject to  abs(FP_a(p) − FP_0(p)) ≤ γ,  abs(TP_a(p) − TP_0(p)) ≤ γ   for all a ≠ 0
                0 ≤ p ≤ 1,   FP_a(p) = Σ_ŷ q(ŷ,a,0)·p(ŷ,a) / q(a,0),   TP_a alike with y = 1

Guarantees: a result always exists (deciding alike for all meets every γ ≥ 0), whatever the noise.
Differs from the paper: noisy counts below zero are set to zero, and a rate whose (group, label)
cell has no people left then is not constrained, because it cannot be estimated; it is reported.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

from isonomy.common.base.errors import ConfigError, DataError

LABELS_OF = {"equalized_odds": (0, 1), "equal_fpr": (0,), "equal_opportunity": (1,)}


@dataclass(frozen=True)
class Rule:
    """P[decide 1] by base decision and group, and what the noisy counts say of it."""

    probabilities: NDArray[np.float64]  # (2, groups)
    error: float
    rates: NDArray[np.float64]  # (2, groups): FP and TP by group; NaN where unknown
    unconstrained: tuple[tuple[int, int], ...]  # (label, group) cells without people

    def decide(
        self, base: NDArray[np.int64], groups: NDArray[np.int64], draws: NDArray[np.float64]
    ) -> NDArray[np.int64]:
        """Decisions from base decisions, groups and uniform draws in [0, 1)."""
        return (draws < self.probabilities[base, groups]).astype(np.int64)


def solve(counts: NDArray[np.float64], gamma: float, notion: str = "equalized_odds") -> Rule:
    """The best γ-fair rule for counts (2 decisions, groups, 2 labels), by HiGHS."""
    if notion not in LABELS_OF:
        raise ConfigError(f"postprocessing knows {', '.join(LABELS_OF)}; got {notion!r}")
    if not 0 <= gamma <= 1:
        raise ConfigError(f"the tolerance γ must lie between 0 and 1; got {gamma}")
    q = np.maximum(counts, 0.0)  # (ŷ, a, y)
    if not np.isfinite(q).all() or q.sum() <= 0:
        raise DataError("the released counts hold nobody: the noise is larger than the data")
    q = q / q.sum()
    groups = q.shape[1]
    sizes = q.sum(axis=0)  # (a, y)
    # Rows of the constraint matrix act on p flattened as (ŷ, a).
    rate = np.zeros((2, groups, 2, groups))  # label, group -> (ŷ, a)
    for label in (0, 1):
        for group in range(groups):
            if sizes[group, label] > 0:
                rate[label, group, :, group] = q[:, group, label] / sizes[group, label]
    rows = []
    for label in LABELS_OF[notion]:
        present = [group for group in range(groups) if sizes[group, label] > 0]
        for group in present[1:]:
            difference = (rate[label, group] - rate[label, present[0]]).ravel()
            rows += [difference, -difference]
    cost = (q[:, :, 0] - q[:, :, 1]).ravel()
    solution = linprog(
        cost,
        A_ub=np.array(rows) if rows else None,
        b_ub=np.full(len(rows), gamma) if rows else None,
        bounds=(0.0, 1.0),
        method="highs",
    )
    if solution.status != 0:
        raise DataError(f"the linear program was not solved: {solution.message}")
    p = np.clip(solution.x, 0.0, 1.0).reshape(2, groups)
    rates = np.einsum("lgya,ya->lg", rate, p)
    rates[sizes.T == 0] = np.nan
    empty = tuple(
        (label, int(g)) for label in LABELS_OF[notion] for g in np.flatnonzero(sizes[:, label] == 0)
    )
    return Rule(p, float(solution.fun + q[:, :, 1].sum()), rates, empty)
