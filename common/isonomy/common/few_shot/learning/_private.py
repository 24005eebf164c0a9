"""Sums over private samples: clipped in integers, charged to each sample's account, noised.

    S = Σ_i clip_C(g_i) + N(0, (z·C)²)       Algorithm 2, lines 4 and 5; z the noise multiplier
    charge of sample i:  ‖clip_C(g_i)‖²/(z·C)²   IRDP-SGD;  1/z²   DP-SGD

Adjacency: one sample is *zeroed out*. Its slot (class, position) stays, and whatever it would add
to any sum is 0. Where the sizes of classes are public, that is adding or removing a sample. To
replace a sample by another of its class takes two such steps: twice μ, hence four times the units.

Why a sample may be charged by its own norm: the neighbour without sample i differs in each sum by
exactly clip(g_i), given everything released before, so step t is ‖clip(g_it)‖/(zC)-GDP for this
pair of neighbours; the filter holds Σ_t of the squares below the cap on every path (Feldman &
Zrnic 2021, Algorithm 2; Smith & Thakurta 2022 for the Gaussian form). A sample that cannot pay
adds 0 from then on. Which samples these are depends on private data: only the regulator may know.

Under individual accounts a sample is *paced*: a use may cost an equal part of what its account
still has for the planned uses, and its row is shortened to that. So nobody drops out early, and
what a sample saved with small rows it may spend on larger ones. The shortening depends on the
sample's own rows and account alone, so the argument above is untouched.

Inner states θ' are never released; taking a later sum at θ' is post-processing of the noised steps
that led there. No amplification by sampling is claimed.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from isonomy.common.agreements.few_shot_settings import MILLION
from isonomy.common.base.errors import CapacityError
from isonomy.common.privacy.accounting import gaussian_units
from isonomy.common.privacy.filters import IndividualFilter
from isonomy.common.privacy.noise import NoiseSource, rounded_gaussian
from isonomy.common.privacy.quantise import integer_norms, quantise

BOUND = 2**20
"""A row of norm C becomes a row of whole numbers of norm 2^20 at most."""


def sigma_of(noise: int) -> int:
    """Noise deviation in whole numbers, for a multiplier in millionths; rounded up."""
    return -(-noise * BOUND // MILLION)


class Accounts:
    """One account per sample; `individual`: charged by the sample's own norm and paced.

    Else every use costs what the bound costs, whatever the row.
    """

    def __init__(self, samples: int, cap_units: int, *, individual: bool) -> None:
        self.samples, self.cap, self.individual = samples, cap_units, individual
        self._filter = IndividualFilter(samples, cap_units)
        self.refused = np.zeros(samples, np.bool_)  # at least once
        self._allowance = np.full(samples, cap_units, np.int64)  # units of one use

    @property
    def spent(self) -> NDArray[np.int64]:
        """(samples,) units so far, a copy."""
        return self._filter.spent

    def put_back(self, spent: NDArray[np.int64], refused: NDArray[np.bool_]) -> None:
        """Go on from a stored state; ConfigError if it cannot be one of these accounts."""
        self._filter.restore(spent)
        self.refused = refused.copy()

    def pace(self, uses_left: NDArray[np.int64]) -> None:
        """Before a round: a use may cost an equal part of what is left for `uses_left` of them."""
        self._allowance = (self.cap - self.spent) // np.maximum(uses_left, 1)

    def lengths(
        self, sigma: int, people: NDArray[np.int64], *, parts: int, reserve: int
    ) -> NDArray[np.float64]:
        """(people,) how long each row may be, as a share of the bound.

        1/parts of (allowance − reserve) pays for it     `reserve`: the use's unpaced charges
        """
        if not self.individual:
            return np.ones(len(people))
        allowed = np.maximum(self._allowance[people] - reserve, 0) // parts
        return np.minimum(1.0, np.sqrt(allowed / gaussian_units(BOUND * BOUND, sigma)))

    def charge(
        self, norms_squared: NDArray[np.int64], sigma: int, people: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """Charge each sample for its part in one sum; returns who paid.

        The rows of all others must become 0.
        """
        if not self.individual:
            norms_squared = np.full(len(people), BOUND * BOUND, np.int64)
        mask = self._filter.charge(norms_squared, sigma=sigma, people=people)
        self.refused[people[~mask]] = True
        return mask


class PlainSums:
    """Several sums without clipping, noise or accounts: for rehearsals."""

    def __init__(self, sums: int, size: int) -> None:
        self._total = np.zeros((sums, size))

    def add(self, number: int, rows: NDArray[np.float64], people: NDArray[np.int64]) -> None:
        self._total[number] += rows.sum(axis=0)

    def release(self) -> NDArray[np.float64]:
        return self._total


class PrivateSums:
    """Several sums, over disjoint samples each: `add` clips, charges and adds in whole numbers.

    The noise comes with `release`, which gives (sums, d).
    """

    def __init__(
        self,
        sums: int,
        size: int,
        *,
        norm: float,
        noise: int,
        accounts: Accounts,
        source: NoiseSource,
        parts: int = 0,  # of a use, that are sums like this one; 0: rows are never shortened
        reserve: int = 0,  # units of the use for other sums
    ) -> None:
        self._total = np.zeros((sums, size), np.int64)
        self._norm, self._sigma = norm, sigma_of(noise)
        self._parts, self._reserve = parts, reserve
        self._accounts, self._source = accounts, source

    def add(self, number: int, rows: NDArray[np.float64], people: NDArray[np.int64]) -> None:
        # The company chooses θ. An error for a gradient that overflows would reveal to it, at no
        # cost, whether some sample overflows under that θ; so such a row counts as 0.
        rows = np.where(np.isfinite(rows).all(axis=1, keepdims=True), rows, 0.0)
        whole = quantise(rows, self._norm, BOUND).rows.astype(np.int64)  # (n, d), norm <= BOUND
        if self._parts:
            lengths = self._accounts.lengths(
                self._sigma, people, parts=self._parts, reserve=self._reserve
            )
            whole = _shortened(whole, lengths)
        mask = self._accounts.charge(integer_norms(whole), self._sigma, people)
        self._total[number] += whole[mask].sum(axis=0)

    def release(self) -> NDArray[np.float64]:
        noise = rounded_gaussian(self._sigma, self._total.size, self._source)
        total = self._total + noise.reshape(self._total.shape)
        return np.asarray(total * (self._norm / BOUND), np.float64)


def _shortened(rows: NDArray[np.int64], lengths: NDArray[np.float64]) -> NDArray[np.int64]:
    """Whole rows, each of norm `lengths`·BOUND at most: truncation never lengthens a row."""
    norms = np.sqrt(integer_norms(rows).astype(np.float64))  # (n,)
    # A little inside, so that rounding cannot cost a unit more than is allowed.
    factor = lengths * (BOUND * (1 - 2.0**-30)) / np.maximum(norms, 1.0)
    long = factor < 1.0
    return np.asarray(np.where(long[:, None], np.trunc(rows * factor[:, None]), rows), np.int64)


Sums = PlainSums | PrivateSums


def fixed_point(values: NDArray[np.float64], bits: int, limit: int) -> NDArray[np.int64]:
    """round(v·2^bits), or CapacityError: NaN and overflow never leave."""
    scaled = np.rint(values * 2.0**bits)
    if not (np.abs(scaled) < limit).all():  # false for NaN too
        raise CapacityError("a contribution is not finite or too large; lower rates or noise")
    return scaled.astype(np.int64)


def saturated(values: NDArray[np.float64], bits: int, limit: int) -> NDArray[np.int64]:
    """round(v·2^bits), cut to the range that travels; NaN becomes 0.

    For private contributions: the company chooses θ and the scales, so an error that only some sums
    cause would be an answer that nobody paid for.
    """
    scaled = np.nan_to_num(np.rint(values * 2.0**bits), nan=0.0)
    return np.asarray(np.clip(scaled, 1 - limit, limit - 1), np.int64)
