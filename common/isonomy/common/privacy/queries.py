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
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from isonomy.common.base.errors import CapacityError, ConfigError
from isonomy.common.crypto.packing import Layout, choose_layout
from isonomy.common.crypto.params import DEFAULT_PARAMETERS, ParameterSet, parameter_set
from isonomy.common.privacy.accounting import (
    gaussian_units,
    laplace_units,
    sigma_for,
)
from isonomy.common.privacy.declarations import PLAIN, Declaration
from isonomy.common.privacy.noise import MIN_SIGMA

PROTOCOL_VERSION = 1
MAX_ANSWERS = 4096  # ciphertexts of one query; bounds the company's memory to about 1.6 GB

Kind = Literal["blind", "open"]
Shape = Literal["groups", "weighted"]
Mechanism = Literal["gaussian", "laplace"]

_GAUSSIAN_TAIL = 12  # the sampler's support is ±12σ
_LAPLACE_TAIL = 64  # P(|noise| > 64·scale) < 10^-27: what capacity must hold


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
    positions: tuple[int, ...] | None = None
    parameters: str = DEFAULT_PARAMETERS.name
    declaration: Declaration = PLAIN

    @property
    def params(self) -> ParameterSet:
        return parameter_set(self.parameters)

    def people(self, cohort_size: int) -> int:
        return cohort_size if self.positions is None else len(self.positions)

    def position_array(self, cohort_size: int) -> NDArray[np.int64]:
        """Cohort positions of the people asked about; not to be written to."""
        return np.arange(cohort_size) if self.positions is None else self._array

    @cached_property
    def _array(self) -> NDArray[np.int64]:
        """Several steps on the way of a query want its positions as an array: made once."""
        array = np.array(self.positions, dtype=np.int64)
        array.flags.writeable = False
        return array


def query_id_prefix(plan: bytes) -> str:
    """How every query id of a plan begins."""
    return f"{plan.hex()[:16]}-"


@dataclass(frozen=True)
class Cost:
    """Sensitivity of a query in integers, and its noise bound."""

    squared_l2: int
    l1: int

    def units(self, mechanism: Mechanism, noise: int) -> int:
        if mechanism == "gaussian":
            return gaussian_units(self.squared_l2, noise)
        return laplace_units(self.l1, noise)

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
    moves = sum(1 if groups == 2 else 2 for groups in group_counts)
    return Cost(moves * bound * bound, moves * bound)


def noise_bound(mechanism: Mechanism, noise: int) -> int:
    """How far the noise reaches, for the capacity check."""
    return noise * (_GAUSSIAN_TAIL if mechanism == "gaussian" else _LAPLACE_TAIL)


def noise_deviation(mechanism: Mechanism, noise: int) -> float:
    """Standard deviation of the noise in integer units."""
    if mechanism == "gaussian":
        return float(noise)
    return float(np.sqrt(2.0)) * noise  # of the discrete law, to within 1/(24·scale²)


@dataclass(frozen=True)
class Shapes:
    """Everything about a query's ciphertexts that both parties derive from it alike."""

    layout: Layout
    indicators: int  # encrypted columns per block: Σ (groups − 1)
    sums: int  # released vectors

    @property
    def parts(self) -> int:
        return self.sums * self.layout.parts


def shapes_of(query: Query, group_counts: tuple[int, ...], cohort_size: int) -> Shapes:
    """Capacity check first, then the layout; nothing is sent for a query that does not fit."""
    bound = noise_bound(query.mechanism, query.noise)
    people = query.people(cohort_size)
    return _shapes(query.parameters, query.shape, people, query.columns, bound, group_counts)


@lru_cache(maxsize=256)  # both halves of a query ask, and training asks for the same shapes
def _shapes(
    parameters: str,
    shape: Shape,
    people: int,
    columns: int,
    noise: int,
    group_counts: tuple[int, ...],
) -> Shapes:
    params = parameter_set(parameters)
    params.check_capacity(people, columns, noise)
    indicators = sum(groups - 1 for groups in group_counts)
    sums = indicators if shape == "groups" else 1
    layout = choose_layout(params, people, columns, indicators=indicators, answers=sums)
    params.check_hiding(people, layout.block, 1 if shape == "groups" else indicators)
    shapes = Shapes(layout, indicators, sums)
    if shapes.parts > MAX_ANSWERS:
        raise CapacityError(
            f"{sums} sums of {columns} columns need {shapes.parts} ciphertexts; one query "
            f"holds {MAX_ANSWERS}. Ask for fewer columns or groups at a time."
        )
    return shapes
