"""RaCO-DP (Yaghini et al. 2025): private descent-ascent with rates from noisy histograms.

Logistic model θ with p_i = P(ŷ = 1 | x_i), multipliers λ ≥ 0 for either sign of every bound. With
H_{c,a} the sum of p and the number of people of a lot in label cell c (one cell for demographic
parity) and group a, each step on a Poisson lot:

    Ĥ        = H + noise                                                one private histogram
    Γ_{c,a}  = Ĥp_{c,a}/Ĥn_{c,a} − Σ_a Ĥp_{c,a}/Σ_a Ĥn_{c,a}            rate of a less everybody's
    θ        ← θ − η·( Σ_i clip(∇[loss_i + Σ_{c,a} (λ⁺ − λ⁻)_{c,a}·z_{i,c,a}·p_i]) + noise )/lot
               z_{i,c,a}: person i's part in Γ_{c,a}, by the released sizes of the histogram
    λ^±      ← [λ^± + s·(±Γ − γ/2)]₊, at most λ_max                     no further privacy cost

The mean of the later half of θ decides.

What it is: the method for many groups; one histogram serves any number of them. (ε, δ) by Opacus'
RDP accountant with amplification by Poisson sampling, for *whole records*, one added or removed.
Histogram and gradient are two Gaussian releases of one lot, so together one Gaussian release with
1/σ² = 1/σ_θ² + 1/σ_H². The paper has Laplace noise in the histogram, whose composition with
sampling this accountant does not know.
What it is not: this product's setting, for the reasons given in dp_sgd.py: one trusted trainer.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from opacus.accountants import RDPAccountant
from scipy.special import expit

from isonomy.common.base.errors import ConfigError
from isonomy.company.compare.baselines._encoded import encode
from isonomy.company.compare.baselines.dp_sgd import gaussian, least_noise, poisson_lots
from isonomy.company.rehearsal.strategies import Rehearsal, Trained, check_notion

_NAME = "raco_dp"
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Recipe:
    """Settings of the training. Chosen on the lending generator at ε = 1."""

    epochs: int = 20
    lot: int = 1024
    learning_rate: float = 0.5
    clip: float = 1.0
    multiplier_rate: float = 1.0
    multiplier_cap: float = 2.0
    histogram_share: float = 0.3  # of 1/σ²

    def __post_init__(self) -> None:
        if min(self.epochs, self.lot) < 1 or min(self.learning_rate, self.clip) <= 0:
            raise ConfigError("epochs and lot are at least 1; learning_rate and clip above 0")
        if self.multiplier_rate <= 0 or self.multiplier_cap <= 0:
            raise ConfigError("multiplier_rate and multiplier_cap are above 0")
        if not 0 < self.histogram_share < 1:
            raise ConfigError("histogram_share lies between 0 and 1")


def train(rehearsal: Rehearsal) -> Trained:
    """Options: the fields of `Recipe`."""
    check_notion(_NAME, rehearsal.notion)
    recipe = Recipe(**rehearsal.options_among(*Recipe.__dataclass_fields__))
    groups = rehearsal.true_groups(_NAME)
    data = encode(rehearsal, _NAME, logistic=True)
    budget = rehearsal.oracle.budget
    theta, spent = fit(
        _with_one(data.rows),
        rehearsal.target,
        Cells.of(rehearsal.target, groups, rehearsal.notion),
        recipe,
        tolerance=rehearsal.tolerance,
        epsilon=budget.cap_epsilon,
        delta=budget.delta,
    )

    def decide(rows: Floats) -> Ints:
        return (_with_one(rows) @ theta > 0).astype(np.int64)

    return Trained(
        data.decider(decide),
        data.base_decide,
        _NAME,
        epsilon_spent=spent,
        accounting="Opacus RDP with subsampling, whole records, against outsiders: one trusted "
        "trainer holds attributes and features",
    )


@dataclass(frozen=True)
class Cells:
    """Everybody's cell (label cell, group), and how many of either there are."""

    of_row: Ints  # (n,)
    labels: int
    groups: int

    @classmethod
    def of(cls, target: Ints, groups: Ints, notion: str) -> Cells:
        label = target if notion == "equalized_odds" else np.zeros_like(target)
        size = int(groups.max()) + 1
        return cls(size * label + groups, int(label.max()) + 1, size)

    def histogram(self, lot: Ints, chances: Floats) -> Floats:
        """(2, labels, groups) sum of the chances and number of people of each cell.

        A person adds (p, 1) to one cell; p ≤ 1, so the norm is at most √2.
        """
        cell, size = self.of_row[lot], self.labels * self.groups
        sums = np.stack([np.bincount(cell, w, size) for w in (chances, np.ones(len(lot)))])
        return np.asarray(sums.reshape(2, self.labels, self.groups), dtype=np.float64)


def fit(
    rows: Floats,
    target: Ints,
    cells: Cells,
    recipe: Recipe,
    *,
    tolerance: float,
    epsilon: float,
    delta: float,
) -> tuple[Floats, float]:
    """(features,) θ, the intercept first, and its ε."""
    n, rate = len(rows), min(1.0, recipe.lot / len(rows))
    steps = max(1, round(recipe.epochs / rate))
    sigma = least_noise(lambda s: _epsilon(s, rate, steps, delta), epsilon, _NAME)
    of_gradient = sigma / np.sqrt(1 - recipe.histogram_share) * recipe.clip
    of_histogram = sigma / np.sqrt(recipe.histogram_share) * np.sqrt(2.0)
    theta, later = np.zeros(rows.shape[1]), np.zeros(rows.shape[1])
    price = np.zeros((2, cells.labels, cells.groups))  # λ⁺, λ⁻
    for number, lot in enumerate(poisson_lots(n, rate, steps)):
        x, chances = rows[lot], expit(rows[lot] @ theta)
        exact = cells.histogram(lot, chances)
        noisy = exact + gaussian(of_histogram, exact.shape)
        sizes = np.maximum(noisy[1], of_histogram)  # a cell of less than the noise tells nothing
        totals = sizes.sum(axis=1, keepdims=True)
        gap = np.clip(noisy[0] / sizes, 0, 1) - np.clip(
            noisy[0].sum(1, keepdims=True) / totals, 0, 1
        )
        weight = (price[0] - price[1]) / sizes
        weight -= (price[0] - price[1]).sum(axis=1, keepdims=True) / totals
        added = recipe.lot * weight.reshape(-1)[cells.of_row[lot]] * chances * (1 - chances)
        each = (chances - target[lot] + added)[:, None] * x
        each *= np.minimum(1.0, recipe.clip / np.maximum(np.linalg.norm(each, axis=1), 1e-300))[
            :, None
        ]
        theta = theta - recipe.learning_rate / recipe.lot * (
            each.sum(axis=0) + gaussian(of_gradient, theta.shape)
        )
        beyond = np.stack([gap, -gap]) - tolerance / 2
        price = np.clip(price + recipe.multiplier_rate * beyond, 0.0, recipe.multiplier_cap)
        if number >= steps // 2:  # free, and descent-ascent circles
            later += theta
    return later / (steps - steps // 2), _epsilon(sigma, rate, steps, delta)


def _epsilon(sigma: float, rate: float, steps: int, delta: float) -> float:
    accountant = RDPAccountant()
    accountant.history = [(sigma, rate, steps)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the best order is the largest one tried
        return float(accountant.get_epsilon(delta))


def _with_one(rows: Floats) -> Floats:
    return np.column_stack([np.ones(len(rows)), rows])
