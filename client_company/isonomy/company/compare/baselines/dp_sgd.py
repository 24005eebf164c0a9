"""Opacus DP-SGD with a fairness penalty: what one trusted holder of all data could publish.

Logistic model θ, multipliers λ (one per label cell c and group a ≠ 0), per person i in cell c:

    L_i(θ, λ) = log-loss_i + Σ_a λ_c,a·z_i,a·p_i,    z_i,a = 1[A_i = a]/ñ_c,a − 1[A_i = 0]/ñ_c,0
    max over λ of λ·g − λ²/(2ρ)  =  (ρ/2)·g²,        g = n·E[z·p], the soft difference of rates

So descent in θ and ascent in λ (with decay 1/ρ) is DP-SGD on the penalty ρ/2·Σ g². λ is a parameter
of the model: Opacus clips each person's gradient layer by layer (weights, intercept, λ) and noises
all of it by the norm of the three bounds, so there is one mechanism per step and no un-noised
multiplier, sign or group size. Clipping θ and λ together would shrink g by each person's loss, and
the game would settle elsewhere. z is divided by its largest value, which makes λ's clipping exact.
ñ come from one Gaussian count with its own entry in the accountant.

What it is: DP-SGD with a fairness term as in DP-FERMI's comparisons. (ε, δ) by Opacus' RDP
accountant with amplification by Poisson sampling: for *whole records*, one added or removed.
What it is not: this product's setting. It assumes one trainer who is trusted with features, labels
and attributes, and adversaries who see the model only. Against a company that knows which rows it
sent, amplification fails (docs/design.md, section 4). Replacing an attribute is one removal and one
addition. The encoding (categories, means) is fitted without privacy, as in the papers. The ledger
takes no part: it guards the company's view, which does not exist here.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from opacus import GradSampleModule
from opacus.accountants import RDPAccountant
from opacus.optimizers import DPPerLayerOptimizer
from torch import Tensor, nn

from isonomy.common.base.errors import ConfigError
from isonomy.common.privacy.noise import SystemNoise, rounded_gaussian
from isonomy.company.compare.baselines._encoded import encode
from isonomy.company.rehearsal.strategies import Rehearsal, Trained, check_notion

_NAME = "dp_sgd_penalty"
DUAL_CLIP = 1.0  # |z·p| is at most this, once divided by the largest |z|
FINE = 2**20  # steps per deviation of the noise
COUNT_NOISE = 20.0  # deviation of the group sizes: 3 % of the budget at ε = 1, δ = 10^-5


@dataclass(frozen=True)
class Recipe:
    """Settings of the training; `weight` is ρ. Chosen on the lending generator at ε = 1."""

    epochs: int = 20
    lot: int = 512
    learning_rate: float = 0.5
    clip: float = 1.0
    weight: float = 20.0
    multiplier_rate: float = 0.3

    def __post_init__(self) -> None:
        if min(self.epochs, self.lot) < 1 or min(self.learning_rate, self.clip) <= 0:
            raise ConfigError("epochs and lot are at least 1; learning_rate and clip above 0")
        if self.weight < 0 or self.multiplier_rate <= 0:
            raise ConfigError("weight is at least 0, multiplier_rate above 0")


class PenalisedLogistic(nn.Module):
    """Score of x and, through `dual`, Σ λ·z·p as the output of a layer without bias.

    Opacus knows the per-person gradients of linear layers; λ as such a layer's weight is covered.
    """

    def __init__(self, features: int, constraints: int) -> None:
        super().__init__()
        self.score = nn.Linear(features, 1)
        self.dual = nn.Linear(constraints, 1, bias=False)
        for parameter in self.parameters():
            nn.init.zeros_(parameter)

    def forward(self, rows: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        """(n,) scores and (n,) penalties."""
        scores = self.score(rows)  # (n, 1)
        return scores[:, 0], self.dual(z * torch.sigmoid(scores))[:, 0]


class SystemNoiseOptimizer(DPPerLayerOptimizer):  # type: ignore[misc]
    """Opacus' optimizer with noise from the operating system, sampled as the product's is."""

    def add_noise(self) -> None:
        """Σ of clipped gradients + N(0, (σC)²) per coordinate."""
        deviation = self.noise_multiplier * self.max_grad_norm
        for parameter in self.params:
            noise = gaussian(deviation, tuple(parameter.summed_grad.shape))
            noisy = parameter.summed_grad + torch.as_tensor(noise, dtype=torch.float32)
            parameter.grad = noisy.view_as(parameter)


def gaussian(deviation: float, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Noise from the operating system."""
    draws = rounded_gaussian(FINE, int(np.prod(shape)), SystemNoise())
    return np.asarray(draws.reshape(shape) * (deviation / FINE))


def train(rehearsal: Rehearsal) -> Trained:
    """Options: the fields of `Recipe`."""
    check_notion(_NAME, rehearsal.notion)
    recipe = Recipe(**rehearsal.options_among(*Recipe.__dataclass_fields__))
    groups = rehearsal.true_groups(_NAME)
    data = encode(rehearsal, _NAME, logistic=True)
    budget = rehearsal.oracle.budget
    fitted, spent = fit(
        data.rows,
        rehearsal.target,
        groups,
        rehearsal.notion,
        recipe,
        epsilon=budget.cap_epsilon,
        delta=budget.delta,
    )

    def decide(rows: NDArray[np.float64]) -> NDArray[np.int64]:
        with torch.no_grad():
            scores = fitted.score(torch.as_tensor(rows, dtype=torch.float32))[:, 0]
        return np.asarray((scores > 0).numpy(), dtype=np.int64)

    return Trained(
        data.decider(decide),
        data.base_decide,
        _NAME,
        epsilon_spent=spent,
        accounting="Opacus RDP with subsampling, whole records, against outsiders: one trusted "
        "trainer holds attributes and features",
    )


