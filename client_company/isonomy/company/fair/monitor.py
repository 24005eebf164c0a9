"""Do the people of today still look like those whom the proxy was learnt from?

`model.monitor(X)` compares public features alone, so it needs no attribute and no budget. With
φ(x) without the score's bins, training means m₀ over n₀ people and new means m over n people,

    T = ‖m − m₀‖² / (1/n + 1/n₀)       if nothing changed, T ~ Σ_j ℓ_j χ²₁

ℓ_j are the eigenvalues of φ's covariance S in training. The quantile of that sum is taken from the
χ² distribution with its first three moments (Buckley and Eagleson 1988), for which the traces of S,
S² and S³ are enough. φ has random Fourier features, so T also
sees changes that leave every column's mean where it was (it is a two-sample test with a Gaussian
kernel, Gretton et al. 2012). The share of people selected is compared by its own normal test. Each
of the two raises a false alarm with half of the stated rate.

What it cannot see: whether the same features now belong to other groups, P(A | x). Only an audit
shows that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtri, ndtri

from isonomy.company.fair.inputs.feature_rows import FeatureRows
from isonomy.company.fair.inputs.features import FeatureMap
from isonomy.company.fair.inputs.people import People

Floats = NDArray[np.float64]

FALSE_ALARMS = 0.01
_SHOWN = 3


@dataclass(frozen=True)
class Reference:
    """What the training people's features looked like, by person."""

    people: int
    mean: Floats  # (d,) of φ without the score's bins
    threshold: float  # of T
    column_mean: Floats  # (l,) of the coded columns
    column_deviation: Floats  # (l,)

    @classmethod
    def of(cls, features: FeatureMap, X: Any, people: People) -> Reference:
        """Sums over people, some thousands at a time: φ of everybody would take 2 kB a person."""
        n, sums, squares = 0, np.zeros(()), np.zeros(())
        gram, width = np.zeros(()), features.without_bins().width
        for part in _by_person(features, X, people):
            rows = part[:, :width]
            n, sums = n + len(part), sums + part.sum(axis=0)
            gram, squares = gram + rows.T @ rows, squares + (part[:, width:] ** 2).sum(axis=0)
        mean, shift = sums[:width] / n, sums[width:] / n
        covariance = (gram - n * np.outer(mean, mean)) / (n - 1)
        return cls(
            n,
            mean,
            _threshold(covariance, FALSE_ALARMS / 2),
            features.centre + shift,
            np.sqrt(np.maximum(squares / n - shift**2, 0.0)),
        )


@dataclass(frozen=True)
class Drift:
    """How far new people are from those of the training. `str` says it in words."""

    people: int
    distance: float  # T in units of its threshold: beyond 1 the features have changed
    columns: tuple[tuple[str, float], ...]  # most changed, each mean's change in deviations
    selection_rate: tuple[float, float]  # in training (out of fold), and now
    selection_changed: bool
    false_alarms: float

    @property
    def features_changed(self) -> bool:
        return self.distance > 1

    @property
    def alarm(self) -> bool:
        """Whether anything changed by more than chance, but for the rate of false alarms."""
        return self.features_changed or self.selection_changed

    def __str__(self) -> str:
        moved = ", ".join(f"{name} ({change:.2g})" for name, change in self.columns)
        before, now = self.selection_rate
        verdict = (
            "The features have changed: the proxy was learnt from people unlike these. Audit the "
            "model, or retrain it with new people."
            if self.features_changed
            else "The features show no change: the proxy still fits as far as they can tell."
        )
        rate = "more than chance explains" if self.selection_changed else "as chance explains"
        return "\n".join(
            [
                f"{verdict} Distance {self.distance:.2f} of the threshold, {self.people:,} people.",
                f"Largest changes of a mean, in deviations: {moved}.",
                f"Selected: {before:.1%} in training, {now:.1%} now, {rate}.",
                f"If nothing changed, an alarm comes in {self.false_alarms:.0%} of the cases. No "
                "attribute was used and nothing spent; whether the same features now belong to "
                "other groups, only an audit shows.",
            ]
        )


def compare(
    reference: Reference,
    features: FeatureMap,
    X: Any,
    people: People,
    selected: NDArray[np.bool_],
    rate_before: float,
) -> Drift:
    """New rows X and who of them is selected, beside the training's; returns what changed."""
    parts = [(len(part), part.sum(axis=0)) for part in _by_person(features, X, people)]
    n = sum(size for size, _ in parts)
    mean, shift = np.split(sum(sums for _, sums in parts) / n, [len(reference.mean)])
    scale = 1 / n + 1 / reference.people
    statistic = float(np.sum((mean - reference.mean) ** 2)) / scale
    rate = float(people.weight @ selected / people.weight.sum())
    pooled = (rate_before * reference.people + rate * n) / (reference.people + n)
    deviation = float(np.sqrt(max(pooled * (1 - pooled), 1e-12) * scale))
    return Drift(
        people=n,
        distance=statistic / max(reference.threshold, 1e-300),
        columns=_moved(reference, features, features.centre + shift),
        selection_rate=(rate_before, rate),
        selection_changed=bool(abs(rate - rate_before) > -ndtri(FALSE_ALARMS / 4) * deviation),
        false_alarms=FALSE_ALARMS,
    )


def _threshold(covariance: Floats, tail: float) -> float:
    """What Σ_j ℓ_j χ²₁ exceeds with the chance `tail`."""
    square = covariance @ covariance
    mean, variance = float(np.trace(covariance)), 2 * float(np.trace(square))
    third = 8 * float(np.sum(square * covariance))  # the third central moment
    freedom = 8 * variance**3 / third**2
    return mean + float(np.sqrt(variance / (2 * freedom))) * float(chdtri(freedom, tail) - freedom)


@dataclass(frozen=True)
class _Compared:
    """What is compared, beside each other: φ without bins, and the columns less φ's centre.

    Centred, because the squares of large numbers would lose the digits of a small deviation.
    """

    features: FeatureMap

    @property
    def width(self) -> int:
        return self.features.width + len(self.features.centre)

    def rows(self, X: Any, score: Floats | None = None) -> Floats:
        phi = self.features.rows(X, score)
        return np.hstack([phi, self.features.coder.code(X) - self.features.centre])


def _by_person(features: FeatureMap, X: Any, people: People) -> Iterator[Floats]:
    """Parts of (persons, d + l) `_Compared`, each person's rows averaged."""
    whose = people.position[people.entry]
    persons = People.of(whose, np.zeros(len(whose), dtype=np.int64))
    rows = FeatureRows(_Compared(features.without_bins()), X, None, persons)
    return (part for _, part in rows.parts(np.arange(len(rows))))


def _moved(
    reference: Reference, features: FeatureMap, column_mean: Floats
) -> tuple[tuple[str, float], ...]:
    """The columns whose means changed most, in deviations of the training people."""
    change = np.abs(column_mean - reference.column_mean)
    # A value that nobody had in training has no deviation there: half a unit stands for it.
    change = change / np.where(reference.column_deviation > 0, reference.column_deviation, 0.5)
    ends = np.cumsum([code.width for code in features.coder.codes])[:-1]
    parts = np.split(change, ends)
    largest = [
        (code.name, float(part.max(initial=0.0)))
        for code, part in zip(features.coder.codes, parts, strict=True)
    ]
    return tuple(sorted(largest, key=lambda each: -each[1])[:_SHOWN])
