"""Zafar et al. 2017: logistic regression under a bound on the covariance of group and score.

    minimise   ½‖w‖² + Σ_i log(1 + exp(−y_i θ·x_i)),   θ = (intercept, w)         y ∈ {−1, 1}
    subject to abs( (1/n) Σ_i (z_i − z̄)·θ·x_i ) ≤ c       for the indicator z of each group but one

("Fairness constraints: mechanisms for fair classification", Eq. 4.) c is 0 here, the strictest.

What it is: the non-private covariance method for demographic parity, as in PF-LD's comparison. For
equalized odds the covariance is bounded among people of each label by itself, which is convex;
it is not the convex-concave programme of Zafar's paper on disparate mistreatment.
What it is not: private, or a bound on the violation itself: covariance is a stand-in for it, and
`tolerance` has no part in it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit

from isonomy.company.compare.baselines._encoded import encode
from isonomy.company.rehearsal.strategies import Rehearsal, Trained, check_notion, not_private

_NAME = "zafar"
Floats = NDArray[np.float64]


def train(rehearsal: Rehearsal) -> Trained:
    """The strictest bound, c = 0. No options."""
    check_notion(_NAME, rehearsal.notion)
    rehearsal.options_among()
    groups = rehearsal.true_groups(_NAME)
    data = encode(rehearsal, _NAME, logistic=True)
    rows = _with_one(data.rows)
    theta = fit(
        rows,
        rehearsal.target,
        covariance_rows(rows, rehearsal.target, groups, rehearsal.notion),
    )

    def decide(encoded: Floats) -> NDArray[np.int64]:
        return (_with_one(encoded) @ theta > 0).astype(np.int64)

    return not_private(data.decider(decide), data.base_decide, _NAME)


def covariance_rows(
    rows: Floats, target: NDArray[np.int64], groups: NDArray[np.int64], notion: str
) -> Floats:
    """(constraints, features) whose product with θ is the covariance of group and score."""
    everybody = np.ones(len(target), dtype=bool)
    within = [everybody] if notion == "demographic_parity" else [target == 0, target == 1]
    covariances = []
    for who in within:
        for group in range(1, int(groups.max()) + 1):
            z = (groups[who] == group).astype(np.float64)
            covariances.append((z - z.mean()) @ rows[who] / max(1, int(who.sum())))
    return np.array(covariances)


def fit(rows: Floats, target: NDArray[np.int64], covariances: Floats) -> Floats:
    """θ of the problem with c = 0: it moves in the null space of the covariances."""
    # The last rows of V^T span the directions that no covariance depends on.
    _, values, directions = np.linalg.svd(covariances, full_matrices=True)
    rank = int((values > 1e-12 * max(values.max(), 1e-300)).sum())
    basis = directions[rank:].T  # (features, free)
    solution = minimize(
        _objective,
        np.zeros(basis.shape[1]),
        args=(rows @ basis, target, basis),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": 2000, "ftol": 1e-12, "gtol": 1e-7},
    )
    return np.asarray(basis @ solution.x)


def _objective(
    point: Floats, rows: Floats, target: NDArray[np.int64], basis: Floats
) -> tuple[float, Floats]:
    """Mean of scikit-learn's LogisticRegression objective at C = 1, and its gradient."""
    signs, n = 2.0 * target - 1.0, len(target)
    margins = signs * (rows @ point)
    weights = basis @ point
    weights[0] = 0.0  # the intercept is not penalised
    value = np.logaddexp(0.0, -margins).sum() + 0.5 * float(weights @ weights)
    gradient = -(signs * expit(-margins)) @ rows + basis.T @ weights
    return float(value / n), np.asarray(gradient / n)


def _with_one(rows: Floats) -> Floats:
    return np.column_stack([np.ones(len(rows)), rows])
