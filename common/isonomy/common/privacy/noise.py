"""Integer noise from the operating system's randomness, for sums/noise_and_budget.py to add.

Adding a Gaussian rounded to integers to an integer sum equals rounding the sum plus a continuous
Gaussian, so it is post-processing and `accounting.gaussian_units` holds as it stands. There are no
floats in the answer, hence no low-order bits to attack (Mironov 2012).

Formal guarantees (tests/common/privacy/test_noise.py has one test of each name)
  staircase           candidates have probability ∝ 2^-s exactly, and e^−t <= 2^-s at every one
  acceptance_ratio    each |k| <= 12σ is drawn with the rounded Gaussian's probability up to a
                      relative error of 2^-44
  no_modulo_bias      uniform integers are exactly uniform if the bytes are
  tails_have_no_gaps  every integer up to 12σ can come out, unlike with an inverse CDF on 53 bits
  laplace_is_exact    the discrete Laplace uses integers only and has no error at all
  system_randomness   SystemNoise is os.urandom and nothing else

The number of proposals that a draw takes is independent of its value, and no input of these
functions depends on private data, so their running time gives nothing away.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from isonomy.common.base.errors import ConfigError
from isonomy.common.privacy.accounting import checked_integer

MIN_SIGMA = 2**13
"""Below this the acceptance formula of `rounded_gaussian` loses digits: scale counts by 2^20."""

MAX_SIGMA = 2**40
MAX_SCALE = 2**40

_TAIL = 12  # |k| <= 12σ
_STEPS = np.arange(12)  # of the staircase under which candidates are drawn: heights 2^-s
_LN2 = math.log(2)
_PLACES = 2.0 ** np.array([-64, -128, -192])
_CHUNK = 2**16  # proposals at a time: bounds memory, and 0.5 MB arrays stay in the cache


class NoiseSource(Protocol):
    """Where random bytes come from. Tests may inject one; no config, plan or command can."""

    def random_bytes(self, n: int) -> bytes: ...


class SystemNoise:
    """The operating system's generator: the only source outside tests."""

    def random_bytes(self, n: int) -> bytes:
        return os.urandom(n)


