"""`tilt`, the default strategy, on one page.

    h(x) = 1[ 2(f(x) − c) − Σ_{a,e} λ_ae W_ae(x) > 0 ],    Σ_a λ_ae = 0 for each event e

f is the base model (out-of-fold on the people of the releases), c its cut-off, W comes from the
proxy g(x[, y]).

    1. counts      people per group (and label)                           4 % of μ²
    2. moments     Σ φ(x) per group (and label) → proxy (proxy.py)       56 %
    3. audits      hard decisions: the base model's, then each tilt's     40 % in T parts
                   → memberships ĝ that estimate any decisions' rates (audits.py)
    4. λ           after each audit (search.py): two groups and one event, the smallest tilt with
                   estimated violation ≤ γ; else least error + expected violation beyond γ

Safeguards: a base model within γ + 2 deviations is returned unchanged; at most 0.75 points of
error are paid per point of violation removed, else the tilt shrinks.

With a `confidence` the upper bounds of the violations count instead, for the base model too: λ
is the smallest tilt whose bounds are within γ, whatever it costs, or the one that comes nearest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import _safe_indexing

from isonomy.common.sums.oracle import GroupOracle
from isonomy.company.fair.inputs.feature_rows import FeatureRows
from isonomy.company.fair.inputs.features import FeatureMap
from isonomy.company.fair.inputs.people import People
from isonomy.company.fair.tilt.analysis import Analyst, Problem, Proxy, View, audited_rows
from isonomy.company.fair.tilt.releases import Prices, Releases, buy_audit, buy_counts_and_moments
from isonomy.company.fair.tilt.rule import Tilt
from isonomy.company.fair.tilt.search import Landscape, search

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

PRICE = 0.75  # points of error per point of violation removed, at most
SHRINK = (1.0, 0.75, 0.5, 0.25)
DEVIATIONS = 2.0
ANY_PRICE = 4.0  # of expected violation, where a tolerance must be shown to be kept
AIMS = (1.0, 0.75, 0.5, 0.25, 0.0)  # parts of the tolerance, to leave room for an upper bound

Returned = Literal["base", "tilt", "shrunk"]


@dataclass(frozen=True)
class Newcomers:
    """Whom to ask about: the last rows' people, by their positions in the plan's cohort."""

    people: People
    rows: slice
    earlier: Releases | None  # what was bought about the people of all rows before


@dataclass(frozen=True)
class Outcome:
    """What the strategy found; `view` estimates any other decisions for free."""

    tilt: Tilt
    returned: Returned
    view: View
    proxy: Proxy
    features: FeatureMap
    base_view: View  # of the base model; the same as `view` unless the twin retrained it

    @property
    def retrained(self) -> bool:
        return self.base_view is not self.view and self.returned != "base"

    @property
    def releases(self) -> Releases:
        return self.view.releases

    @property
    def beyond(self) -> float:
        """By how much the upper bounds of the model that is returned exceed the tolerances."""
        view = self.base_view if self.returned == "base" else self.view
        return view.beyond(view.land.decide(self.tilt)[0])


def run(
    oracle: GroupOracle,
    problem: Problem,
    X: Any,
    features: FeatureMap,
    score: Floats,
    *,
    attributes: tuple[str, ...],
    prices: Prices,
    audits: int,
    newcomers: Newcomers | None = None,
    retrain: Callable[[View], Problem] | None = None,
) -> Outcome:
    """Buy and analyse. `retrain`: the in-training twin, given what is known of the base model.

    With `newcomers` the regulator is asked about these rows' people only; what was bought about
    all others is used again.
    """
    asked = newcomers or Newcomers(problem.people, slice(None), None)
    some = X if newcomers is None else _safe_indexing(X, np.arange(len(score))[asked.rows])
    seen = score[asked.rows] if features.bins else None
    releases = buy_counts_and_moments(
        oracle,
        asked.people,
        problem.y[asked.rows],
        FeatureRows(features, some, seen, asked.people),
        features=features,
        score=score[asked.rows],
        events=problem.events,
        attributes=attributes,
        prices=prices,
        identity=problem.identity,
    )
    if asked.earlier is not None:
        releases = asked.earlier.with_newcomers(releases, problem.identity)
    base = analyst = Analyst(problem, releases, features, X)
    view = analyst.read(releases)
    tilt = Tilt.none(*view.land.shape)
    for turn in range(audits):
        decided, _ = view.land.decide(tilt)
        about = np.full_like(decided, -1)
        about[asked.rows] = decided[asked.rows]
        u = audited_rows(problem.events, about, problem)[asked.rows]
        release = buy_audit(oracle, asked.people, u, attributes, prices.audit)
        releases = releases.with_audit(about, release)
        view = analyst.read(releases)
        # Only the first audit may stop: four looks at one test would flag fair models more often.
        if turn == 0 and base_is_fair(view):
            break
        if turn == 0 and retrain is not None:
            analyst = Analyst(retrain(view), releases, features, X)
            view = analyst.read(releases)
        tilt = choose(view, tilt)
    base_view = view if analyst is base else base.read(releases)
    return Outcome(*settle(view, tilt, base_view), view, analyst.proxy, features, base_view)


def reuse(problem: Problem, X: Any, releases: Releases, features: FeatureMap) -> Outcome:
    """Another tolerance, notion or base model on releases already paid for."""
    releases.check(problem.identity, problem.events)
    analyst = Analyst(problem, releases, features, X)
    view = analyst.read(releases)
    return conclude(view, view, analyst.proxy, features)


def conclude(view: View, base_view: View, proxy: Proxy, features: FeatureMap) -> Outcome:
    """The outcome without further audits."""
    tilt = Tilt.none(*view.land.shape) if base_is_fair(view) else choose(view)
    return Outcome(*settle(view, tilt, base_view), view, proxy, features, base_view)


def base_is_fair(view: View) -> bool:
    """The audited base model is within every tolerance, give or take two deviations.

    With a confidence: its upper bounds are within every tolerance.
    """
    base, _ = view.land.decide(Tilt.none(*view.land.shape))
    return view.fair(base, DEVIATIONS) if view.confidence is None else view.beyond(base) <= 0


def choose(view: View, start: Tilt | None = None) -> Tilt:
    """The smallest tilt within the tolerances; with a confidence, by its upper bounds."""
    if view.confidence is None:
        return search(view.land, view.draws, start)
    tilts = []
    for part in AIMS:
        land = replace(view.land, tolerance=part * view.land.tolerance)
        tilt = search(land, view.draws, start, price=ANY_PRICE)
        beyond = view.beyond(land.decide(tilt)[0])
        tilts.append((beyond, tilt))
        if beyond <= 0:
            return tilt
    return min(tilts, key=lambda each: each[0])[1]


def settle(view: View, tilt: Tilt, base_view: View) -> tuple[Tilt, Returned]:
    """The largest part of the tilt that costs at most 0.75 points of error per point removed.

    For a model that was retrained, no tilt at all is still a change and must be worth it too. A
    tolerance that must be shown to be kept has no price.
    """
    land, retrained = view.land, base_view is not view
    none = Tilt.none(*land.shape)
    if not tilt.size and not retrained:
        return none, "base"
    if view.confidence is not None:
        return land.decide(tilt)[1], "tilt"
    base = base_view.land
    error, violation = _error_and_violation(base, none)
    for factor in (*SHRINK, 0.0) if retrained else SHRINK:
        _, part = land.decide(tilt.times(factor))
        cost, remaining = _error_and_violation(land, part)
        if cost - error <= PRICE * (violation - remaining):
            return part, "tilt" if factor == 1.0 else "shrunk"
    return none, "base"


def _error_and_violation(land: Landscape, tilt: Tilt) -> tuple[float, float]:
    decided, _ = land.decide(tilt)
    return land.loss(decided), land.violation(land.rates(decided))
