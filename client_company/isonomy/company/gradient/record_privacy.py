"""Privacy of all features: DP-FERMI whose loss step is noised too, with Poisson sampling.

    adjacency: one person's whole record (features, label, attribute) is added or removed

protects the people in the training data from whoever sees the released model, not from the company,
who holds the records. Attributes stay protected from the company by the oracle's ledger as always.

A step draws everybody with probability q (Poisson; from the operating system's randomness) and
releases, all at (θ_t, W_t) and about the same sample:

| release | by | Δ under add/remove | 1/z² |
|---|---|---|---|
| Σ_a (u_a − ū) Σ ∇h, ū the middle of u's range | oracle | range(u)/2 · C | units/4 |
| Σ h by group, all groups but the last | oracle | C_w | units, units/2 for k > 2 |
| Σ h over everybody (gives the last group, and F̄) | company | C_w | 1/z_h² |
| Σ ∇(ℓ + λ·(what of ψ needs no attribute)) | company | C_ℓ | 1/z_ℓ² |

What is free for attributes is not free for features: the last two lines are the price. Jointly they
are one Gaussian mechanism with 1/z² = Σ 1/z_c²; T steps of it, subsampled at rate q, are what the
accountants of Opacus take. Here the amplification is real: nothing that leaves shows who was drawn.

Nobody takes part more than M times (the shares of the attribute budget are solved for M); M is such
that P[Bin(T, q) > M] ≤ δ/1000, and that much is taken off δ.

`theorem_3_3` gives the paper's own noise levels, both sets, for comparison.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import binom
from torch import Tensor

from isonomy.common.accounting import UNITS_PER_MU2
from isonomy.common.errors import BudgetExceeded, ConfigError
from isonomy.common.noise import SystemNoise, rounded_gaussian
from isonomy.common.quantise import quantise
from isonomy.company.gradient.ermi import Ermi
from isonomy.company.gradient.ghost import ChunkGradients
from isonomy.company.gradient.paper_epsilon import (
    ORDERS,
    WHOLE_ORDERS,
    Accountant,
    PaperEpsilon,
    subsampled_epsilon,
)
from isonomy.company.gradient.sgda import Batch, private_descent, private_moments
from isonomy.company.gradient.strategy import Run, logits_of, trainable

Floats = NDArray[np.float64]
_SPARE_DELTA = 1e-3  # of δ: for people who would be drawn more than M times


def private_total(rows: Floats, norm: float, multiplier: float) -> Floats:
    """Σ of clipped rows + N(0, (z·norm)²): quantised, added and noised in exact integers.

    The same arithmetic as a blind group sum: rows are clipped after quantisation, so that one
    person changes the integer sum by at most 2^20, and the noise is a rounded Gaussian.
    """
    bound = 1 << 20
    integers = quantise(rows, norm, bound).rows.sum(axis=0, dtype=np.int64)
    noise = rounded_gaussian(math.ceil(multiplier * bound), len(integers), SystemNoise())
    return np.asarray((integers + noise) * (norm / bound))


def most_often(steps: int, rate: float, delta: float) -> int:
    """M: the least number with P[Bin(T, q) > M] ≤ δ/1000."""
    return min(steps, int(binom.isf(delta * _SPARE_DELTA, steps, rate)) + 1)


@dataclass(frozen=True)
class RecordPrivacy:
    """How a record-private run is set up.

    | parameter | meaning |
    |---|---|
    | epsilon, delta | for all features, to whoever sees the model |
    | steps, rate | T and q |
    | learning_rate, strength | η_θ and λ |
    | clip_loss, clip | C_ℓ (with the public part of ψ) and C |
    | counts, w, theta | how the oracle's budget is split |
    """

    epsilon: float
    delta: float = 1e-5
    steps: int = 60
    rate: float = 0.2
    learning_rate: float = 1.0
    strength: float = 2.0
    clip_loss: float = 2.0
    clip: float = 0.7
    counts: float = 0.04
    w: float = 0.30
    theta: float = 0.66
    accountant: Accountant = "rdp"

    def __post_init__(self) -> None:
        for name in ("epsilon", "learning_rate", "strength", "clip_loss", "clip"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) > 0):
                raise ConfigError(f"{name} must be a positive number")
        if not (isinstance(self.steps, int) and self.steps >= 1 and 0 < self.rate <= 1):
            raise ConfigError("a run needs at least one step and a sampling rate in (0, 1]")
        if not 0 < self.delta < 1:
            raise ConfigError(f"delta must lie strictly between 0 and 1, got {self.delta!r}")
        if min(self.counts, self.w, self.theta) <= 0 or self.counts + self.w + self.theta > 1:
            raise ConfigError("counts, w and theta are parts of one budget: above 0, at most 1")

    def epsilon_of(
        self,
        oracle_cost: float,
        counts_cost: float,
        multiplier: float,
        orders: tuple[float, ...] = ORDERS,
    ) -> float:
        """ε of the run if each of the company's two releases has noise multiplier z.

        `oracle_cost` is Σ 1/z² of a step's oracle releases, `counts_cost` that of the counts.
        """
        step = oracle_cost + 2.0 / multiplier**2
        steps = {(step**-0.5, self.rate): self.steps, (counts_cost**-0.5, 1.0): 1}
        return subsampled_epsilon(steps, self.delta * (1 - _SPARE_DELTA), self.accountant, orders)

    def multiplier_for(self, oracle_cost: float, counts_cost: float) -> float:
        """The least z (to 1 %) that meets ε, or a BudgetExceeded if the oracle's part is over."""

        def too_much(multiplier: float) -> bool:  # whole orders: quick, and never too hopeful
            found = self.epsilon_of(oracle_cost, counts_cost, multiplier, WHOLE_ORDERS)
            return found > self.epsilon

        low, high = 1e-2, 1e4
        if too_much(high):
            raise BudgetExceeded(
                f"what the oracle releases alone costs more than ε = {self.epsilon:g} for all "
                "features. Nothing was asked; use less of the plan's budget, or sample fewer."
            )
        while high / low > 1.01:
            middle = math.sqrt(low * high)
            if too_much(middle):
                low = middle
            else:
                high = middle
        return high


