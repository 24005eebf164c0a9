"""The guarantees of privacy.noise: exact formulas, and draws that could betray an error.

Statistical tests use a fixed AES-CTR stream, so they pass or fail for good; the bound on p is
10^-4, and the seeds are the first that were tried.
"""

from __future__ import annotations

import math
import os
import time
from fractions import Fraction

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from mpmath import mp, mpf
from numpy.typing import NDArray
from scipy import special, stats

from isonomy.common.base.errors import ConfigError
from isonomy.common.privacy import noise
from isonomy.common.privacy.noise import MIN_SIGMA, SystemNoise, discrete_laplace, rounded_gaussian

WORST_P = 1e-4


class Stream:
    """AES-256 in counter mode over zeros: reproducible, and as good as random."""

    def __init__(self, seed: int) -> None:
        key = seed.to_bytes(32, "big")
        self._encryptor = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()

    def random_bytes(self, n: int) -> bytes:
        return self._encryptor.update(bytes(n))


class Script:
    """Hands out prepared words, one array per call."""

    def __init__(self, *calls: list[int]) -> None:
        self._calls = list(calls)

    def random_bytes(self, n: int) -> bytes:
        words = self._calls.pop(0)
        assert len(words) * 8 == n, "the sampler asked for another number of words"
        return b"".join(word.to_bytes(8, "little") for word in words)


def probability(k: int, sigma: int) -> mpf:
    """Φ((k+½)/σ) − Φ((k−½)/σ) in 400 bits, on the side where nothing cancels."""
    with mp.workprec(400):
        near, far = ((mpf(abs(k)) + half) / sigma / mp.sqrt(2) for half in (mpf(-0.5), mpf(0.5)))
        return (mp.erfc(near) - mp.erfc(far)) / 2


def point_over(k: int, sigma: int) -> int:
    """The first point of the staircase that stands over k."""
    stairs, j = noise._staircase(sigma), 2 * abs(k) - (k < 0)
    step = int(np.flatnonzero(stairs.first <= j)[-1])
    return int(stairs.begin[step]) + ((j - int(stairs.first[step])) << (11 - step))


def chi_square(observed: NDArray[np.int64], expected: NDArray[np.float64]) -> float:
    assert expected.min() > 5
    statistic = float(((observed - expected) ** 2 / expected).sum())
    return float(stats.chi2.sf(statistic, observed.size - 1))


# --- The candidates -----------------------------------------------------------------------------


@pytest.mark.parametrize("sigma", [37, 101])
def test_staircase_gives_each_integer_its_points(sigma: int) -> None:
    """Every point, one by one: k within ±12σ at step s has 2^(11−s) of them, no other has any."""
    stairs = noise._Staircase.over(sigma)
    k, step = stairs.places(np.arange(stairs.area))
    points = np.bincount(k + 12 * sigma, minlength=24 * sigma + 1)
    assert points.size == 24 * sigma + 1
    assert np.array_equal(points[k + 12 * sigma], 2 ** (11 - step))
    assert sorted(set(step.tolist())) == list(range(12))


@pytest.mark.parametrize("sigma", [2**13, 2**13 + 1, 3 * 2**20 + 7, 2**40 - 3, 2**40])
def test_staircase_is_nowhere_below_the_gaussian(sigma: int) -> None:
    """e^−t(k) <= 2^-s at the inner edge of each step, and t grows outwards from there."""
    stairs = noise._staircase(sigma)
    assert stairs.area < 2**53
    edges = (stairs.first + 1) >> 1
    with mp.workprec(400):
        for step, edge in enumerate(edges.tolist()):
            inner = mp.exp(-mpf(float(noise._threshold(np.array([edge]), sigma)[0])))
            assert inner <= mpf(2) ** -step
    outwards = np.linspace(0, 12 * sigma, 1000).astype(np.int64)
    assert (np.diff(noise._threshold(outwards, sigma)) > 0).all()


