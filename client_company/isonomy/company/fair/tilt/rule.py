"""The tilted rule: what it costs each group to choose a class, and the decision.

    h(x) = argmax_j  f_j(x) − Σ_{a,e} λ_ae C_aej(x) (+ offset for j = 1)

f_j = P(Y = j | x) from the base model; C_aej is the part of event e's rate in group a that choosing
class j for x brings about, by the proxy g_a(x, y) and the shares p:

| event e | C_aej |
|---|---|
| class c chosen, everybody | 1[j = c] · Σ_y f_y g_a(x, y) / p_a |
| class c chosen, labels L | 1[j = c] · Σ_{y ∈ L} f_y g_a(x, y) / p_aL |
| wrong, everybody | Σ_{y ≠ j} f_y g_a(x, y) / p_a |
| a class above c chosen, everybody (scores) | 1[j > c] · g_a(x) / p_a |

With two classes, W_ae = C_ae1 − C_ae0 and the rule is that of docs/tilt.md,

    h(x) = 1[ 2(f(x) − c) − Σ λ_ae W_ae(x) > 0 ],    c the base model's cut-off, 1/2 by default.

Neither attribute nor label is used. Costs are relative to class 0. They are linear in the joint
probabilities f_y g_a(x, y), of which there are far fewer than (group, event, class) triples: so
`Costs` keeps those, and one small tensor for everybody.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from isonomy.company.fair.tilt.notions import Event

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

HALF = 0.5  # the cut-off of a model that takes the more probable class


@dataclass(frozen=True)
class Tilt:
    """λ (groups, events), each event's column adding up to 0 within an attribute, and an offset.

    The offset (two classes only) is 0 unless the selection rate is kept.
    """

    lam: Floats
    offset: float = 0.0

    @classmethod
    def none(cls, groups: int, events: int) -> Tilt:
        return cls(np.zeros((groups, events)))

    def times(self, factor: float) -> Tilt:
        return Tilt(self.lam * factor, self.offset * factor)

    @property
    def size(self) -> float:
        return float(np.abs(self.lam).max(initial=0.0))


@dataclass(frozen=True)
class Costs:
    """C relative to class 0 = joint · weights, for each person, class j ≥ 1, group and event."""

    joint: Floats  # (n, strata · groups) P(A = a, Y = y | x)
    weights: Floats  # (strata · groups, classes − 1, groups · events) cost per unit of it

    def of(self, lam: Floats) -> Floats:
        """(n, classes − 1) Σ_ae λ_ae C_aej."""
        return np.asarray(self.joint @ (self.weights @ lam.reshape(-1)))

    def rates(self, choice: Floats) -> Floats:
        """(groups · events,) what choices (n, classes − 1), shares of everybody, bring about."""
        return np.asarray(np.einsum("sj,sjk->k", self.joint.T @ choice, self.weights))


def costs(events: Sequence[Event], proba: Floats, proxy: Floats, shares: Floats) -> Costs:
    """proba: (n, classes). proxy: (strata, n, groups), one stratum or one per class.

    shares: (strata, groups), P(A = a, stratum).
    """
    classes = proba.shape[1]
    joint = proxy if len(proxy) == 1 else proba.T[:, :, None] * proxy
    flat = joint.transpose(1, 0, 2).reshape(len(proba), -1)
    return Costs(flat, cost_weights(events, shares, classes))


def cost_weights(events: Sequence[Event], shares: Floats, classes: int) -> Floats:
    """`Costs.weights`: the table above, for unit joint probabilities."""
    strata, groups = shares.shape
    weights = np.zeros((strata, groups, classes - 1, groups, len(events)))
    each = np.arange(groups)
    for e, event in enumerate(events):
        inside = event.strata(strata)
        weight = 1.0 / shares[inside].sum(axis=0)  # (groups,)
        if event.statistic == "wrong":
            for j in range(1, classes):  # choosing j is wrong for y ≠ j, choosing 0 for y ≠ 0
                weights[0, each, j - 1, each, e] = weight
                weights[j, each, j - 1, each, e] = -weight
            continue
        for stratum in inside:
            if event.statistic == "above":
                weights[stratum, each, event.choice :, each, e] = weight[:, None]
            elif event.choice:
                weights[stratum, each, event.choice - 1, each, e] = weight
            else:
                weights[stratum, each, :, each, e] = -weight[:, None]
    return weights.reshape(strata * groups, classes - 1, groups * len(events))


def base_margins(proba: Floats, cut: float = HALF) -> Floats:
    """(n, classes − 1) score of each class less that of class 0, before any tilt.

    `cut` is for two classes: who is above it is selected. The sign of f − cut is exact in floating
    point, so that nobody changes sides by rounding.
    """
    return proba[:, 1:] - proba[:, :1] if cut == HALF else 2.0 * (proba[:, 1:] - cut)


def margins(proba: Floats, cost: Costs, tilt: Tilt, cut: float = HALF) -> Floats:
    """(n, classes − 1) the same after the tilt."""
    tilted = base_margins(proba, cut) - cost.of(tilt.lam)
    return np.asarray(tilted + tilt.offset if tilt.offset else tilted)


def decide(margin: Floats) -> Ints:
    """Class numbers; a tie goes to the lower class, as in 1[margin > 0]."""
    if margin.shape[1] == 1:
        return np.asarray(margin[:, 0] > 0, dtype=np.int64)
    return np.asarray(np.argmax(np.hstack([np.zeros((len(margin), 1)), margin]), axis=1), np.int64)


def probabilities(proba: Floats, margin: Floats, cut: float = HALF) -> Floats:
    """Tilted scores as probabilities: the point of the simplex nearest to them.

    Keeps the order of the classes (or the side of the cut-off), hence the decision; equals `proba`
    where nothing is tilted. For two classes it is f − ΣλW/2, clipped to [0, 1].
    """
    shift = margin - base_margins(proba, cut)  # (n, K − 1) what the tilt added
    change = np.hstack([np.zeros((len(proba), 1)), shift])
    return _onto_simplex(proba + change - change.mean(axis=1, keepdims=True))


def _onto_simplex(scores: Floats) -> Floats:
    ordered = -np.sort(-scores, axis=1)
    excess = np.cumsum(ordered, axis=1) - 1.0
    ranks = np.arange(1, scores.shape[1] + 1)
    support = (ordered - excess / ranks > 0).sum(axis=1)
    level = excess[np.arange(len(scores)), support - 1] / support
    return np.asarray(np.maximum(scores - level[:, None], 0.0))
