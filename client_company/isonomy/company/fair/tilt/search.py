"""λ: the smallest tilt whose estimated violation is within the tolerance.

Two groups, one event, two classes: the estimated gap falls with λ; bisection. Otherwise the convex
dual of "least error subject to the tolerances", smoothed with temperature T,

    D(λ) = mean_i T·ln(1 + Σ_j e^{margin_ij(λ)/T}) − Σ λ_ae o_ae + Σ b_ae |λ_ae| − offset·rate

whose gradient in λ_ae is −(rate of e in a, by the proxy) − o_ae ± b_ae. The offsets o_ae make up
for the difference between soft proxy rates and the audited estimates of the *hard* decisions; they
are re-fitted a few times. b_ae = γ_e/2 + slack_ae lets rates differ by γ, and more where the budget
cannot measure. Last, a derivative-free polish of error + 2·(excess over the tolerance).

Everything here is post-processing of releases and public numbers: it costs no privacy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit

from isonomy.company.fair.tilt.notions import Event, centred
from isonomy.company.fair.tilt.rule import HALF, Costs, Tilt, base_margins, decide, margins

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

TEMPERATURE = 0.02
EXCHANGE = 2.0  # polish: one point of excess violation weighs two points of error
_BISECTIONS = 40
_OFFSETS = 6
_POLISH = 1_000  # evaluations at most: more do not help where λ has many entries


@dataclass(frozen=True)
class Landscape:
    """All that the search needs, for the people of the releases."""

    events: tuple[Event, ...]
    blocks: tuple[slice, ...]  # the groups of each attribute
    y: Ints  # (rows,) labels
    weight: Floats  # (rows,)
    proba: Floats  # (rows, classes) out-of-fold probabilities
    cost: Costs
    member: Floats  # (rows, groups) ĝ: what the releases know, times weight
    counts: Floats  # (groups, events) people of each group among an event's members
    slack: Floats  # (groups, events) what cannot be measured
    tolerance: Floats  # (attributes, events)
    keep_rate: float | None = None  # share of positives to keep
    cut: float = HALF  # of the base model's rule
    losses: Floats | None = None  # (rows, classes) of each choice; None: 1 where it is wrong

    @property
    def shape(self) -> tuple[int, int]:
        return self.counts.shape[0], len(self.events)

    def centred(self, decided: Ints) -> tuple[Floats, Floats]:
        """(rows, events) u = M·(z − pooled rate), and the pooled rates (events,)."""
        return centred(self.events, decided, self.y, self.weight)

    def rates(self, decided: Ints) -> Floats:
        """(groups, events) estimated rates, less the pooled rate: Σ_i ĝ_a(i) u_e(i) / n_ae.

        u depends on label and decision only, so a sum for each such cell says it all.
        """
        classes = self.proba.shape[1]
        label, choice = np.divmod(np.arange(classes**2), classes)
        cell = classes * self.y + decided  # (rows,)
        sums = np.stack([np.bincount(cell, m, classes**2) for m in (self.weight, *self.member.T)])
        inside = np.column_stack([event.members(label) for event in self.events])
        hits = inside * np.column_stack([e.happened(choice, label) for e in self.events])
        members, happened = sums @ inside, sums @ hits  # (1 + groups, events)
        pooled = happened[0] / np.maximum(members[0], 1e-300)
        return np.asarray((happened[1:] - pooled * members[1:]) / self.counts)

    def decide(self, tilt: Tilt) -> tuple[Ints, Tilt]:
        """Decisions, and the tilt with the offset that keeps the selection rate, if asked for."""
        if self.keep_rate is None or not tilt.size:
            return decide(margins(self.proba, self.cost, tilt, self.cut)), tilt
        margin = margins(self.proba, self.cost, Tilt(tilt.lam), self.cut)
        offset = -weighted_quantile(margin[:, 0], self.weight, 1 - self.keep_rate)
        return decide(margin + offset), Tilt(tilt.lam, offset)

    def error(self, decided: Ints) -> float:
        if self.losses is not None:
            each = self.losses[np.arange(len(decided)), decided]
            return float(self.weight @ each / self.weight.sum())
        return float(self.weight @ (decided != self.y) / self.weight.sum())

    def loss(self, decided: Ints) -> float:
        """The error, with the two mistakes weighed as the cut-off weighs them.

        Selecting above c is best where a wrong selection costs c and a wrong refusal 1 − c.
        """
        if self.cut == HALF:
            return self.error(decided)
        price = np.where(decided == 1, 2 * self.cut, 2 * (1 - self.cut))
        return float(self.weight @ (price * (decided != self.y)) / self.weight.sum())

    def violation(self, rates: Floats) -> float:
        """Largest difference of two groups' rates."""
        return max(float(np.ptp(rates[block], axis=0).max()) for block in self.blocks)

    def excess(self, rates: Floats) -> float:
        """By how much the tolerances (and slack) are exceeded; may be negative."""
        high, low = rates - self.slack, rates + self.slack
        return max(
            float((high[block].max(axis=0) - low[block].min(axis=0) - tolerance).max())
            for block, tolerance in zip(self.blocks, self.tolerance, strict=True)
        )

    @property
    def simple(self) -> bool:
        return self.shape == (2, 1) and self.proba.shape[1] == 2


