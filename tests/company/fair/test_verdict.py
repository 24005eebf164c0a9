"""What is said where the tolerance is not kept: one reason, the one that held, and a warning."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression
from sklearn.tree import DecisionTreeClassifier

from isonomy.common.sums.local import LocalOracle
from isonomy.company import FairClassifier, FairRegressor
from isonomy.company.fair.tilt import strategy
from isonomy.company.fair.tilt.verdict import GapWarning


def dear(n: int = 4_000) -> tuple[Any, Any, Any]:
    """The feature that decides is all that tells the groups apart, and it hardly does."""
    rng = np.random.default_rng(0)
    a = np.arange(n) % 2
    X = rng.normal(size=(n, 1)) + 0.4 * a[:, None]
    sex = {"sex": np.where(a, "f", "m")}
    oracle = LocalOracle.rehearse(range(n), sex, epsilon=20, delta=1e-5)
    return X, (X[:, 0] > 0.2).astype(int), oracle


def test_only_the_reason_that_held_is_printed_and_a_missed_tolerance_is_a_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(strategy, "SHRINK", (1.0,))  # a quarter of the tilt changes nobody here
    X, y, oracle = dear()
    clf = FairClassifier(DecisionTreeClassifier(), oracle=oracle, tolerance=0.01, random_state=0)
    with pytest.warns(GapWarning, match=r"left is larger than the tolerance.*No tilt") as said:
        clf.fit(X, y)
    assert said[0].filename == __file__
    report = clf.report_
    assert (report.returned, report.reason, report.missed) == ("base", "price", True)
    assert "No tilt was worth its error (at most 0.75 per point of violation): the base" in str(
        report
    )
    assert "within what" not in str(report)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loose = clf.at(tolerance=0.3).report_
    assert (loose.returned, loose.reason, loose.missed) == ("base", "within", False)
    assert "within what the budget can tell from the tolerance: the base model" in str(loose)
    assert "No tilt" not in str(loose)


def test_a_score_says_it_too() -> None:
    X, _, oracle = dear(1_000)
    rng = np.random.default_rng(1)
    model = FairRegressor(LinearRegression(), oracle=oracle, tolerance=0.01, random_state=0)
    with pytest.warns(GapWarning, match="score parity violation that is left"):
        model.fit(X, X[:, 0] + 0.1 * rng.normal(size=len(X)))
    assert model.report_.missed
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loose = model.at(tolerance=0.5).report_
    assert loose.reason == "within"
    assert "within what the budget can tell from the tolerance: the base model's" in str(loose)
