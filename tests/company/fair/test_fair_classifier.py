"""`FairClassifier`: what it does, what it refuses, what it spends."""

from __future__ import annotations

import re
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import LogisticRegression, Perceptron
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.tree import DecisionTreeClassifier

from isonomy.common.base.errors import BudgetExceeded, CapacityError, ConfigError, DataError
from isonomy.common.sums.local import LocalOracle
from isonomy.common.sums.oracle import GroupOracle
from isonomy.company.fair.estimator import FairClassifier
from isonomy.company.fair.inputs import features
from isonomy.company.fair.inputs.checks import AttributeAmongFeaturesWarning

N = 3000


def people(n: int = N, seed: int = 0) -> tuple[pd.DataFrame, np.ndarray, np.ndarray]:
    """Income by skill and hours; women (group "f") get less for the same; hobby tells the sex."""
    rng = np.random.default_rng(seed)
    a = rng.random(n) < 0.4
    hobby = rng.normal(2.5 * a, 1.0)
    skill = rng.normal(0, 1, n)
    y = (skill - 1.3 * a + rng.normal(0, 0.7, n) > 0.3).astype(int)
    return pd.DataFrame({"skill": skill, "hobby": hobby}), y, np.where(a, "f", "m")


def oracle_for(a: np.ndarray, epsilon: float = 8.0, name: str = "sex") -> GroupOracle:
    return LocalOracle.rehearse(
        [f"p{i}" for i in range(len(a))], {name: a.tolist()}, epsilon=epsilon, delta=1e-5
    )


def gap(h: np.ndarray, a: np.ndarray) -> float:
    return float(abs(h[a == "f"].mean() - h[a == "m"].mean()))


@pytest.fixture(scope="module")
def fitted() -> tuple[FairClassifier, LocalOracle]:
    X, y, a = people()
    oracle = oracle_for(a)
    clf = FairClassifier(LogisticRegression(), tolerance=0.02, oracle=oracle, random_state=0)
    return clf.fit(X, y), oracle


def test_makes_new_people_fair_without_their_attribute(fitted: Any) -> None:
    clf, _ = fitted
    X, y, a = people(20_000, seed=1)
    base = clf.base_estimator_.predict(X)
    assert gap(base, a) > 0.2
    assert gap(clf.predict(X), a) < 0.06
    assert (clf.predict(X) == y).mean() > 0.7


def test_report_says_what_was_done(fitted: Any) -> None:
    clf, oracle = fitted
    report = clf.report_
    assert report.returned == "tilt"
    assert report.base_violation > 0.15
    # The last audit is noisy, so its estimate may lie a little above the tolerance that was met by
    # the others; its interval must reach it.
    assert report.interval[0] <= 0.02
    assert report.violation < 0.04
    assert report.interval[0] <= report.violation <= report.interval[1]
    assert report.error_cost == pytest.approx(report.error - report.base_error)
    assert report.seconds_base > 0
    assert report.seconds_fairness > 0
    assert "points" in str(report)
    assert "ε" in str(report)
    assert report.epsilon_spent == pytest.approx(oracle.budget.spent_epsilon)


def test_all_releases_together_stay_within_the_cap(fitted: Any) -> None:
    clf, oracle = fitted
    budget = oracle.budget
    assert clf.releases_.units == budget.spent_units
    kept = 0.9 * budget.cap_units  # a tenth is for audits
    assert 0.999 * kept < budget.spent_units <= kept
    assert len(clf.releases_.queries) == 1 + 1 + clf.audits


def test_probabilities_agree_with_decisions(fitted: Any) -> None:
    clf, _ = fitted
    X, _, _ = people(500, seed=2)
    proba = clf.predict_proba(X)
    np.testing.assert_allclose(proba.sum(axis=1), 1)
    assert ((proba[:, 1] > 0.5) == clf.predict(X)).all()


