"""What carries a query to the regulator, and what may be asked through it.

    prepare(question) → Prepared        pure: clip, quantise, price, capacity        _question.py
    channel.exchange  → Released        Local, Encrypted or Pooled: how it travels
    assemble          → Release         pure: units, last group, deviation           _question.py

A channel says what it is (`Capabilities`); a strategy says what it needs (`Needs`). `check_needs`
compares the two before anything is asked, so that what does not fit is refused by name and free.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from isonomy.common.base.errors import ConfigError
from isonomy.common.crypto.params import DEFAULT_PARAMETERS, ParameterSet
from isonomy.common.people.cohort import Cohort, group_labels
from isonomy.common.privacy.queries import Query
from isonomy.common.privacy.query_log import QueryLog

Carrier = Literal["local", "encrypted", "pooled"]


@dataclass(frozen=True)
class Terms:
    """The approved plan, as far as questions depend on it. `cohort` is this company's people."""

    cohort: Cohort
    groups: Mapping[str, tuple[str, ...]]
    plan: bytes
    cap_units: int
    delta: float
    params: ParameterSet = DEFAULT_PARAMETERS

    def labels(self, expression: str) -> tuple[str, ...]:
        """The groups of an attribute or an intersection ("sex*race")."""
        if expression not in self._labels:
            self._labels[expression] = group_labels(expression, self.groups)
        return self._labels[expression]

    def group_counts(self, expressions: tuple[str, ...]) -> tuple[int, ...]:
        """How many groups each attribute or intersection has."""
        return tuple(len(self.labels(expression)) for expression in expressions)

    @cached_property
    def _labels(self) -> dict[str, tuple[str, ...]]:
        return {}  # worked out once, not per query


@dataclass(frozen=True)
class Capabilities:
    """What a channel is. All of it is public."""

    carrier: Carrier
    record_private: bool = False  # the plan promises that whole records are protected
    individual: bool = False  # the plan lets everybody pay for their own rows
    filtered: bool = False  # an individual filter stands before the channel

    @property
    def pooled(self) -> bool:
        """Several companies ask together."""
        return self.carrier == "pooled"


@dataclass(frozen=True)
class Needs:
    """What a strategy can work with."""

    strategy: str
    pooled: bool = False  # several companies may ask together
    filtered: bool = True  # an individual filter may stand before the channel
    record_private: bool = False  # it protects whole records
    true_attributes: bool = False  # it reads them: a comparison for rehearsals


def check_needs(needs: Needs, capabilities: Capabilities) -> None:
    """Raise ConfigError where the two do not fit. Nothing was asked, nothing is spent."""
    name = needs.strategy
    if needs.true_attributes and capabilities.carrier != "local":
        raise ConfigError(
            f"{name} needs the true attributes: it is a comparison for rehearsals without "
            "encryption, never a protocol. Nothing was asked."
        )
    if capabilities.pooled and not needs.pooled:
        raise ConfigError(
            f"{name} works for one company alone: with several, each company would fit or clip by "
            "its own rows, and their questions would differ. Several companies can audit together "
            "(isonomy.company.audit) and ask for sums. Nothing was asked."
        )
    if capabilities.filtered and not needs.filtered:
        raise ConfigError(f"{name} does not work under an individual filter. Nothing was asked.")
    if capabilities.record_private and not needs.record_private:
        raise ConfigError(
            "the approved plan promises that whole records are protected (record_privacy). Only "
            "the gradient trainer does that: Trainer(…, record_privacy=RecordPrivacy(epsilon=…)). "
            f"{name} asked nothing."
        )
    if needs.record_private and capabilities.filtered:
        raise ConfigError(
            "record privacy and the individual filter do not go together: the filter lets the "
            "noise of a query be smaller than what records are promised. Nothing was asked."
        )


@dataclass(frozen=True)
class Receipt:
    """Proof of what was paid: the ledger record of this release."""

    query_id: str
    units: int
    sequence: int
    ledger_head: bytes


@dataclass(frozen=True, repr=False)  # no repr: rows must not reach logs
class Prepared:
    """A query with the company's integers for it. The integers never leave in the clear.

    `public_total` is what this company knows of the answer without any attribute. Where several
    companies ask together, the totals are added up, so they are integers: the sum of the rows for
    group sums, and fixed point (_question.FIXED) for the public part of a weighted sum.
    """

    query: Query
    rows: NDArray[np.int32]  # (n, m) for groups; (groups − 1, n, m) differences for weighted sums
    public_total: NDArray[np.int64]  # (m,)
    unit: float  # what one integer step is worth
    total_unit: float  # what one step of the public total is worth
    clipped: int

    @property
    def positions(self) -> NDArray[np.int64] | None:
        """Positions of the people asked about; None: everybody."""
        return None if self.query.positions is None else self.query.position_array(0)


@dataclass(frozen=True)
class Released:
    """What came back: noised integers without mask, and the public total of all companies."""

    integers: NDArray[np.int64]  # (sums, m)
    public_total: NDArray[np.int64]  # (m,)
    receipt: Receipt


class Channel(Protocol):
    """How a prepared query travels. Nothing else about an oracle varies."""

    @property
    def terms(self) -> Terms: ...
    @property
    def capabilities(self) -> Capabilities: ...

    def exchange(self, prepared: Prepared) -> Released:
        """Carry the query. An id that was answered before gets the same answer, for free."""

    def confirm_multipliers(self, query_id: str, values: tuple[float, ...]) -> None:
        """Compare λ after a dual step with the regulator's; ProtocolError if they differ."""

    def close(self, error: BaseException | None = None) -> None:
        """End what the channel holds open; the other parties are told the error, if any."""


class Wrapper:
    """A channel around another one; says and does the same."""

    def __init__(self, inner: Channel) -> None:
        self.inner = inner

    @property
    def terms(self) -> Terms:
        return self.inner.terms

    @property
    def capabilities(self) -> Capabilities:
        return self.inner.capabilities

    def exchange(self, prepared: Prepared) -> Released:
        return self.inner.exchange(prepared)

    def confirm_multipliers(self, query_id: str, values: tuple[float, ...]) -> None:
        self.inner.confirm_multipliers(query_id, values)

    def close(self, error: BaseException | None = None) -> None:
        self.inner.close(error)


class Logged(Wrapper):
    """Keeps the query log: what was asked about whom, as far as accounting needs it."""

    def __init__(self, inner: Channel) -> None:
        super().__init__(inner)
        self.log = QueryLog(len(inner.terms.cohort))

    def exchange(self, prepared: Prepared) -> Released:
        released = self.inner.exchange(prepared)
        query = prepared.query
        positions = query.position_array(len(self.terms.cohort))
        self.log.add(query.purpose, released.receipt.units, positions)
        return released


__all__ = [
    "Capabilities",
    "Carrier",
    "Channel",
    "Logged",
    "Needs",
    "Prepared",
    "Receipt",
    "Released",
    "Terms",
    "Wrapper",
    "check_needs",
]
