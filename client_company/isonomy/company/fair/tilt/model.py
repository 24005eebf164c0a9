"""The fitted rule: everything that a prediction needs besides the base model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isonomy.company.fair.inputs.features import FeatureMap
from isonomy.company.fair.tilt.analysis import Proxy
from isonomy.company.fair.tilt.notions import Event
from isonomy.company.fair.tilt.rule import Tilt, costs, decide, margins, probabilities

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

    def margins(self, X: Any, proba: Floats, score: Floats) -> Floats:
        """(n, classes − 1). proba: of the deciding model; score: of the base model, for φ."""
        if self.features is None or self.proxy is None or not self.tilt.size:
            return proba[:, 1:] - proba[:, :1]
        rows = self.features.rows(X, score if self.features.bins else None)
        cost = costs(self.events, proba, self.proxy(rows), self.proxy.shares)
        return margins(proba, cost, self.tilt)

    def decide(self, X: Any, proba: Floats, score: Floats) -> Ints:
        return decide(self.margins(X, proba, score))

    def probabilities(self, X: Any, proba: Floats, score: Floats) -> Floats:
        if not self.tilt.size:
            return proba
        return probabilities(proba, self.margins(X, proba, score))
