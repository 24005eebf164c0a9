"""What `tilt` says about small groups: an interval that holds, or that it cannot be measured."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from isonomy.common.sums.local import LocalOracle
from isonomy.company.fair.estimator import FairClassifier

PEOPLE = 8000


def draw(rng: np.random.Generator, small: np.ndarray, rate: float) -> tuple[np.ndarray, np.ndarray]:
    """Features and labels: of the small group the share `rate` is good, and nothing tells it."""
    skill = rng.normal(0, 1, len(small))
    y = skill + rng.normal(0, 0.7, len(small)) > 0.25
    y[small] = rng.random(small.sum()) < rate
    skill[small] = np.where(y[small], 2.0, -2.0) + rng.normal(0, 0.7, small.sum())
    return np.column_stack([skill, rng.normal(0, 1, len(small))]), y.astype(int)


def fit(people: int, rate: float, epsilon: float, seed: int) -> tuple[FairClassifier, float]:
    """The model, and its true gap among many new people."""
    rng = np.random.default_rng([seed, people])
    small = np.arange(PEOPLE) < people
    X, y = draw(rng, small, rate)
    oracle = LocalOracle.rehearse(
        [str(i) for i in range(PEOPLE)],
        {"group": np.where(small, "small", "large").tolist()},
        epsilon=epsilon,
        delta=1e-5,
    )
    model = FairClassifier(LogisticRegression(), tolerance=0.02, oracle=oracle, random_state=0)
    model.fit(X, y)
    many = np.arange(100_000) < 50_000
    decided = model.predict(draw(rng, many, rate)[0])
    return model, float(abs(decided[many].mean() - decided[~many].mean()))


@pytest.mark.parametrize("people", [5, 40])
def test_a_tiny_group_cannot_be_measured_and_is_never_called_fair(people: int) -> None:
    model, _ = fit(people, 0.0, 1.0, seed=1)
    report = model.report_
    assert report.interval is None
    assert report.violation is None
    assert report.base_violation is None
    assert report.unmeasured == ("small",)
    text = str(report)
    assert "cannot be measured at this budget: too few people of small" in text
    assert ("This does not say that it is fair" in text) == (report.returned == "base")
    assert "within what the budget can tell" not in text


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [0.1, 0.5, 1.0, 5.0])
def test_intervals_cover_or_nothing_is_said(epsilon: float) -> None:
    """At least 93 % of what is said holds, over all sizes and rates together."""
    covered = []
    for people in (5, 10, 20, 40, 80, 320):
        for rate in (0.0, 0.05, 0.5, 1.0):
            for seed in range(5):
                model, gap = fit(people, rate, epsilon, seed)
                if (limits := model.report_.interval) is not None:
                    covered.append(limits[0] - 1e-3 <= gap <= limits[1] + 1e-3)
    if covered:
        least = 0.93 - 2 * np.sqrt(0.93 * 0.07 / len(covered))  # five seeds are few
        assert np.mean(covered) >= least, (len(covered), covered)
