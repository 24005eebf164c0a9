"""The dual step of PF-LD in integers: regulator and company compute the same λ, bit for bit.

λ must be a function of released answers only (docs/design.md, section 2). The regulator computes
it, the company recomputes it, the primal query carries the weights u, and a mismatch is refused.
Floats would make that depend on the machine; so everything here is Python integers and exact
rationals.

Notation: attribute j has k_j groups, e runs over the notion's events (whom a rate is about), Q is
the parameter set's row bound (2^20), and λ, v and s are integers in units of 2^-32.

    counts        released N_ae for all groups but each attribute's last, in units of 1/Q people
                  (released in units of C/Q with the query's norm C, 1 unless somebody is in several
                  events, and turned into these).
                  Last group: T_e − Σ N_ae, with T_e the declared number of members of event e,
                  times Q. A cell with N_ae below the rule's `least` is too small to measure: it
                  takes no part, v_ae = λ_ae = 0 for good
    answers       released S_ae = Σ_{A_i = a} q_ie for all groups but each attribute's last, where
                  q_ie is the quantised row (h_ie − h̄_e)/C, and h̄_e the public mean over members.
                  Centred rows add up to nothing, so the last group is S_ke = −Σ S_ae
    violation     v_ae = −S_ae·C/N_ae                       μ(D_P) − μ(D_G): paper's Eq. (3b)
    signed        λ_ae ← Π_[−B, B](λ_ae + s·v_ae)           the default
    unsigned      λ_ae ← Π_[ 0, B](λ_ae + s·|v_ae|), and the constraint carries the sign of the
                  last *released* v_ae                      Eq. (10) as printed, made private
    applied       ν_ae = Π_[−B, B](λ_ae + ρ·v_ae)           v_ae of the last step; ρ = 0: λ itself.
                  The augmented Lagrangian's term ρ/2·v², linearised: it damps the swings of λ
    weights       u_ae = (Σ_b ν_be)/n_e − ν_ae/n_ae         of ∇h_ie in the primal query, Eq. (8)

Every quotient is rounded to the nearest integer, halves up (`_nearest`); weights are the nearest
floats of exact rationals.

The regulator's `DualKeeper` follows a plan's answers and refuses weights that do not follow from
them. Three declarations make up PF-LD (privacy.declarations):

    DualCounts             people per group and event; λ = 0          open
    DualStep               λ ← Π(λ + s·ṽ) from this very answer       open
    ConstraintGradient     weights must be u(λ) of that event         weighted

λ is a function of what was released, hence of the ledger: after a restart it is computed again from
the ledger's answers. A plan whose strategy is PF-LD gets no other weighted sum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

import numpy as np

from isonomy.common.base.errors import ConfigError, ProtocolError
from isonomy.common.privacy.declarations import ConstraintGradient, DualCounts, DualStep
from isonomy.common.privacy.queries import Query

BITS = 32
ONE = 1 << BITS
"""λ, violations and step sizes are integers in units of 2^-32."""

Table = tuple[tuple[int, ...], ...]  # one row per group (all attributes in a row), one per event


@dataclass(frozen=True)
class DualRule:
    """What both parties fix before the first dual step."""

    sizes: tuple[int, ...]  # groups of each attribute
    events: int
    step: int  # s, in units of 2^-32
    bound: int  # B = λ^max, in units of 2^-32
    signed: bool = True
    damping: int = 0  # ρ, in units of 2^-32
    least: int = 1  # cells with a smaller released count take no part, in units of 1/Q people

    def __post_init__(self) -> None:
        if not self.sizes or any(size < 2 for size in self.sizes) or self.events < 1:
            raise ConfigError("a dual step needs two groups per attribute and one event at least")
        if self.step < 1 or self.bound < 1 or self.least < 1 or self.damping < 0:
            raise ConfigError("the dual step size, bound and least count must be positive")

    @classmethod
    def of(
        cls,
        sizes: Sequence[int],
        events: int,
        *,
        step: float,
        bound: float,
        signed: bool = True,
        damping: float = 0.0,
        least: int = 1,
    ) -> DualRule:
        """From floats, which are rounded once, here."""
        return cls(
            tuple(sizes),
            events,
            to_units(step),
            to_units(bound),
            signed,
            to_units(damping),
            least,
        )


@dataclass(frozen=True)
class Multipliers:
    """λ after some dual steps, with the counts that turn sums into rates."""

    rule: DualRule
    row_bound: int
    totals: tuple[int, ...]  # (events,) declared members of each event, times row_bound
    counts: Table  # (groups, events), in units of 1/row_bound people; 0: takes no part
    lam: Table  # (groups, events)
    violation: Table  # (groups, events) of the last step

    @classmethod
    def start(
        cls,
        rule: DualRule,
        released: Sequence[Sequence[int]],
        totals: Sequence[int],
        row_bound: int,
        norm: float = 1.0,
    ) -> Multipliers:
        """λ = 0, from the integers of the one count release (all groups but each last)."""
        scale = Fraction(norm).as_integer_ratio()
        people = [[_nearest(int(n) * scale[0], scale[1]) for n in row] for row in released]
        full = _with_last(people, [int(total) for total in totals], rule)
        counts = tuple(tuple(n if n >= rule.least else 0 for n in row) for row in full)
        zero = tuple((0,) * rule.events for _ in counts)
        return cls(rule, row_bound, tuple(int(t) for t in totals), counts, zero, zero)

    def advance(self, released: Sequence[Sequence[int]], norm: float) -> Multipliers:
        """One dual step from the integers of a dual answer whose rows had norm bound `norm`."""
        sums = _with_last(released, [0] * self.rule.events, self.rule)
        numerator, denominator = Fraction(norm).as_integer_ratio()
        violation = tuple(
            tuple(
                _nearest(-s * numerator * ONE, denominator * n) if n else 0
                for s, n in zip(group_sums, counts, strict=True)
            )
            for group_sums, counts in zip(sums, self.counts, strict=True)
        )
        lam = tuple(
            tuple(self._moved(lam_ae, v_ae) for lam_ae, v_ae in zip(before, now, strict=True))
            for before, now in zip(self.lam, violation, strict=True)
        )
        return replace(self, lam=lam, violation=violation)

    def weights(self, attribute: int, event: int) -> tuple[float, ...]:
        """(groups of the attribute,) u of the primal query about one event, exact to the float."""
        if (attribute, event) not in self._weights:  # every chunk of a round asks
            self._weights[attribute, event] = self._exact_weights(attribute, event)
        return self._weights[attribute, event]

    @cached_property
    def _weights(self) -> dict[tuple[int, int], tuple[float, ...]]:
        return {}

    def _exact_weights(self, attribute: int, event: int) -> tuple[float, ...]:
        start = sum(self.rule.sizes[:attribute])
        groups = range(start, start + self.rule.sizes[attribute])
        applied = [self._applied(group, event) for group in groups]
        scale = self.row_bound  # counts are in units of 1/row_bound, λ in units of 2^-32
        common = Fraction(sum(applied) * scale, max(self.totals[event], scale) * ONE)
        return tuple(
            float(common - Fraction(lam * scale, max(self.counts[group][event], 1) * ONE))
            for lam, group in zip(applied, groups, strict=True)
        )

    def applied(self, attribute: int, event: int) -> tuple[float, ...]:
        """(groups of the attribute,) ν of one event, as floats."""
        start = sum(self.rule.sizes[:attribute])
        groups = range(start, start + self.rule.sizes[attribute])
        return tuple(from_units(self._applied(group, event)) for group in groups)

    def values(self) -> list[list[float]]:
        """(groups, events) ν as it is applied, as floats for people to read."""
        return [
            [from_units(self._applied(group, event)) for event in range(self.rule.events)]
            for group in range(len(self.lam))
        ]

    def _moved(self, lam: int, violation: int) -> int:
        """λ_ae after a step with violation v_ae."""
        along = violation if self.rule.signed else abs(violation)
        least = -self.rule.bound if self.rule.signed else 0
        return max(least, min(self.rule.bound, lam + _nearest(self.rule.step * along, ONE)))

    def _applied(self, group: int, event: int) -> int:
        lam, v = self.lam[group][event], self.violation[group][event]
        if not self.rule.signed:
            lam *= (v > 0) - (v < 0)
        nu = lam + _nearest(self.rule.damping * v, ONE)
        return max(-self.rule.bound, min(self.rule.bound, nu))


def to_units(value: float) -> int:
    """A float in units of 2^-32, nearest."""
    return _nearest(*(Fraction(value) * ONE).as_integer_ratio())


def from_units(value: int) -> float:
    """The float nearest to an integer in units of 2^-32."""
    return float(Fraction(value, ONE))


def _nearest(numerator: int, denominator: int) -> int:
    """⌊numerator/denominator + ½⌋ for a positive denominator, in integers."""
    return (2 * numerator + denominator) // (2 * denominator)


def _with_last(released: Sequence[Sequence[int]], totals: Sequence[int], rule: DualRule) -> Table:
    """(groups, events): each attribute's last group is the total minus its others."""
    if len(released) != sum(rule.sizes) - len(rule.sizes):
        raise ConfigError(
            f"expected released sums of {sum(rule.sizes) - len(rule.sizes)} groups (all but the "
            f"last of each attribute), got {len(released)}"
        )
    if any(len(row) != rule.events for row in released) or len(totals) != rule.events:
        raise ConfigError(f"every group has one number per event ({rule.events})")
    rows: list[tuple[int, ...]] = []
    start = 0
    for size in rule.sizes:
        groups = [tuple(int(v) for v in row) for row in released[start : start + size - 1]]
        last = tuple(t - sum(row[e] for row in groups) for e, t in enumerate(totals))
        rows += [*groups, last]
        start += size - 1
    return tuple(rows)