def test_frontier_is_free_and_monotone(fitted: Any) -> None:
    clf, oracle = fitted
    before = oracle.budget.spent_units
    points = clf.frontier([0.0, 0.05, 0.1, 0.9])
    assert oracle.budget.spent_units == before
    errors = [point.error for point in points]
    assert errors == sorted(errors, reverse=True)
    assert points[-1].returned == "base"
    assert all(p.violation <= p.tolerance + 0.01 for p in points)


def test_at_gives_the_model_of_another_tolerance(fitted: Any) -> None:
    clf, _ = fitted
    other = clf.at(tolerance=0.1)
    X, _, a = people(20_000, seed=3)
    assert gap(clf.predict(X), a) < gap(other.predict(X), a) < 0.15
    assert clf.tolerance == 0.02
    assert other.report_.tolerance == 0.1


def test_another_base_model_reuses_the_releases(fitted: Any) -> None:
    clf, oracle = fitted
    X, y, _ = people()
    before = oracle.budget.spent_units
    again = FairClassifier(
        DecisionTreeClassifier(max_depth=5, random_state=0),
        tolerance=0.02,
        oracle=oracle,
        releases=clf.releases_,
    ).fit(X, y)
    assert oracle.budget.spent_units == before
    X_new, _, a = people(20_000, seed=4)
    assert gap(again.predict(X_new), a) < 0.6 * gap(again.base_estimator_.predict(X_new), a)
    with pytest.raises(DataError, match="other people or labels"):
        clone(again).set_params(oracle=oracle).fit(X, 1 - y)


def test_the_plan_is_not_spent_twice(fitted: Any) -> None:
    clf, _ = fitted
    X, y, _ = people()
    with pytest.raises(BudgetExceeded, match="is spent"):
        clone(clf).set_params(oracle=clf.oracle).fit(X, y)


def test_a_fair_base_model_is_returned_unchanged() -> None:
    X, y, _ = people()
    a = np.where(np.random.default_rng(5).random(N) < 0.5, "f", "m")  # unrelated to anything
    clf = FairClassifier(LogisticRegression(), oracle=oracle_for(a), random_state=0).fit(X, y)
    assert clf.report_.returned == "base"
    X_new, _, _ = people(200, seed=6)
    assert (clf.predict(X_new) == clf.base_estimator_.predict(X_new)).all()
    np.testing.assert_array_equal(
        clf.predict_proba(X_new), clf.base_estimator_.predict_proba(X_new)
    )
    assert "unchanged" in str(clf.report_)


def test_epsilon_uses_only_that_part_of_the_plan() -> None:
    X, y, a = people()
    oracle = oracle_for(a, epsilon=8.0)
    clf = FairClassifier(LogisticRegression(), oracle=oracle, epsilon=2.0, random_state=0)
    clf.fit(X, y)
    assert 1.99 < oracle.budget.spent_epsilon <= 2.0
    clf.fit(X, y)  # the rest of the plan allows another
    with pytest.raises(BudgetExceeded, match="more than the plan has left"):
        clf.set_params(epsilon=7.9).fit(X, y)


@pytest.mark.parametrize(
    "notion", ["equalized_odds", "equal_opportunity", "equal_fpr", "accuracy_parity"]
)
def test_other_notions_fit(notion: str) -> None:
    X, y, a = people(8000)
    oracle = oracle_for(a, epsilon=20.0)
    clf = FairClassifier(
        LogisticRegression(), notion=notion, tolerance=0.02, oracle=oracle, random_state=0
    ).fit(X, y)
    report = clf.report_
    if report.returned == "base":  # only where the audits cannot tell it from fair
        assert report.base_violation <= 0.02 + 2 * report.base_deviation
    else:
        assert report.violation < 0.5 * report.base_violation
    assert oracle.budget.spent_units <= oracle.budget.cap_units


def test_several_notions_each_with_its_tolerance() -> None:
    X, y, a = people()
    clf = FairClassifier(
        LogisticRegression(),
        notion=["demographic_parity", "equal_fpr"],
        tolerance={"demographic_parity": 0.1, "equal_fpr": 0.05},
        oracle=oracle_for(a, epsilon=20.0),
        random_state=0,
    ).fit(X, y)
    land = clf._outcome.view.land
    assert land.tolerance.tolist() == [[0.1, 0.05]]
    assert land.excess(land.rates(land.decide(clf._outcome.tilt)[0])).max() < 0.02


