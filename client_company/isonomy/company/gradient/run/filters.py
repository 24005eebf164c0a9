"""The individual filter: everybody pays for their own rows, and leaves when their budget is spent.

    μ_i² = Σ_t c_t²·‖v_it‖²/σ_t² ≤ cap for every person i       few-shot paper, Algorithms 1 and 2

`FilteredOracle` puts it between any strategy and any oracle. Before a query is asked, whoever
cannot afford their row any more gets the row 0; the others go on. Row norms do not depend on the
attributes, so neither does who drops out, and the regulator cannot tell (a zero row is encrypted
like any other).

What it buys. A strategy plans its noise for rows of the full norm. Most people's rows are shorter,
so most people never spend what was planned for them. `stretch` turns that into use: the noise of
blind queries is solved as though the cap were `stretch` times as large, which means σ smaller by
√stretch, or `stretch` times the rounds at the same σ; the filter holds everybody to the real cap.
Open queries (rates, audits) keep a part `reserve` of the cap to themselves, unstretched: who drops
out of a rate is not a random sample, and a rate of those who stay would be another rate.

Who enforces it. The plan must say `individual_filter`: the regulator then reserves the whole cap
for every person once and takes per-query debits as information (ledger_state). Under any other plan
the ledger refuses debits above the cap as always. The filter itself is the company's, checked by
inspection of the opened rows (DESIGN.md §2).

Guarantees (tests/company/gradient/run/test_filters.py)
  nobody_above_the_cap   every person's exact μ_i² is at most the cap, for any queries
  dropped_rows_are_zero  who is not admitted enters no group's sum, the last one included
  a_failed_query_is_free a query that was not answered changes no account
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from isonomy.common.base.errors import BudgetExceeded, ConfigError
from isonomy.common.people.cohort import group_labels
from isonomy.common.privacy.filters import IndividualFilter
from isonomy.common.privacy.quantise import (
    checked_norm,
    integer_norms_squared,
    quantise,
    quantise_weighted,
)
from isonomy.common.privacy.queries import Cost, Kind, Query, cost_of
from isonomy.common.sums.oracle import Asked, Budget, GroupOracle, Receipt, Release

Ints = NDArray[np.int64]
Floats = NDArray[np.floating]
_KINDS: tuple[Kind, ...] = ("blind", "open")


@dataclass(frozen=True)
class Drops:
    """One answered query: how many it was about, how many were dropped, how many for the first
    time."""

    query: int
    purpose: str
    people: int
    dropped: int
    newly_dropped: int


@dataclass(frozen=True)
class _Charge:
    """What the next query will cost whom, once it is answered."""

    account: IndividualFilter
    norms_squared: Ints  # of the rows that are sent, 0 for the dropped
    factor_squared: int
    sigma: int
    positions: Ints
    dropped: Ints


class FilteredOracle(GroupOracle):
    """A `GroupOracle` with an individual filter in front of another one.

    The inner oracle only carries queries from now on; ask this one. A person's blind queries cost
    at most (1 − reserve)·cap, their open ones at most reserve·cap. `reserve` is therefore the part
    that the strategy plans for open queries: 0.34 for DP-FERMI and PF-LD with their default split.
    """

    charges_rows = True

    def __init__(self, inner: GroupOracle, *, stretch: float = 1.0, reserve: float = 0.34) -> None:
        if not (math.isfinite(stretch) and stretch >= 1):
            raise ConfigError(f"stretch must be a number of at least 1, got {stretch!r}")
        if not 0 <= reserve < 1:
            raise ConfigError(f"reserve is a part of the cap, 0 to below 1; got {reserve!r}")
        asked, spent = inner.position
        if spent.any():
            raise ConfigError("put the filter in front of an oracle that was not asked before")
        super().__init__(
            inner.cohort,
            inner.groups,
            plan=inner.plan,
            cap_units=inner.budget.cap_units,
            delta=inner.budget.delta,
        )
        self._inner, self._stretch, self._asked = inner, stretch, asked
        self.record_privacy = inner.record_privacy
        kept = math.ceil(self._cap_units * reserve)
        self._accounts: dict[Kind, IndividualFilter] = {
            "blind": IndividualFilter(len(inner.cohort), self._cap_units - kept),
            "open": IndividualFilter(len(inner.cohort), kept),
        }
        self._ever = np.zeros(len(inner.cohort), np.bool_)  # refused at least once
        self._next: _Charge | None = None
        self.drops: list[Drops] = []

    # --- What the company may report -----------------------------------------------------------

    @property
    def budget(self) -> Budget:
        """The plan's cap; spent is the most that any person has spent of it."""
        return Budget(self._cap_units, int(self.spent.max()), self._delta)

    @property
    def spent(self) -> Ints:
        """(people,) units that each person's own rows have cost so far, exact."""
        return self._accounts["blind"].spent + self._accounts["open"].spent

    @property
    def position(self) -> tuple[int, Ints]:
        """Queries asked; both accounts of each person, one above the other, and who was refused."""
        accounts = [self._accounts[kind].spent for kind in _KINDS]
        return self._asked, np.stack([*accounts, self._ever.astype(np.int64)])

    def go_on_from(self, asked: int, spent: Ints) -> None:
        if asked < 0 or spent.shape not in [(len(_KINDS) + m, len(self.cohort)) for m in (0, 1)]:
            raise ConfigError("this position belongs to another cohort, or to no filter")
        for kind, own in zip(_KINDS, spent, strict=False):
            self._accounts[kind].restore(own)
        # older checkpoints did not keep who was refused
        self._ever[:] = (spent[len(_KINDS) :] > 0).any(axis=0)
        self._asked = int(asked)

    @property
    def dropped(self) -> int:
        """People who were refused at least once."""
        return int(self._ever.sum())

    def drops_to_json(self) -> list[dict[str, Any]]:
        """For a checkpoint: a resumed run still tells who was left out before the break."""
        return [asdict(each) for each in self.drops]

    def restore_drops(self, kept: Sequence[Mapping[str, Any]]) -> None:
        self.drops = [Drops(**each) for each in kept]

    def table(self) -> pd.DataFrame:
        """How many were dropped, and when: one line per answered query."""
        return pd.DataFrame([vars(each) for each in self.drops])

    # --- Between a strategy and the oracle -----------------------------------------------------

    def weighted_sum(self, rows: ArrayLike, weights: ArrayLike, **asked: Any) -> Release:
        """As in the oracle below, without the people who cannot afford it any more."""
        given, positions = self._by_person(rows, self._positions(asked.pop("people", None)))
        u = np.asarray(weights, dtype=np.float64).reshape(-1)
        norm, labels = checked_norm(asked["norm"]), self.labels(asked.get("attribute"))
        if len(u) == len(labels) and np.isfinite(u).all() and np.ptp(u) > 0:
            own = _own_differences(given, u, norm, self.params.row_bound)
            unit = float(u.max() - u.min()) * norm / self.params.row_bound
            cost = cost_of("weighted", (len(u),), self.params)
            asked = self._stretched(asked)
            sigma = _sigma(cost, unit, self._cap_units, asked.get("share"), asked.get("sigma"))
            given = self._admitted("blind", given, own, 1, sigma, positions)
        return super().weighted_sum(given, weights, people=positions, **asked)

    def _sums(self, rows: ArrayLike, **asked: Any) -> Release:
        given, positions = self._by_person(rows, asked.pop("positions"))
        noise, norm = asked["noise"], checked_norm(asked["norm"])
        if noise.mechanism != "gaussian":
            raise ConfigError("the individual filter accounts Gaussian noise; give sigma or share")
        bound = self.params.row_bound
        counts = tuple(
            len(group_labels(expression, self.groups))
            for expression in self._expressions(asked["attribute"])
        )
        cost = cost_of("groups", counts, self.params)
        if asked["kind"] == "blind":
            asked["noise"] = noise = replace(noise, **self._stretched(vars(noise)))
        sigma = noise.integer(cost, norm / bound, self._cap_units)
        own = integer_norms_squared(quantise(given, norm, bound).rows.astype(np.int64))
        factor = cost.squared_l2 // bound**2  # 1 for two groups, 2 for more, per attribute
        given = self._admitted(asked["kind"], given, own, factor, sigma, positions)
        return super()._sums(given, positions=positions, **asked)

    def _stretched(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """A share as a σ that is smaller by √stretch; a σ given as such stays what it is.

        One query never gets more than the whole cap: a row of full length must be affordable.
        """
        share = asked.get("share")
        return {**asked, "share": None if share is None else min(share * self._stretch, 1.0)}

    def _admitted(
        self, kind: Kind, given: Floats, own: Ints, factor: int, sigma: int, positions: Ints
    ) -> Floats:
        """The rows, 0 for whoever cannot afford theirs. Nobody is charged yet."""
        account = self._accounts[kind]
        mask = account.admit(own, factor_squared=factor, sigma=sigma, people=positions)
        if not mask.any():
            raise BudgetExceeded(
                "everybody's own budget is spent for rows of this length. Nothing was asked."
            )
        kept = np.where(mask, own, 0)
        self._next = _Charge(account, kept, factor, sigma, positions, positions[~mask])
        return np.where(mask[:, None], given, 0.0)

    def _check_budget(self, positions: Ints, units: int, purpose: str) -> None:
        """The filter has decided already, person by person; the ledger decides again."""

    def _ask(self, query: Query, integers: NDArray[np.int32]) -> tuple[Ints, Receipt]:
        charge, self._next = self._next, None
        if charge is None or charge.sigma != query.noise:
            raise ConfigError("a query reached the oracle past its filter; nothing was asked")
        answer = super()._ask(query, integers)
        # Only now: a query that failed is asked again under the same id, and costs nothing.
        charge.account.charge(
            charge.norms_squared,
            factor_squared=charge.factor_squared,
            sigma=charge.sigma,
            people=charge.positions,
        )
        first = int((~self._ever[charge.dropped]).sum())
        self._ever[charge.dropped] = True
        self.drops.append(
            Drops(self._asked, query.purpose, len(charge.positions), len(charge.dropped), first)
        )
        return answer

    def _exchange(self, asked: Asked) -> tuple[Ints, Receipt]:
        return self._inner._exchange(asked)


def _own_differences(given: Floats, u: NDArray[np.float64], norm: float, bound: int) -> Ints:
    """(people,) exact squared Δ of each person: their rows under the two extreme weights.

    No other pair of groups differs by more, coordinate by coordinate (`quantise_weighted`).
    """
    rows = quantise_weighted(given, u, norm, bound).rows.astype(np.int64)
    rows = np.concatenate([rows, np.zeros_like(rows[:1])])  # the last group's difference to itself
    return integer_norms_squared(rows[int(u.argmax())] - rows[int(u.argmin())])


def _sigma(
    cost: Cost, unit: float, cap_units: int, share: float | None, sigma: float | None
) -> int:
    """The integer σ that the oracle will take; `_ask` checks that it did."""
    if share is not None:
        return cost.sigma_for(int(cap_units * share))
    return max(1, math.ceil((sigma or 0.0) / unit))


__all__ = ["Drops", "FilteredOracle"]
