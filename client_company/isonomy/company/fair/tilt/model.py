"""The fitted rule: everything that a prediction needs besides the base model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isonomy.company.fair.inputs.columns import Columns
from isonomy.company.fair.inputs.feature_rows import by_parts
from isonomy.company.fair.inputs.features import FeatureMap
from isonomy.company.fair.tilt.analysis import Proxy
from isonomy.company.fair.tilt.notions import Event
from isonomy.company.fair.tilt.rule import Tilt, base_margins, costs, decide, margins, probabilities

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class TiltedModel:
    """φ, proxy, λ and events. `features` and `proxy` are None if nothing was ever released."""

    features: FeatureMap | None
    proxy: Proxy | None
    tilt: Tilt
    events: tuple[Event, ...]
    retrained: bool  # the deciding model is the twin, not the base model
    cut: float  # of the base model's rule: who is above it is selected

    def check(self, classes: int) -> None:
        """Decide about made-up people: an error of numpy unless all arrays fit each other."""
        codes = self.features.coder.codes if self.features is not None else ()
        for n in (2, 3):  # an array with a row per person could fit one of them
            score, proba = np.resize([-np.inf, np.inf], n), np.full((n, classes), 1 / classes)
            values = {each.name: np.zeros(n, float if each.numeric else object) for each in codes}
            self.decide(Columns(values, n), proba, score)

    def margins(self, X: Any, proba: Floats, score: Floats) -> Floats:
        """(n, classes − 1). proba: of the deciding model; score: of the base model, for φ."""
        if self.features is None or self.proxy is None or not self.tilt.size:
            return base_margins(proba, self.cut)
        seen = score if self.features.bins else None
        g = by_parts(self.proxy, self.features, X, seen, len(proba))
        cost = costs(self.events, proba, g, self.proxy.shares)
        return margins(proba, cost, self.tilt, self.cut)

    def decide(self, X: Any, proba: Floats, score: Floats) -> Ints:
        return decide(self.margins(X, proba, score))

    def probabilities(self, X: Any, proba: Floats, score: Floats) -> Floats:
        if not self.tilt.size:
            return proba
        return probabilities(proba, self.margins(X, proba, score), self.cut)