def test_several_attributes_and_intersections() -> None:
    X, y, a = people()
    other = np.where(X["skill"] + np.random.default_rng(0).normal(0, 1, N) > 0, "u", "v")
    ids = list(range(N))
    for attribute in (["sex", "town"], "sex*town"):
        oracle = LocalOracle.rehearse(
            ids, {"sex": a.tolist(), "town": other.tolist()}, epsilon=30.0, delta=1e-5
        )
        clf = FairClassifier(
            LogisticRegression(), oracle=oracle, attribute=attribute, tolerance=0.05, random_state=0
        ).fit(X, y, ids=ids)
        assert len(clf.report_.groups) == 4
        assert clf.report_.violation < 0.6 * clf.report_.base_violation
    with pytest.raises(ConfigError, match="name an attribute"):
        FairClassifier(LogisticRegression(), oracle=oracle).fit(X, y)


def test_three_classes() -> None:
    X, _, a = people()
    y = np.digitize(X["skill"] - 1.2 * (a == "f"), [-0.8, 0.3])
    names = np.array(["low", "mid", "high"])
    clf = FairClassifier(
        LogisticRegression(),
        tolerance=0.05,
        oracle=oracle_for(a, epsilon=20.0),
        pos_label="high",
        random_state=0,
    ).fit(X, names[y])
    assert set(clf.classes_) == set(names)
    assert clf.report_.violation < 0.5 * clf.report_.base_violation
    assert clf.predict_proba(X).shape == (N, 3)
    assert (clf.classes_[clf.predict_proba(X).argmax(axis=1)] == clf.predict(X)).all()


def test_keep_selection_rate() -> None:
    X, y, a = people()
    clf = FairClassifier(
        LogisticRegression(),
        tolerance=0.02,
        oracle=oracle_for(a),
        keep_selection_rate=True,
        random_state=0,
    ).fit(X, y)
    assert clf.report_.selection_rate == pytest.approx(clf.report_.base_selection_rate, abs=2e-3)
    X_new, _, _ = people(20_000, seed=7)
    rate = clf.base_estimator_.predict(X_new).mean()
    assert clf.predict(X_new).mean() == pytest.approx(rate, abs=0.02)


def test_ids_say_whose_rows_they_are() -> None:
    X, y, a = people()
    oracle = oracle_for(a)
    order = np.random.default_rng(0).permutation(N)[:2500]
    clf = FairClassifier(LogisticRegression(), tolerance=0.02, oracle=oracle, random_state=0)
    clf.fit(X.iloc[order], y[order], ids=[f"p{i}" for i in order])
    assert clf.report_.base_violation == pytest.approx(
        gap(clf.base_estimator_.predict(X.iloc[order]), a[order]), abs=0.05
    )


def test_people_with_several_rows_count_once() -> None:
    X, y, a = people(1200)
    rows = np.repeat(np.arange(1200), np.random.default_rng(0).integers(1, 4, 1200))
    clf = FairClassifier(
        LogisticRegression(), notion="equalized_odds", oracle=oracle_for(a, 20.0), random_state=0
    )
    clf.fit(X.iloc[rows], y[rows], ids=[f"p{i}" for i in rows])
    assert any("several rows" in note.lower() for note in clf.report_.notes)


def test_people_with_rows_of_both_labels_stay_within_the_plan() -> None:
    """They are in the moment of each label, and must not pay the price of both."""
    X, y, a = people(1200)
    rows = np.repeat(np.arange(1200), 2)
    labels = y[rows]
    labels[::6] = 1 - labels[::6]
    oracle = oracle_for(a, 5.0)
    clf = FairClassifier(
        LogisticRegression(), notion="equalized_odds", oracle=oracle, random_state=0
    )
    clf.fit(X.iloc[rows], labels, ids=[f"p{i}" for i in rows])
    assert clf.report_.epsilon_spent == pytest.approx(oracle.budget.spent_epsilon, rel=1e-6)
    assert oracle.budget.spent_epsilon <= 5.0


