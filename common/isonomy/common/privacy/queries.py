"""What a query is and what it costs: the one place where sensitivity becomes a debit.

    event (what was asked)  →  sensitivity in integers  →  units of μ²  →  ledger

Adjacency: one person's attributes are replaced (docs/design.md, section 1). With row norm ≤ C_int:

| release | changes by at most | Δ² |
|---|---|---|
| group sums, two groups | one row enters or leaves the one released column | C² |
| group sums, k > 2 groups | one row leaves one column and enters another | 2·C² |
| weighted sum Σ u_{A_i} v_i | a pairwise difference of the person's rows | C² (by quantisation) |
| several attributes at once | all of them change | the sum of the above |

Laplace noise takes L1 norms: C for two groups, 2·C for more, added over attributes.

`QueryLog` keeps what an oracle was asked, as far as other accountants need it. Queries with one
purpose form a *stage* (a strategy's counts, its θ steps, its W steps…): whom it was ever about (its
pool), and how many queries cost how much about how many people (company.gradient.paper_epsilon).
The guarantee does not use it: that is the regulator's ledger.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from isonomy.common.base.canonical import hash_bytes
from isonomy.common.base.errors import CapacityError, ConfigError
from isonomy.common.crypto.params import (
    DEFAULT_PARAMETERS,
    QUERY_SETS,
    Layout,
    ParameterSet,
    choose_layout,
    open_parameters,
)
from isonomy.common.privacy.accounting import (
    gaussian_units,
    laplace_units,
    sigma_for,
)
from isonomy.common.privacy.declarations import PLAIN, Declaration, DualCounts, DualStep
from isonomy.common.privacy.noise import MIN_SIGMA

PROTOCOL_VERSION = 2
_DUAL = (DualCounts, DualStep)  # their integers are compared over queries: all of one unit
MAX_ANSWERS = 4096  # ciphertexts of one query; bounds the company's memory to about 1.6 GB

Kind = Literal["blind", "open"]
Shape = Literal["groups", "weighted"]
Mechanism = Literal["gaussian", "laplace"]


@dataclass(frozen=True)
class Query:
    """What the company asks; the regulator sees all of it and prices it."""

    query_id: str
    plan: bytes
    purpose: str  # a label for people; what the query is stands in its declaration
    kind: Kind
    shape: Shape
    attributes: tuple[str, ...]
    columns: int
    mechanism: Mechanism
    noise: int
    norm: float
    weights: tuple[float, ...] = ()
    positions: bytes | None = None  # as they travel (`pack_positions`); None: everybody
    parameters: str = DEFAULT_PARAMETERS.name
    declaration: Declaration = PLAIN
    # Nobody's row has anything behind its diagonal: person i (from 0) only has columns 0 to i.
    triangular: bool = False

    @property
    def params(self) -> ParameterSet:
        return QUERY_SETS[self.parameters]

    def people(self, cohort_size: int) -> int:
        return cohort_size if self.positions is None else len(self.positions) // 4

    def position_array(self, cohort_size: int) -> NDArray[np.int64]:
        """Cohort positions of the people asked about; not to be written to."""
        return np.arange(cohort_size) if self.positions is None else self._array

    @cached_property
    def _array(self) -> NDArray[np.int64]:
        """Several steps on the way of a query want its positions as an array: made once."""
        array = np.frombuffer(self.positions or b"", "<u4").astype(np.int64)
        array.flags.writeable = False
        return array


def pack_positions(positions: ArrayLike) -> bytes:
    """Ascending positions as little-endian 32-bit integers: four bytes a person."""
    return np.asarray(positions).astype("<u4").tobytes()


def query_id_prefix(plan: bytes) -> str:
    """How every query id of a plan begins."""
    return f"{plan.hex()[:16]}-"


# Numbers of a plan's questions, so that no two companies of it ever ask under one id:
#     below 10^9                 questions that all companies ask together, or the only one asks
#     10^9 and 10^10, times p    those that company p (from 1) asks alone, and its audits
#     from 10^11                 audits that all ask together
_ALONE, _ALONE_AUDITS, _AUDITS = 10**9, 10**10, 10**11
_MOST_COMPANIES, _MOST_DIGITS = 7, 12


def audit_number(name: str, place: int | None = None) -> int:
    """The number in the id of an audit: its name decides, and the place of who asks alone.

    So an audit is the same question in every script of a plan, before or after a training, and
    takes no number from the training's own questions.
    """
    digest = int.from_bytes(hash_bytes("isonomy/audit-number/v1", name.encode())[:8])
    if place is None:
        return _AUDITS + digest % (9 * _AUDITS)
    return (place + 1) * _ALONE_AUDITS + digest % _ALONE_AUDITS


def alone_number(number: int, place: int) -> int:
    """The number of the question that the company at this place asks alone."""
    return (place + 1) * _ALONE + number


def asks_alone(query_id: str, plan: bytes) -> int | None:
    """The place of the company that alone may ask under this id; None: all ask together."""
    digits = query_id.removeprefix(query_id_prefix(plan))
    number = int(digits) if digits.isdecimal() and len(digits) <= _MOST_DIGITS else 0
    for first in (_ALONE, _ALONE_AUDITS):
        if first <= number < (_MOST_COMPANIES + 1) * first:
            return number // first - 1
    return None


@dataclass(frozen=True)
class Cost:
    """Sensitivity of a query in integers, and its noise bound."""

    squared_l2: int
    l1: int

    def sigma_for(self, units: int) -> int:
        """The least Gaussian noise whose debit is at most `units`."""
        return max(MIN_SIGMA, sigma_for(units, self.squared_l2))


def cost_of(shape: Shape, group_counts: tuple[int, ...], params: ParameterSet) -> Cost:
    """Table of the module's docstring, summed over the attributes of one query."""
    bound = params.row_bound
    if shape == "weighted":
        if len(group_counts) != 1:
            raise ConfigError("a weighted sum takes exactly one attribute (or one intersection)")
        return Cost(bound * bound, bound)
    moves = 2 * len(group_counts) - group_counts.count(2)
    return Cost(moves * bound * bound, moves * bound)