@dataclass
class RecordPrivateFermi:
    """DP-FERMI for demographic parity under record privacy, in a loop of its own.

    After `fit`: `multiplier_` (z of the company's releases), `record_` (ε for all features, a
    guarantee), `w_`. The attributes' cap and spent are in the oracle's budget.
    """

    settings: RecordPrivacy
    radius: float = 2.0
    problem: Ermi | None = field(default=None, init=False)

    def fit(self, run: Run) -> RecordPrivateFermi:
        """Train `run.model` in place. All noise levels are fixed before anything is asked."""
        own, groups = self.settings, len(run.oracle.labels(run.attribute))
        people, person = np.unique(run.people, return_inverse=True)
        most = most_often(own.steps, own.rate, own.delta)
        left = run.oracle.budget.remaining_share
        share_theta, share_w = left * own.theta / most, left * own.w / most
        cap = run.oracle.budget.cap_units / UNITS_PER_MU2
        moves = 1 if groups == 2 else 2
        oracle_cost = cap * (share_theta / 4 + share_w / moves)
        counts_cost = cap * left * own.counts / moves
        self.multiplier_ = own.multiplier_for(oracle_cost, counts_cost)
        self.record_ = PaperEpsilon(
            own.epsilon_of(oracle_cost, counts_cost, self.multiplier_),
            own.delta,
            own.accountant,
            is_guarantee=True,
        )
        problem = self._release_counts(run, people, left * own.counts)
        times = np.zeros(len(people), np.int64)
        for _ in range(own.steps):
            drawn = _poisson(len(people), own.rate) & (times < most)
            times += drawn
            if drawn.any():
                rows = np.flatnonzero(drawn[person])
                rows = rows[np.argsort(run.people[rows], kind="stable")]
                self._step(run, problem, rows, own.rate * len(people), share_theta, share_w)
        self.problem, self.w_ = problem, problem.w
        return self

    def _release_counts(self, run: Run, people: NDArray[np.int64], share: float) -> Ermi:
        counts = run.oracle.counts(
            attribute=run.attribute, people=people, share=share, purpose="fermi counts"
        )
        return Ermi.of(
            counts.values[:, 0],
            counts.deviation,
            float(len(people)),
            classes=run.classes,
            radius=self.radius,
        )

    def _step(
        self,
        run: Run,
        problem: Ermi,
        rows: NDArray[np.int64],
        expected: float,
        share_theta: float,
        share_w: float,
    ) -> None:
        own, numbers = self.settings, torch.from_numpy(rows)
        batch = Batch(numbers, run.people[rows], run.weight[numbers])
        total, sums = self._moments(run, problem, batch, share_w)
        weights = problem.coupling(problem.w)
        middle = (weights.max(axis=0) + weights.min(axis=0)) / 2  # ū, by column
        gradient = self._company_gradient(run, problem, batch, middle)
        blind = private_descent(
            problem,
            run,
            batch,
            weights - middle,
            norm=own.clip,
            share=share_theta,
            purpose="fermi θ",
        )
        with torch.no_grad():
            for parameter, g, b in zip(trainable(run.model), gradient, blind, strict=True):
                parameter.sub_(own.learning_rate * (g + own.strength * b) / expected)
        mean = np.clip(problem.mean + problem.basis @ total / expected, 0.01, 1.0)
        best = problem.joint(sums, expected) / (np.sqrt(problem.shares)[:, None] * mean)
        problem.w = problem.project(problem.w + 0.5 * (best - problem.w))

    def _moments(
        self, run: Run, problem: Ermi, batch: Batch, share: float
    ) -> tuple[Floats, Floats]:
        """(columns,) noised Σ h over everybody, and (k, columns) by group.

        The oracle takes the last group as the exact total minus the rest; here the exact total is
        replaced by the noised one. The centre c stays the constant 1/l: the batch's own mean would
        be a release of features.
        """
        with torch.no_grad():
            h = problem.moments(run.outputs(batch.rows)).double().cpu().numpy()
        people, person = np.unique(batch.people, return_inverse=True)
        rows = np.zeros((len(people), h.shape[1]))
        np.add.at(rows, person, h * batch.weight.numpy()[:, None])
        total = private_total(rows, problem.bound, self.multiplier_)
        release = private_moments(
            run.oracle,
            h,
            batch,
            attribute=run.attribute,
            norm=problem.bound,
            share=share,
            purpose="fermi W",
        )
        sums = release.values.copy()
        sums[-1] = total - sums[:-1].sum(axis=0)
        return total, sums

    def _company_gradient(
        self, run: Run, problem: Ermi, batch: Batch, middle: Floats
    ) -> list[Tensor]:
        """Σ clip(∇(ℓ_i + λ(g_i + ⟨ū, h_i⟩))) + noise: DP-SGD on what the company computes alone."""
        own, target = self.settings, run.target[batch.rows].to(run.device)

        def scalar(outputs: Tensor) -> Tensor:
            logits = logits_of(outputs, run.classes)
            loss = torch.nn.functional.cross_entropy(logits, target, reduction="none")
            mean = torch.as_tensor(middle, dtype=logits.dtype, device=logits.device)
            public = problem.public(logits, problem.w) + problem.moments(logits) @ mean
            return (loss + own.strength * public) * batch.weight.to(loss)

        inputs = run.inputs[batch.rows].to(run.device)
        grads = ChunkGradients.of(run.model, scalar, inputs, people_of_row=batch.people)
        rows = grads.rows().cpu().numpy()
        return grads.split(private_total(rows, own.clip_loss, self.multiplier_))


