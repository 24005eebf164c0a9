"""`GroupOracle`: the one interface that strategies know.

A strategy asks for counts and sums by group and gets released values with their noise deviation
and a receipt. It does not know whether the regulator is an object, a process or another country.

| call | what it releases | the regulator sees |
|---|---|---|
| `counts(cells)` | people per group and cell | the counts (open) |
| `open_sum(rows)` | Σ of rows per group | the sums (open; range-checked) |
| `blind_sum(rows)` | Σ of rows per group | masked, uniform numbers |
| `weighted_sum(rows, weights)` | Σ_i u_{A_i} v_i | masked, uniform numbers |

Noise is given as `sigma` (deviation in the rows' units), as `share` (of the plan's μ² budget), or,
for Laplace noise, as `epsilon`. Rows of one person (repeated `people`) are added up before they are
clipped, so the guarantee is per person.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from isonomy.common.base.errors import BudgetExceeded, ConfigError, DataError
from isonomy.common.crypto.packing import centre
from isonomy.common.crypto.params import DEFAULT_PARAMETERS
from isonomy.common.people.cohort import Cohort, group_labels
from isonomy.common.privacy.accounting import epsilon_of
from isonomy.common.privacy.noise import MAX_SCALE, MAX_SIGMA, MIN_SIGMA
from isonomy.common.privacy.quantise import (
    LARGEST,
    SMALLEST,
    Order,
    checked_norm,
    checked_rows,
    clip_rows,
    quantise,
    quantise_weighted,
    sum_by_person,
)
from isonomy.common.privacy.queries import (
    Cost,
    Kind,
    Mechanism,
    Query,
    Shape,
    cost_of,
    noise_deviation,
    query_id_prefix,
    shapes_of,
)
from isonomy.common.privacy.query_log import QueryLog


class RepeatedPeopleWarning(UserWarning):
    """Several rows belong to one person: they are added up and clipped as one."""


@dataclass(frozen=True)
class Receipt:
    """Proof of what was paid: the ledger record of this release."""

    query_id: str
    units: int
    sequence: int
    ledger_head: bytes


@dataclass(frozen=True)
class Release:
    """Released values and how noisy they are.

    `values` is (groups, columns) for group sums and counts, (columns,) for weighted sums;
    `deviation` the noise's standard deviation per group (the last group is a public total minus the
    others, so its noise adds up), or one number for weighted sums.
    """

    values: NDArray[np.float64]
    deviation: NDArray[np.float64]
    groups: tuple[str, ...]
    clipped: int
    receipt: Receipt | None  # None: the answer follows from public numbers and cost nothing


@dataclass(frozen=True)
class Budget:
    """The plan's budget as the company sees it. `cap` is what is guaranteed; `spent` is so far."""

    cap_units: int
    spent_units: int
    delta: float

    @property
    def cap_epsilon(self) -> float:
        return epsilon_of(self.cap_units, self.delta)

    @property
    def spent_epsilon(self) -> float:
        return epsilon_of(self.spent_units, self.delta)

    @property
    def remaining_share(self) -> float:
        return 1.0 - self.spent_units / self.cap_units if self.cap_units else 0.0


@dataclass(frozen=True)
class Asked:
    """A query with the company's integers for it. The integers never leave in the clear."""

    query: Query
    rows: NDArray[np.int32]  # (n, m) for groups; (groups − 1, n, m) differences for weighted sums


