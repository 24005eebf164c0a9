"""The regulator's λ: follows a plan's answers, and refuses weights that do not follow from them.

Three kinds of query make up PF-LD (dual.py has the arithmetic). They are told apart by purpose, so
that the ledger shows them to people too:

    pf_ld counts s=… b=… d=… g=… l=… t=…,…    people per group and event; λ = 0        open
    pf_ld dual step                            λ ← Π(λ + s·ṽ) from this very answer     open
    pf_ld gradient a=… e=…                     weights must be u(λ) of that event       weighted

The letters are the rule: step, bound, damping (units of 2^-32), flags (1 signed, 2 adaptive), least
count and the events' totals (units of 1/Q people). λ is a function of what was released, hence of
the ledger: after a restart `replay` computes it again. A plan whose strategy is PF-LD gets no other
weighted sum.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import numpy as np

from isonomy.common.base.errors import ConfigError, ProtocolError
from isonomy.common.privacy.dual import DualRule, Multipliers
from isonomy.common.privacy.queries import Query

DUAL_PURPOSE = "pf_ld dual step"
_COUNTS = re.compile(r"pf_ld counts s=(\d+) b=(\d+) d=(\d+) g=([0-3]) l=(\d+) t=(\d+(?:,\d+)*)")
_GRADIENT = re.compile(r"pf_ld gradient a=(\d+) e=(\d+)")


def counts_purpose(rule: DualRule, totals: Sequence[int]) -> str:
    """How a count query declares the rule that its answer starts."""
    flags = int(rule.signed) + 2 * int(rule.adaptive)
    numbers = f"s={rule.step} b={rule.bound} d={rule.damping} g={flags} l={rule.least}"
    return f"pf_ld counts {numbers} t={','.join(str(total) for total in totals)}"


def gradient_purpose(attribute: int, event: int) -> str:
    """How a primal query names the weights that it carries."""
    return f"pf_ld gradient a={attribute} e={event}"


class DualKeeper:
    """λ of one plan. `check` before a query is answered, `observe` when it was."""

    def __init__(self, *, required: bool = False) -> None:
        self._required = required
        self._now: Multipliers | None = None
        self._attributes: tuple[str, ...] = ()
        self._after: dict[str, tuple[float, ...]] = {}  # query id -> λ after its dual step

    def check(self, query: Query, sizes: tuple[int, ...]) -> None:
        """Raise ProtocolError for weights that are not those of λ, or a step out of turn.

        Whatever passes here can be observed: nothing that was answered may fail to be replayed.
        """
        if query.purpose.startswith("pf_ld counts"):
            self._check_counts(query, sizes)
        elif query.purpose == DUAL_PURPOSE:
            now = self._started()
            if (query.kind, query.shape) != ("open", "groups") or not math.isfinite(query.norm):
                raise ProtocolError("a dual step is an open group sum with a finite norm")
            if (query.attributes, query.columns) != (self._attributes, now.rule.events):
                raise ProtocolError("a dual step asks for the events and attributes of the counts")
        elif query.shape == "weighted" and (self._required or self._now is not None):
            self._check_weights(query)

    def observe(self, query: Query, sizes: tuple[int, ...], answer: np.ndarray) -> None:
        """Take an answer in: (sums, columns) released integers, flattened or not."""
        released = answer.reshape(-1, query.columns).tolist()
        counted = _COUNTS.fullmatch(query.purpose)
        if counted is not None:
            rule, totals = _rule(counted, sizes)
            self._now = Multipliers.start(
                rule, released, totals, query.params.row_bound, query.norm
            )
            self._attributes = query.attributes
        elif query.purpose == DUAL_PURPOSE:
            self._now = self._started().advance(released, query.norm)
            applied = self._now.values()
            self._after[query.query_id] = tuple(value for row in applied for value in row)

    def after(self, query_id: str) -> tuple[float, ...] | None:
        """λ after the dual step of that query; None if it was not one."""
        return self._after.get(query_id)

    def round_of(self, query_id: str) -> int:
        """The how-manieth dual step that query was, from 1."""
        return 1 + list(self._after).index(query_id)

    def _started(self) -> Multipliers:
        if self._now is None:
            raise ProtocolError("a dual step comes after the counts that its rates need")
        return self._now

    def _check_counts(self, query: Query, sizes: tuple[int, ...]) -> None:
        found = _COUNTS.fullmatch(query.purpose)
        if found is None:
            raise ProtocolError("the count query of pf_ld does not declare its rule")
        if self._now is not None:
            raise ProtocolError("the counts of a plan are released once; λ goes on from them")
        if (query.kind, query.shape) != ("open", "groups"):
            raise ProtocolError("the counts of pf_ld are an open group sum")
        if not 1.0 <= query.norm <= math.sqrt(query.columns):
            raise ProtocolError("the counts of pf_ld have norm 1, or √events at most")
        if len(found.group(6).split(",")) != query.columns:
            raise ProtocolError("the count query declares one total per event")
        _rule(found, sizes)

    def _check_weights(self, query: Query) -> None:
        found = _GRADIENT.fullmatch(query.purpose)
        if found is None:
            raise ProtocolError("under pf_ld a weighted sum is a constraint gradient, named so")
        now, attribute, event = self._started(), int(found.group(1)), int(found.group(2))
        if attribute >= len(self._attributes) or event >= now.rule.events:
            raise ProtocolError("the constraint gradient names an unknown attribute or event")
        if query.attributes != (self._attributes[attribute],):
            raise ProtocolError("the constraint gradient is about another attribute than it names")
        if query.weights != now.weights(attribute, event):
            raise ProtocolError("the weights are not those of the multipliers λ")


def _rule(found: re.Match[str], sizes: tuple[int, ...]) -> tuple[DualRule, list[int]]:
    step, bound, damping, flags, least = (int(found.group(i)) for i in range(1, 6))
    totals = [int(total) for total in found.group(6).split(",")]
    try:
        signed, adaptive = bool(flags & 1), bool(flags & 2)
        rule = DualRule(sizes, len(totals), step, bound, signed, damping, least, adaptive)
    except ConfigError as error:
        raise ProtocolError(str(error)) from None
    return rule, totals


__all__ = ["DUAL_PURPOSE", "DualKeeper", "counts_purpose", "gradient_purpose"]