def _poisson(people: int, rate: float) -> NDArray[np.bool_]:
    """Who is drawn: independent coins from the operating system, 64 bits each."""
    if rate >= 1:
        return np.ones(people, np.bool_)
    coins = np.frombuffer(os.urandom(8 * people), np.uint64)
    return np.asarray(coins < np.uint64(int(rate * 2**64)))


@dataclass(frozen=True)
class PaperNoise:
    """σ_w and σ_θ of Theorem 3.3."""

    w: float
    theta: float


def theorem_3_3(
    *,
    epsilon: float,
    delta: float,
    steps: int,
    people: int,
    rho: float,
    diameter: float,
    lipschitz: float,
    classes: int,
    all_features: bool,
) -> PaperNoise:
    """The paper's noise levels, for sensitive attributes or for all features.

        attributes:    σ_w² = 16 T ln(1/δ)/(ε²n²ρ),  σ_θ² = 16 L²D² ln(1/δ) T/(ε²n²ρ)
        all features:  σ_w² = 32 T ln(1/δ)/(ε²n²)·(1/ρ + D²),
                       σ_θ² = 64 L²D² ln(1/δ) T/(ε²n²ρ) + 32 D⁴L²l² T ln(1/δ)/(ε²n²)

    For comparison only. Each of the two makes its own update (ε, δ)-DP; a run of both with these
    levels costs more than ε, and ρ, the smallest group's share, is taken as public.
    """
    t = steps * math.log(1 / delta) / (epsilon * people) ** 2
    ld = (lipschitz * diameter) ** 2
    if not all_features:
        return PaperNoise(math.sqrt(16 * t / rho), math.sqrt(16 * ld * t / rho))
    theta = 64 * ld * t / rho + 32 * diameter**2 * ld * classes**2 * t
    return PaperNoise(math.sqrt(32 * t * (1 / rho + diameter**2)), math.sqrt(theta))


__all__ = [
    "PaperNoise",
    "RecordPrivacy",
    "RecordPrivateFermi",
    "most_often",
    "private_total",
    "theorem_3_3",
]
