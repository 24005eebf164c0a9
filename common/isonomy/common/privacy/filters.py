"""The individual filter: an account for each person that refuses the first charge beyond its cap.

Why refusing is enough although queries and σ are chosen in the light of earlier answers: Smith &
Thakurta 2022, "Fully adaptive composition for Gaussian differential privacy", show that if every
step is μ_t-GDP given the past and Σ μ_t² <= B holds on every path, then the whole interaction is
√B-GDP: nothing is paid for the adaptivity. Refusing *before* the sum passes B makes it hold on
every path. So the ε to certify is that of the cap; the sum so far is only "spent".

Guarantees: see `accounting`. Before an answer the regulator checks the ledger
(sums/noise_and_budget.py), and the company its own books (sums/accounts.py).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from isonomy.common.base.errors import ConfigError
from isonomy.common.privacy.accounting import UNITS_PER_MU2, checked_integer

_MAX_CAP = 2**62
"""Largest cap of an individual filter: spent + one debit must fit into 64 bits."""


def _individual_units(
    norms_squared: NDArray[np.int64], factor_squared: int, sigma: int, above: int
) -> NDArray[np.int64]:
    """min(⌈10^12·c²·‖v_i‖²/σ²⌉, above) for every i, exactly.

    10^12·‖v‖² does not fit into 64 bits. A float quotient below 2^50 is off by less than one,
    and the remainder n·q − quotient·d, which lies within ±2d, is exact modulo 2^64 when
    d = σ² < 2^61: it says which way to correct. Outside that range Python integers do the work.
    """
    q, d = factor_squared * UNITS_PER_MU2, sigma * sigma
    largest = int(norms_squared.max(initial=0))
    if d < 2**61 and largest < 2**53 and largest * q < d * 2**50:
        quotient = np.floor(norms_squared * (q / d)).astype(np.int64)  # (people,) within ±1
        wrapped = norms_squared.astype(np.uint64) * np.uint64(q % 2**64)
        wrapped -= quotient.astype(np.uint64) * np.uint64(d)
        rest = wrapped.view(np.int64)  # in [−d, 2d), and −d cannot be: that is a whole step off
        exact = quotient + (rest > 0) + (rest > d)  # one too high: rest < 0, already the ceiling
        return np.asarray(np.minimum(exact, above), np.int64)
    return np.array([min(-(-n * q // d), above) for n in norms_squared.tolist()], np.int64)


class IndividualFilter:
    """The company's filter: every person has a cap, and stops taking part when it is spent.

        μ_i² = Σ_t c_t²·‖v_it‖²/σ_t² <= cap          few-shot paper, Algorithms 1 and 2

    c is 1 for two groups, √2 for more, range(u) for weights; it enters as the integer c². Row
    norms do not depend on the attributes, so neither do the debits nor the people who drop out.
    The theorem above then holds for each person. A person with a smaller row
    may come back: what counts is that no accepted row takes them above the cap.
    """

    def __init__(self, people: int, cap_units: int) -> None:
        self._people = checked_integer("people", people, 1)
        self._cap = checked_integer("cap_units", cap_units, 0)
        if self._cap > _MAX_CAP:
            raise ConfigError(f"cap_units must be at most 2^62, got {cap_units}")
        self._spent = np.zeros(self._people, np.int64)

    @property
    def cap(self) -> int:
        return self._cap

    @property
    def spent(self) -> NDArray[np.int64]:
        """Units debited so far, per person (a copy)."""
        return self._spent.copy()

    def restore(self, spent: NDArray[np.int64]) -> None:
        """Go on from a checkpoint's `spent`."""
        if spent.shape != self._spent.shape or spent.dtype.kind != "i":
            raise ConfigError(f"expected {self._people} integers, one per person")
        if int(spent.min()) < 0 or int(spent.max()) > self._cap:
            raise ConfigError("somebody's account lies outside 0 and the cap")
        self._spent = spent.astype(np.int64)

    def admit(
        self,
        norms_squared: NDArray[np.int64],
        *,
        factor_squared: int = 1,
        sigma: int,
        people: NDArray[np.int64] | None = None,
    ) -> NDArray[np.bool_]:
        """Who may take part with these rows; nothing is debited.

        `people` gives the positions that `norms_squared` is about, each at most once (a person's
        rows are summed before they come here); None means all, in order. Zero rows cost nothing
        and are always admitted.
        """
        where, cost = self._priced(norms_squared, factor_squared, sigma, people)
        return np.asarray(cost <= self._cap - self._spent[where])

    def charge(
        self,
        norms_squared: NDArray[np.int64],
        *,
        factor_squared: int = 1,
        sigma: int,
        people: NDArray[np.int64] | None = None,
    ) -> NDArray[np.bool_]:
        """Debit those who are admitted and return who they are; the others' rows must become 0."""
        where, cost = self._priced(norms_squared, factor_squared, sigma, people)
        mask = np.asarray(cost <= self._cap - self._spent[where])
        # In one step with the mask: whoever is not debited is told to send zeros.
        self._spent[where[mask]] += cost[mask]
        return mask

    def _priced(
        self,
        norms_squared: NDArray[np.int64],
        factor_squared: int,
        sigma: int,
        people: NDArray[np.int64] | None,
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Positions of the people, and what each would pay; ConfigError if the input is off."""
        factor_squared = checked_integer("factor_squared", factor_squared, 0)
        sigma = checked_integer("sigma", sigma, 1)
        where = np.arange(self._people, dtype=np.int64) if people is None else np.asarray(people)
        if norms_squared.dtype.kind != "i" or where.dtype.kind not in "iu":
            raise ConfigError("norms_squared and people must be signed integer arrays")
        if where.ndim != 1 or norms_squared.shape != where.shape:
            raise ConfigError(
                f"expected one squared norm per person, shape {where.shape}, "
                f"got {norms_squared.shape}"
            )
        if where.size and (int(where.min()) < 0 or int(where.max()) >= self._people):
            raise ConfigError(f"people must be positions from 0 to {self._people - 1}")
        if people is not None and np.unique(where).size != where.size:
            raise ConfigError("a person occurs twice; sum their rows before asking")
        if norms_squared.size and int(norms_squared.min()) < 0:
            raise ConfigError("norms_squared must not be negative; did a square overflow?")
        norms = norms_squared.astype(np.int64, copy=False)
        cost = _individual_units(norms, factor_squared, sigma, self._cap + 1)
        return where.astype(np.int64, copy=False), cost