def test_mixed_tables_with_gaps() -> None:
    X, y, a = people()
    X["city"] = np.where(np.random.default_rng(0).random(N) < 0.5, "A", "B")
    X.loc[X.index % 7 == 0, "city"] = None
    X.loc[X.index % 11 == 0, "hobby"] = np.nan
    base = make_pipeline(OneHotEncoder(handle_unknown="ignore"), LogisticRegression())
    clf = FairClassifier(base, oracle=oracle_for(a), random_state=0).fit(X, y)
    assert clf.predict(X.head(5)).shape == (5,)


def test_numpy_lists_and_pipelines() -> None:
    X, y, a = people()
    clf = FairClassifier(LogisticRegression(), oracle=oracle_for(a), random_state=0)
    pipe = make_pipeline(StandardScaler(), clf).fit(X.to_numpy(), y.tolist())
    assert pipe.predict(X.to_numpy()).shape == (N,)


def test_a_clone_has_the_settings_without_the_oracle() -> None:
    _, _, a = people(50)
    oracle = oracle_for(a)
    clf = FairClassifier(LogisticRegression(C=3), tolerance=0.3, oracle=oracle)
    other = clone(clf)
    assert "left out" in repr(other)
    assert other.estimator is not clf.estimator
    assert other.get_params()["estimator__C"] == 3
    assert other.set_params(estimator__C=5).estimator.C == 5


def test_fit_changes_no_parameter(fitted: Any) -> None:
    clf, _ = fitted
    assert clf.estimator.__dict__.get("coef_") is None
    assert clf.epsilon is None
    assert clf.releases is None


# --- Bad input: clear, early, free ---------------------------------------------------------------


def refuse(error: type[Exception], match: str, **settings: Any) -> None:
    X, y, a = people(600)
    oracle = oracle_for(a)
    given = {"X": X, "y": y, "ids": None, "sample_weight": None}
    given |= {k: settings.pop(k) for k in list(settings) if k in given}
    clf = FairClassifier(**{"estimator": LogisticRegression(), "oracle": oracle, **settings})
    with pytest.raises(error, match=match):
        clf.fit(given["X"], given["y"], ids=given["ids"], sample_weight=given["sample_weight"])
    assert oracle.budget.spent_units == 0


@pytest.mark.parametrize("tolerance", [-0.01, 1.0, float("nan"), "much"])
def test_tolerance_outside_0_to_1(tolerance: Any) -> None:
    refuse(ConfigError, "tolerance must be", tolerance=tolerance)


def test_no_oracle() -> None:
    refuse(ConfigError, "needs oracle", oracle=None)


def test_unknown_notion() -> None:
    refuse(ConfigError, "notion must be", notion="justice")


def test_sample_weight() -> None:
    refuse(ConfigError, "sample_weight", sample_weight=np.ones(600))


def test_ids_that_do_not_match() -> None:
    refuse(DataError, "not in the agreed cohort", ids=[f"q{i}" for i in range(600)])
    refuse(DataError, "one id per row", ids=["p1"])
    refuse(DataError, "pass ids", X=people(500)[0], y=people(500)[1])


def test_one_class() -> None:
    refuse(DataError, "one class", y=np.zeros(600, dtype=int))


def test_no_predict_proba() -> None:
    refuse(ConfigError, "predict_proba", estimator=Perceptron())


def test_too_small_an_epsilon_is_said_before_spending() -> None:
    refuse(ConfigError, "too small to release anything useful", epsilon=1e-3)


