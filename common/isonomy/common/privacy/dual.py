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
floats of exact rationals. Regulator: `Multipliers.start`, then `advance` with the integers of each
dual answer, and `weights` must equal the weights of each primal query.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

from isonomy.common.base.errors import ConfigError

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


__all__ = ["BITS", "ONE", "DualRule", "Multipliers", "Table", "from_units", "to_units"]
