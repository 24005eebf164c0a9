"""The decision that is really made: a base model's cut-off is honoured, to the person."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx_models import agrees
from sklearn.base import clone
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import (
    FixedThresholdClassifier,
    GridSearchCV,
    StratifiedKFold,
    TunedThresholdClassifierCV,
    cross_val_predict,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from isonomy.common.base.errors import ConfigError
from isonomy.common.sums.local import LocalOracle
from isonomy.company import FairClassifier, audit, load_model, save_model
from isonomy.company.fair.estimator import ExtremeSelectionWarning
from isonomy.company.rehearsal.base_models import base_model
from isonomy.company.rehearsal.datasets import load

DATA = Path(os.environ.get("ISONOMY_DATA_DIR", Path(__file__).parents[4] / "shared" / "data"))
N = 2000
WORDS = np.array(["deny", "approve"])


def people(n: int = N, seed: int = 0, level: float = 0.3) -> tuple[Any, Any, list[str]]:
    rng = np.random.default_rng(seed)
    a = rng.random(n) < 0.4
    X = np.column_stack([rng.normal(0, 1, n), rng.normal(2.5 * a, 1.0)])
    y = X[:, 0] - 1.3 * a + rng.normal(0, 0.7, n) > level
    return X, WORDS[y.astype(int)], np.where(a, "f", "m").tolist()


def oracle(sex: list[str], epsilon: float = 500.0) -> Any:
    return LocalOracle.rehearse(range(len(sex)), {"sex": sex}, epsilon=epsilon, delta=1e-5)


def fit(base: Any, *, level: float = 0.3, **settings: Any) -> tuple[FairClassifier, Any, Any]:
    X, y, sex = people(level=level)
    settings = {"tolerance": 0.02, "pos_label": "approve", "random_state": 0, **settings}
    return FairClassifier(base, oracle=oracle(sex), **settings).fit(X, y), X, y


RULES = {
    "fixed": FixedThresholdClassifier(LogisticRegression(), threshold=0.2, pos_label="approve"),
    "for the other class": FixedThresholdClassifier(LogisticRegression(), threshold=0.8),
    "in a pipeline": make_pipeline(
        StandardScaler(),
        FixedThresholdClassifier(LogisticRegression(), threshold=0.2, pos_label="approve"),
    ),
    "tuned": TunedThresholdClassifierCV(LogisticRegression(), cv=2),
}


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_of_its_own_is_honoured(rule: str, tmp_path: Path) -> None:
    clf, X, y = fit(RULES[rule], keep_selection_rate=True)
    base = clf.base_estimator_
    if rule != "tuned":  # there every fold has a cut-off of its own, the model has one
        folds = StratifiedKFold(5, shuffle=True, random_state=0)
        decisions = cross_val_predict(clone(RULES[rule]), X, y, cv=folds)
        assert clf.report_.base_selection_rate == (decisions == "approve").mean()
        assert clf.report_.threshold == pytest.approx(0.2)
        assert "at a probability of 0.2 and above" in str(clf.report_)
    assert clf.report_.selection_rate == pytest.approx(clf.report_.base_selection_rate, abs=2e-3)
    assert clf.report_.returned == "tilt"
    new, _, groups = people(8000, seed=1)
    woman, rates = np.array(groups) == "f", [(m.predict(new) == "approve") for m in (base, clf)]
    assert rates[1].mean() == pytest.approx(rates[0].mean(), abs=0.03)
    gaps = [abs(each[woman].mean() - each[~woman].mean()) for each in rates]
    assert gaps[1] < 0.3 * gaps[0]
    above = clf.predict_proba(new)[:, 0] > clf.cut_  # classes_: approve, deny
    assert (above == rates[1]).mean() > 0.999
    if rule == "fixed":
        save_model(clf, tmp_path / "m", onnx=True)
        assert agrees(clf, tmp_path / "m" / "model.onnx", new) > 10
        again = load_model(tmp_path / "m")
        np.testing.assert_array_equal(again.predict(new), clf.predict(new))


def test_a_base_model_that_is_kept_keeps_its_rule() -> None:
    clf, X, _ = fit(RULES["fixed"], tolerance=0.9)
    assert clf.report_.returned == "base"
    np.testing.assert_array_equal(clf.predict(X), clf.base_estimator_.predict(X))


def test_threshold_is_the_same_rule() -> None:
    wrapped, X, _ = fit(RULES["fixed"], tolerance=0.9)
    plain, _, _ = fit(LogisticRegression(), tolerance=0.9, threshold=0.2)
    np.testing.assert_array_equal(plain.predict(X), wrapped.predict(X))
    assert plain.report_.base_selection_rate == wrapped.report_.base_selection_rate


@pytest.mark.parametrize(
    ("base", "settings", "text"),
    [
        (RULES["fixed"], {"threshold": 0.3}, "cut-off already"),
        (GridSearchCV(RULES["fixed"], {"threshold": [0.1, 0.2]}), {"threshold": 0.3}, "already"),
        (LogisticRegression(), {"threshold": 1.5}, "between 0 and 1"),
        (LogisticRegression(), {"threshold": "low"}, "between 0 and 1"),
        (SVC(probability=True, C=0.1), {}, "disagrees with its probabilities"),
        (
            FixedThresholdClassifier(
                LogisticRegression(), threshold=-1.0, response_method="decision_function"
            ),
            {},
            "disagrees",
        ),
    ],
    ids=["two rules", "two rules in a search", "no probability", "text", "SVC", "another score"],
)
@pytest.mark.filterwarnings("ignore:.*probability.*:FutureWarning")
def test_what_cannot_be_honoured_is_refused(base: Any, settings: Any, text: str) -> None:
    X, y, sex = people(600)
    asked = oracle(sex)
    with pytest.raises(ConfigError, match=text):
        FairClassifier(base, oracle=asked, pos_label="approve", cv=2, **settings).fit(X, y)
    assert asked.budget.spent_units == 0


def test_nearly_everybody_selected_is_said() -> None:
    with pytest.warns(ExtremeSelectionWarning, match="nearly everybody"):
        clf, _, _ = fit(LogisticRegression(), level=-2.6, tolerance=0.0)
    assert "nearly everybody" in str(clf.report_)


@pytest.mark.skipif(not DATA.is_dir(), reason=f"no data in {DATA}; set ISONOMY_DATA_DIR")
@pytest.mark.parametrize(
    ("name", "attribute", "words", "threshold", "settings"),
    [
        ("adult", "sex", ("<=50K", ">50K"), 0.3, {}),
        ("adult", "sex", ("<=50K", ">50K"), 0.3, {"keep_selection_rate": True}),
        ("bank", "age", ("no", "yes"), 0.2, {}),
        ("compas", "race", ("released", "detained"), 0.6, {"pos_label": "released"}),
    ],
)
def test_the_report_is_about_the_model_to_the_person(
    name: str, attribute: str, words: tuple[str, str], threshold: float, settings: dict[str, Any]
) -> None:
    """A finished model with a cut-off, so that the scores out of fold are its scores."""
    data = load(name, DATA, attribute)
    some = np.random.default_rng(0).permutation(len(data.ids))[:5000]
    X = data.features.iloc[some].reset_index(drop=True)
    y, n = np.array(words)[data.target[some]], len(some)
    good = settings.get("pos_label", words[1])
    scores = FrozenEstimator(base_model("logistic", 0).fit(X, y))
    bank = FixedThresholdClassifier(scores, threshold=threshold, pos_label=good)
    values = {attribute: [data.attributes[attribute][i] for i in some]}
    asked = LocalOracle.rehearse(range(n), values, epsilon=500.0, delta=1e-5)
    settings = {"oracle": asked, "pos_label": good, "tolerance": 0.0, **settings}
    clf = FairClassifier(bank, random_state=0, **settings).fit(X, y)
    before, after = (m.predict(X) for m in (clf.base_estimator_, clf))
    report = clf.report_
    assert report.returned != "base"
    assert 0.05 < (before == good).mean() < 0.95
    for decided, rate, error in (
        (before, report.base_selection_rate, report.base_error),
        (after, report.selection_rate, report.error),
    ):
        assert round(rate * n) == (decided == good).sum()
        assert round(error * n) == (decided != y).sum()
    # The regulator counts the same people: totals are the company's, to the person.
    found = audit(asked, after, y, name="after", pos_label=good)
    assert found.selected == report.pos_label == good
    selected = found.totals[1] + found.totals[3]
    assert selected == (after == good).sum()
