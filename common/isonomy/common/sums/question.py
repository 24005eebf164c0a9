"""From a question to a query and back: pure functions, no oracle, no channel.

    Question     what a caller asks, under the `Terms` of a plan
    prepare      makes it a query: rows are clipped and turned into integers; the noise is solved;
                 price and capacity are checked
    assemble     integers become values; the last group of each attribute follows from the public
                 total; each group gets the deviation of its noise

Every channel gets what `prepare` makes and gives what `assemble` takes, so all of them release the
same bits from the same noise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import chain

import numpy as np
from numpy.typing import ArrayLike, NDArray

from isonomy.common.agreements.feature_map import PublicFeatures
from isonomy.common.base.errors import ConfigError, DataError
from isonomy.common.crypto.params import (
    DEFAULT_PARAMETERS,
    ParameterSet,
    centre,
    open_parameters,
)
from isonomy.common.people.cohort import Cohort, group_labels
from isonomy.common.privacy.declarations import PLAIN, Declaration
from isonomy.common.privacy.noise import MAX_SCALE, MAX_SIGMA, MIN_SIGMA
from isonomy.common.privacy.planned_audits import NO_AUDITS, PlannedAudits
from isonomy.common.privacy.quantise import (
    LARGEST,
    SMALLEST,
    Order,
    clip_rows,
    quantise,
    quantise_weighted,
)
from isonomy.common.privacy.queries import (
    Cost,
    Kind,
    Mechanism,
    Query,
    Shape,
    Shapes,
    cost_of,
    pack_positions,
    query_id_prefix,
    shapes_of,
)
from isonomy.common.privacy.row_sources import IntegerRows, RowSource, StreamedRows, rows_of

FIXED = 2.0**38  # of public totals of weighted sums: 8 million people stay below 2^61
MAX_PURPOSE = 128  # characters


@dataclass(frozen=True)
class Terms:
    """The approved plan, as far as questions depend on it. `cohort` is this company's people."""

    cohort: Cohort
    groups: Mapping[str, tuple[str, ...]]
    plan: bytes
    cap_units: int
    delta: float
    params: ParameterSet = DEFAULT_PARAMETERS
    declaration: Declaration = PLAIN  # of a question that does not say what it is for
    # Where several companies ask: this one's place, where its people begin, and the common φ.
    place: int | None = None
    first: int = 0
    feature_map: PublicFeatures | None = None
    audits: PlannedAudits = NO_AUDITS

    def labels(self, expression: str) -> tuple[str, ...]:
        """The groups of an attribute or an intersection ("sex*race")."""
        if expression not in self._labels:
            self._labels[expression] = group_labels(expression, self.groups)
        return self._labels[expression]

    def group_counts(self, expressions: tuple[str, ...]) -> tuple[int, ...]:
        """How many groups each attribute or intersection has."""
        return tuple(map(len, map(self.labels, expressions)))

    @cached_property
    def people(self) -> int:
        return len(self.cohort)

    @cached_property
    def id_prefix(self) -> str:
        return query_id_prefix(self.plan)

    @cached_property
    def _labels(self) -> dict[str, tuple[str, ...]]:
        return {}  # worked out once, not per query


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
class Noise:
    """How the caller gave the noise: exactly one of three ways."""

    sigma: float | None = None
    share: float | None = None
    epsilon: float | None = None

    def __post_init__(self) -> None:
        level = self.share if self.sigma is None else self.sigma
        level = self.epsilon if level is None else level
        unused = (self.sigma, self.share, self.epsilon).count(None)
        if (
            unused != 2
            or not isinstance(level, int | float | np.number)
            or not np.isfinite(level)
            or level <= 0
        ):
            raise ConfigError(
                "give exactly one positive number: sigma (deviation, in the rows' units), share "
                "(of the plan's budget) or epsilon (Laplace noise)"
            )
        if self.share is not None and self.share > 1:
            raise ConfigError(f"share is a part of the plan's budget, at most 1; got {self.share}")

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


@dataclass(frozen=True, repr=False)  # no repr: rows must not reach logs
class Question:
    """What a caller asks, checked: one row per person, people in ascending order."""

    kind: Kind
    rows: NDArray[np.floating] | RowSource  # (n, m)
    positions: NDArray[np.int64]  # (n,) ascending, distinct
    norm: float
    expressions: tuple[str, ...]
    noise: Noise
    purpose: str
    declaration: Declaration = PLAIN
    weights: NDArray[np.float64] | None = None  # (groups,): a weighted sum
    alone: bool = False  # about this company's people, where several ask together
    triangular: bool = False  # row i has nothing behind column i

    @property
    def span(self) -> float:
        """max u − min u of a weighted sum."""
        return 0.0 if self.weights is None else float(self.weights.max() - self.weights.min())

    def without(self, dropped: NDArray[np.bool_]) -> Question:
        """The same question with rows of zeros for the people who are dropped."""
        if isinstance(self.rows, RowSource):
            return replace(self, rows=self.rows.without(dropped))
        return replace(self, rows=np.where(dropped[:, None], 0.0, self.rows))


