"""Confidence intervals that hold sampling error *and* privacy noise.

A rate of a group is estimated from two noised counts, x of n. With E the noise of a count,

    x = X + E_x,   n = N + E_n,   X ~ Binomial(N, p)   ⇒   x − p·n  has mean 0 and variance
    V(p) = N·p(1 − p) + v_xx − 2p·v_xn + p²·v_nn

| interval | of | how |
|---|---|---|
| `rate_limits` | p | all p with (x − p·n)² ≤ z²·V(p), N by its estimate n: a quadratic in p. Without noise it is Wilson's score interval, without sampling Fieller's; small counts are no special case |
| `difference` | p₁ − p₂ | MOVER (Zou & Donner 2008, Newcombe 1998): the two rates' own limits, joined by their correlation ρ |
| `ratio` | p₁ / p₂ | the R with (p₁ − R·p₂)² ≤ MOVER variance: again a quadratic (Donner & Zou 2012) |

ρ is not zero: a release's last group is a public total minus the others, and shares their noise.
"""  # noqa: E501

from __future__ import annotations

import math
from dataclasses import dataclass

Z_95 = 1.959963984540054


@dataclass(frozen=True)
class Estimate:
    """A value between its limits; `high` may be infinite for a ratio."""

    value: float
    low: float
    high: float

    def within_unit(self) -> Estimate:
        """The same with limits of at least 0 and at most 1."""
        return Estimate(self.value, max(self.low, 0.0), min(self.high, 1.0))


@dataclass(frozen=True)
class NoisedRate:
    """x of n with the noise's (co)variances."""

    x: float
    n: float
    v_xx: float
    v_xn: float
    v_nn: float

    @property
    def value(self) -> float:
        return min(max(self.x / self.n, 0.0), 1.0)

    @property
    def variance(self) -> float:
        """Of the estimated rate, at the estimate: for correlations."""
        p = self.value
        noise = self.v_xx - 2 * p * self.v_xn + p * p * self.v_nn
        return (self.n * p * (1 - p) + noise) / self.n**2


def rate_limits(rate: NoisedRate, z: float = Z_95) -> Estimate | None:
    """Limits of p; None where the noise drowns the denominator (every p is possible).

        p²(n² + z²n − z²v_nn) − p(2xn + z²n − 2z²v_xn) + x² − z²v_xx ≤ 0

    They may lie below 0 or above 1: `difference` and `ratio` need the whole distance to them.
    Were they cut, the interval of a difference would be too narrow where a true rate is 0 or 1.
    """
    n, zz = rate.n, z * z
    if n <= 0:
        return None
    x = min(max(rate.x, 0.0), n)  # noise can push a count below 0, or above its whole
    a = n * n + zz * (n - rate.v_nn)
    b = 2 * x * n + zz * (n - 2 * rate.v_xn)
    c = x * x - zz * rate.v_xx
    if n * n <= zz * rate.v_nn or a <= 0:
        return None
    root = math.sqrt(max(b * b - 4 * a * c, 0.0))
    value = x / n
    return Estimate(value, min((b - root) / (2 * a), value), max((b + root) / (2 * a), value))


def rate_interval(rate: NoisedRate, z: float = Z_95) -> Estimate | None:
    """`rate_limits` as they are shown: 0 ≤ low ≤ value ≤ high ≤ 1."""
    limits = rate_limits(rate, z)
    return None if limits is None else limits.within_unit()


def difference(one: Estimate, two: Estimate, rho: float) -> Estimate:
    """Limits of p₁ − p₂ from the `rate_limits` of both and their correlation."""
    value = one.value - two.value
    below = _joined(one.value - one.low, two.high - two.value, rho)
    above = _joined(one.high - one.value, two.value - two.low, rho)
    return Estimate(value, max(value - below, -1.0), min(value + above, 1.0))


def ratio(one: Estimate, two: Estimate, rho: float) -> Estimate | None:
    """Limits of p₁ / p₂; None where p₂ is estimated as zero.

        R²(p₂² − t₂²) − 2R(p₁p₂ − ρt₁t₂) + p₁² − t₁² = 0

    with t the distances to the limits on the side in question. The upper limit is infinite where
    p₂ = 0 lies within the error.
    """
    p1, p2 = one.value, two.value
    if p2 <= 0:
        return None
    value = p1 / p2
    low = _root(p1, p2, p1 - one.low, two.high - p2, rho, side=-1)
    high = _root(p1, p2, one.high - p1, p2 - two.low, rho, side=1)
    return Estimate(value, min(max(low, 0.0), value), max(high, value))


def _joined(first: float, second: float, rho: float) -> float:
    return math.sqrt(max(first * first + second * second - 2 * rho * first * second, 0.0))


def _root(p1: float, p2: float, t1: float, t2: float, rho: float, *, side: int) -> float:
    """The R on one side of p₁/p₂ where the interval of p₁ − R·p₂ ends at 0."""
    a = p2 * p2 - t2 * t2
    b = p1 * p2 - rho * t1 * t2
    c = p1 * p1 - t1 * t1
    root = math.sqrt(max(b * b - a * c, 0.0))
    if side < 0:
        return c / (b + root) if b + root > 0 else 0.0  # the smaller root, in its stable form
    return (b + root) / a if a > 1e-12 else math.inf  # p₂ = 0 is possible: no upper limit