def weighted_quantile(values: Floats, weight: Floats, level: float) -> float:
    """The smallest value with at least `level` of the weight at or below it."""
    order = np.argsort(values, kind="stable")
    share = np.cumsum(weight[order]) / weight.sum()
    first = int(np.searchsorted(share, level - 1e-12))
    return float(values[order[min(first, len(order) - 1)]])


def search(land: Landscape, start: Tilt | None = None) -> Tilt:
    """The tilt for this landscape; `start` is an earlier one to go on from."""
    none = Tilt.none(*land.shape)
    if land.excess(land.rates(land.decide(none)[0])) <= 0:
        return none
    if land.simple:
        return bisect(land)
    return polish(land, solve_dual(land, start or none))


def bisect(land: Landscape) -> Tilt:
    """Two groups, one event: λ = s·(1, −1)·t, t ≥ 0 the smallest with gap ≤ γ."""
    tolerance = float(land.tolerance[0, 0] + land.slack.sum())

    def signed_gap(tilt: Tilt) -> float:
        rates = land.rates(land.decide(tilt)[0])
        return float(rates[0, 0] - rates[1, 0])

    sign = float(np.sign(signed_gap(Tilt.none(2, 1)))) or 1.0
    direction = sign * np.array([[1.0], [-1.0]])

    def gap(t: float) -> float:
        return sign * signed_gap(Tilt(t * direction))

    low, high = 0.0, 0.05
    while gap(high) > tolerance:
        low, high = high, 2 * high
        if high > 100.0:  # no tilt of this proxy closes the gap: the one that comes nearest
            steps = np.geomspace(0.01, 100.0, 60)
            return land.decide(Tilt(steps[np.argmin([abs(gap(t)) for t in steps])] * direction))[1]
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if gap(middle) > tolerance else (low, middle)
        if high - low < 1e-6 * high:
            break
    # Where the gap jumps (every person of a cell flips at once) the near side may be the better.
    either = (Tilt(high * direction), Tilt(low * direction))
    return land.decide(min(either, key=lambda tilt: merit(land, tilt)))[1]


def solve_dual(land: Landscape, start: Tilt) -> Tilt:
    """Offset iterations around L-BFGS; the best of all iterates by `merit`."""
    # The step of 0.7 is damped, because hard rates jump as λ moves.
    offsets = np.zeros(land.shape)
    best, best_merit = start, merit(land, start)
    current = start
    for _ in range(_OFFSETS):
        current, soft = _Dual(land, offsets).minimise(current)
        decided, current = land.decide(current)
        value = merit(land, current)
        if value < best_merit:
            best, best_merit = current, value
        hard = land.rates(decided) + land.centred(decided)[1]
        offsets = offsets + 0.7 * (hard - soft - offsets)
    return best


