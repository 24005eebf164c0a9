"""How one budget is shared out: counts once, one dual query and E primal queries per round.

    Σμ² = w_c + (T + 1)·(w_d/(T + 1)) + T·E·(w_p/(T·E)) = the whole budget     docs/design.md §4

All queries draw on one budget, primal and dual together; each person's own sum stays below it. The
shares are solved over the oracle's cap in integers (accounting.Split), so the last query of a full
run still fits, exactly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from isonomy.common.base.errors import ConfigError
from isonomy.common.privacy.accounting import UNITS_PER_MU2, Split
from isonomy.common.privacy.noise import MAX_SIGMA, MIN_SIGMA
from isonomy.common.sums.oracle import GroupOracle, NoiseLevel
from isonomy.company.fair.inputs.checks import affordable_units

_WAY_OUT = (
    "Keep the model that was trained for it; a run that broke goes on from its checkpoint "
    "(resume=…). Another training needs a new plan."
)


@dataclass(frozen=True)
class Weights:
    """Parts of μ² for the counts, all dual steps and all primal steps; they add up to 1."""

    counts: float = 0.04
    dual: float = 0.30
    primal: float = 0.66

    def __post_init__(self) -> None:
        parts = (self.counts, self.dual, self.primal)
        if not all(math.isfinite(p) and p > 0 for p in parts) or sum(parts) > 1 + 1e-9:
            raise ConfigError(f"the split's parts must be positive and add up to 1, got {parts}")


@dataclass(frozen=True)
class Noise:
    """The noise of one query: a share of the plan's μ², or the paper's multiplier σ.

    With a multiplier the deviation is σ times the sensitivity of that very query.
    """

    share: float | None = None
    multiplier: float | None = None

    def __post_init__(self) -> None:
        if (self.share is None) == (self.multiplier is None):
            raise ConfigError("give the noise as a share or as a multiplier, not both")
        value = self.share if self.multiplier is None else self.multiplier
        if value is None or not (math.isfinite(value) and value > 0):
            raise ConfigError(
                f"a private run needs noise: its multiplier must be above 0, got {value!r}. "
                "For a run without privacy take F-LD on a LocalOracle."
            )

    def arguments(self, sensitivity: float) -> NoiseLevel:
        """`share=` or `sigma=` for a call of the oracle."""
        if self.multiplier is not None:
            return {"sigma": self.multiplier * sensitivity}
        return {"share": float(self.share or 0.0)}

    def sigma(self, oracle: GroupOracle) -> float:
        """The noise per sensitivity, 1/μ."""
        if self.multiplier is not None:
            return self.multiplier
        return math.sqrt(UNITS_PER_MU2 / (oracle.budget.cap_units * float(self.share or 0.0)))


@dataclass(frozen=True)
class Schedule:
    """The noise of each kind of query in a run."""

    counts: Noise
    dual: Noise
    primal: Noise


def solve(
    oracle: GroupOracle,
    *,
    rounds: int,
    primal_per_round: int,
    weights: Weights,
    epsilon: float | None = None,
    dual_multiplier: float | None = None,
    primal_multiplier: float | None = None,
    primal_queries: int | None = None,
) -> Schedule:
    """Noise levels that use up what a run may spend of the plan (`affordable_units`) exactly.

    `primal_per_round`: queries per round that may include one person; `primal_queries`: in the
    whole run, where whole records are protected and that is not rounds times as many. With
    multipliers given, the budget is whatever it comes to; the run then ends when the plan is spent.
    """
    least, most = (bound / oracle.params.row_bound for bound in (MIN_SIGMA, MAX_SIGMA))
    for sigma in (dual_multiplier, primal_multiplier):
        if sigma is not None and not least <= sigma <= most:
            raise ConfigError(
                f"a noise multiplier lies between {least:.2g} and {most:.2g}; got {sigma}"
            )
    if epsilon is not None and not (isinstance(epsilon, int | float) and 0 < epsilon < math.inf):
        raise ConfigError(f"epsilon must be a number above 0 (None: the rest); {epsilon!r}")
    units = affordable_units(oracle, epsilon, _WAY_OUT, records=primal_queries is not None)
    per_query = Split(
        {
            "counts": (1, weights.counts),
            "dual": (rounds + 1, weights.dual),
            "primal": (primal_queries or rounds * primal_per_round, weights.primal),
        }
    ).units_per_query(units)
    if min(per_query.values()) < 1:
        raise ConfigError(
            "the budget is too small for this many rounds: a query would get none of it. "
            "Nothing was spent; plan fewer rounds."
        )
    cap = oracle.budget.cap_units
    share = {name: Noise(share=part / cap) for name, part in per_query.items()}
    return Schedule(
        counts=share["counts"],
        dual=share["dual"] if dual_multiplier is None else Noise(multiplier=dual_multiplier),
        primal=share["primal"]
        if primal_multiplier is None
        else Noise(multiplier=primal_multiplier),
    )