@dataclass(frozen=True)
class Shapes:
    """Everything that both parties derive alike from a query: its ciphertexts, noise and price."""

    layout: Layout
    group_counts: tuple[int, ...]  # of each attribute
    indicators: int  # encrypted columns per block: Σ (groups − 1)
    sums: int  # released vectors
    parts: int  # answer ciphertexts
    units: int  # what the ledger debits
    deviation: float  # of the noise, in integer units
    tail: int  # noise stays below it

    def with_block(self, block: int) -> Shapes:
        """The same people in blocks of another size: several companies use one size."""
        layout = replace(self.layout, block=block)
        return replace(self, layout=layout, parts=self.sums * layout.parts)


def shapes_of(query: Query, group_counts: tuple[int, ...], cohort_size: int) -> Shapes:
    """Capacity check first, then the layout; nothing is sent for a query that does not fit."""
    people = query.people(cohort_size)
    params, noise = QUERY_SETS[query.parameters], (query.mechanism, query.noise)
    if query.kind == "open":
        _check_open(query, people)
    return _shapes(params, query.shape, people, query.columns, noise, group_counts)


def _check_open(query: Query, people: int) -> None:
    """Refuse a query under another parameter set than sums over so many people are shown under."""
    expected, dual = open_parameters(people), isinstance(query.declaration.content, _DUAL)
    if people > query.params.max_open_people or (dual and expected is not DEFAULT_PARAMETERS):
        raise CapacityError(
            f"{people} people in one query whose sums the regulator sees; it carries "
            f"{DEFAULT_PARAMETERS.max_open_people} here. Split the query into chunks, or ask about "
            "a random sample."
        )
    if query.params is not expected:
        raise ConfigError(f"sums over {people} people are shown under {expected.name}")


@lru_cache(maxsize=256)  # both halves of a query ask, and training asks for the same shapes
def _shapes(
    params: ParameterSet,
    shape: Shape,
    people: int,
    columns: int,
    noise: tuple[Mechanism, int],
    group_counts: tuple[int, ...],
) -> Shapes:
    mechanism, level = noise
    cost = cost_of(shape, group_counts, params)
    if mechanism == "gaussian":
        units, deviation = gaussian_units(cost.squared_l2, level), float(level)
        tail = 12 * level  # the sampler's support
    else:
        # P(|noise| > 64·scale) < 10^-27; the deviation is right to within 1/(24·scale²).
        units, tail = laplace_units(cost.l1, level), 64 * level
        deviation = math.sqrt(2.0) * level
    params.check_capacity(people, columns, tail)
    indicators = sum(group_counts) - len(group_counts)
    sums = indicators if shape == "groups" else 1
    layout = choose_layout(params, people, columns, indicators=indicators, answers=sums)
    params.check_hiding(people, layout.block, 1 if shape == "groups" else indicators)
    parts = sums * layout.parts
    if parts > MAX_ANSWERS:
        raise CapacityError(
            f"{sums} sums of {columns} columns need {parts} ciphertexts; one query "
            f"holds {MAX_ANSWERS}. Ask for fewer columns or groups at a time."
        )
    return Shapes(layout, group_counts, indicators, sums, parts, units, deviation, tail)


# --- What was asked ------------------------------------------------------------------------------


@dataclass
class Stage:
    """All queries of one purpose: the pool of people, and (units, people) ↦ how many queries."""

    pool: NDArray[np.bool_]
    queries: Counter[tuple[int, int]] = field(default_factory=Counter)

    @property
    def pool_size(self) -> int:
        return int(self.pool.sum())


class QueryLog:
    """Stages by purpose, in the order of their first query."""

    def __init__(self, people: int) -> None:
        self.people = people
        self.stages: dict[str, Stage] = {}

    def add(self, purpose: str, units: int, people: NDArray[np.int64] | slice, count: int) -> None:
        """Note one answered query about these `count` people."""
        if purpose not in self.stages:
            self.stages[purpose] = Stage(np.zeros(self.people, np.bool_))
        stage = self.stages[purpose]
        stage.pool[people] = True
        stage.queries[(units, count)] += 1

    def to_json(self) -> list[dict[str, Any]]:
        """Stages without their pools, for checkpoints; `pools` holds these."""
        return [
            {"purpose": purpose, "queries": [[*key, n] for key, n in stage.queries.items()]}
            for purpose, stage in self.stages.items()
        ]

    @property
    def pools(self) -> NDArray[np.bool_]:
        """(stages, people)."""
        pools = [stage.pool for stage in self.stages.values()]
        return np.stack(pools) if pools else np.zeros((0, self.people), np.bool_)

    def restore(self, stages: list[dict[str, Any]], pools: NDArray[np.bool_]) -> None:
        """Go on from what `to_json` and `pools` gave."""
        if pools.shape != (len(stages), self.people):
            raise ConfigError("this log belongs to another cohort")
        if any(min(map(int, line)) < 0 for stage in stages for line in stage["queries"]):
            raise ConfigError("this log has queries of less than nothing")
        self.stages = {
            str(stage["purpose"]): Stage(
                pool.copy(), Counter({(int(u), int(p)): int(n) for u, p, n in stage["queries"]})
            )
            for stage, pool in zip(stages, pools, strict=True)
        }
