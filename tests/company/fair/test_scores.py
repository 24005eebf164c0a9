"""`FairRegressor`: scores that are distributed alike in groups that nobody here sees."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from page_kit import Walk
from sklearn.base import clone
from sklearn.linear_model import LinearRegression, LogisticRegression

from isonomy.common.base.errors import ConfigError, DataError
from isonomy.common.privacy.declarations import Declaration
from isonomy.common.sums.local import LocalOracle
from isonomy.common.sums.oracle import FilteredOracle
from isonomy.company import lending
from isonomy.company.fair.save import load_model, save_model
from isonomy.company.fair.scores.levels import Levels
from isonomy.company.fair.scores.regressor import FairRegressor
from isonomy.company.fair.tilt.rule import Tilt, costs, decide, margins
from isonomy.company.rehearsal.scores import distance

N = 3_000


def _people(n: int, seed: int) -> tuple[pd.DataFrame, Any, Any]:
    """A score that depends on the sex through features that tell it."""
    rng = np.random.default_rng(seed)
    sex = rng.integers(0, 2, n)
    X = pd.DataFrame({"a": rng.normal(size=n) + 1.2 * sex, "b": rng.normal(size=n)})
    return X, 10 + 3 * X["a"].to_numpy() + 3 * X["b"].to_numpy() + rng.normal(size=n), sex


def _oracle(sex: Any, epsilon: float = 4.0, **settings: Any) -> Any:
    column = ["fm"[code] for code in sex]
    ids = list(range(len(column)))
    return LocalOracle.rehearse(ids, {"sex": column}, epsilon=epsilon, delta=1e-5, **settings)


@pytest.fixture(scope="module")
def model() -> FairRegressor:
    X, y, sex = _people(N, 0)
    fair = FairRegressor(LinearRegression(), oracle=_oracle(sex), levels=8, random_state=0)
    return fair.fit(X, y)


def test_the_distance_of_groups_closes_for_people_not_seen(model: FairRegressor) -> None:
    X, y, sex = _people(20_000, 1)
    base = model.base_estimator_.predict(X)
    fair = model.predict(X)
    assert distance(base, sex) > 0.25
    assert distance(fair, sex) < 0.1
    assert np.mean((y - fair) ** 2) < 0.6 * y.var()  # it is still a score


def test_the_score_takes_its_levels_and_no_other_value(model: FairRegressor) -> None:
    X, *_ = _people(2_000, 1)
    assert np.isin(model.predict(X), model.levels_).all()
    assert len(model.levels_) == 8 == model.report_.levels
    assert (np.diff(model.levels_) >= 0).all()


def test_a_level_is_worth_the_mean_target_there(model: FairRegressor) -> None:
    """Calibrated over everybody: E[y | score] is the score, up to sampling."""
    X, y, _ = _people(40_000, 2)
    score = model.predict(X)
    for level in np.unique(score):
        there = score == level
        if there.sum() > 1_000:
            assert y[there].mean() == pytest.approx(level, abs=0.5)


def test_the_report_has_an_interval_that_holds(model: FairRegressor) -> None:
    X, _, sex = _people(40_000, 3)
    report = model.report_
    true = distance(model.predict(X), sex)
    assert report.interval is not None
    assert report.interval[0] - 0.02 <= true <= report.interval[1] + 0.02
    assert report.base_violation is not None
    assert report.base_violation > 0.25
    text = str(report)
    assert "score above" in text
    assert "8 levels" in text


def test_it_declares_strategy_and_notion_and_spends_what_it_says() -> None:
    X, y, sex = _people(600, 0)
    oracle = _oracle(sex)
    fair = FairRegressor(LinearRegression(), oracle=oracle, levels=4, audits=2, cv=2).fit(X, y)
    custodian = oracle.channel.custodian
    records = custodian._ledger.debits_of(custodian.terms[0])
    declared = [Declaration.from_text(str(record.event["declaration"])) for record in records]
    assert {(each.strategy, each.notion) for each in declared} == {("tilt", "score_parity")}
    assert fair.report_.epsilon_spent == pytest.approx(oracle.budget.spent_epsilon)
    assert oracle.budget.spent_units <= 0.9 * oracle.budget.cap_units


def test_another_tolerance_is_free(model: FairRegressor) -> None:
    spent = model.oracle.budget.spent_units
    loose = model.at(tolerance=0.2)
    assert model.oracle.budget.spent_units == spent
    assert loose.report_.loss < model.report_.loss
    assert loose.report_.violation > model.report_.violation
    assert model.tolerance == 0.05


def test_a_classifier_gives_probabilities() -> None:
    X, y, sex = _people(2_000, 0)
    label = (y > 11).astype(int)
    fair = FairRegressor(LogisticRegression(), oracle=_oracle(sex), levels=6, random_state=0)
    score = fair.fit(X, label).predict(X)
    assert 0 <= score.min() <= score.max() <= 1
    assert distance(score, sex) < 0.5 * distance(fair.base_estimator_.predict_proba(X)[:, 1], sex)


def test_saved_and_loaded_it_scores_the_same(model: FairRegressor, tmp_path: Path) -> None:
    X, *_ = _people(500, 5)
    folder = save_model(model, tmp_path / "model")
    loaded = load_model(folder)
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))
    assert "score_parity" in (folder / "card.md").read_text()
    with pytest.raises(ConfigError, match="without its training rows"):
        loaded.at(tolerance=0.1)
    with pytest.raises(ConfigError, match="not written as ONNX"):
        save_model(model, tmp_path / "other", onnx=True)
    assert not (tmp_path / "other").exists()


def test_a_copy_has_no_oracle(model: FairRegressor) -> None:
    X, y, _ = _people(N, 0)
    for copied in (clone(model), copy.deepcopy(model)):
        with pytest.raises(ConfigError, match="Copies have no oracle"):
            copied.fit(X, y)


def test_a_picture(model: FairRegressor, tmp_path: Path) -> None:
    model.plot_groups().save(tmp_path / "scores.svg")
    assert "level that is exceeded" in (tmp_path / "scores.svg").read_text()


@pytest.mark.parametrize(
    ("settings", "target", "error", "words"),
    [
        ({"levels": 1}, None, ConfigError, "levels must be"),
        ({"notion": "equalized_odds"}, None, ConfigError, "notion must be 'score_parity'"),
        ({"notion": "bounded_group_loss"}, None, ConfigError, "on three of four real sets"),
        ({"audits": 0}, None, ConfigError, "audits must be"),
        ({"cv": 1}, None, ConfigError, "cv must be"),
        ({"tolerance": 2}, None, ConfigError, "tolerance must be"),
        ({"estimator": LogisticRegression()}, None, ConfigError, "0 and 1"),
        ({}, "text", DataError, "one number per row"),
        ({}, np.nan, DataError, "finite"),
        ({}, 1.0, DataError, "same for everybody"),
    ],
)  # fmt: skip
def test_wrong_input_is_refused_and_nothing_is_spent(
    settings: dict[str, Any], target: Any, error: type[Exception], words: str
) -> None:
    X, y, sex = _people(400, 0)
    oracle = _oracle(sex)
    y = y if target is None else [target] * len(y)
    fair = FairRegressor(LinearRegression(), oracle=oracle).set_params(**settings)
    with pytest.raises(error, match=words):
        fair.fit(X, y)
    assert oracle.budget.spent_units == 0


def test_an_individual_filter_is_refused() -> None:
    X, y, sex = _people(400, 0)
    oracle = FilteredOracle(_oracle(sex, individual=True))
    with pytest.raises(ConfigError, match="FairRegressor does not work under an individual filter"):
        FairRegressor(LinearRegression(), oracle=oracle).fit(X, y)


# --- The rule, exactly ---------------------------------------------------------------------------


def test_the_rule_is_the_pointwise_minimum() -> None:
    """By hand: loss of each level plus λ·g/p for every level that it is above."""
    rng = np.random.default_rng(0)
    levels = Levels(np.array([0.0, 1.0, 3.0]), np.array([0.0, 1.0, 3.0]), 2.0)
    score, g = rng.normal(1, 1, 50), rng.random(50)
    proxy = np.stack([g, 1 - g], axis=1)[None]  # (1, n, 2)
    shares = np.array([[0.4, 0.6]])
    lam = rng.normal(size=(2, 2))
    utilities = levels.utilities(score)
    tilted = margins(utilities, costs(levels.events, utilities, proxy, shares), Tilt(lam))
    for person, chosen in enumerate(decide(tilted)):
        prices = [
            -utilities[person, level]
            + sum(
                lam[group, event] * proxy[0, person, group] / shares[0, group]
                for group in range(2)
                for event in range(2)
                if level > event
            )
            for level in range(3)
        ]
        assert prices[chosen] == pytest.approx(min(prices))


def test_levels_lie_at_the_means_of_equal_parts() -> None:
    score = np.arange(100.0)
    levels = Levels.of(score, score, np.ones(100), 4)
    np.testing.assert_allclose(levels.places, [12, 37, 62, 87])
    with pytest.raises(DataError, match="one score"):
        Levels.of(np.ones(9), np.arange(9.0), np.ones(9), 4)


def test_the_page_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every block of docs/scores.md, on the table that the quickstart writes."""
    with Walk(tmp_path, {"--epsilon 1,3": "--epsilon 3 --seeds 1"}) as walk:
        data = lending(people=3_000, seed=1)
        people = data.features.assign(repaid=data.target, sex=data.attributes["sex"])
        people.to_csv("people.csv", index=False)
        walk.page("scores.md")
    assert walk.count == 2
    assert "The score has 8 levels" in capsys.readouterr().out
    assert np.isin(walk.names["scores"], walk.names["model"].levels_).all()