def fit(
    rows: NDArray[np.float64],
    target: NDArray[np.int64],
    groups: NDArray[np.int64],
    notion: str,
    recipe: Recipe,
    *,
    epsilon: float,
    delta: float,
) -> tuple[PenalisedLogistic, float]:
    """The trained model and its ε, counts included."""
    n, rate = len(rows), min(1.0, recipe.lot / len(rows))
    steps = max(1, round(recipe.epochs / rate))
    sigma = noise_multiplier(rate, steps, epsilon, delta)
    # z may depend on the data only through the noised counts, which the accountant has.
    wide = _constraint_rows(target, groups, notion)
    scale = float(np.abs(wide).max())  # from released sizes
    z = torch.as_tensor(wide / scale, dtype=torch.float32)
    ascent = recipe.multiplier_rate * scale**2  # for λ·scale, which is what the layer holds
    x, y = torch.as_tensor(rows, dtype=torch.float32), torch.as_tensor(target).float()
    model = PenalisedLogistic(x.shape[1], z.shape[1])
    private = GradSampleModule(model, loss_reduction="sum")
    groups_of: Any = [
        {"params": [*model.score.parameters()], "lr": recipe.learning_rate},
        {"params": [*model.dual.parameters()], "lr": ascent, "maximize": True},
    ]
    optimizer = SystemNoiseOptimizer(
        torch.optim.SGD(groups_of),
        noise_multiplier=sigma,
        max_grad_norm=[recipe.clip, recipe.clip, DUAL_CLIP],
        expected_batch_size=recipe.lot,
        loss_reduction="mean",
    )
    decay = 1.0 / (1.0 + recipe.multiplier_rate / max(recipe.weight, 1e-9))
    later = [torch.zeros_like(parameter) for parameter in model.parameters()]
    loss_of = nn.BCEWithLogitsLoss(reduction="none")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Full backward hook is firing")
        for number, rows_of_lot in enumerate(poisson_lots(n, rate, steps)):
            lot = torch.as_tensor(rows_of_lot)
            optimizer.zero_grad()
            scores, penalty = private(x[lot], z[lot])
            torch.sum(loss_of(scores, y[lot]) + penalty).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            with torch.no_grad():  # λ ← (λ + s·g̃)/(1 + s/ρ): the implicit step on −λ²/(2ρ)
                model.dual.weight.mul_(decay if recipe.weight > 0 else 0.0)
                if number >= steps // 2:
                    for total, parameter in zip(later, model.parameters(), strict=True):
                        total.add_(parameter)
    with torch.no_grad():  # the mean of the later half: free, and descent-ascent circles
        for total, parameter in zip(later, model.parameters(), strict=True):
            parameter.copy_(total / (steps - steps // 2))
    return model, _epsilon(sigma, rate, steps, delta)


def noise_multiplier(rate: float, steps: int, epsilon: float, delta: float) -> float:
    """The least noise that keeps steps and counts together within (ε, δ)."""
    return least_noise(lambda sigma: _epsilon(sigma, rate, steps, delta), epsilon, _NAME)


def least_noise(epsilon_of: Callable[[float], float], epsilon: float, who: str) -> float:
    """The least noise, to 0.1 %, whose ε is within the budget."""
    low, high = 0.2, 1.0
    while epsilon_of(high) > epsilon:
        low, high = high, 2 * high
        if high > 1e4:
            raise ConfigError(f"{who}: no noise keeps it within ε = {epsilon:g}; take a larger ε")
    while high / low > 1.001:
        middle = (low * high) ** 0.5
        low, high = (low, middle) if epsilon_of(middle) <= epsilon else (middle, high)
    return high


def _epsilon(sigma: float, rate: float, steps: int, delta: float) -> float:
    accountant = RDPAccountant()
    accountant.history = [(sigma, rate, steps), (COUNT_NOISE, 1.0, 1)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the best order is the largest one tried
        return float(accountant.get_epsilon(delta))


def _constraint_rows(
    target: NDArray[np.int64], groups: NDArray[np.int64], notion: str
) -> NDArray[np.float64]:
    """(n, constraints) n·z_i,a: by released group sizes, so that E over a lot is the difference."""
    n, k = len(target), int(groups.max()) + 1
    cells = [np.ones(n, bool)]
    if notion == "equalized_odds":
        cells = [target == 0, target == 1]
    noise = gaussian(COUNT_NOISE, (len(cells), k))
    columns = []
    for who, noise_of in zip(cells, noise, strict=True):
        sizes = np.array([(groups[who] == a).sum() for a in range(k)]) + noise_of
        weights = n / np.maximum(sizes, COUNT_NOISE)
        for a in range(1, k):
            columns.append(who * ((groups == a) * weights[a] - (groups == 0) * weights[0]))
    return np.stack(columns, axis=1)


def poisson_lots(n: int, rate: float, steps: int) -> Iterator[NDArray[np.int64]]:
    """Poisson samples from the system's randomness; an empty lot is a step of noise alone."""
    # From the operating system: amplification holds only if nobody can predict the lots.
    below = int(rate * 2**32)
    for _ in range(steps):
        draws = np.frombuffer(os.urandom(4 * n), "<u4")
        yield np.flatnonzero(draws < below)
