"""After the first fit: new people join, and today's people are compared with the training's."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression

from isonomy.common.base.errors import ConfigError, DataError
from isonomy.common.sums.local import LocalOracle
from isonomy.company.fair.estimator import FairClassifier
from isonomy.company.fair.save import load_model, save_model
from isonomy.company.fair.tilt.releases_file import load_releases, save_releases

N, NEW = 3_000, 1_500


def _people(n: int, seed: int, first: int = 0) -> tuple[pd.DataFrame, Any, list[str], list[str]]:
    """Features that tell the sex, a target that depends on it, ids from number `first` on."""
    rng = np.random.default_rng(seed)
    sex = rng.integers(0, 2, n)
    X = pd.DataFrame({"a": rng.normal(size=n) + sex, "b": rng.normal(size=n) + 0.7 * sex})
    y = (X["a"] + X["b"] + rng.normal(size=n) > 1).astype(int).to_numpy()
    return X, y, [f"p{first + i}" for i in range(n)], ["fm"[code] for code in sex]


def _changed(X: pd.DataFrame, row: int) -> pd.DataFrame:
    return X.assign(a=X["a"] + 0.01 * (np.arange(len(X)) == row))


def _oracle(ids: list[str], sex: list[str], epsilon: float = 4.0) -> Any:
    return LocalOracle.rehearse(ids, {"sex": sex}, epsilon=epsilon, delta=1e-5)


@pytest.fixture(scope="module")
def first() -> tuple[FairClassifier, Any, Any, list[str], list[str]]:
    X, y, ids, sex = _people(N, 0)
    model = FairClassifier(LogisticRegression(), oracle=_oracle(ids, sex), cv=3, random_state=0)
    return model.fit(X, y), X, y, ids, sex


def _joined(first: Any, **settings: Any) -> tuple[FairClassifier, Any, Any, list[str], Any]:
    """A fit of everybody that asks about new people alone."""
    model, X, y, ids, _ = first
    X2, y2, ids2, sex2 = _people(NEW, 1, first=N)
    oracle = _oracle(ids2, sex2)
    joined = FairClassifier(
        LogisticRegression(), oracle=oracle, earlier=model.releases_, cv=3, random_state=0
    ).set_params(**settings)
    everybody = pd.concat([X, X2], ignore_index=True), np.append(y, y2), [*ids, *ids2]
    return joined.fit(everybody[0], everybody[1], ids=everybody[2]), *everybody, oracle


def test_new_people_alone_are_asked_about_and_pay(first: Any) -> None:
    before = first[0].oracle.budget.spent_units
    joined, _, _, _, oracle = _joined(first)
    assert first[0].oracle.budget.spent_units == before
    assert oracle.budget.spent_units > 0
    releases = joined.releases_
    # The last group of an attribute is the total less the rest, so counts add up to everybody.
    assert releases.counts.sum() == pytest.approx(N + NEW)
    assert releases.earlier == N
    assert releases.units == oracle.budget.spent_units
    assert releases.most_units == max(first[0].releases_.units, oracle.budget.spent_units)
    assert (releases.decisions[: len(first[0].releases_.decisions), N:] == -1).all()
    assert (releases.decisions[-1, :N] == -1).all()
    assert "only the others spent from this plan" in str(joined.report_)


def test_sums_and_variances_of_both_add_up(first: Any) -> None:
    old = first[0].releases_
    joined, X, *_ = _joined(first)
    both = joined.releases_
    features = joined.model_.features
    width = features.width
    assert both.moments.shape[-1] == width < old.moments.shape[-1]  # no bins of the score
    # The last group is the public total less the others, so that the groups add up to it.
    total = features.rows(X).sum(axis=0)
    np.testing.assert_allclose(both.moments[0].sum(axis=0), total, atol=0.01)
    np.testing.assert_allclose(
        both.moment_deviation**2 - old.moment_deviation**2, old.moment_deviation**2, rtol=0.01
    )  # both plans have the same ε, so the same noise


def test_the_joined_model_is_fair_to_people_not_seen(first: Any) -> None:
    joined, *_ = _joined(first, tolerance=0.0)
    X, _, _, sex = _people(40_000, 7)
    women = np.array(sex) == "f"
    base = joined.base_estimator_.predict(X)
    decided = joined.predict(X)
    assert abs(base[women].mean() - base[~women].mean()) > 0.3
    assert abs(decided[women].mean() - decided[~women].mean()) < 0.06


def test_joined_releases_are_kept_and_used_again(first: Any, tmp_path: Path) -> None:
    joined, X, y, ids, oracle = _joined(first)
    spent = oracle.budget.spent_units
    releases = load_releases(save_releases(joined.releases_, tmp_path / "releases"))
    again = FairClassifier(
        LogisticRegression(), oracle=oracle, releases=releases, cv=3, random_state=0
    ).fit(X, y, ids=ids)
    assert oracle.budget.spent_units == spent
    np.testing.assert_array_equal(again.predict(X), joined.predict(X))


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (lambda X, y, ids: (X, y, ids[1:] + ids[:1]), DataError, "same order"),
        (lambda X, y, ids: (X, 1 - y, ids), DataError, "same order"),
        (lambda X, y, ids: (_changed(X, 7), y, ids), DataError, "other features"),
        (lambda X, y, ids: (X, y, None), DataError, "one id per row"),
        (lambda X, y, ids: (X[:N], y[:N], ids[:N]), DataError, "then those of new people"),
        (lambda X, y, ids: (X, y, [*ids[:-1], "stranger"]), DataError, "not in the agreed cohort"),
    ],
)  # fmt: skip
def test_other_rows_are_refused_and_nothing_is_asked(
    first: Any, change: Any, error: type[Exception], words: str
) -> None:
    model, X, y, ids, _ = first
    X2, y2, ids2, sex2 = _people(NEW, 1, first=N)
    oracle = _oracle(ids2, sex2)
    joined = FairClassifier(LogisticRegression(), oracle=oracle, earlier=model.releases_)
    X, y, ids = change(pd.concat([X, X2], ignore_index=True), np.append(y, y2), [*ids, *ids2])
    with pytest.raises(error, match=words):
        joined.fit(X, y, ids=ids)
    assert oracle.budget.spent_units == 0


def test_people_of_both_plans_are_refused(first: Any) -> None:
    model, X, y, ids, sex = first
    oracle = _oracle(ids, sex)
    joined = FairClassifier(LogisticRegression(), oracle=oracle, earlier=model.releases_)
    with pytest.raises(DataError, match="in the new plan too"):
        joined.fit(pd.concat([X, X[:9]]), np.append(y, y[:9]), ids=[*ids, *ids[:9]])
    assert oracle.budget.spent_units == 0


@pytest.mark.parametrize(
    "settings", [{"notion": "equalized_odds"}, {"releases": "same"}, {"earlier": "a folder"}]
)
def test_what_does_not_go_together_is_refused(first: Any, settings: dict[str, Any]) -> None:
    if "releases" in settings:
        settings = {"releases": first[0].releases_}
    with pytest.raises(ConfigError):
        _joined(first, **settings)


# --- monitor -------------------------------------------------------------------------------------


def test_people_like_before_raise_no_alarm(first: Any) -> None:
    drift = first[0].monitor(_people(2_000, 5)[0])
    assert not drift.alarm
    assert "no change" in str(drift)


def test_other_people_raise_an_alarm_that_names_the_column(first: Any) -> None:
    X = _people(2_000, 5)[0]
    drift = first[0].monitor(X.assign(b=X["b"] + 0.3))
    assert drift.features_changed
    assert drift.columns[0][0] == "b"
    assert "The features have changed" in str(drift)


def test_a_change_that_keeps_every_mean_is_seen(first: Any) -> None:
    X = _people(4_000, 5)[0]
    mean = X["b"].mean()
    assert first[0].monitor(X.assign(b=mean + 1.5 * (X["b"] - mean))).features_changed


def test_false_alarms_are_as_rare_as_stated(first: Any) -> None:
    """1 % of 100 is 1; more than 5 would be seen once in two thousand such tests."""
    alarms = sum(first[0].monitor(_people(300, 1_000 + seed)[0]).alarm for seed in range(100))
    assert alarms <= 5


def test_rows_of_one_person_count_once(first: Any) -> None:
    X = _people(400, 5)[0]
    ids = [f"p{i}" for i in range(400)]
    once = first[0].monitor(X)
    five = first[0].monitor(pd.concat([X] * 5, ignore_index=True), ids=ids * 5)
    assert five.people == once.people == 400
    assert five.distance == pytest.approx(once.distance)


def test_a_loaded_model_and_another_tolerance_can_be_monitored(first: Any, tmp_path: Path) -> None:
    model, X = first[0], _people(1_000, 5)[0]
    loaded = load_model(save_model(model, tmp_path / "model"))
    assert loaded.monitor(X) == model.monitor(X)
    loose = model.at(tolerance=0.3)
    assert loose.monitor(X).selection_rate[0] == loose.report_.selection_rate


@pytest.mark.parametrize(("rows", "ids"), [(0, None), (0, []), (9, ["p1"])])
def test_nobody_and_people_without_an_id_are_refused(first: Any, rows: int, ids: Any) -> None:
    with pytest.raises(DataError, match="monitor compares at least one row"):
        first[0].monitor(_people(9, 5)[0][:rows], ids=ids)


def test_without_a_proxy_there_is_nothing_to_compare_with(first: Any) -> None:
    model = copy.copy(first[0])
    del model.reference_
    with pytest.raises(ConfigError, match="nothing to compare with"):
        model.monitor(first[1])