def test_staircase_is_tight() -> None:
    """Four of five candidates are accepted; under one flat roof it would be one of ten."""
    for sigma in (2**13, 2**40):
        accepted = math.sqrt(2 * math.pi) * sigma * 2**11 / noise._staircase(sigma).area
        assert 0.78 < accepted < 0.80


# --- The acceptance formula ---------------------------------------------------------------------


@pytest.mark.parametrize("sigma", [2**13, 2**13 + 1, 12345, 3 * 2**20 + 7, 2**40 - 3])
def test_acceptance_ratio(sigma: int) -> None:
    """e^−t(k) is proportional to P(k), within 2^-44 up to 12σ and 2^-50 up to 2σ."""
    far = np.linspace(0, 12 * sigma, 400).astype(np.int64)
    near = np.linspace(0, 2 * sigma, 100).astype(np.int64)
    k = np.unique(np.concatenate([far, near, [1, 2, 12 * sigma - 1], -far[::7]]))
    with mp.workprec(400):
        for value, threshold in zip(k.tolist(), noise._threshold(k, sigma).tolist(), strict=True):
            formula = mp.exp(-mpf(threshold)) / (sigma * mp.sqrt(2 * mp.pi))
            error = abs(formula / probability(value, sigma) - 1)
            assert error <= (2.0**-50 if abs(value) <= 2 * sigma else 2.0**-44)
            assert threshold > 0, "an acceptance probability is at most 1"


def test_acceptance_ratio_needs_the_correction() -> None:
    """Without the log1p term the check above fails: it has the power to notice."""
    k = 12 * 2**13
    naive = mp.exp(-(mpf(k) ** 2) / 2**27) / (2**13 * mp.sqrt(2 * mp.pi))
    assert abs(naive / probability(k, 2**13) - 1) > 2.0**-25


@pytest.mark.parametrize(
    "j", [0, 1, 12345, 2**64 - 1, 2**64, 2**88 + 987, 2**127 + 5, 2**128 - 1, 2**191, 2**192 - 1]
)
def test_logarithm_of_the_uniform_is_accurate(j: int) -> None:
    words = [j >> 128, j >> 64 & (2**64 - 1), j & (2**64 - 1)]
    value = float(noise._exponential(1, Script(words))[0])
    with mp.workprec(400):
        exact = -mp.log((mpf(j) + mpf(0.5)) / mpf(2) ** 192)
    assert abs(value - exact) <= 2.0**-51 + 2.0**-52 * exact


def test_128_bits_of_u_would_not_do() -> None:
    """At 12σ a step of 2^-128 is 2^-35 of the acceptance probability; of 2^-192, 2^-99."""
    accept = 2**11 * mp.exp(-72)
    assert mpf(2) ** -128 / accept > 2.0**-36
    assert mpf(2) ** -192 / accept < 2.0**-99


# --- Uniform integers ---------------------------------------------------------------------------


def test_no_modulo_bias() -> None:
    """Words beyond the last full multiple are redrawn; a plain remainder would be 2:1:1 here."""
    draws = noise.uniform_below(3, 3, Script([2**64 - 1, 7, 2**64 - 2], [2**64 - 1], [5]))
    assert draws.tolist() == [2, 1, (2**64 - 2) % 3]
    assert noise.uniform_below(1, 1, Script([2**64 - 1])).tolist() == [0]
    thirds = noise.uniform_below(3 * 2**62, 90_000, Stream(1)) >> np.uint64(62)
    assert chi_square(np.bincount(thirds.astype(np.int64)), np.full(3, 30_000.0)) > WORST_P


# --- The rounded Gaussian -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def many() -> NDArray[np.int64]:
    return rounded_gaussian(MIN_SIGMA, 3_000_000, Stream(2))