class _Dual:
    """D as a function of x: λ of the free groups, then the offset if the selection rate is kept."""

    def __init__(self, land: Landscape, offsets: Floats) -> None:
        self._land, self._offsets = land, offsets
        self._basis = _free_basis(land.blocks, land.shape[0])  # (groups, free)
        sizes = [block.stop - block.start for block in land.blocks]
        self._bound = np.repeat(land.tolerance / 2, sizes, axis=0) + land.slack
        self._share = land.weight / land.weight.sum()
        self._margin = base_margins(land.proba, land.cut)

    def minimise(self, start: Tilt) -> tuple[Tilt, Floats]:
        """argmin D, and the soft proxy rates (groups, events) there."""
        x = (np.linalg.pinv(self._basis) @ start.lam).reshape(-1)
        if self._land.keep_rate is not None:
            x = np.append(x, start.offset)
        options = {"maxiter": 100}
        best = minimize(self._value, x, jac=True, method="L-BFGS-B", options=options).x
        tilt = self._tilt(best)
        return tilt, self._rates(self._soft_choice(tilt)[1])

    def _tilt(self, x: Floats) -> Tilt:
        events = self._land.shape[1]
        lam = self._basis @ x[: self._basis.shape[1] * events].reshape(-1, events)
        return Tilt(lam, 0.0 if self._land.keep_rate is None else float(x[-1]))

    def _value(self, x: Floats) -> tuple[float, Floats]:
        """D(x) and its gradient; |λ| is smoothed, because L-BFGS needs a slope at 0."""
        tilt = self._tilt(x)
        value, choice = self._soft_choice(tilt)
        smooth = np.sqrt(tilt.lam**2 + 1e-8)
        value += float(np.sum(self._bound * smooth) - np.sum(tilt.lam * self._offsets))
        slope = self._bound * tilt.lam / smooth - self._offsets - self._rates(choice)
        gradient = (self._basis.T @ slope).reshape(-1)
        if self._land.keep_rate is not None:
            value -= tilt.offset * self._land.keep_rate
            gradient = np.append(gradient, choice.sum() - self._land.keep_rate)
        return value, gradient

    def _soft_choice(self, tilt: Tilt) -> tuple[float, Floats]:
        """mean_i T·ln(1 + Σ_j e^{margin_ij/T}), and (rows, classes − 1) each row's share of it."""
        margin = self._margin - self._land.cost.of(tilt.lam) + tilt.offset
        if margin.shape[1] == 1:  # two classes: the same, faster
            m = margin[:, 0] / TEMPERATURE
            value = TEMPERATURE * float(self._share @ np.logaddexp(0.0, m))
            return value, (self._share * expit(m))[:, None]
        scaled = margin / TEMPERATURE
        top = np.maximum(scaled.max(axis=1, keepdims=True), 0.0)  # class 0 has margin 0
        parts = np.exp(scaled - top)
        total = parts.sum(axis=1, keepdims=True) + np.exp(-top)
        value = TEMPERATURE * float(self._share @ (top + np.log(total))[:, 0])
        return value, self._share[:, None] * parts / total

    def _rates(self, choice: Floats) -> Floats:
        """(groups, events) rates by the proxy."""
        return self._land.cost.rates(choice).reshape(self._land.shape)


def _free_basis(blocks: Sequence[slice], groups: int) -> Floats:
    """(groups, groups − attributes) columns that add up to 0 within an attribute, as λ must."""
    columns = []
    for block in blocks:
        for group in range(block.start, block.stop - 1):
            column = np.zeros(groups)
            column[group], column[block.stop - 1] = 1.0, -1.0
            columns.append(column)
    return np.column_stack(columns)


def merit(land: Landscape, tilt: Tilt) -> float:
    """Error plus twice the excess: what the polish makes small."""
    decided, _ = land.decide(tilt)
    return land.loss(decided) + EXCHANGE * max(0.0, land.excess(land.rates(decided)))


def polish(land: Landscape, tilt: Tilt) -> Tilt:
    """Nelder–Mead around the dual's solution, on the hard estimates."""
    free = _free_basis(land.blocks, land.shape[0])
    x = (np.linalg.pinv(free) @ tilt.lam).reshape(-1)

    def tilt_of(x: Floats) -> Tilt:
        return Tilt(free @ x.reshape(-1, land.shape[1]), tilt.offset)

    steps = np.vstack([x] + [x + 0.05 * max(tilt.size, 0.02) * e for e in np.eye(len(x))])
    polished = minimize(
        lambda x: merit(land, tilt_of(x)),
        x,
        method="Nelder-Mead",
        options={
            "initial_simplex": steps,
            "maxfev": min(40 * len(x), _POLISH),
            "xatol": 1e-5,
            "fatol": 1e-6,
        },
    ).x
    best = min((tilt_of(polished), tilt), key=lambda t: merit(land, t))
    return land.decide(best)[1]
