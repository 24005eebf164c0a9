"""The ε that the papers would print for a run, beside the one that is guaranteed.

    q = people per query / people ever asked,   z = σ/Δ = 1/μ,   T queries
    ε = accountant(Poisson-subsampled Gaussian(q, z), T times)            Abadi et al. 2016; Opacus

The papers count every step as if its people had been drawn at random and in secret. Here the
company, who is the adversary, chose them; and even an outsider learns from a person's own loss
gradient whether they took part. So the figure is *not a guarantee* about attributes (docs/design.md
§4). It is printed to be compared with published figures, and says so.

Who is asked about in all stages pays for all of them; who is in some only (equalized odds asks each
label apart) pays for these. Reported is the largest over people.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from isonomy.common.base.errors import ConfigError
from isonomy.common.privacy.accounting import UNITS_PER_MU2
from isonomy.common.privacy.queries import QueryLog
from isonomy.common.sums.oracle import GroupOracle

Accountant = Literal["rdp", "prv"]
Steps = Mapping[tuple[float, float], int]  # (noise multiplier z, sampling rate q) ↦ steps

NOT_A_GUARANTEE = "as in the papers, not a guarantee"
GUARANTEE = "guaranteed for whole records, to whoever sees the model only"
WHOLE_ORDERS = (*map(float, range(2, 64)), 64.0, 80.0, 96.0, 128.0, 192.0, 256.0, 512.0, 1024.0)
"""Orders of Rényi divergence that are quick to work out; with fewer orders ε is never smaller."""
ORDERS = (*(1 + x / 10 for x in range(1, 100)), *WHOLE_ORDERS[9:])


@dataclass(frozen=True)
class PaperEpsilon:
    """A figure with what it is worth."""

    epsilon: float
    delta: float
    accountant: Accountant
    is_guarantee: bool = False

    @property
    def label(self) -> str:
        return GUARANTEE if self.is_guarantee else NOT_A_GUARANTEE

    def __str__(self) -> str:
        return f"ε = {self.epsilon:.4g} at δ = {self.delta:g} ({self.label})"


def as_in_papers(oracle: GroupOracle) -> PaperEpsilon:
    """The figure for all that was asked of this oracle so far, at the plan's δ."""
    delta, log = oracle.budget.delta, steps_of(oracle.log)
    figures = [subsampled_epsilon(steps, delta, "rdp", WHOLE_ORDERS) for steps in log]
    return PaperEpsilon(max(figures, default=0.0), delta, "rdp")


def steps_of(log: QueryLog) -> list[Counter[tuple[float, float]]]:
    """What different people went through: one multiset of steps per pattern of stages."""
    if not log.stages:
        return []
    stages = list(log.stages.values())
    patterns = np.unique(np.stack([stage.pool for stage in stages], axis=1), axis=0)
    by_pattern = []
    for pattern in patterns:
        steps: Counter[tuple[float, float]] = Counter()
        for stage, inside in zip(stages, pattern, strict=True):
            if inside:
                for (units, people), queries in stage.queries.items():
                    multiplier = math.sqrt(UNITS_PER_MU2 / units) if units else math.inf
                    steps[(multiplier, people / stage.pool_size)] += queries
        by_pattern.append(steps)
    return by_pattern


def subsampled_epsilon(
    steps: Steps,
    delta: float,
    accountant: Accountant = "rdp",
    orders: tuple[float, ...] = ORDERS,
) -> float:
    """ε of Poisson-subsampled Gaussian steps by Opacus' accountants."""
    from opacus.accountants import PRVAccountant
    from opacus.accountants.analysis import rdp

    if not 0 < delta < 1:
        raise ConfigError(f"delta must lie strictly between 0 and 1, got {delta!r}")
    history = []
    for (multiplier, rate), times in steps.items():
        if not multiplier > 0 or not 0 < rate <= 1:
            raise ConfigError("a step needs noise above 0 and a sampling rate in (0, 1]")
        if math.isfinite(multiplier):
            history.append((multiplier, rate, times))
    if not history:
        return 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Opacus' hints about its grid of orders
        if accountant == "rdp":
            total = sum(times * _one_step(rate, z, orders) for z, rate, times in history)
            epsilon, _ = rdp.get_privacy_spent(orders=orders, rdp=total, delta=delta)
            return float(epsilon)
        if accountant != "prv":
            raise ConfigError(f'accountant is "rdp" or "prv", got {accountant!r}')
        prv = PRVAccountant()
        prv.history = history
        return float(prv.get_epsilon(delta, eps_error=0.005))


@lru_cache(maxsize=4096)
def _one_step(rate: float, multiplier: float, orders: tuple[float, ...]) -> NDArray[np.float64]:
    """(orders,) Rényi divergences of one step; remembered, because runs repeat their steps."""
    from opacus.accountants.analysis import rdp

    step = rdp.compute_rdp(q=rate, noise_multiplier=multiplier, steps=1, orders=orders)
    return np.asarray(step, dtype=np.float64)


def theorem_3_3(
    *,
    epsilon: float,
    delta: float,
    steps: int,
    people: float,
    rho: float,
    diameter: float,
    lipschitz: float,
) -> tuple[float, float]:
    """The paper's noise levels σ_w and σ_θ for sensitive attributes.

        σ_w² = 16 T ln(1/δ)/(ε²n²ρ),  σ_θ² = 16 L²D² ln(1/δ) T/(ε²n²ρ)

    For comparison (`DpFermi(noise="theorem")`). Each of the two makes its own update (ε, δ)-DP; a
    run of both with these levels costs more than ε, and ρ, the smallest group's share, is taken as
    public. The theorem counts on amplification by sampling, which is none against the company.
    """
    t = steps * math.log(1 / delta) / (epsilon * people) ** 2
    ld = (lipschitz * diameter) ** 2
    return math.sqrt(16 * t / rho), math.sqrt(16 * ld * t / rho)
