"""The company's books: who may still be asked about, and what each person has spent.

`PlanAccount` charges everybody who is asked about the price of the query, as the ledger does.
`IndividualAccounts` is the individual filter: everybody pays for their own rows, and whoever cannot
afford theirs any more gets a row of zeros.

    μ_i² = Σ_t c_t²·‖v_it‖²/σ_t² ≤ cap for every person i       few-shot paper, Algorithms 1 and 2

Row norms do not depend on the attributes, so neither does who drops out, and the regulator cannot
tell (a zero row is encrypted like any other).

What the filter buys. A strategy plans its noise for rows of the full norm. Most people's rows are
shorter, so most people never spend what was planned for them. `stretch` turns that into use: the
noise of blind queries is solved as though the cap were `stretch` times as large, which means σ
smaller by √stretch, or `stretch` times the rounds at the same σ; the filter holds everybody to the
real cap. Open queries (rates, audits) keep a part `reserve` of the cap to themselves, unstretched:
those who drop out of a rate are not a random sample, and a rate of those who stay would be another
rate.

Who enforces it. The plan must say `individual_filter`: the regulator then reserves the whole cap
for every person once and takes per-query debits as information (ledger.state). The filter itself is
the company's, checked by inspection of the opened rows (docs/design.md, section 6).

Guarantees (tests/common/sums/test_filters.py)
  nobody_above_the_cap   every person's exact μ_i² is at most the cap, for any queries
  dropped_rows_are_zero  who is not admitted enters no group's sum, the last one included
  a_failed_query_is_free a query that was not answered changes no account
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from isonomy.common.base.errors import BudgetExceeded, ConfigError
from isonomy.common.privacy.accounting import epsilon_of
from isonomy.common.privacy.filters import IndividualFilter
from isonomy.common.privacy.quantise import integer_norms
from isonomy.common.privacy.queries import Kind, Query, cost_of
from isonomy.common.privacy.row_sources import rows_of
from isonomy.common.sums.question import Prepared, Terms

Ints = NDArray[np.int64]
_KINDS: tuple[Kind, ...] = ("blind", "open")
_PART_PEOPLE = 1 << 12


@dataclass(frozen=True)
class Drops:
    """One answered query: how many people it was about, and how many of them were dropped."""

    query: int
    purpose: str
    people: int
    dropped: int
    newly_dropped: int  # for the first time


class Accounts(Protocol):
    """Whom a query may be about, and what everybody has spent."""

    filtered: bool
    stretch: float
    drops: list[Drops]

    @property
    def spent(self) -> Ints:
        """(people,) units that each person has spent."""

    @property
    def dropped(self) -> int:
        """People who were dropped at least once."""

    def admit(self, prepared: Prepared) -> NDArray[np.bool_] | None:
        """Who can afford the query; None: everybody. BudgetExceeded if it must not be asked."""

    def charge(self, prepared: Prepared, admitted: NDArray[np.bool_] | None, number: int) -> None:
        """Book an answered query. `admitted` is what `admit` said of it."""

    def state(self) -> Ints:
        """What a checkpoint keeps."""

    def restore(self, state: Ints) -> None:
        """Go on from a checkpoint's state; ConfigError if it is of other accounts."""


class PlanAccount:
    """Everybody who is asked about pays the price of the query."""

    filtered, stretch, dropped = False, 1.0, 0

    def __init__(self, terms: Terms) -> None:
        self._terms, self.drops = terms, list[Drops]()
        self._spent = np.zeros(len(terms.cohort), dtype=np.int64)

    @property
    def spent(self) -> Ints:
        return self._spent

    def admit(self, prepared: Prepared) -> NDArray[np.bool_] | None:
        """Refuse here what the ledger would refuse there."""
        terms = self._terms
        most = int(self._spent[prepared.people].max())
        if most + prepared.shapes.units > terms.cap_units:
            raise BudgetExceeded(
                f"{prepared.query.purpose!r} would bring a person above the plan's ε = "
                f"{epsilon_of(terms.cap_units, terms.delta):.4g} (spent "
                f"{epsilon_of(int(self._spent.max()), terms.delta):.4g}). Nothing was asked. Use "
                "more noise, fewer queries, or a larger approved budget."
            )
        return None

    def charge(self, prepared: Prepared, admitted: NDArray[np.bool_] | None, number: int) -> None:
        self._spent[prepared.people] += prepared.shapes.units

    def state(self) -> Ints:
        return self._spent.copy()

    def restore(self, state: Ints) -> None:
        if state.shape != self._spent.shape:
            raise ConfigError("this position belongs to another cohort, or to a filter")
        self._spent = state.astype(np.int64)


