"""Three and four classes with the notions that know the label, and bad input for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression

from isonomy.common.base.errors import DataError
from isonomy.common.sums.local import LocalOracle
from isonomy.company.fair.estimator import FairClassifier
from isonomy.company.fair.onnx_export import onnx_bytes
from isonomy.company.fair.save import load_model, save_model
from isonomy.company.fair.tilt.notions import events_of
from isonomy.company.fair.tilt.releases_file import load_releases, save_releases

NAMES = np.array(["clerk", "driver", "manager", "nurse"])  # "manager" is neither first nor last
N = 6000


def people(classes: int, n: int = N, seed: int = 0) -> tuple[Any, Any, Any]:
    """Jobs by three skills; the model sees what women do, and takes their sex from a hobby."""
    rng = np.random.default_rng(seed)
    a = rng.random(n) < 0.45
    skills = rng.normal(0, 1, (n, classes))
    skills[:, -1] += 0.9 * a  # women and men end up in different jobs
    skills[:, 2] -= 0.7 * a
    y = skills.argmax(axis=1)
    X = np.column_stack([skills + rng.normal(0, 0.8, skills.shape), rng.normal(3.0 * a, 1.0)])
    return X, NAMES[y], np.where(a, "f", "m")


def oracle_for(a: Any, epsilon: float = 20.0) -> Any:
    ids = [f"p{i}" for i in range(len(a))]
    return LocalOracle.rehearse(ids, {"sex": a.tolist()}, epsilon=epsilon, delta=1e-5)


def violation(clf: FairClassifier, decided: Any, y: Any, a: Any) -> float:
    """As the notion's table has it, written anew."""
    good, gaps = "manager", []
    if clf.notion == "equal_opportunity":
        cells = [(y == good, good)]
    elif clf.notion == "equal_fpr":
        cells = [(y != good, good)]
    else:
        cells = [(y == label, c) for label in clf.classes_ for c in clf.classes_]
    for members, c in cells:
        rates = [(decided[members & (a == g)] == c).mean() for g in ("f", "m")]
        gaps.append(abs(rates[0] - rates[1]))
    return float(max(gaps))


@pytest.fixture(scope="module", params=["equalized_odds", "equal_opportunity", "equal_fpr"])
def fitted(request: Any) -> FairClassifier:
    X, y, a = people(4)
    return FairClassifier(
        LogisticRegression(),
        notion=request.param,
        tolerance=0.03,
        oracle=oracle_for(a),
        pos_label="manager",
        cv=3,
        audits=2,
        random_state=0,
    ).fit(X, y)


def test_new_people_are_treated_alike(fitted: FairClassifier) -> None:
    X, y, a = people(4, 30_000, seed=1)
    before = violation(fitted, fitted.base_estimator_.predict(X), y, a)
    assert before > 0.08
    assert violation(fitted, fitted.predict(X), y, a) < 0.6 * before


def test_the_report_measures_what_the_notion_says(fitted: FairClassifier) -> None:
    X, y, a = people(4, 30_000, seed=1)
    report = fitted.report_
    assert report.returned != "base"
    assert report.pos_label == "manager"
    before = violation(fitted, fitted.base_estimator_.predict(X), y, a)
    assert abs(report.base_violation - before) < 4 * report.base_deviation
    low, high = report.interval
    assert low - 0.02 <= violation(fitted, fitted.predict(X), y, a) <= high + 0.02
    (only,) = report.by_attribute
    assert only.after.value == report.violation
    assert "decision = " in only.after.where
    assert only.after.where.endswith("f against m")


def test_kept_and_exported_it_decides_the_same(fitted: FairClassifier, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    X, y, _ = people(4, 500, seed=2)
    loaded = load_model(save_model(fitted, tmp_path / "model"))
    np.testing.assert_array_equal(loaded.predict(X), fitted.predict(X))
    assert loaded.report_ == fitted.report_
    session = onnxruntime.InferenceSession(onnx_bytes(fitted, X))
    decided = session.run(None, {session.get_inputs()[0].name: X})[0]
    np.testing.assert_array_equal(decided.reshape(-1), fitted.predict(X))
    releases = load_releases(save_releases(fitted.releases_, tmp_path / "releases"))
    X, y, _ = people(4)
    other = clone(fitted).set_params(oracle=fitted.oracle, releases=releases, tolerance=0.9)
    assert other.fit(X, y).report_.returned == "base"


def test_events_of_three_classes() -> None:
    odds = events_of("equalized_odds", ("b", "c", "a"))
    assert len(odds) == 9
    assert odds[2].name == "decision = a | y = b"
    (fpr,) = events_of("equal_fpr", ("b", "c", "a"))
    assert fpr.name == "decision = a | y = b or c"
    assert fpr.members(np.array([0, 1, 2])).tolist() == [True, True, False]
    (two,) = events_of("equal_opportunity", (0, 1))
    assert two.labels == (1,)


# --- Bad input ------------------------------------------------------------------------------------


def test_a_class_of_three_people_is_refused_before_anything_is_spent() -> None:
    X, y, a = people(3)
    y = np.where(np.arange(N) < 3, "judge", y)
    oracle = oracle_for(a, epsilon=1.0)
    clf = FairClassifier(LogisticRegression(), oracle=oracle, pos_label="manager", cv=2)
    with pytest.raises(DataError, match=r"3 people are too few.*y = judge"):
        clf.set_params(notion="equalized_odds").fit(X, y)
    assert oracle.budget.spent_units == 0
    clf.set_params(notion="equal_opportunity").fit(X, y)  # asks nothing about judges


def test_a_fold_without_a_class_is_refused_before_anything_is_spent() -> None:
    X, y, a = people(3, 1000)
    rows = np.append(np.arange(1000), np.full(30, 999))  # all drivers are one person's rows
    y = np.where(rows == 999, "driver", "clerk")
    oracle = oracle_for(a)
    clf = FairClassifier(LogisticRegression(), oracle=oracle, pos_label="driver")
    with pytest.raises(DataError, match="a fold has none"):
        clf.fit(X[rows], y, ids=[f"p{i}" for i in rows])
    assert oracle.budget.spent_units == 0
