"""The regulator's λ: follows a plan's answers, and refuses weights that do not follow from them.

Three declarations make up PF-LD (privacy.declarations; privacy.dual has the arithmetic):

    DualCounts             people per group and event; λ = 0          open
    DualStep               λ ← Π(λ + s·ṽ) from this very answer       open
    ConstraintGradient     weights must be u(λ) of that event         weighted

λ is a function of what was released, hence of the ledger: after a restart it is computed again from
the ledger's answers. A plan whose strategy is PF-LD gets no other weighted sum.
"""

from __future__ import annotations

import math

import numpy as np

from isonomy.common.base.errors import ConfigError, ProtocolError
from isonomy.common.privacy.declarations import ConstraintGradient, DualCounts, DualStep
from isonomy.common.privacy.dual import DualRule, Multipliers
from isonomy.common.privacy.queries import Query


def declared_counts(rule: DualRule, totals: list[int]) -> DualCounts:
    """How a count query declares the rule that its answer starts."""
    return DualCounts(rule.step, rule.bound, rule.damping, rule.signed, rule.least, tuple(totals))


class DualKeeper:
    """λ of one plan. `check` before a query is answered, `observe` once it is."""

    def __init__(self, *, required: bool = False) -> None:
        self._required = required
        self._multipliers: Multipliers | None = None
        self._attributes: tuple[str, ...] = ()
        self._after: dict[str, tuple[float, ...]] = {}  # query id -> λ after its dual step

    def check(self, query: Query, sizes: tuple[int, ...]) -> None:
        """Raise ProtocolError for weights that are not those of λ, or a step out of turn.

        Whatever passes here can be observed: every answer can be replayed from the ledger.
        """
        content = query.declaration.content
        if isinstance(content, DualCounts):
            self._check_counts(query, content, sizes)
        elif isinstance(content, DualStep):
            multipliers = self._started()
            if (query.kind, query.shape) != ("open", "groups") or not math.isfinite(query.norm):
                raise ProtocolError("a dual step is an open group sum with a finite norm")
            if (query.attributes, query.columns) != (self._attributes, multipliers.rule.events):
                raise ProtocolError("a dual step asks for the events and attributes of the counts")
        elif isinstance(content, ConstraintGradient):
            self._check_weights(query, content)
        elif query.shape == "weighted" and (self._required or self._multipliers is not None):
            raise ProtocolError("under pf_ld a weighted sum declares its constraint gradient")

    def observe(self, query: Query, sizes: tuple[int, ...], answer: np.ndarray) -> None:
        """Take an answer in: (sums, columns) released integers, flattened or not."""
        content = query.declaration.content
        released = answer.reshape(-1, query.columns).tolist()
        if isinstance(content, DualCounts):
            rule, bound = _rule(content, sizes), query.params.row_bound
            totals = content.totals
            self._multipliers = Multipliers.start(rule, released, totals, bound, query.norm)
            self._attributes = query.attributes
        elif isinstance(content, DualStep):
            self._multipliers = self._started().advance(released, query.norm)
            applied = self._multipliers.values()
            self._after[query.query_id] = tuple(value for row in applied for value in row)

    def after(self, query_id: str) -> tuple[float, ...] | None:
        """λ after the dual step of that query; None if it was not one."""
        return self._after.get(query_id)

    def round_of(self, query_id: str) -> int:
        """The number of the dual step that this query was, from 1."""
        return 1 + list(self._after).index(query_id)

    def _started(self) -> Multipliers:
        if self._multipliers is None:
            raise ProtocolError("a dual step comes after the counts that its rates need")
        return self._multipliers

    def _check_counts(self, query: Query, counts: DualCounts, sizes: tuple[int, ...]) -> None:
        if self._multipliers is not None:
            raise ProtocolError("the counts of a plan are released once; λ goes on from them")
        if (query.kind, query.shape) != ("open", "groups"):
            raise ProtocolError("the counts of pf_ld are an open group sum")
        if not 1.0 <= query.norm <= math.sqrt(query.columns):
            raise ProtocolError("the counts of pf_ld have norm 1, or √events at most")
        if len(counts.totals) != query.columns:
            raise ProtocolError("the count query declares one total per event")
        _rule(counts, sizes)

    def _check_weights(self, query: Query, gradient: ConstraintGradient) -> None:
        multipliers, place = self._started(), gradient.attribute
        if query.shape != "weighted":
            raise ProtocolError("a constraint gradient is a weighted sum")
        if place >= len(self._attributes) or gradient.event >= multipliers.rule.events:
            raise ProtocolError("the constraint gradient names an unknown attribute or event")
        if query.attributes != (self._attributes[place],):
            raise ProtocolError("the constraint gradient is about another attribute than it names")
        if query.weights != multipliers.weights(place, gradient.event):
            raise ProtocolError("the weights are not those of the multipliers λ")


def _rule(counts: DualCounts, sizes: tuple[int, ...]) -> DualRule:
    try:
        return DualRule(
            sizes,
            len(counts.totals),
            counts.step,
            counts.bound,
            counts.signed,
            counts.damping,
            counts.least,
        )
    except ConfigError as error:
        raise ProtocolError(str(error)) from None


__all__ = ["DualKeeper", "declared_counts"]