class GroupOracle(ABC):
    """Blind group sums over an agreed cohort, under one approved plan.

    Subclasses carry a query to the regulator (`_exchange`); everything else, quantisation, noise
    level, totals and bookkeeping, is here, so that all oracles give the same bits.

    `record_privacy`: does the plan promise that whole records are protected too? Strategies that
    do not keep that promise must not ask (DESIGN.md §2).
    """

    record_privacy: bool = False
    charges_rows: bool = False  # does everybody pay for the length of their own row?

    def __init__(
        self,
        cohort: Cohort,
        groups: Mapping[str, Sequence[str]],
        *,
        plan: bytes,
        cap_units: int,
        delta: float,
    ) -> None:
        self.cohort = cohort
        self.groups = {name: tuple(labels) for name, labels in groups.items()}
        self.plan = plan
        self.params = DEFAULT_PARAMETERS
        self._cap_units, self._delta = cap_units, delta
        self._spent = np.zeros(len(cohort), dtype=np.int64)  # units per person
        self._asked = 0
        self._labels: dict[str, tuple[str, ...]] = {}  # worked out once, not per query
        self.log = QueryLog(len(cohort))

    @abstractmethod
    def _exchange(self, asked: Asked) -> tuple[NDArray[np.int64], Receipt]:
        """Carry the query; (sums, columns) released integers, any mask taken off."""

    # --- What strategies call ------------------------------------------------------------------

    @property
    def budget(self) -> Budget:
        return Budget(self._cap_units, int(self._spent.max()), self._delta)

    @property
    def position(self) -> tuple[int, NDArray[np.int64]]:
        """Queries asked so far, and each person's spent units: what a checkpoint keeps."""
        return self._asked, self._spent.copy()

    def go_on_from(self, asked: int, spent: NDArray[np.int64]) -> None:
        """Set the company's own books to a checkpoint's position of the same plan.

        Safe because the regulator's ledger decides: an id asked again gets the stored answer if
        the rows are the same, and is refused if they are not.
        """
        if asked < 0 or spent.shape != self._spent.shape:
            raise ConfigError("this position belongs to another cohort")
        self._asked, self._spent = int(asked), spent.astype(np.int64)

    def labels(self, attribute: str | None = None) -> tuple[str, ...]:
        """Public group labels of an attribute or an intersection ("sex*race")."""
        return self._labels_of(self._attribute(attribute))

    def _labels_of(self, expression: str) -> tuple[str, ...]:
        if expression not in self._labels:
            self._labels[expression] = group_labels(expression, self.groups)
        return self._labels[expression]

    def counts(
        self,
        cells: ArrayLike | None = None,
        *,
        attribute: str | Sequence[str] | None = None,
        people: ArrayLike | None = None,
        sigma: float | None = None,
        share: float | None = None,
        epsilon: float | None = None,
        purpose: str = "counts",
    ) -> Release:
        """People per group, or per group and cell (`cells`: one small integer per person).

        A person who appears several times is counted once, in the cell of all their rows; rows of
        one person in different cells are an error.
        """
        positions = self._positions(people)
        rows = _one_hot(cells, positions)
        distinct, first = np.unique(positions, return_index=True)
        if len(distinct) < len(positions):
            inverse = np.searchsorted(distinct, positions)
            if (rows != rows[first][inverse]).any():
                raise DataError("rows of one person lie in different cells; count persons, or sum")
        return self._sums(
            rows[first],
            kind="open",
            norm=1.0,
            attribute=attribute,
            positions=distinct,
            noise=_Noise(sigma, share, epsilon),
            purpose=purpose,
        )

    def blind_sum(
        self,
        rows: ArrayLike,
        *,
        norm: float,
        attribute: str | Sequence[str] | None = None,
        people: ArrayLike | None = None,
        sigma: float | None = None,
        share: float | None = None,
        epsilon: float | None = None,
        purpose: str = "sum",
    ) -> Release:
        """Σ of clipped rows per group; the regulator sees masked numbers only."""
        return self._sums(
            rows,
            kind="blind",
            norm=norm,
            attribute=attribute,
            positions=self._positions(people),
            noise=_Noise(sigma, share, epsilon),
            purpose=purpose,
        )

    def open_sum(
        self,
        rows: ArrayLike,
        *,
        norm: float,
        attribute: str | Sequence[str] | None = None,
        people: ArrayLike | None = None,
        sigma: float | None = None,
        share: float | None = None,
        epsilon: float | None = None,
        purpose: str = "audit",
    ) -> Release:
        """Σ of clipped rows per group, which the regulator sees too (audits, dual steps)."""
        return self._sums(
            rows,
            kind="open",
            norm=norm,
            attribute=attribute,
            positions=self._positions(people),
            noise=_Noise(sigma, share, epsilon),
            purpose=purpose,
        )

    def weighted_sum(
        self,
        rows: ArrayLike,
        weights: ArrayLike,
        *,
        norm: float,
        attribute: str | None = None,
        people: ArrayLike | None = None,
        sigma: float | None = None,
        share: float | None = None,
        purpose: str = "weighted sum",
    ) -> Release:
        """Σ_i u_{A_i} v_i with public weights u, one per group; one noisy vector, blind.

        Sensitivity is (max u − min u)·norm, so noise scales with the weights (λ!) by itself. Equal
        weights need no attribute: the answer is then exact, free and leaves no record.
        """
        expression = self._attribute(attribute)
        labels = self._labels_of(expression)
        norm = checked_norm(norm)
        u = _checked_weights(weights, len(labels), norm, expression)
        given, positions = self._by_person(rows, self._positions(people))
        low, high = min(u.tolist()), max(u.tolist())
        span = high - low
        if span == 0.0:
            clipped_rows, clipped = clip_rows(given, norm, 2)
            total = float(u[0]) * norm * clipped_rows.sum(axis=0)
            return Release(total, np.zeros(1), labels, clipped, None)
        quantised = quantise_weighted(given, u, norm, self.params.row_bound)
        unit = span * norm / self.params.row_bound  # what one integer step is worth
        query = self._query(
            shape="weighted",
            kind="blind",
            expressions=(expression,),
            columns=given.shape[1],
            unit=unit,
            norm=norm,
            positions=positions,
            weights=tuple(u.tolist()),
            noise=_Noise(sigma, share, None),
            purpose=purpose,
        )
        values, receipt = self._ask(query, quantised.rows)
        middle = (low + span / 2) * norm * quantised.clipped_total  # Σ ū v_i, public
        total = middle + (quantised.last_total + values[0]) * unit
        deviation = np.array([noise_deviation(query.mechanism, query.noise) * unit])
        return Release(total, deviation, labels, quantised.clipped, receipt)

    def confirm_multipliers(  # noqa: B027  (most oracles have nothing to compare with)
        self, query_id: str, values: tuple[float, ...]
    ) -> None:
        """Compare λ after a dual step with the regulator's own; ProtocolError if they differ.

        Oracles that can ask the regulator do.
        """

    # --- How a group sum is put together -------------------------------------------------------

    def _sums(
        self,
        rows: ArrayLike,
        *,
        kind: Kind,
        norm: float,
        attribute: str | Sequence[str] | None,
        positions: NDArray[np.int64],
        noise: _Noise,
        purpose: str,
    ) -> Release:
        expressions = self._expressions(attribute)
        norm = checked_norm(norm)
        given, positions = self._by_person(rows, positions)
        order: Order = 1 if noise.mechanism == "laplace" else 2
        quantised = quantise(given, norm, self.params.row_bound, order)
        unit = norm / self.params.row_bound
        query = self._query(
            shape="groups",
            kind=kind,
            expressions=expressions,
            columns=given.shape[1],
            unit=unit,
            norm=norm,
            positions=positions,
            weights=(),
            noise=noise,
            purpose=purpose,
        )
        released, receipt = self._ask(query, quantised.rows)
        sizes = [len(self._labels_of(expression)) for expression in expressions]
        values = _with_last_group(released, quantised.rows.sum(axis=0, dtype=np.int64), sizes)
        deviation = noise_deviation(query.mechanism, query.noise) * unit
        return Release(
            values=values.astype(np.float64) * unit,
            deviation=deviation * np.concatenate([_group_factors(size) for size in sizes]),
            groups=tuple(label for e in expressions for label in self._labels_of(e)),
            clipped=quantised.clipped,
            receipt=receipt,
        )

    def _query(
        self,
        *,
        shape: Shape,
        kind: Kind,
        expressions: tuple[str, ...],
        columns: int,
        unit: float,
        norm: float,
        positions: NDArray[np.int64],
        weights: tuple[float, ...],
        noise: _Noise,
        purpose: str,
    ) -> Query:
        counts = tuple(len(self._labels_of(expression)) for expression in expressions)
        cost = cost_of(shape, counts, self.params)
        if len(purpose) > 128 or not purpose.isprintable():
            raise ConfigError("a purpose is at most 128 printable characters for the ledger")
        everyone = len(positions) == len(self.cohort)
        query = Query(
            query_id=f"{query_id_prefix(self.plan)}{self._asked:06d}",
            plan=self.plan,
            purpose=purpose,
            kind=kind,
            shape=shape,
            attributes=expressions,
            columns=columns,
            mechanism=noise.mechanism,
            noise=noise.integer(cost, unit, self._cap_units),
            norm=norm,
            weights=weights,
            positions=None if everyone else tuple(positions.tolist()),
            parameters=self.params.name,
        )
        shapes_of(query, counts, len(self.cohort))  # capacity, before anything is sent
        self._check_budget(positions, cost.units(query.mechanism, query.noise), purpose)
        return query

    def _check_budget(self, positions: NDArray[np.int64], units: int, purpose: str) -> None:
        """Refuse here what the ledger would refuse there."""
        if int(self._spent[positions].max()) + units > self._cap_units:
            raise BudgetExceeded(
                f"{purpose!r} would bring a person above the plan's ε = "
                f"{self.budget.cap_epsilon:.4g} (spent {self.budget.spent_epsilon:.4g}). "
                "Nothing was asked. Use more noise, fewer queries, or a larger approved budget."
            )

    def _ask(self, query: Query, integers: NDArray[np.int32]) -> tuple[NDArray[np.int64], Receipt]:
        values, receipt = self._exchange(Asked(query, integers))
        # Only now: a query that failed is asked again under the same id.
        self._asked += 1
        positions = query.position_array(len(self.cohort))
        self._spent[positions] += receipt.units
        self.log.add(query.purpose, receipt.units, positions)
        return centre(values & (self.params.plain_modulus - 1), self.params.plain_modulus), receipt

    def _attribute(self, attribute: str | None) -> str:
        if attribute is not None:
            return attribute
        if len(self.groups) != 1:
            raise ConfigError(f"name an attribute: the regulator offers {', '.join(self.groups)}")
        return next(iter(self.groups))

    def _expressions(self, attribute: str | Sequence[str] | None) -> tuple[str, ...]:
        if attribute is None or isinstance(attribute, str):
            return (self._attribute(attribute),)
        expressions = tuple(attribute)
        if not expressions or len(set(expressions)) != len(expressions):
            raise ConfigError("name at least one attribute, each once")
        return expressions

    def _positions(self, people: ArrayLike | None) -> NDArray[np.int64]:
        if people is None:
            return np.arange(len(self.cohort))
        positions = np.asarray(people)
        if positions.ndim != 1 or positions.size == 0:
            raise DataError("people must be a non-empty list of positions in the cohort")
        if positions.dtype.kind not in "iu":
            raise DataError("people are positions in the cohort; cohort.positions(ids) gives them")
        if positions.min() < 0 or positions.max() >= len(self.cohort):
            raise DataError(f"people must lie between 0 and {len(self.cohort) - 1}")
        return positions.astype(np.int64, copy=False)

    def _by_person(
        self, rows: ArrayLike, positions: NDArray[np.int64]
    ) -> tuple[NDArray[np.floating], NDArray[np.int64]]:
        given = checked_rows(rows, len(positions))
        totals, distinct = sum_by_person(given, positions)
        if len(distinct) < len(positions):
            warnings.warn(
                f"{len(positions)} rows belong to {len(distinct)} people: the rows of one person "
                "are added up and clipped together, so that privacy holds per person",
                RepeatedPeopleWarning,
                stacklevel=4,
            )
            if not np.isfinite(totals).all():
                raise DataError("the rows of one person add up to infinity; scale them down")
        return totals, distinct


