"""Zafar et al. 2017: logistic regression under a bound on the covariance of group and score.

    minimise   ½‖w‖² + Σ_i log(1 + exp(−y_i θ·x_i)),   θ = (intercept, w)         y ∈ {−1, 1}
    subject to abs( (1/n) Σ_i (z_i − z̄)·θ·x_i ) ≤ c       for the indicator z of each group but one

("Fairness constraints: mechanisms for fair classification", Eq. 4.) c = `fraction` of what the
unconstrained model has, 0 by default: the strictest.

What it is: the non-private covariance method for demographic parity, as in PF-LD's comparison. For
equalized odds the covariance is bounded among people of each label by itself, which is convex;
it is not the convex-concave programme of Zafar's paper on disparate mistreatment.
What it is not: private, or a bound on the violation itself: covariance is a stand-in for it, and
`tolerance` has no part in it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit

from isonomy.common.base.errors import ConfigError, DataError
from isonomy.company.compare.baselines.encoded import encode
from isonomy.company.rehearsal.strategies import Rehearsal, Trained, check_notion

_NAME = "zafar"
Floats = NDArray[np.float64]


def train(rehearsal: Rehearsal) -> Trained:
    """Option: `fraction` in [0, 1]."""
    check_notion(_NAME, rehearsal.notion)
    fraction = float(rehearsal.options_among("fraction").get("fraction", 0.0))
    if not 0 <= fraction <= 1:
        raise ConfigError(f"fraction must lie between 0 and 1; got {fraction}")
    groups = rehearsal.true_groups(_NAME)
    data = encode(rehearsal, _NAME, logistic=True)
    rows = _with_one(data.rows)
    covariances = covariance_rows(rows, rehearsal.target, groups, rehearsal.notion)
    theta = fit(rows, rehearsal.target, covariances, fraction)
    return Trained(
        data.decider(lambda encoded: (_with_one(encoded) @ theta > 0).astype(np.int64)),
        data.base_decide,
        _NAME,
        epsilon_spent=float("inf"),
        accounting="none: trained on the true attributes",
    )


def covariance_rows(
    rows: Floats, target: NDArray[np.int64], groups: NDArray[np.int64], notion: str
) -> Floats:
    """(constraints, features) whose product with θ is the covariance of group and score."""
    everybody = np.ones(len(target), dtype=bool)
    within = [everybody] if notion == "demographic_parity" else [target == 0, target == 1]
    found = []
    for who in within:
        for group in range(1, int(groups.max()) + 1):
            z = (groups[who] == group).astype(np.float64)
            found.append((z - z.mean()) @ rows[who] / max(1, int(who.sum())))
    return np.array(found)


def fit(rows: Floats, target: NDArray[np.int64], covariances: Floats, fraction: float) -> Floats:
    """θ of the constrained problem.

    `fraction` 0 needs no solver for constraints: θ moves in the null space of the covariances.
    """
    if fraction == 0.0:
        # The last rows of V^T span what the covariances do not see.
        _, values, directions = np.linalg.svd(covariances, full_matrices=True)
        rank = int((values > 1e-12 * max(values.max(), 1e-300)).sum())
        basis = directions[rank:].T  # (features, free)
        return np.asarray(basis @ _solve(rows @ basis, target, basis))
    free = _solve(rows, target, np.eye(rows.shape[1]))
    bounds = fraction * np.abs(covariances @ free)
    scale = np.maximum(np.abs(covariances).max(axis=1), 1e-12)
    matrix = covariances / scale[:, None]
    limit = bounds / scale
    limits: Any = [
        {"type": "ineq", "fun": lambda t: limit - matrix @ t, "jac": lambda t: -matrix},
        {"type": "ineq", "fun": lambda t: limit + matrix @ t, "jac": lambda t: matrix},
    ]
    found = minimize(
        _objective,
        free * fraction,  # inside the constraints
        args=(rows, target, np.eye(rows.shape[1])),
        jac=True,
        method="SLSQP",
        constraints=limits,
        options={"maxiter": 200, "ftol": 1e-9},
    )
    if not found.success:
        raise DataError(f"the covariance-constrained fit did not converge: {found.message}")
    return np.asarray(found.x)


def _solve(rows: Floats, target: NDArray[np.int64], basis: Floats) -> Floats:
    found = minimize(
        _objective,
        np.zeros(rows.shape[1]),
        args=(rows, target, basis),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": 2000, "ftol": 1e-12, "gtol": 1e-7},
    )
    return np.asarray(found.x)


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


__all__ = ["covariance_rows", "fit", "train"]
