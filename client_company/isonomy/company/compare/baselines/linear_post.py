"""LinearPost (Xian and Zhao 2024), attribute-blind: the best rule for predicted groups.

With f = P(Y = 1 | x) and the joint P(A, Y | x) predicted by models that saw the true attributes,
W_ae(x) what choosing 1 for x adds to the rate of event e in group a (fair.tilt.rule):

    minimise    mean_i (1 − 2 f_i)·π_i                          π_i = P[decide 1 given x_i]
    subject to  abs(mean_i W_ae(x_i)·π_i − q_e) ≤ γ/2           for every group a and event e
                0 ≤ π ≤ 1,  q free

Its dual prices λ_ae give the rule for anybody, 1[2 f(x) − 1 − Σ λ_ae W_ae(x) > 0]. Predictions are
out of fold, where the paper holds a part of the people back: so all of them serve both ends. The
paper breaks ties by a small random perturbation of the scores; here a tie is a refusal.

What it is: the ceiling. `tilt` has the same form of rule and estimates groups from noised sums.
What it is not: private in any sense, or possible for a company that has no attributes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import linprog
from sklearn.base import clone
from sklearn.model_selection import StratifiedKFold

from isonomy.common.base.errors import DataError
from isonomy.company.fair.tilt.notions import Event, events_of
from isonomy.company.fair.tilt.rule import Costs, Tilt, cost_weights, decide, margins
from isonomy.company.rehearsal.strategies import Rehearsal, Trained, decider, not_private

_NAME = "linear_post"
FOLDS = 5
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def train(rehearsal: Rehearsal) -> Trained:
    """No options; the group model is of the base model's kind."""
    rehearsal.options_among()
    groups, y = rehearsal.true_groups(_NAME), rehearsal.target
    events = events_of(rehearsal.notion, (0, 1))
    by_label = any(event.by_label for event in events)
    cell = groups + (int(groups.max()) + 1) * y if by_label else groups
    scores, base = _out_of_fold(rehearsal, y)
    joint, model = _out_of_fold(rehearsal, cell)
    size = int(groups.max()) + 1
    shares = np.bincount(cell, minlength=joint.shape[1]) / len(cell)
    rule = Rule(events, shares.reshape(-1, size))
    lam = solve(scores[:, 1], rule.costs(scores, joint), rule.shape, rehearsal.tolerance)

    def decided(features: pd.DataFrame) -> Ints:
        proba = np.asarray(base.predict_proba(features), dtype=np.float64)
        cost = rule.costs(proba, _all_columns(model, features, joint.shape[1]))
        return decide(margins(proba, cost, Tilt(lam)))

    return not_private(decided, decider(base), _NAME)


class Rule:
    """What choosing 1 adds to every rate, from a predicted joint distribution."""

    def __init__(self, events: tuple[Event, ...], shares: Floats) -> None:
        self._events, self._shares = events, shares  # (strata, groups)
        self.shape = (shares.shape[1], len(events))

    def costs(self, proba: Floats, joint: Floats) -> Costs:
        """joint: (n, strata · groups) P(A, Y | x), or P(A | x) where no event knows the label."""
        return Costs(joint, cost_weights(self._events, self._shares, proba.shape[1]))


def solve(score: Floats, cost: Costs, shape: tuple[int, int], tolerance: float) -> Floats:
    """λ (groups, events): the dual prices of the linear programme, by HiGHS."""
    n, (groups, events) = len(score), shape
    rates = cost.joint @ cost.weights[:, 0] / n  # (n, groups · events)
    centre = np.tile(np.eye(events), (groups, 1))  # q_e, for every group
    above, below = np.hstack([rates.T, -centre]), np.hstack([-rates.T, centre])
    solution = linprog(
        np.concatenate([(1 - 2 * score) / n, np.zeros(events)]),
        A_ub=np.vstack([above, below]),
        b_ub=np.full(2 * groups * events, tolerance / 2),
        bounds=[(0.0, 1.0)] * n + [(None, None)] * events,
        method="highs",
    )
    if solution.status != 0:
        raise DataError(f"the linear programme was not solved: {solution.message}")
    high, low = np.split(np.asarray(solution.ineqlin.marginals), 2)
    return np.asarray((low - high).reshape(shape))


def _out_of_fold(rehearsal: Rehearsal, label: Ints) -> tuple[Floats, Any]:
    """(n, classes) out-of-fold probabilities of a label, and the model fitted on everybody."""
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=rehearsal.seed)
    fitted = clone(rehearsal.estimator).fit(rehearsal.features, label)
    proba = np.zeros((len(label), int(label.max()) + 1))
    for training, rest in folds.split(np.zeros(len(label)), label):
        part = clone(rehearsal.estimator)
        part.fit(rehearsal.features.iloc[training].reset_index(drop=True), label[training])
        proba[rest] = _all_columns(part, rehearsal.features.iloc[rest], proba.shape[1])
    return proba, fitted


def _all_columns(model: Any, features: pd.DataFrame, classes: int) -> Floats:
    """(n, classes) probabilities, 0 for a class that a fold did not have."""
    proba = np.zeros((len(features), classes))
    proba[:, np.asarray(model.classes_, dtype=np.int64)] = model.predict_proba(features)
    return proba
