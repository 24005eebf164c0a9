"""λ: the smallest tilt within the tolerance, or the best one by what is known of the rates.

Two groups, one event, two classes: the estimated gap falls with λ; bisection. Otherwise estimated
rates r̂ are not the true ones r, least of all for small groups, and chasing noise is dear. So

    minimise over h   error(h) + C·E[ Σ_attributes max(0, max_e,a,b (r_ae − r_be) − γ_e) ]

r ~ N(r̂(h), Σ) by what the releases know. This is convex in h, and its optimum is a tilt by prices:

    λ_ae = C·( P[a is highest in the worst event e] − P[a is lowest] )            the fixed point

A group of which little is known is rarely sure to be the highest or the lowest, so it is chased as
far as that is likely. λ is found by steps of decreasing size towards the right-hand side, over
fixed draws of r − r̂; the mean of the later steps is taken.

Everything here is post-processing of releases and public numbers: it costs no privacy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from isonomy.company.fair.tilt.notions import Event, centred
from isonomy.company.fair.tilt.rule import HALF, Costs, Tilt, decide, margins

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

PRICE = 1.0  # C: points of error that a point of expected violation beyond the tolerance is worth
JUMP = 2.0  # the same beside a jump of the bisection: rather within the tolerance than not
_BISECTIONS = 40
_STEPS = 500
_FIRST_STEP, _DECAY = 0.15, 10.0  # step t is 0.15 / (1 + t/10)

Draws = Callable[[Ints], Floats]  # decisions -> (draws, groups, events) r − r̂


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

    def excess(self, rates: Floats) -> Floats:
        """(…, attributes) by how much rates (…, groups, events) exceed the tolerances; or less."""
        worst = [
            (np.ptp(rates[..., block, :], axis=-2) - tolerance).max(axis=-1)
            for block, tolerance in zip(self.blocks, self.tolerance, strict=True)
        ]
        return np.stack(worst, axis=-1)

    @property
    def simple(self) -> bool:
        return self.shape == (2, 1) and self.proba.shape[1] == 2


def weighted_quantile(values: Floats, weight: Floats, level: float) -> float:
    """The smallest value with at least `level` of the weight at or below it."""
    order = np.argsort(values, kind="stable")
    share = np.cumsum(weight[order]) / weight.sum()
    first = int(np.searchsorted(share, level - 1e-12))
    return float(values[order[min(first, len(order) - 1)]])


def search(land: Landscape, draws: Draws, start: Tilt | None = None, price: float = PRICE) -> Tilt:
    """The tilt for this landscape; `start` is an earlier one to go on from."""
    none = Tilt.none(*land.shape)
    if land.excess(land.rates(land.decide(none)[0])).max() <= 0:
        return none
    return bisect(land) if land.simple else balance(land, draws, start or none, price)


def bisect(land: Landscape) -> Tilt:
    """Two groups, one event: λ = s·(1, −1)·t, t ≥ 0 the smallest with gap ≤ γ."""
    tolerance = float(land.tolerance[0, 0])

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
    exactly = np.zeros((1, *land.shape))
    return land.decide(min(either, key=lambda tilt: regret(land, tilt, exactly, JUMP)))[1]


def balance(land: Landscape, draws: Draws, start: Tilt, price: float) -> Tilt:
    """The fixed point of the prices, or no tilt if that is better by `regret`."""
    lam, total = start.lam, np.zeros(land.shape)
    spread = draws(land.decide(start)[0])
    for step in range(_STEPS):
        decided, _ = land.decide(Tilt(lam))
        if step == _STEPS // 4:  # how sure the rates are depends on the decisions
            spread = draws(decided)
        target = price * prices(land, land.rates(decided) + spread)
        lam = lam + _FIRST_STEP / (1 + step / _DECAY) * (target - lam)
        if step >= _STEPS // 2:
            total = total + lam
    mean = Tilt(total / (_STEPS - _STEPS // 2))
    either = (mean, Tilt.none(*land.shape))
    return land.decide(min(either, key=lambda tilt: regret(land, tilt, spread, price)))[1]


def prices(land: Landscape, rates: Floats) -> Floats:
    """(groups, events) how often a group is highest, less how often it is lowest, in a worst event.

    rates: (draws, groups, events). Draws within the tolerance do not count.
    """
    result, each = np.zeros(land.shape), np.arange(len(rates))
    for block, tolerance in zip(land.blocks, land.tolerance, strict=True):
        inside = rates[:, block]
        gaps = np.ptp(inside, axis=1) - tolerance  # (draws, events)
        event = gaps.argmax(axis=1)
        beyond = gaps[each, event] > 0
        for sign, group in ((1, inside.argmax(axis=1)), (-1, inside.argmin(axis=1))):
            cell = (block.start + group[each, event])[beyond], event[beyond]
            np.add.at(result, cell, sign / len(rates))
    return result


def regret(land: Landscape, tilt: Tilt, spread: Floats, price: float) -> float:
    """Error plus the price of the expected violation beyond the tolerances."""
    decided, _ = land.decide(tilt)
    beyond = np.maximum(0.0, land.excess(land.rates(decided) + spread)).sum(axis=-1)
    return land.loss(decided) + price * float(beyond.mean())