@dataclass(frozen=True)
class _Noise:
    """How the caller gave the noise: exactly one of three ways."""

    sigma: float | None
    share: float | None
    epsilon: float | None

    def __post_init__(self) -> None:
        given = [v for v in (self.sigma, self.share, self.epsilon) if v is not None]
        numbers = all(isinstance(v, int | float | np.number) for v in given)
        if len(given) != 1 or not numbers or not np.isfinite(given[0]) or given[0] <= 0:
            raise ConfigError(
                "give exactly one positive number: sigma (deviation, in the rows' units), share "
                "(of the plan's budget) or epsilon (Laplace noise)"
            )
        if self.share is not None and self.share > 1:
            raise ConfigError(f"share is a part of the plan's budget, at most 1; got {self.share}")

    @property
    def mechanism(self) -> Mechanism:
        return "gaussian" if self.epsilon is None else "laplace"

    def integer(self, cost: Cost, unit: float, cap_units: int) -> int:
        """The noise level in integer units, rounded up: never less noise than asked for."""
        if self.share is not None:
            return cost.sigma_for(int(cap_units * self.share))
        if self.epsilon is not None:
            scale = cost.l1 / self.epsilon if self.epsilon > 1e-100 else float("inf")
            if scale > MAX_SCALE:
                raise ConfigError(f"epsilon = {self.epsilon} needs more noise than sums can carry")
            return int(np.ceil(scale))
        sigma = float(np.ceil(self.sigma / unit)) if self.sigma is not None else 0.0
        if not MIN_SIGMA <= sigma <= MAX_SIGMA:
            raise ConfigError(
                f"sigma must be between {MIN_SIGMA * unit:.3g} and {MAX_SIGMA * unit:.3g} for this "
                "norm: below it the sampler is not exact, above it sums are not"
            )
        return int(sigma)


