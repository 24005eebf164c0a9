"""The levels of a fair score: the cost-sensitive reduction of fair regression, attribute-blind.

    s(x) = argmin_j  (f(x) − s_j)²/(C·V) + Σ_{a,c<j} λ_ac g_a(x)/p_a,      j = 0 … m − 1

f is the base model, V the variance of the target, s_0 < … < s_{m−1} the levels, g the proxy. An
event is "the score is above level c". Equal rates of all these events are equal distributions of
the score, so the violation is the Kolmogorov–Smirnov distance of two groups' scores. This is the
reduction of Agarwal, Dudík and Wu (Fair Regression, 2019) with P(A | x) in the place of A, solved
by tilt/search.py, at a price of C parts of the variance per unit of distance.

Differs from the paper: levels are at quantiles of the base model's scores, not equally spaced; one
deterministic score instead of a mixture; what each level is worth is fitted last (`calibrated`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from sklearn.isotonic import IsotonicRegression

from isonomy.common.base.errors import DataError
from isonomy.company.fair.tilt.notions import Event

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

PAID = 4.0  # parts of the variance that a unit of distance beyond the tolerance is worth


@dataclass(frozen=True)
class Levels:
    """Where the levels are, and what score is given to whom gets one."""

    places: Floats  # (m,) s_j, for the rule
    values: Floats  # (m,) what is predicted: the mean target of the people at the level
    variance: float  # V

    @classmethod
    def of(cls, score: Floats, y: Floats, weight: Floats, number: int) -> Levels:
        """At most `number` levels, at the means of equally large parts of the (public) scores."""
        edges = np.unique(np.quantile(score, np.arange(1, number) / number))
        part = np.searchsorted(edges, score)
        people = np.bincount(part, weight, len(edges) + 1)
        sums = np.bincount(part, weight * score, len(edges) + 1)
        places = np.unique(sums[people > 0] / people[people > 0])
        if len(places) < 2:
            raise DataError("the base model gives everybody one score; there is nothing to compare")
        mean = float(weight @ y / weight.sum())
        variance = float(weight @ (y - mean) ** 2 / weight.sum())
        return cls(places, places, variance)

    @property
    def events(self) -> tuple[Event, ...]:
        """The score is above each level but the last."""
        return tuple(
            Event(f"score above {place:.4g}", "above", (), number)
            for number, place in enumerate(self.places[:-1])
        )

    def utilities(self, score: Floats) -> Floats:
        """(n, m) −(f − s_j)²/(C·V): what stands in the place of probabilities."""
        return -((score[:, None] - self.places) ** 2) / (PAID * self.variance)

    def losses(self, y: Floats) -> Floats:
        """(n, m) squared error of each level, in units in which the search's price is 1."""
        return np.asarray((y[:, None] - self.values) ** 2 / (PAID * self.variance))

    def calibrated(self, decided: Ints, y: Floats, weight: Floats) -> Levels:
        """The same levels, each worth the mean target of the people there, in order.

        Public: no attribute is used. Order is kept, so no rate of an event grows apart by it.
        """
        fitted = IsotonicRegression(out_of_bounds="clip").fit(decided, y, sample_weight=weight)
        return replace(self, values=fitted.predict(np.arange(len(self.places))))
