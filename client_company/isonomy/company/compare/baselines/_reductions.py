"""Reductions (Agarwal et al. 2018) on soft group memberships.

Each person has a weight e_i(a) for every group; true groups are the special case of 0 and 1. The
rates by label cell y (for demographic parity one cell holds everybody) are linear in a classifier:

    R_a,y(h) = Σ_{i ∈ y} e_i(a)·h(x_i) / Σ_{i ∈ y} e_i(a)

so the usual game works unchanged: the auditor (`jagielski/game.py`) puts multipliers on differences
of rates, the learner answers with the best classifier for the costs

    C_i = 1 − 2·y_i + Σ_a w(a, y_i)·e_i(a)    of deciding 1;  weight abs(C_i), label 1[C_i < 0]

Last, the mixture weights come from a linear program over the classifiers found, as in fairlearn:

    minimise   Σ_t p_t·err_t + B·s                                        p on the simplex
    subject to abs(Σ_t p_t·(R_a,y − R_0,y)(h_t)) ≤ γ + s

The slack s keeps it feasible; it is 0 wherever γ can be met by the classifiers found.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog
from sklearn.base import clone
from sklearn.dummy import DummyClassifier

from isonomy.common.base.errors import DataError
from isonomy.company.compare.jagielski.game import Auditor

Floats = NDArray[np.float64]
ROUNDS, BOUND, STEP = 30, 10.0, 1.0  # on the lending generator and a synthetic table


@dataclass(frozen=True)
class Mixture:
    """Classifiers on encoded rows, and the chance of each."""

    models: tuple[Any, ...]
    chances: Floats

    def decide(self, rows: Floats, seed: int) -> NDArray[np.int64]:
        """A decision of one classifier, drawn for each row."""
        model_of = np.random.default_rng(seed).choice(len(self.models), len(rows), p=self.chances)
        decided = np.zeros(len(rows), dtype=np.int64)
        for number in np.unique(model_of):
            inside = model_of == number
            decided[inside] = np.asarray(self.models[number].predict(rows[inside]))
        return decided


def reduce(
    model: Any,
    rows: Floats,
    target: NDArray[np.int64],
    membership: Floats,
    notion: str,
    gamma: float,
    *,
    rounds: int = ROUNDS,
    bound: float = BOUND,
    step: float = STEP,
) -> Mixture:
    """Play the game with membership (n, groups) and return the best mixture found."""
    cells = [np.ones(len(target), bool)]
    if notion == "equalized_odds":
        cells = [target == 0, target == 1]
    sizes = np.array([membership[who].sum(axis=0) for who in cells])  # (cells, groups)
    sizes = np.maximum(sizes, 1.0)  # a corrected count may be below zero
    auditor = Auditor(
        membership.shape[1], tuple(range(len(cells))), gamma=gamma, bound=bound, step=step
    )
    models, errors, gaps = [], [], []
    for number in range(rounds):
        costs = (1.0 - 2.0 * target) + _added(auditor.costs(sizes / len(rows)), cells, membership)
        response = _best(model, rows, costs)
        decided = np.asarray(response.predict(rows), dtype=np.float64)
        rates = np.array([(decided[who] @ membership[who]) for who in cells]) / sizes
        models.append(response)
        errors.append(float(np.mean(decided != target)))
        gaps.append((rates[:, 1:] - rates[:, :1]).ravel())
        auditor.learn(rates, 1 / np.sqrt(1 + number))  # both sides first, then closer
    chances = mixture_weights(np.array(errors), np.array(gaps), gamma, bound)
    return Mixture(tuple(models), chances)


def mixture_weights(errors: Floats, gaps: Floats, gamma: float, penalty: float) -> Floats:
    """(T,) chances from errors (T,) and differences of rates (T, constraints), by HiGHS."""
    rounds, constraints = gaps.shape
    slack = -np.ones((constraints, 1))
    solution = linprog(
        np.append(errors, penalty),
        A_ub=np.block([[gaps.T, slack], [-gaps.T, slack]]),
        b_ub=np.full(2 * constraints, gamma),
        A_eq=np.append(np.ones(rounds), 0.0)[None],
        b_eq=[1.0],
        bounds=(0.0, None),
        method="highs",
    )
    if solution.status != 0:
        raise DataError(f"the linear program of the mixture was not solved: {solution.message}")
    chances = np.clip(solution.x[:-1], 0.0, None)
    return np.asarray(chances / chances.sum())


def _added(costs: Floats, cells: list[NDArray[np.bool_]], membership: Floats) -> Floats:
    """(n,) Σ_a w(a, y_i)·e_i(a) from costs (cells, groups)."""
    total = np.zeros(len(membership))
    for by_group, who in zip(costs, cells, strict=True):
        total[who] += membership[who] @ by_group
    return total


def _best(model: Any, rows: Floats, costs: Floats) -> Any:
    label = (costs < 0).astype(np.int64)
    if label.min() == label.max():  # most classifiers cannot be fitted to one label only
        return DummyClassifier(strategy="most_frequent").fit(rows, label)
    return clone(model).fit(rows, label, sample_weight=np.abs(costs))