@dataclass(frozen=True, repr=False)  # no repr: rows must not reach logs
class Prepared:
    """A query with the company's integers for it. The integers never leave in the clear.

    `public_total` is what this company knows of the answer without any attribute. Where several
    companies ask together, the totals are added up, so they are integers: the sum of the rows for
    group sums, and fixed point (FIXED) for the public part of a weighted sum.
    """

    query: Query
    rows: IntegerRows  # (n, m) for groups; (groups − 1, n, m) differences for weighted sums
    public_total: NDArray[np.int64]  # (m,)
    unit: float  # what one integer step is worth
    total_unit: float  # what one step of the public total is worth
    clipped: int
    people: NDArray[np.int64] | slice  # positions of the people asked about, or all of them
    shapes: Shapes
    alone: bool = False  # no other company takes part


@dataclass(frozen=True)
class Released:
    """What came back: noised integers without mask, and the public total of all companies."""

    integers: NDArray[np.int64]  # (sums, m)
    public_total: NDArray[np.int64]  # (m,)
    receipt: Receipt


def prepare(question: Question, terms: Terms, number: int, stretch: float = 1.0) -> Prepared:
    """The query of a question, number `number` of its plan, and the integers that go with it.

    `stretch` (individual filter) buys blind queries their noise as though the cap were so many
    times as large; one query never gets more than the whole cap. Raises before anything is asked.
    """
    purpose = question.purpose
    if len(purpose) > MAX_PURPOSE or not purpose.isprintable():
        raise ConfigError(f"a purpose is at most {MAX_PURPOSE} printable characters for people")
    counts, params = terms.group_counts(question.expressions), terms.params
    if question.kind == "open":
        params = open_parameters(len(question.positions))
    noise = question.noise
    shape: Shape = "groups" if question.weights is None else "weighted"
    mechanism: Mechanism = "gaussian" if noise.epsilon is None else "laplace"
    if question.kind == "blind" and noise.share is not None and stretch != 1.0:
        noise = replace(noise, share=min(noise.share * stretch, 1.0))
    if question.weights is None:
        unit = total_unit = question.norm / params.row_bound
        order: Order = 2 if mechanism == "gaussian" else 1
        rows, total, clipped = _integers(question, params.row_bound, order)
    else:
        rows, total, unit, total_unit, clipped = _weighted(question, params.row_bound)
    if question.triangular and _stands_behind_diagonal(rows):
        raise DataError("these rows are called triangular, and something stands behind a diagonal")
    cost = cost_of(shape, counts, params)
    everybody = len(question.positions) == terms.people
    positions = None if everybody else question.positions
    if question.alone:
        positions = question.positions + terms.first  # the plan's people are everybody's
    query = Query(
        query_id=f"{terms.id_prefix}{number:06d}",
        plan=terms.plan,
        purpose=purpose,
        kind=question.kind,
        shape=shape,
        attributes=question.expressions,
        columns=question.rows.shape[1],
        mechanism=mechanism,
        noise=noise.integer(cost, unit, terms.cap_units),
        norm=question.norm,
        weights=() if question.weights is None else tuple(question.weights.tolist()),
        positions=None if positions is None else pack_positions(positions),
        parameters=params.name,
        declaration=question.declaration,
        triangular=question.triangular,
    )
    shapes = shapes_of(query, counts, terms.people)  # capacity, before anything is sent
    people = slice(None) if everybody else question.positions
    alone = question.alone
    return Prepared(query, rows, total, unit, total_unit, clipped, people, shapes, alone)


def _integers(
    question: Question, row_bound: int, order: Order
) -> tuple[IntegerRows, NDArray[np.int64], int]:
    """Rows, public total, and how many rows were clipped, of group sums."""
    if isinstance(question.rows, RowSource):
        streamed = StreamedRows(question.rows, question.norm, row_bound, order)
        return streamed, streamed.total, streamed.clipped
    quantised = quantise(question.rows, question.norm, row_bound, order)
    return quantised.rows, quantised.rows.sum(axis=0, dtype=np.int64), quantised.clipped