def rounded_gaussian(sigma: int, size: int, source: NoiseSource) -> NDArray[np.int64]:
    """`size` draws of ⌊σZ⌉, Z ~ N(0, 1): P(k) = Φ((k+½)/σ) − Φ((k−½)/σ), |k| <= 12σ.

    Draw k from under a staircase, where it stands at height 2^-s with probability proportional to
    2^-s exactly (`_Staircase`), and accept iff −ln U >= t(k) − s·ln 2. With z = k/σ, integrating
    the Taylor series of φ over the cell of width 1/σ gives

        P(k) = φ(z)/σ · (1 + (z²−1)/(24σ²) + (z⁴−6z²+3)/(1920σ⁴) + …)
        t(k) = z²/2 − log1p((z²−1)/(24σ²))

    and e^−t <= 2^-s, so that k comes out with probability ∝ 2^-s · e^−t/2^-s. Errors:
      series        (z⁴−6z²+3)/(1920σ⁴): at most 2^-48.6, at z = 12 and σ = 2^13
      floats        z²/2 and −ln U reach 72, so 2^-53 of them is 2^-46.8 each; all in all P(k) is
                    right to 2^-44 for |z| <= 12, to 2^-49 for |z| <= 2
      bits of U     192, because 128 would leave steps of 2^-128 under an acceptance probability
                    of 2^11·e^-72 = 2^-92.9, a relative error of 2^-35 at 12σ
      truncation    the mass beyond 12σ, 2Φ(−12) = 2^-107.8, is spread over the rest
    """
    sigma = checked_integer("sigma", sigma, MIN_SIGMA, MAX_SIGMA)
    size = checked_integer("size", size, 0)
    stairs = _staircase(sigma)
    draws, filled = np.empty(size, np.int64), 0
    while filled < size:
        count = min(_CHUNK, 4 * (size - filled) // 3 + 32)  # 0.787 of them are accepted
        k, step = stairs.places(uniform_below(stairs.area, count, source).view(np.int64))
        lowered = _threshold(k, sigma) - step * _LN2
        # As many exponentials as candidates, accepted or not: how long it takes says nothing about
        # which were accepted.
        accepted = k[_exponential(count, source) >= lowered][: size - filled]
        draws[filled : filled + accepted.size] = accepted
        filled += accepted.size
    return draws


@dataclass(frozen=True)
class _Staircase:
    """Heights 2^-s over the integers within ±12σ, s = 0 … 11, nowhere below e^−t.

    The integers are numbered outwards, j = 0, 1, 2, 3, … for k = 0, −1, 1, −2, …, so that a step is
    a range of j. Under step s stand 2^(11−s) points over each of its integers; a point drawn
    uniformly from all of them stands over k with probability exactly proportional to 2^-s.
    """

    first: NDArray[np.int64]  # (12,) the first j of each step
    begin: NDArray[np.int64]  # (12,) how many points lie before the step
    area: int  # all points: below 2^53 for σ = 2^40

    @classmethod
    def over(cls, sigma: int) -> _Staircase:
        """Step s begins at |k| >= σ√(2s·ln 2)·(1 + 2^-20).

        There t >= s·ln 2: z²/2 exceeds it by 2^-19 of itself, and the correction in t, which is
        below z²/(24σ²), is at most 2^-29 of z²/2. t grows with |k|, so this holds further out.
        """
        edges = np.ceil(sigma * np.sqrt(2 * _STEPS[1:] * _LN2) * (1 + 2.0**-20)).astype(np.int64)
        first = np.concatenate([[0], 2 * edges - 1, [2 * _TAIL * sigma + 1]])
        begin = np.concatenate([[0], np.cumsum(np.diff(first) << (_STEPS[-1] - _STEPS))])
        return cls(first[:-1], begin[:-1], int(begin[-1]))

    def places(self, points: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """k that each point stands over, and its step."""
        step = self.begin.searchsorted(points, side="right") - 1
        j = self.first[step] + ((points - self.begin[step]) >> (_STEPS[-1] - step))
        size = (j + 1) >> 1
        return np.where(j & 1, -size, size), step


_staircase = lru_cache(maxsize=64)(_Staircase.over)


def discrete_laplace(scale: int, size: int, source: NoiseSource) -> NDArray[np.int64]:
    """`size` exact draws of the two-sided geometric P(k) = (e^(1/b)−1)/(e^(1/b)+1)·e^(−|k|/b).

    Canonne, Kamath & Steinke 2020, "The discrete Gaussian for differential privacy", Algorithm 2
    with s = 1, t = b: |k| = u + b·v, where u < b has weight e^(−u/b) and v is geometric with
    ratio e^-1; a random sign, and the second zero (−0) is rejected. Integers only. An integer
    query with L1 sensitivity Δ₁ is then exactly (Δ₁/b)-DP.
    """
    scale = checked_integer("scale", scale, 1, MAX_SCALE)
    size = checked_integer("size", size, 0)
    draws, filled = np.empty(size, np.int64), 0
    while filled < size:
        count = min(_CHUNK, 2 * (size - filled) + 16)
        u = uniform_below(scale, count, source)
        u = u[_bernoulli_exp(u, scale, source)]
        magnitude = (u + np.uint64(scale) * _geometric(u.size, source)).astype(np.int64)
        negative = uniform_below(2, u.size, source) == 1
        proper = ~(negative & (magnitude == 0))
        accepted = np.where(negative, -magnitude, magnitude)[proper][: size - filled]
        draws[filled : filled + accepted.size] = accepted
        filled += accepted.size
    return draws


def _threshold(k: NDArray[np.int64], sigma: int) -> NDArray[np.float64]:
    """t(k) = −ln of the acceptance probability (see `rounded_gaussian`)."""
    squared = (k / sigma) ** 2
    return np.asarray(squared / 2 - np.log1p((squared - 1) / (24.0 * sigma * sigma)))


def _exponential(size: int, source: NoiseSource) -> NDArray[np.float64]:
    """−ln U for U = (j + ½)/2^192, j uniform: exact bits, then one rounding and one logarithm.

    The words are added as floats, all positive, so in whatever order they are U has a relative
    error of at most 2^-51 however small it is; and it is never 0.
    """
    words = _words(3 * size, source).reshape(3, size).astype(np.float64)
    u = _PLACES @ words
    # Half a step up, so that U is never 0 and its logarithm never infinite.
    u += 2.0**-193
    return np.asarray(-np.log(u))


def uniform_below(bound: int, size: int, source: NoiseSource) -> NDArray[np.uint64]:
    """`size` integers, exactly uniform on 0..bound−1, for 1 <= bound <= 2^63.

    Words at or above the last multiple of `bound` are redrawn.
    """
    last = np.uint64((2**64 // bound) * bound - 1)
    words = _words(size, source)
    # Redrawn, not reduced: a remainder alone would make small numbers a little likelier.
    while (words > last).any():
        late = np.flatnonzero(words > last)
        words = words.copy()
        words[late] = _words(late.size, source)
    return words % np.uint64(bound)


def _bernoulli_exp(
    numerators: NDArray[np.uint64], denominator: int, source: NoiseSource
) -> NDArray[np.bool_]:
    """True with probability e^(−numerator/denominator), a number in [0, 1], exactly.

    Canonne, Kamath & Steinke 2020, Algorithm 1: draw Bernoulli(γ/j) for j = 1, 2, … until the
    first failure; the number j of that failure is odd with probability
    1 − γ + γ²/2! − … = e^−γ.
    """
    result = np.empty(numerators.size, np.bool_)
    alive, j = np.arange(numerators.size), 0
    while alive.size:
        j += 1  # j·denominator < 2^64 unless j > 2^24, which has a chance of 1/(2^24)!
        success = uniform_below(j * denominator, alive.size, source) < numerators[alive]
        result[alive[~success]] = j % 2 == 1
        alive = alive[success]
    return result


def _geometric(size: int, source: NoiseSource) -> NDArray[np.uint64]:
    """How many Bernoulli(e^-1) succeed before the first failure."""
    result = np.zeros(size, np.uint64)
    alive = np.arange(size)
    while alive.size:
        alive = alive[_bernoulli_exp(np.ones(alive.size, np.uint64), 1, source)]
        result[alive] += np.uint64(1)
    return result


def _words(count: int, source: NoiseSource) -> NDArray[np.uint64]:
    """`count` words, little-endian on every machine so that a test source gives the same draws."""
    raw = source.random_bytes(8 * count)
    if len(raw) != 8 * count:
        raise ConfigError(f"the noise source gave {len(raw)} bytes instead of {8 * count}")
    return np.frombuffer(raw, "<u8").astype(np.uint64, copy=False)  # read-only
