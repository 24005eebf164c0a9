"""`report_` of gradient runs: what is left of the gap is said, and warned of."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from isonomy.common.base.errors import BudgetExceeded, ConfigError
from isonomy.common.sums.local import LocalOracle
from isonomy.common.sums.oracle import GroupOracle
from isonomy.company.fair.tilt.verdict import GapWarning
from isonomy.company.gradient.record.privacy import RecordPrivacy
from isonomy.company.gradient.sdk.classifier import GradientFairClassifier
from isonomy.company.gradient.sdk.gradient_report import GradientReport

PEOPLE = 1500
SHORT = {"rounds": 2, "local_steps": 1, "warmup_steps": 150}
RNG = np.random.default_rng(0)
SEX = RNG.random(PEOPLE) < 0.5
X = np.column_stack([RNG.normal(size=PEOPLE) - 1.5 * SEX, SEX + RNG.normal(size=PEOPLE)])
Y = np.where(X[:, 0] + 0.3 * RNG.normal(size=PEOPLE) > -0.7, "approve", "deny")


def oracle(epsilon: float = 8.0) -> GroupOracle:
    sex = {"sex": np.where(SEX, "f", "m").tolist()}
    return LocalOracle.rehearse(range(PEOPLE), sex, epsilon=epsilon, delta=1e-6)


def model(**settings: Any) -> GradientFairClassifier:
    options = {"oracle": oracle(), "pos_label": "approve", "trainer_options": SHORT}
    return GradientFairClassifier("logistic", **{**options, **settings})


@pytest.mark.parametrize("strategy", ["pf_ld", "dp_fermi", "dp_sgda", "f_ld"])
def test_a_gap_that_is_left_is_warned_of(strategy: str) -> None:
    weak = {"step": 0.01} if strategy.endswith("ld") else {"strength": 0.01}
    clf = model(strategy=strategy, strategy_options=weak)
    with pytest.warns(GapWarning, match="larger than the tolerance"):
        clf.fit(X, Y)
    report = clf.report_
    assert report.too_large
    decided = clf.predict(X)
    assert round(report.error * PEOPLE) == (decided != Y).sum()
    assert round(report.selection_rate * PEOPLE) == (decided == "approve").sum()
    assert (report.rounds, report.stopped) == (2, "rounds")
    text = str(report)
    assert "Selected means decision = approve" in text
    assert ("Privacy: none" in text) == (strategy == "f_ld")
    assert json.loads(json.dumps(report.to_json()))["violation"] == report.violation


@pytest.mark.filterwarnings("error")
def test_a_gap_within_the_tolerance_is_no_warning() -> None:
    clf = model(tolerance=0.95).fit(X, Y)
    assert "is within the tolerance" in str(clf.report_)


def test_verdicts_follow_the_noise() -> None:
    fields: dict[str, Any] = {
        "strategy": "pf_ld", "notion": "equal_opportunity", "pos_label": "1", "tolerance": 0.01,
        "attributes": ("sex",), "rounds": 1, "stopped": "budget", "error": None,
        "selection_rate": None, "private": True, "epsilon_spent": 0.9, "epsilon_cap": 1.0,
        "delta": 1e-6,
    }  # fmt: skip
    for violation, deviation, words in (
        (0.2, 0.05, "larger than the tolerance"),
        (0.2, 0.15, "too large to tell"),
        (0.005, 0.001, "within the tolerance"),
        (None, None, "released no equal opportunity violation on sex"),
    ):
        report = GradientReport(violation=violation, deviation=deviation, **fields)
        assert words in str(report)
        assert "the budget is exhausted" in str(report)
        assert "Selected" not in str(report)
    assert report.too_large is False


def test_under_record_privacy_nothing_is_told_about_records() -> None:
    clf = model(
        record_privacy=RecordPrivacy(epsilon=50.0, delta=1e-5),
        encoder="passthrough",
        strategy_options={"primal_norm": 0.5},
        trainer_options={**SHORT, "warmup_steps": 2},
        tolerance=0.99,
    ).fit(X, Y)
    assert clf.report_.error is None
    assert clf.report_.selection_rate is None


@pytest.mark.parametrize("tolerance", [-0.1, 1.0, float("nan"), "small", None, [0.1]])
def test_a_bad_tolerance_is_refused_before_anything_is_spent(tolerance: Any) -> None:
    clf = model(tolerance=tolerance)
    with pytest.raises(ConfigError, match="tolerance"):
        clf.fit(X, Y)
    assert clf.oracle.budget.spent_units == 0


def test_a_spent_plan_says_what_to_do() -> None:
    asked = oracle()
    model(oracle=asked, tolerance=0.95).fit(X, Y)
    with pytest.raises(BudgetExceeded, match=r"resume=.*new plan") as error:
        model(oracle=asked).fit(X, Y)
    assert "releases_" not in str(error.value)