# --- The regulator's λ ---------------------------------------------------------------------------


def declared_counts(rule: DualRule, totals: list[int]) -> DualCounts:
    """How a count query declares the rule that its answer starts."""
    return DualCounts(rule.step, rule.bound, rule.damping, rule.signed, rule.least, tuple(totals))


class DualKeeper:
    """λ of one plan. `check` before a query is answered, `observe` once it is."""

    def __init__(self, *, required: bool = False) -> None:
        self._required = required
        self._multipliers: Multipliers | None = None
        self._attributes: tuple[str, ...] = ()
        # By query id: the number of its dual step, from 1, and λ after it.
        self.after: dict[str, tuple[int, tuple[float, ...]]] = {}

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
        # Without this a company could ask for weighted sums with weights of its choice, undeclared.
        elif query.shape == "weighted" and (self._required or self._multipliers is not None):
            raise ProtocolError("under pf_ld a weighted sum declares its constraint gradient")

    def observe(self, query: Query, sizes: tuple[int, ...], answer: np.ndarray) -> None:
        """Take an answer in: (sums, columns) released integers, flattened or not."""
        content = query.declaration.content
        if not isinstance(content, DualCounts | DualStep):
            return
        released = answer.reshape(-1, query.columns).tolist()
        if isinstance(content, DualCounts):
            rule, bound = _rule(content, sizes), query.params.row_bound
            totals = content.totals
            self._multipliers = Multipliers.start(rule, released, totals, bound, query.norm)
            self._attributes = query.attributes
        else:
            self._multipliers = self._started().advance(released, query.norm)
            applied = self._multipliers.values()
            values = tuple(value for row in applied for value in row)
            self.after[query.query_id] = (len(self.after) + 1, values)

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
