"""What a release costs, in integer units of μ², and what a sum of units means as (ε, δ).

A mechanism is μ-GDP if telling two neighbours apart by it is as hard as telling N(0, 1) from
N(μ, 1) (Dong, Roth & Su 2022, "Gaussian differential privacy"). The μ² of a sequence of releases
add up (their Corollary 3.3), so one integer per person is a complete account.

    Gaussian    μ² = Δ₂²/σ²                          Δ₂: L2 sensitivity, σ: noise deviation
    Laplace     μ  = −2Φ⁻¹(1/(1+e^ε)),  ε = Δ₁/b     the least μ that covers a pure ε
    (ε, δ)      δ  = Φ(−ε/μ + μ/2) − e^ε Φ(−ε/μ − μ/2)

The last line is Balle & Wang 2018 ("Improving the Gaussian mechanism for differential privacy",
Theorem 8) and Corollary 2.13 of Dong et al. Sensitivities and noise are integers in the fixed
point of the blind group sum, where a row norm of 1 is 2^20; units are 10^-12 of μ².

Formal guarantees (tests/common/privacy/test_accounting.py has one test of each name)
  units_round_up         a debit is never below the true μ², and above it by less than one unit
                         (Gaussian), or less than one unit plus 2^-39 of itself (Laplace, ε <= 1000)
  laplace_covers         the Laplace debit, composed with anything, covers the exact (ε, δ) curve
  delta_never_below      the bound on δ is never below the true δ
  epsilon_never_below    epsilon_of is never below the true ε, and for δ <= 1/2 above it by at
                         most 10^-12·(1 + ε)
  units_for_is_largest   epsilon_of(units_for(ε, δ), δ) <= ε < epsilon_of(units_for(ε, δ) + 1, δ)
  sigma_for_is_smallest  σ = sigma_for(u, Δ²) costs at most u, and σ − 1 costs more; the same for
                         laplace_scale_for
  filter_holds_the_cap   no sequence of charges, however chosen, takes a filter above its cap
  refusal_changes_nothing  a refused charge leaves the filter as it was
  individual_is_exact    each person's own debit equals the rational number, rounded up
  split_fits             queries × units_per_query, summed over the stages, is at most the cap
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import SupportsIndex

from scipy import special

from isonomy.common.base.errors import BudgetExceeded, ConfigError

UNITS_PER_MU2 = 10**12
"""One unit is 10^-12 of μ²."""

_MAX_UNITS = 10**30
"""Beyond μ = 10^9 floats no longer carry the formula; ε is then reported as infinite."""


def checked_integer(name: str, value: SupportsIndex, least: int, most: float = math.inf) -> int:
    """The value as a Python integer; floats are refused, because they would round silently."""
    try:
        result = operator.index(value)
    except TypeError:
        raise ConfigError(f"{name} must be an integer, not {type(value).__name__}") from None
    if isinstance(value, bool) or not least <= result <= most:
        limits = f"of at least {least}" if most == math.inf else f"from {least} to {most}"
        raise ConfigError(f"{name} must be an integer {limits}, got {value!r}")
    return result


# --- What one release costs ---------------------------------------------------------------------


def gaussian_units(sensitivity_squared: int, sigma: int) -> int:
    """Debit of one Gaussian release: ⌈10^12·Δ₂²/σ²⌉, in integers."""
    squared = checked_integer("sensitivity_squared", sensitivity_squared, 0)
    sigma = checked_integer("sigma", sigma, 1)
    return -(-squared * UNITS_PER_MU2 // (sigma * sigma))


def _laplace_mu(epsilon: float) -> float:
    """μ = −2Φ⁻¹(1/(1+e^ε)) with a relative error below 2^-50 for ε <= 1000."""
    if epsilon < 1.0:
        return math.sqrt(8.0) * float(special.erfinv(math.tanh(epsilon / 2)))
    return -2.0 * float(special.ndtri_exp(-(epsilon + math.log1p(math.exp(-epsilon)))))


def laplace_units(sensitivity: int, scale: int) -> int:
    """Debit of one (discrete) Laplace release with L1 sensitivity Δ₁: 10^12·μ², rounded up.

        ε = Δ₁/b,    μ = −2Φ⁻¹(1/(1+e^ε)),   equivalently   erf(μ/√8) = tanh(ε/2)

    Why this μ covers ε: the trade-off curve of pure ε is made of two chords that join (0, 1),
    (p, p) and (1, 0), where p = 1/(1+e^ε). G_μ is convex, has the same ends, and goes through
    (p, p) for this μ; so it lies below the chords. A smaller μ would lie above them at p.

    Why the rounding is sound: the erf form is well conditioned for small ε, the log form for
    large ε, and scipy's functions give μ to 2^-50 here (tested against mpmath for ε from 10^-12
    to 1000; beyond 4000 `ndtri_exp` loses digits). We add 2^-40 of μ², 500 times that, and round
    up in rationals. Above 1000 no float is needed: Φ(−x) <= e^(−x²/2)/2 gives
    e^(μ²/8) <= (1+e^ε)/2 <= e^ε, so μ² <= 8ε.
    """
    sensitivity = checked_integer("sensitivity", sensitivity, 0)
    scale = checked_integer("scale", scale, 1)
    if sensitivity == 0:
        return 0
    if sensitivity > 1000 * scale:
        return -(-8 * sensitivity * UNITS_PER_MU2 // scale)
    mu = _laplace_mu(sensitivity / scale)  # Python rounds a quotient of integers correctly
    padded = Fraction(mu) ** 2 * UNITS_PER_MU2 * (1 + Fraction(1, 2**40))
    return max(1, math.ceil(padded))  # an ε that underflows is still not free


# --- What a sum of debits means -----------------------------------------------------------------


def _log_delta(mu: float, epsilon: float) -> float:
    """ln of an upper bound on δ that is above the truth by a factor of at most 1 + η.

    With x = ε/μ − μ/2 and y = x + μ: e^ε φ(y) = φ(x), so that with the Mills ratio
    R(t) = Φ(−t)/φ(t) = √(π/2)·erfcx(t/√2) the formula becomes

        δ = φ(x)·(R(x) − R(y))

    without a difference of tiny numbers or an overflowing e^ε. What is left of rounding: x and y
    carry 2^-53·y, which φ(x) turns into a relative error of y·|x|, and R(x) − R(y) cancels by
    R/(μ|R′|) <= (1 + y)/μ. Hence η = 2^-48·(1 + y(1 + |x|) + (1 + y)/μ), 32 units in the last
    place of either.
    """
    x = epsilon / mu - mu / 2
    y = epsilon / mu + mu / 2
    if x > 40.0:  # Φ(−x) <= e^(−x²/2)/2, far below the smallest float
        return -x * x / 2
    eta = 2.0**-48 * (1 + y * (1 + abs(x)) + (1 + y) / mu)
    far = float(special.erfcx(y / math.sqrt(2))) / 2  # R(y)·φ(0)
    if x < -5.0:  # erfcx(x) would overflow; here Φ(−x) is nearly 1 and nothing cancels
        value = float(special.ndtr(-x)) - math.exp(-x * x / 2) * far
        return min(0.0, math.log(value) + math.log1p(eta))
    near = float(special.erfcx(x / math.sqrt(2))) / 2
    return min(0.0, -x * x / 2 + math.log(near - far) + math.log1p(eta))


def _check_epsilon(epsilon: float) -> None:
    if not (math.isfinite(epsilon) and epsilon >= 0):
        raise ConfigError(f"epsilon must be a finite number of at least 0, got {epsilon!r}")


def _check_delta(delta: float) -> None:
    if not 0 < delta < 1:
        raise ConfigError(
            f"delta must lie strictly between 0 and 1, got {delta!r}; "
            "take it well below one over the number of people"
        )


def epsilon_of(units: int, delta: float) -> float:
    """The ε of `units` at δ: the smallest ε whose upper bound on δ is at most `delta`.

    Bisection that keeps its upper end on the safe side and returns that end, so the result is
    never below the true ε. For δ <= 1/2 it is above by at most 10^-12·(1 + ε). Zero units give
    0.0; more than 10^30 units give infinity.
    """
    units = checked_integer("units", units, 0)
    _check_delta(delta)
    if units == 0:
        return 0.0
    # Said, not raised: a ledger that is spent beyond all use must still be readable.
    if units > _MAX_UNITS:
        return math.inf
    mu, target = math.sqrt(units / UNITS_PER_MU2), math.log(delta)
    if _log_delta(mu, 0.0) <= target:
        return 0.0
    low, high = 0.0, mu * mu / 2 + mu * math.sqrt(-2 * target)  # from δ <= e^(−x²/2)/2
    while _log_delta(mu, high) > target:
        low, high = high, 2 * high
    # The upper end is returned, so stopping early only ever promises too large an ε.
    while high - low > 2.0**-50 * high + 2.0**-60:
        middle = (low + high) / 2
        if _log_delta(mu, middle) > target:
            low = middle
        else:
            high = middle
    return high


def units_for(epsilon: float, delta: float) -> int:
    """The largest number of units whose ε at δ is at most `epsilon`; 0 for ε = 0."""
    _check_epsilon(epsilon)
    _check_delta(delta)
    if epsilon == 0:
        return 0
    low, high = 0, UNITS_PER_MU2
    while high <= _MAX_UNITS and epsilon_of(high, delta) <= epsilon:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if epsilon_of(middle, delta) <= epsilon:
            low = middle
        else:
            high = middle
    return low


# --- How much noise a debit buys ----------------------------------------------------------------


def _unaffordable(units: int) -> BudgetExceeded:
    return BudgetExceeded(
        f"a release needs at least one unit of privacy budget, {units} are left; "
        "ask for fewer releases or a larger cap"
    )


def sigma_for(units: int, sensitivity_squared: int) -> int:
    """The smallest integer σ with gaussian_units(Δ₂², σ) <= units: ⌈√⌈10^12·Δ₂²/units⌉⌉."""
    if units <= 0:
        raise _unaffordable(units)
    squared = checked_integer("sensitivity_squared", sensitivity_squared, 0)
    least = max(1, -(-squared * UNITS_PER_MU2 // units))  # σ² must be at least this
    return math.isqrt(least - 1) + 1


def laplace_scale_for(units: int, sensitivity: int) -> int:
    """The smallest integer scale b with laplace_units(Δ₁, b) <= units."""
    if units <= 0:
        raise _unaffordable(units)
    sensitivity = checked_integer("sensitivity", sensitivity, 0)
    low, high = 0, 1
    while laplace_units(sensitivity, high) > units:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if laplace_units(sensitivity, middle) > units:
            low = middle
        else:
            high = middle
    return high


# --- Planning -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Split:
    """How a cap is shared out: name ↦ (number of queries, share of μ²).

        Split({"counts": (1, 0.04), "moments": (1, 0.56), "audits": (4, 0.40)})

    A query of stage s gets ⌊cap·w_s/queries_s⌋ units. Shares are read as the decimals they print
    as (0.1 is one tenth); a sum above 1 by at most 10^-9 is scaled back to 1.
    """

    stages: Mapping[str, tuple[int, float]]

    def __post_init__(self) -> None:
        if not self.stages:
            raise ConfigError("a split needs at least one stage")
        for name, (queries, share) in self.stages.items():
            checked_integer(f"queries of stage {name!r}", queries, 1)
            if not (math.isfinite(share) and share > 0):
                raise ConfigError(f"share of stage {name!r} must be positive, got {share!r}")
        total = sum(self._shares().values())
        if total > 1 + Fraction(1, 10**9):
            raise ConfigError(f"shares must add up to 1 at most, got {float(total):.9g}")
        object.__setattr__(self, "stages", MappingProxyType(dict(self.stages)))

    def _shares(self) -> dict[str, Fraction]:
        return {name: Fraction(repr(float(share))) for name, (_, share) in self.stages.items()}

    def units_per_query(self, cap_units: int) -> dict[str, int]:
        """Units for each query of each stage; all queries together never exceed the cap."""
        cap = checked_integer("cap_units", cap_units, 0)
        shares = self._shares()
        whole = max(Fraction(1), sum(shares.values(), Fraction(0)))
        return {
            name: math.floor(cap * shares[name] / (whole * queries))
            for name, (queries, _) in self.stages.items()
        }
