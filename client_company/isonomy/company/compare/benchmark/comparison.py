"""Tilt beside one point of a rival: differences over the same seeds, their intervals, a word.

    d_s = tilt_s − rival_s,  s the common seeds         d̄ ± t(0.975, n − 1)·SD(d)/√n

| word of a measure | its interval | | word of a point | error and violation are |
|---|---|---|---|---|
| better | below 0 | | better | one better, the other not worse |
| not told apart | holds 0 | | not told apart | neither told apart |
| worse | above 0 | | worse | one worse, the other not better |
| | | | each in one | one better, the other worse |

Splits are the same by seed, so runs pair. A published point has no seeds: its mean is taken as
exact, and the interval is that of tilt's mean. Of tilt's points on a base model the one at the
rival's budget (or the next below) with the nearest violation is compared: chosen by violation
alone, so errors are not compared with the luckiest of many.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from isonomy.company.compare.benchmark._published import Rival
from isonomy.company.compare.benchmark._summary import Mean
from isonomy.company.compare.benchmark.methods import method, published_method

WORDS = ("better", "not told apart", "each in one", "worse")
_LEVEL = 0.95


@dataclass(frozen=True)
class Difference:
    """A mean difference and half the length of its interval (infinite with one seed)."""

    mean: float
    half: float

    @property
    def word(self) -> str:
        if self.mean + self.half < 0:
            return "better"
        return "worse" if self.mean - self.half > 0 else "not told apart"


@dataclass(frozen=True)
class Comparison:
    """Tilt's point minus the rival's."""

    rival: Rival
    tilt: Mean
    seeds: int
    error: Difference
    violation: Difference

    @property
    def word(self) -> str:
        words = {self.error.word, self.violation.word}
        if words >= {"better", "worse"}:
            return "each in one"
        return next((word for word in ("better", "worse") if word in words), "not told apart")


def difference(gaps: Sequence[float]) -> Difference:
    """Mean and t-interval of paired differences."""
    from scipy.stats import t

    values = np.asarray(gaps, float)
    if len(values) < 2:
        return Difference(float(values.mean()), float("inf"))
    error = values.std(ddof=1) / np.sqrt(len(values))
    quantile = t.ppf((1 + _LEVEL) / 2, len(values) - 1)
    return Difference(float(values.mean()), float(quantile * error))


def compare(rival: Rival, tilts: Iterable[Mean], base: str) -> Comparison | None:
    """The rival's point beside tilt's on this base model; None where they share no seed.

    A rival without a budget is not private: tilt has ε = 1 at most beside it.
    """
    cap = 1.0 if rival.epsilon is None else rival.epsilon
    here = [
        mean
        for mean in tilts
        if mean.where == rival.where and mean.base == base and 0 < (mean.epsilon or 0) <= cap
    ]
    largest = max((mean.epsilon or 0 for mean in here), default=0)
    points = [mean for mean in here if mean.epsilon == largest]
    if not points:
        return None
    tilt = min(points, key=lambda mean: abs(mean.violation - rival.violation))
    theirs = {seed: (error, violation) for seed, error, violation in rival.by_seed}
    pairs = [
        (error - them[0], violation - them[1])
        for seed, error, violation in tilt.by_seed
        if (them := theirs.get(seed) if theirs else (rival.error, rival.violation)) is not None
    ]
    if not pairs:
        return None
    errors, violations = zip(*pairs, strict=True)
    return Comparison(rival, tilt, len(pairs), difference(errors), difference(violations))


def rivals(means: Iterable[Mean], published: Iterable[Rival], cap: float) -> list[Rival]:
    """Every point beside which tilt is put, with the label of its method.

    Published points and private methods at ε <= cap, then the references without a budget. The
    model without constraint is no rival: it wants no fairness.
    """
    papers = [replace(one, method=published_method(one.method).label) for one in published]
    rerun = [
        Rival(
            method(mean.strategy).label, mean.where, mean.epsilon, mean.error, mean.violation,
            mean.base, mean.by_seed,
        )
        for mean in means
        if not mean.is_tilt and mean.strategy != "unconstrained"
    ]  # fmt: skip
    private = [one for one in (*papers, *rerun) if one.epsilon is not None and one.epsilon <= cap]
    return [
        *sorted(private, key=lambda one: (one.method, one.where, one.epsilon or 0.0, one.error)),
        *(one for one in rerun if one.epsilon is None),
    ]