def test_body_of_the_gaussian(many: NDArray[np.int64]) -> None:
    """Chi-square over 400 cells of equal mass, cut between integers, so exact."""
    cuts = np.unique(np.round(special.ndtri(np.arange(1, 400) / 400) * MIN_SIGMA)) + 0.5
    mass = np.diff(special.ndtr(np.concatenate([[-np.inf], cuts / MIN_SIGMA, [np.inf]])))
    observed = np.bincount(np.searchsorted(cuts, many), minlength=mass.size)
    assert chi_square(observed, mass * many.size) > WORST_P


def test_low_bits_of_the_gaussian(many: NDArray[np.int64]) -> None:
    """Every residue modulo 64 is equally likely (to e^(−2π²σ²/64²), that is exactly)."""
    assert chi_square(np.bincount(many % 64), np.full(64, many.size / 64)) > WORST_P


def test_moments_of_the_gaussian(many: NDArray[np.int64]) -> None:
    z = many / MIN_SIGMA
    n = many.size
    assert abs(z.mean()) < 4 / math.sqrt(n)
    assert abs((z**2).mean() - 1) < 4 * math.sqrt(2 / n)
    assert abs((z**4).mean() - 3) < 4 * math.sqrt(96 / n)
    assert abs(np.corrcoef(z[:-1], z[1:])[0, 1]) < 4 / math.sqrt(n)


@pytest.mark.parametrize("deviations", [3, 4, 5])
def test_tails_of_the_gaussian(many: NDArray[np.int64], deviations: int) -> None:
    """Counts on both sides beyond 3σ, 4σ (about 95 each) and 5σ (under 1) are Poisson."""
    edge = deviations * MIN_SIGMA
    expected = many.size * float(special.ndtr(-(edge + 0.5) / MIN_SIGMA))
    for count in (int((many > edge).sum()), int((many < -edge).sum())):
        assert stats.poisson.sf(count - 1, expected) > WORST_P
        assert stats.poisson.cdf(count, expected) > WORST_P