class IndividualAccounts:
    """Everybody pays for their own rows: at most (1 − reserve)·cap in blind queries, reserve·cap
    in open ones.
    """

    filtered = True

    def __init__(self, terms: Terms, *, stretch: float = 1.0, reserve: float = 0.34) -> None:
        if not (math.isfinite(stretch) and stretch >= 1):
            raise ConfigError(f"stretch must be a number of at least 1, got {stretch!r}")
        if not 0 <= reserve < 1:
            raise ConfigError(f"reserve is a part of the cap, 0 to below 1; got {reserve!r}")
        people, reserved = len(terms.cohort), math.ceil(terms.cap_units * reserve)
        self._terms, self.stretch, self.drops = terms, stretch, list[Drops]()
        self._filters: dict[Kind, IndividualFilter] = {
            "blind": IndividualFilter(people, terms.cap_units - reserved),
            "open": IndividualFilter(people, reserved),
        }
        self._ever_dropped = np.zeros(people, np.bool_)

    @property
    def spent(self) -> Ints:
        """(people,) units that each person's own rows have cost so far, exact."""
        return self._filters["blind"].spent + self._filters["open"].spent

    @property
    def dropped(self) -> int:
        """People who were dropped at least once."""
        return int(self._ever_dropped.sum())

    def admit(self, prepared: Prepared) -> NDArray[np.bool_] | None:
        query = prepared.query
        if query.mechanism != "gaussian":
            raise ConfigError(
                "the individual filter works with Gaussian noise only; give sigma or share"
            )
        admitted = self._filters[query.kind].admit(
            _norms_squared(prepared),
            factor_squared=self._factor(prepared),
            sigma=query.noise,
            people=self._people(prepared),
        )
        if not admitted.any():
            raise BudgetExceeded(
                "nobody has budget left for rows of this length. Nothing was asked."
            )
        return admitted

    def charge(self, prepared: Prepared, admitted: NDArray[np.bool_] | None, number: int) -> None:
        if admitted is None:
            raise ConfigError("a query passed its filter without being admitted")
        people, query = self._people(prepared), prepared.query
        # The rows are those that were sent: zero for whoever was dropped, so they pay nothing.
        self._filters[query.kind].charge(
            _norms_squared(prepared),
            factor_squared=self._factor(prepared),
            sigma=query.noise,
            people=people,
        )
        dropped = people[~admitted]
        first = int((~self._ever_dropped[dropped]).sum())
        self._ever_dropped[dropped] = True
        self.drops.append(Drops(number, query.purpose, len(people), len(dropped), first))

    def state(self) -> Ints:
        """(3, people): both accounts of each person, and who was ever dropped."""
        accounts = [self._filters[kind].spent for kind in _KINDS]
        return np.stack([*accounts, self._ever_dropped.astype(np.int64)])

    def restore(self, state: Ints) -> None:
        if state.shape != (len(_KINDS) + 1, len(self._terms.cohort)):
            raise ConfigError("this position belongs to another cohort, or to no filter")
        for kind, spent in zip(_KINDS, state, strict=False):
            self._filters[kind].restore(spent)
        self._ever_dropped = state[-1] > 0

    def _factor(self, prepared: Prepared) -> int:
        """c²: 1 for two groups, 2 for more, added over attributes; 1 for a weighted sum."""
        query = prepared.query
        cost = cost_of(query.shape, self._terms.group_counts(query.attributes), query.params)
        return cost.squared_l2 // query.params.row_bound**2

    def _people(self, prepared: Prepared) -> Ints:
        return prepared.query.position_array(len(self._terms.cohort))


def _norms_squared(prepared: Prepared) -> Ints:
    """(n,) exact squared change that replacing each person's attribute can make.

    In a weighted sum that is the difference of their rows under the two extreme weights: no other
    pair of groups differs by more, coordinate by coordinate (`quantise_weighted`).
    """
    people = prepared.shapes.layout.people
    parts = (slice(start, start + _PART_PEOPLE) for start in range(0, people, _PART_PEOPLE))
    return np.concatenate([_norms_of(prepared.query, rows_of(prepared.rows, p)) for p in parts])


def _norms_of(query: Query, part: NDArray[np.int32]) -> Ints:
    rows = part.astype(np.int64)
    if query.shape == "groups":
        return integer_norms(rows)
    rows = np.concatenate([rows, np.zeros_like(rows[:1])])  # the last group's difference to itself
    weights = np.array(query.weights)
    return integer_norms(rows[int(weights.argmax())] - rows[int(weights.argmin())])