def _one_hot(cells: ArrayLike | None, positions: NDArray[np.int64]) -> NDArray[np.float64]:
    if cells is None:
        return np.ones((len(positions), 1))
    index = np.asarray(cells)
    if index.shape != positions.shape or not np.issubdtype(index.dtype, np.integer):
        raise DataError("cells must be one integer per person")
    if index.min() < 0 or index.max() >= DEFAULT_PARAMETERS.max_columns:
        raise DataError(f"cells must lie between 0 and {DEFAULT_PARAMETERS.max_columns - 1}")
    rows = np.zeros((len(index), int(index.max()) + 1))
    rows[np.arange(len(index)), index] = 1.0
    return rows


def _checked_weights(
    weights: ArrayLike, groups: int, norm: float, expression: str
) -> NDArray[np.float64]:
    """(groups,) weights whose spread can be scaled to the norm without leaving the floats."""
    try:
        u = np.asarray(weights, dtype=np.float64).reshape(-1)
    except (TypeError, ValueError):
        raise DataError(f"{expression!r} needs {groups} weights that are numbers") from None
    if len(u) != groups or not all(-LARGEST <= own <= LARGEST for own in u.tolist()):
        raise DataError(f"{expression!r} needs {groups} finite weights; got {len(u)}")
    spread = max(u.tolist()) - min(u.tolist())
    if spread > 0 and not SMALLEST <= spread * norm <= LARGEST:
        raise DataError("the weights' range times the norm is too small or too large; rescale")
    return u


def _with_last_group(
    released: NDArray[np.int64], total: NDArray[np.int64], sizes: Sequence[int]
) -> NDArray[np.int64]:
    """Append to each attribute's released groups the last one: the public total minus the rest."""
    stacked, start = [], 0
    for size in sizes:
        own = released[start : start + size - 1]
        stacked += [own, (total - own.sum(axis=0))[None]]
        start += size - 1
    return np.concatenate(stacked)


def _group_factors(size: int) -> NDArray[np.float64]:
    return np.append(np.ones(size - 1), np.sqrt(size - 1))


__all__ = [
    "Asked",
    "Budget",
    "GroupOracle",
    "Receipt",
    "Release",
    "RepeatedPeopleWarning",
]
