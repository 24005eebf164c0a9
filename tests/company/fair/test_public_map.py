"""φ of lenders who pool: the same function for all, from nobody's data; what is refused."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from geometry_kit import geometry_of
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

from isonomy.common.agreements.feature_map import PublicFeatures
from isonomy.common.base.errors import ConfigError, DataError, ProtocolError
from isonomy.common.pooled.rehearsal import rehearse_together
from isonomy.common.sums.local import LocalOracle
from isonomy.common.sums.oracle import GroupOracle
from isonomy.company.fair.estimator import FairClassifier
from isonomy.company.fair.inputs.checks import FeatureMapWarning
from isonomy.company.fair.inputs.proxy import fit_posterior
from isonomy.company.fair.inputs.public_map import check_table, public_map
from isonomy.company.fair.save import load_model, save_model
from isonomy.company.fair.tilt.releases_file import load_releases, save_releases

MAP = PublicFeatures.of(
    {
        "columns": [
            {"name": "age", "low": "18", "high": "90", "typical": "40", "spread": "12"},
            {"name": "home", "levels": ["rent", "own"]},
        ],
        "seed": 3,
    }
)
RNG = np.random.default_rng(0)


def table(people: int, rng: np.random.Generator = RNG) -> pd.DataFrame:
    return pd.DataFrame(
        {"age": rng.integers(18, 90, people), "home": rng.choice(["rent", "own"], people)}
    )


def test_the_same_function_at_every_lender() -> None:
    """Other people and other scores: the same part of x, bins of equal meaning, norm at most 1."""
    one, other = public_map(MAP, RNG.uniform(size=300)), public_map(MAP, RNG.beta(2, 9, size=80))
    X, score = table(50), np.full(50, 0.5)
    assert one.norm == other.norm
    width = one.without_bins().width
    assert np.array_equal(one.rows(X, score)[:, :width], other.rows(X, score)[:, :width])
    extreme = pd.DataFrame({"age": [1e9, -1e9, np.nan], "home": ["?", None, "own"]})
    for rows in (one.rows(X, score), one.rows(extreme, np.array([0.0, 1.0, 0.5]))):
        assert np.isfinite(rows).all()
        assert (np.linalg.norm(rows, axis=1) <= 1 + 1e-9).all()


def test_another_seed_or_range_is_another_function() -> None:
    score, X = np.linspace(0, 1, 50), table(50)
    rows = public_map(MAP, score).rows(X, score)
    assert np.array_equal(rows, public_map(MAP, score).rows(X, score))
    for changed in (
        MAP.model_copy(update={"seed": 4}),
        MAP.model_copy(update={"columns": (MAP.columns[1], MAP.columns[0])}),
    ):
        assert not np.allclose(rows, public_map(changed, score).rows(X, score))


def test_a_constant_score_has_the_same_bound() -> None:
    constant = public_map(MAP, np.full(100, 0.3))
    assert constant.norm == public_map(MAP, np.linspace(0, 1, 100)).norm
    assert constant.rows(table(5), np.full(5, 0.3)).shape[1] == constant.width


@pytest.mark.parametrize(
    ("X", "reason"),
    [
        (pd.DataFrame({"age": [1.0]}), "lacks 1 columns.*'home'"),
        (pd.DataFrame({"age": ["old"], "home": ["own"]}), "'age' has numbers"),
        (pd.DataFrame({"age": [50], "home": [1]}), "'home' has words"),
    ],
)
def test_a_table_that_does_not_fit(X: pd.DataFrame, reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        check_table(MAP, X)


def test_unknown_values_are_remarks() -> None:
    X = pd.DataFrame({"age": [50, 100], "home": ["own", "castle"], "more": [1, 2]})
    age, home = check_table(MAP, X)
    assert "50.0% of X lie outside 18 to 90" in age
    assert "50.0% of X are none of its levels" in home
    assert not check_table(MAP, table(20))


def test_with_the_whole_population_the_scaled_posterior_is_the_exact_one() -> None:
    """A lender of everybody, k times: G and moment are k-fold, and so the same as one release."""
    rows = RNG.normal(size=(200, 5)) / 3
    member = (RNG.uniform(size=200) < 0.4).astype(float)
    whole = np.tile(rows, (3, 1))
    moment = whole.T @ np.tile(member, 3)
    exact = fit_posterior(geometry_of(whole), moment, 0.4, 2.0)
    scaled = fit_posterior(geometry_of(rows, 3.0), moment, 0.4, 2.0, whole.sum(axis=0))
    assert np.allclose(exact.beta, scaled.beta)
    assert np.allclose(np.sort(exact.spread), np.sort(scaled.spread))


# --- Training ------------------------------------------------------------------------------------


def lenders(size: int = 400) -> tuple[list[pd.DataFrame], list[Any], list[Any]]:
    rng = np.random.default_rng(7)
    tables, labels, people = [], [], []
    for lender in range(2):
        X = table(size, rng)
        group = np.where(rng.uniform(size=size) < (X["age"] - 18) / 72, "f", "m")
        labels.append((X["age"] + rng.normal(0, 15, size) > 50).to_numpy().astype(int))
        people.append(([f"{lender}-{n}" for n in range(size)], {"sex": group.tolist()}))
        tables.append(X)
    return tables, labels, people


def classifier(oracle: GroupOracle, **options: Any) -> FairClassifier:
    coded = make_column_transformer((OneHotEncoder(), ["home"]), remainder="passthrough")
    base = make_pipeline(coded, LogisticRegression(max_iter=500))
    return FairClassifier(base, oracle=oracle, cv=2, random_state=0, **options)


def test_two_lenders_train_and_keep_what_they_have(tmp_path: Path) -> None:
    tables, labels, people = lenders()
    oracles = rehearse_together(people, epsilon=20.0, delta=1e-5, feature_map=MAP)

    def fit(lender: int) -> FairClassifier:
        with oracles[lender] as oracle:
            return classifier(oracle).fit(tables[lender], labels[lender], ids=people[lender][0])

    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(fit, range(2))
    for model, oracle in zip((one, other), oracles, strict=True):
        assert model.releases_.pooled_counts.sum() == pytest.approx(800)
        assert model.releases_.counts.sum() == pytest.approx(400)
        assert np.allclose(model.releases_.scales, 2.0)
        spent = oracle.budget.spent_units
        assert model.releases_.units == spent <= 0.9 * oracle.budget.cap_units + 1
    assert np.array_equal(one.releases_.moments, other.releases_.moments), "one release for all"
    assert not np.array_equal(one.releases_.audits, other.releases_.audits), "own audits"
    save_model(one, tmp_path / "model")
    assert np.array_equal(load_model(tmp_path / "model").predict(tables[0]), one.predict(tables[0]))
    save_releases(one.releases_, tmp_path / "releases")
    again = classifier(oracles[0], releases=load_releases(tmp_path / "releases"))
    again.fit(tables[0], labels[0], ids=people[0][0])
    assert again.report_.returned in ("base", "tilt", "shrunk")


def test_nobody_waits_for_a_lender_who_failed() -> None:
    tables, labels, people = lenders(60)
    first, second = rehearse_together(people, epsilon=100.0, delta=1e-5, feature_map=MAP)

    def fails() -> None:
        with second as oracle:
            classifier(oracle).fit(tables[1].drop(columns="home"), labels[1], ids=people[1][0])

    def waits() -> None:
        with first as oracle:
            classifier(oracle).fit(tables[0], labels[0], ids=people[0][0])

    with ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(fails), pool.submit(waits)]
        assert isinstance(jobs[0].exception(60), DataError)
        assert isinstance(jobs[1].exception(60), ProtocolError)
    assert first.budget.spent_units == second.budget.spent_units == 0


def test_without_a_map_it_is_refused_and_unknown_values_warn() -> None:
    tables, labels, people = lenders(60)
    first, _ = rehearse_together(people, epsilon=100.0, delta=1e-5)
    with pytest.raises(ConfigError, match="no feature map"):
        classifier(first).fit(tables[0], labels[0], ids=people[0][0])
    mapped, other = rehearse_together(people, epsilon=100.0, delta=1e-5, feature_map=MAP)
    other.close()
    strange = tables[0].assign(age=200)
    with pytest.warns(FeatureMapWarning, match="lie outside"), pytest.raises(ProtocolError):
        classifier(mapped).fit(strange, labels[0], ids=people[0][0])
    assert mapped.budget.spent_units == 0


def test_alone_means_nothing_where_nobody_else_is() -> None:
    oracle = LocalOracle.rehearse(
        list(range(40)), {"sex": ["f", "m"] * 20}, epsilon=9.0, delta=1e-5
    )
    release = oracle.open_sum(np.ones((40, 1)), norm=1.0, share=0.1, alone=True)
    assert release.receipt.query_id.endswith("-000000")