def _stands_behind_diagonal(rows: IntegerRows) -> bool:
    """Has any row i something behind column i?"""
    first = rows_of(rows, slice(0, rows.shape[-1]))  # the others have no place behind theirs
    return bool((first & _behind_diagonal(*first.shape[-2:])).any())


@lru_cache(maxsize=4)  # training asks about chunks of one size
def _behind_diagonal(people: int, columns: int) -> NDArray[np.int32]:
    """(people, columns) all bits set behind the diagonal."""
    return -np.triu(np.ones((people, columns), np.int32), 1)


def _weighted(
    question: Question, row_bound: int
) -> tuple[NDArray[np.int32], NDArray[np.int64], float, float, int]:
    """Rows, public total, both units, and how many rows were clipped, of a weighted sum.

    Public is Σ ū·v_i, and the last group's integers, which the differences leave out.
    """
    weights = question.weights
    if weights is None or isinstance(question.rows, RowSource):
        raise ConfigError("a weighted sum needs weights, and rows in an array")
    norm, span = question.norm, question.span
    quantised = quantise_weighted(question.rows, weights, norm, row_bound)
    unit = span * norm / row_bound
    middle = (float(weights.min()) + span / 2) * norm * quantised.clipped_total
    public = middle + quantised.last_total * unit
    total_unit = float(np.abs(weights).max()) * norm / FIXED
    total = np.rint(public / total_unit).astype(np.int64)
    return quantised.rows, total, unit, total_unit, quantised.clipped


def public_answer(question: Question, labels: tuple[str, ...]) -> Release:
    """A weighted sum whose weights are equal needs no attribute: exact, free, without a record."""
    if isinstance(question.rows, RowSource):
        raise ConfigError("a weighted sum needs rows in an array")
    rows, clipped = clip_rows(question.rows, question.norm, 2)
    weight = 0.0 if question.weights is None else float(question.weights[0])
    total = weight * question.norm * rows.sum(axis=0)
    return Release(total, np.zeros(1), labels, clipped, None)


def assemble(prepared: Prepared, released: Released, terms: Terms) -> Release:
    """Values in the rows' units, the last group of each attribute, and the noise's deviation."""
    query, t = prepared.query, terms.params.plain_modulus
    integers = centre(released.integers & (t - 1), t)
    deviation = prepared.shapes.deviation * prepared.unit
    total, labels = released.public_total, tuple(chain(*map(terms.labels, query.attributes)))
    if query.shape == "weighted":
        values = total * prepared.total_unit + integers[0] * prepared.unit
        noise = np.array([deviation])
        return Release(values, noise, labels, prepared.clipped, released.receipt)
    sums, factors, start = [], list[float](), 0
    for size in prepared.shapes.group_counts:
        groups = integers[start : start + size - 1]
        start += size - 1
        # The last group is the public total minus the others, so its noise adds up.
        sums += [groups, (total - groups.sum(axis=0))[None]]
        factors += [1.0] * (size - 1) + [math.sqrt(size - 1)]
    values = np.concatenate(sums).astype(np.float64) * prepared.unit
    noise = deviation * np.array(factors)
    return Release(values, noise, labels, prepared.clipped, released.receipt)


def one_hot(cells: ArrayLike | None, people: int, max_columns: int) -> NDArray[np.float64]:
    """(people, cells) rows with a 1 in each person's cell; without cells one column of ones."""
    if cells is None:
        return np.ones((people, 1))
    index = np.asarray(cells)
    if index.shape != (people,) or not np.issubdtype(index.dtype, np.integer):
        raise DataError("cells must be one integer per person")
    if index.min() < 0 or index.max() >= max_columns:
        raise DataError(f"cells must lie between 0 and {max_columns - 1}")
    rows = np.zeros((people, int(index.max()) + 1))
    rows[np.arange(people), index] = 1.0
    return rows


def checked_weights(
    weights: ArrayLike, groups: int, norm: float, expression: str
) -> NDArray[np.float64]:
    """(groups,) weights whose spread can be scaled to the norm without leaving the floats."""
    try:
        u = np.asarray(weights, dtype=np.float64).reshape(-1)
    except (TypeError, ValueError):
        raise DataError(f"{expression!r} needs {groups} weights that are numbers") from None
    if len(u) != groups or not (np.abs(u) <= LARGEST).all():
        raise DataError(f"{expression!r} needs {groups} finite weights; got {len(u)}")
    spread = float(u.max() - u.min())
    if spread > 0 and not SMALLEST <= spread * norm <= LARGEST:
        raise DataError("the weights' range times the norm is too small or too large; rescale")
    return u