class ZoomedStream(Stream):
    """Candidates from the last step, U uniform below 2^-(zoom − 11).

    Then what is drawn beyond z = √(2·zoom·ln 2) is the tail itself.
    """

    def __init__(self, seed: int, zoom: int, sigma: int) -> None:
        super().__init__(seed)
        self._zoom, self._turn = np.uint64(zoom - 11), 0
        stairs = noise._staircase(sigma)
        self._begin = np.uint64(stairs.begin[-1])
        self._points = np.uint64(stairs.area) - self._begin

    def random_bytes(self, n: int) -> bytes:
        words = np.frombuffer(super().random_bytes(n), "<u8").copy()
        self._turn += 1
        if self._turn % 2 == 0:  # first the candidates, then the three words of each U
            words[: words.size // 3] >>= self._zoom
        else:
            words = self._begin + words % self._points
        return words.tobytes()


@pytest.mark.parametrize("zoom", [16, 32, 60])
def test_far_tails_of_the_gaussian(zoom: int) -> None:
    """Beyond 4.7σ, 6.7σ and 9.1σ the draws still follow the normal tail, cell by cell."""
    sigma = 2**20
    start = math.ceil((math.sqrt(2 * zoom * math.log(2)) + 0.01) * sigma)
    draws = np.abs(rounded_gaussian(sigma, 400_000, ZoomedStream(3, zoom, sigma)))
    tail = draws[draws > start]
    tail_mass = special.log_ndtr(-(start + 0.5) / sigma)
    cells = [start + int(sigma * step) for step in np.arange(0.02, 0.36, 0.02)]
    survival = [1.0] + [
        math.exp(special.log_ndtr(-(edge + 0.5) / sigma) - tail_mass) for edge in cells
    ]
    expected = -np.diff([*survival, 0.0]) * tail.size
    observed = np.bincount(np.searchsorted(np.array(cells) + 0.5, tail), minlength=expected.size)
    assert tail.size > 2_000
    assert chi_square(observed, expected) > WORST_P


def test_tails_have_no_gaps() -> None:
    """An inverse CDF on 53-bit uniforms skips integers and ends at 8.3σ; rejection does not."""
    sigma = 2**20
    trap = np.round(special.ndtri(np.arange(1, 2_001) * 2.0**-53) * sigma).astype(np.int64)
    assert trap.min() > -8.3 * sigma
    skipped = int(trap[100]) - 1
    assert skipped not in trap
    missing_mass = 1 - sum(float(probability(int(k), sigma)) for k in np.unique(trap)) / float(
        special.ndtr(trap.max() / sigma)
    )
    assert missing_mass > 0.9, "of its own tail the trap can reach hardly anything"

    wanted = [skipped, -12 * sigma, 12 * sigma, int(-11.5 * sigma)]
    candidates = [point_over(k, sigma) for k in wanted] + [0] * (4 * 4 // 3 + 32 - 4)
    count = len(candidates)
    u = [0] * 4 + [2**64 - 1] * (count - 4)  # smallest U for the wanted, largest for the others
    script = Script(candidates, u + [0] * (2 * count))
    assert rounded_gaussian(sigma, 4, script).tolist() == wanted


def test_acceptance_is_decided_on_the_right_side() -> None:
    """One candidate at 11σ, U just below and just above 2^11·e^−t: only the first is taken."""
    sigma, k = 2**20, 11 * 2**20
    with mp.workprec(400):
        edge = mp.exp(-mpf(float(noise._threshold(np.array([k]), sigma)[0])))
        below, above = (int(edge * (1 + s * mpf(2) ** -44) * 2**203) for s in (-1, 1))
    for j, taken in ((below, True), (above, False)):
        count = 4 // 3 + 32
        words = [j >> 128, j >> 64 & (2**64 - 1), j & (2**64 - 1)]
        candidates = [point_over(k, sigma)] + [0] * (count - 1)
        u = [word for first in words for word in [first] + [0] * (count - 1)]
        assert bool(rounded_gaussian(sigma, 1, Script(candidates, u))[0] == k) is taken


def test_same_stream_same_draws_and_sizes() -> None:
    for size in (0, 1, 1024, 70_000):
        draws = rounded_gaussian(2**40, size, Stream(5))
        assert draws.shape == (size,)
        assert draws.dtype == np.int64
        assert np.array_equal(draws, rounded_gaussian(2**40, size, Stream(5)))


def test_a_thousand_draws_take_milliseconds() -> None:
    best = math.inf
    for _ in range(5):
        start = time.perf_counter()
        rounded_gaussian(2**20, 1024, SystemNoise())
        best = min(best, time.perf_counter() - start)
    assert best < 0.05  # about 0.3 ms on an idle core


# --- The discrete Laplace -----------------------------------------------------------------------


@pytest.mark.parametrize(("numerator", "denominator"), [(0, 1), (1, 1), (1, 3), (2**40 - 1, 2**40)])
def test_laplace_is_exact(
    monkeypatch: pytest.MonkeyPatch, numerator: int, denominator: int
) -> None:
    """Walk the decision tree of Bernoulli(e^−γ) with rational weights: it sums to e^−γ."""
    total = mpf(0)
    for successes in range(60):
        weight, steps = Fraction(1), 0

        def scripted(bound: int, size: int, source: object) -> NDArray[np.uint64]:
            nonlocal weight, steps
            assert size == 1
            chance, steps = Fraction(numerator, bound), steps + 1
            weight *= chance if steps <= successes else 1 - chance  # noqa: B023
            return np.array([0 if steps <= successes else numerator], np.uint64)  # noqa: B023

        if numerator == 0 and successes > 0:
            break
        monkeypatch.setattr(noise, "uniform_below", scripted)
        outcome = noise._bernoulli_exp(np.array([numerator], np.uint64), denominator, Stream(0))
        with mp.workprec(300):
            total += mpf(weight.numerator) / weight.denominator if outcome[0] else 0
    with mp.workprec(300):
        assert abs(total - mp.exp(-mpf(numerator) / denominator)) < mpf(2) ** -200


@pytest.mark.parametrize("scale", [1, 2, 5, 40])
def test_pmf_of_the_discrete_laplace(scale: int) -> None:
    size, ratio = 300_000, math.exp(-1 / scale)
    draws = discrete_laplace(scale, size, Stream(10 + scale))
    reach = int(scale * math.log(size / 40 / scale))
    k = np.arange(-reach, reach + 1)
    inside = (1 - ratio) / (1 + ratio) * ratio ** np.abs(k)
    beyond = ratio ** (reach + 1) / (1 + ratio)
    expected = np.concatenate([[beyond], inside, [beyond]]) * size
    observed = np.bincount(np.clip(draws, -reach - 1, reach + 1) + reach + 1)
    assert chi_square(observed, expected) > WORST_P


@pytest.mark.parametrize("scale", [2**20, 2**33 + 1, 2**40])
def test_moments_of_the_discrete_laplace(scale: int) -> None:
    """At large scales it is a Laplace: |k|/b is exponential, the sign is fair and independent."""
    n = 200_000
    x = discrete_laplace(scale, n, Stream(20)) / scale
    assert abs(x.mean()) < 4 * math.sqrt(2 / n)
    assert abs(np.abs(x).mean() - 1) < 4 / math.sqrt(n)
    assert abs((x**2).mean() - 2) < 4 * math.sqrt(20 / n)
    assert stats.kstest(np.abs(x), "expon").pvalue > WORST_P
    assert abs(np.corrcoef(np.sign(x), np.abs(x))[0, 1]) < 4 / math.sqrt(n)
    assert discrete_laplace(scale, 0, Stream(20)).shape == (0,)


# --- Source and arguments -----------------------------------------------------------------------


def test_system_randomness(monkeypatch: pytest.MonkeyPatch) -> None:
    stream, asked = Stream(30), []

    def urandom(n: int) -> bytes:
        asked.append(n)
        return stream.random_bytes(n)

    monkeypatch.setattr(os, "urandom", urandom)
    gauss = rounded_gaussian(MIN_SIGMA, 100, SystemNoise())
    assert sum(asked) >= 100 * 32, "8 bytes for each candidate and 24 for its U"
    laplace = discrete_laplace(7, 100, SystemNoise())
    reference = Stream(30)
    assert np.array_equal(gauss, rounded_gaussian(MIN_SIGMA, 100, reference))
    assert np.array_equal(laplace, discrete_laplace(7, 100, reference))


def test_system_noise_is_fresh() -> None:
    first, second = (rounded_gaussian(2**20, 64, SystemNoise()) for _ in range(2))
    assert not np.array_equal(first, second)


@pytest.mark.parametrize("sigma", [MIN_SIGMA - 1, 0, -(2**20), 2**40 + 1, 1e6, True, "9"])
def test_bad_sigma_is_refused(sigma: object) -> None:
    with pytest.raises(ConfigError, match="sigma"):
        rounded_gaussian(sigma, 1, SystemNoise())  # type: ignore[arg-type]


@pytest.mark.parametrize("scale", [0, -1, 2**40 + 1, 1.5, True])
def test_bad_scale_is_refused(scale: object) -> None:
    with pytest.raises(ConfigError, match="scale"):
        discrete_laplace(scale, 1, SystemNoise())  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [-1, 1.0, True])
def test_bad_size_is_refused(size: object) -> None:
    with pytest.raises(ConfigError, match="size"):
        rounded_gaussian(2**20, size, SystemNoise())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="size"):
        discrete_laplace(4, size, SystemNoise())  # type: ignore[arg-type]


def test_a_source_that_runs_dry_is_refused() -> None:
    class Dry:
        def random_bytes(self, n: int) -> bytes:
            return bytes(n - 1)

    with pytest.raises(ConfigError, match="bytes"):
        rounded_gaussian(2**20, 1, Dry())