@pytest.mark.parametrize("epsilon", [1e-4, 0.01, 0.08])
def test_the_budget_that_is_advised_is_enough(epsilon: float) -> None:
    """Whoever follows the advice is not refused again, and no more than needed is asked for."""
    X, y, a = people(600)

    def tried(epsilon: float) -> str:
        clf = FairClassifier(LogisticRegression(), oracle=oracle_for(a, epsilon))
        with pytest.raises(ConfigError, match="too small") as refusal:
            clf.fit(X, y)
        assert clf.oracle.budget.spent_units == 0
        return str(refusal.value)

    advised = float(re.findall(r"plan of ε = ([0-9.]+)", tried(epsilon))[0])
    assert "two groups could be measured" in tried(0.97 * advised)
    FairClassifier(LogisticRegression(), oracle=oracle_for(a, advised)).fit(X, y)


def test_a_part_of_a_plan_that_is_too_small_is_told_what_it_takes() -> None:
    X, y, a = people(600)
    oracle = oracle_for(a)
    with pytest.raises(ConfigError, match=r"at least ε = [0-9.]+ for this model; or") as refusal:
        FairClassifier(LogisticRegression(), oracle=oracle, epsilon=0.01).fit(X, y)
    advised = float(re.findall(r"at least ε = ([0-9.]+)", str(refusal.value))[0])
    FairClassifier(LogisticRegression(), oracle=oracle, epsilon=advised).fit(X, y)


def test_unknown_attribute() -> None:
    refuse(ConfigError, "unknown", attribute="race")


def test_too_many_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "MAX_CODED", 1)
    refuse(CapacityError, "columns")


def test_in_training_needs_torch() -> None:
    refuse(ConfigError, "TorchClassifier", in_training=True)


def test_attribute_among_the_features_warns() -> None:
    X, y, a = people(600)
    X["SEX"] = (a == "f").astype(float)
    clf = FairClassifier(LogisticRegression(), oracle=oracle_for(a), random_state=0)
    with pytest.warns(AttributeAmongFeaturesWarning, match="SEX"):
        clf.fit(X, y)


@pytest.mark.parametrize("notion", ["demographic_parity", "accuracy_parity"])
def test_a_constant_model_costs_nothing(notion: str) -> None:
    X, y, a = people(600)
    oracle = oracle_for(a)
    y[:] = 0
    y[:10] = 1
    clf = FairClassifier(DummyClassifier(), notion="equal_fpr", oracle=oracle).fit(X, y)
    assert clf.report_.returned == "base"
    assert oracle.budget.spent_units == 0
    assert clf.predict(X).shape == (600,)
    with pytest.raises(ConfigError, match="nothing to choose from"):
        clf.frontier()


def test_a_model_that_is_always_right() -> None:
    X, y, a = people(600)
    X["answer"] = y
    tree = DecisionTreeClassifier()
    oracle = oracle_for(a)
    right = FairClassifier(tree, notion="equalized_odds", oracle=oracle).fit(X, y)
    assert right.report_.returned == "base"
    assert oracle.budget.spent_units == 0
    tilted = FairClassifier(tree, tolerance=0.02, oracle=oracle, random_state=0).fit(X, y)
    assert tilted.report_.error_cost <= 0.75 * tilted.report_.base_violation


def test_a_proxy_that_separates_perfectly() -> None:
    X, y, a = people()
    X["dress"] = (a == "f") * 1.0
    oracle = oracle_for(a, epsilon=100.0)
    clf = FairClassifier(LogisticRegression(), tolerance=0.0, oracle=oracle, random_state=0)
    clf.fit(X, y)
    assert gap(clf.predict(X), a) < 0.02


def test_no_warning_in_a_plain_fit() -> None:
    X, y, a = people(600)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        FairClassifier(LogisticRegression(), oracle=oracle_for(a)).fit(X, y)


def test_cross_validation_is_refused_with_the_recipe() -> None:
    X, y, a = people(600)
    oracle = oracle_for(a)
    clf = FairClassifier(LogisticRegression(), oracle=oracle)
    ids = np.array(oracle.cohort.ids)
    with pytest.raises(ConfigError, match="Tune without attributes"):
        cross_val_score(clf, X, y, params={"ids": ids}, error_score="raise")
    with pytest.raises(ValueError, match="Tune without attributes"):
        cross_val_score(clf, X, y, params={"ids": ids})
    assert oracle.budget.spent_units == 0
