"""φ in parts is φ; and a fit that asks in parts spends and finds what a whole one does."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression

from isonomy.company import FairClassifier, LocalOracle, lending
from isonomy.company.fair.inputs import feature_rows
from isonomy.company.fair.inputs.feature_rows import FeatureRows, by_parts
from isonomy.company.fair.inputs.features import FeatureMap, fit_features
from isonomy.company.fair.inputs.people import People
from isonomy.company.fair.inputs.proxy import Geometry
from isonomy.company.fair.monitor import FALSE_ALARMS, Reference, _threshold
from isonomy.company.fair.tilt import releases


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feature_rows, "KEPT_CELLS", 0)
    monkeypatch.setattr(feature_rows, "PART_CELLS", 60_000)


@pytest.mark.parametrize("each", [1, 3], ids=["single", "repeated"])
def test_rows_in_parts_are_the_rows(each: int, small_parts: None) -> None:
    data = lending(people=900, seed=1)
    score = np.linspace(0, 1, 900)
    features = fit_features(data.features, score, np.random.default_rng(0))
    people = People.of(np.arange(900) // each, np.arange(900) % 2)
    whole = people.fold(features.rows(data.features, score))
    rows = FeatureRows(features, data.features, score, people)
    chosen = np.flatnonzero(people.stratum == 1)
    np.testing.assert_allclose(rows[chosen], whole[chosen], atol=1e-12)
    geometry = Geometry.of(rows, chosen)
    gram = geometry.directions * geometry.eigenvalues @ geometry.directions.T
    np.testing.assert_allclose(gram, whole[chosen].T @ whole[chosen], atol=1e-6)
    np.testing.assert_allclose(geometry.total, whole[chosen].sum(axis=0), atol=1e-9)
    u = np.random.default_rng(0).normal(size=(len(chosen), 2))
    expected = geometry.directions.T @ (whole[chosen].T @ u)
    np.testing.assert_allclose(geometry.moments(u), expected, atol=1e-9)
    np.testing.assert_allclose(
        geometry.spread(expected), whole[chosen] @ (geometry.directions @ expected), atol=1e-7
    )
    first = by_parts(lambda part: part[:, :2], features, data.features, score, 900)
    np.testing.assert_allclose(first, features.rows(data.features, score)[:, :2], atol=1e-12)


@pytest.mark.parametrize("each", [1, 3], ids=["single", "repeated"])
def test_the_monitors_reference_in_parts_is_that_of_all_rows(each: int, small_parts: None) -> None:
    data = lending(people=900, seed=1)
    features = fit_features(data.features, np.linspace(0, 1, 900), np.random.default_rng(0))
    people = People.of(np.arange(900) // each, np.arange(900) % 2)
    reference = Reference.of(features, data.features, people)
    persons = People.of(np.arange(900) // each, np.zeros(900, dtype=np.int64))
    phi = persons.fold(features.without_bins().rows(data.features))
    coded = persons.fold(features.coder.code(data.features))
    assert reference.people == len(phi) == 900 // each
    np.testing.assert_allclose(reference.mean, phi.mean(axis=0), atol=1e-12)
    np.testing.assert_allclose(reference.column_mean, coded.mean(axis=0), atol=1e-12)
    np.testing.assert_allclose(reference.column_deviation, coded.std(axis=0), atol=1e-9)
    assert reference.threshold == pytest.approx(_threshold(np.cov(phi.T), FALSE_ALARMS / 2))


def test_a_fit_makes_phi_of_a_person_few_times(
    small_parts: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of millions of people φ is most of a fit's time: three times to ask, then twice an audit."""
    people, made = 1_500, list[int]()
    data, rows = lending(people=people, seed=0), FeatureMap.rows

    def counted(self: FeatureMap, X: object, score: np.ndarray | None = None) -> np.ndarray:
        result = rows(self, X, score)
        made.append(len(result))
        return result

    monkeypatch.setattr(FeatureMap, "rows", counted)
    sex = {"sex": data.attributes["sex"]}
    oracle = LocalOracle.rehearse(data.ids, sex, epsilon=4.0, delta=1e-5)
    model = FairClassifier(LogisticRegression(max_iter=5_000), oracle=oracle, random_state=0)
    model.fit(data.features.select_dtypes("number"), data.target)
    assert model.releases_ is not None
    assert len(model.releases_.audits) == 4
    assert sum(made) <= 18 * people


@pytest.mark.parametrize("notion", ["demographic_parity", "equalized_odds"])
def test_a_fit_in_parts_charges_each_person_once(
    notion: str, small_parts: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = lending(people=1_500, seed=0)
    X = pd.get_dummies(data.features).astype(float)
    X = (X - X.mean()) / X.std()

    def fitted(most: int) -> FairClassifier:
        monkeypatch.setattr(releases, "MOST_PEOPLE", most)
        sex = {"sex": data.attributes["sex"]}
        oracle = LocalOracle.rehearse(data.ids, sex, epsilon=4.0, delta=1e-5)
        model = FairClassifier(LogisticRegression(), notion=notion, oracle=oracle, random_state=0)
        return model.fit(X, data.target)

    whole, parts = fitted(10_000), fitted(400)
    assert whole.releases_ is not None
    assert parts.releases_ is not None
    assert len(parts.releases_.queries) > len(whole.releases_.queries)
    assert parts.releases_.units <= whole.releases_.units * 1.001  # nobody pays for two parts
    assert parts.oracle.budget.spent_units <= whole.oracle.budget.spent_units * 1.001
    number = -(-max(np.bincount(data.target) if notion != "demographic_parity" else [1_500]) // 400)
    ratio = parts.releases_.moment_deviation / whole.releases_.moment_deviation
    np.testing.assert_allclose(ratio, np.sqrt(number), rtol=1e-3)
    difference = parts.releases_.moments - whole.releases_.moments
    deviation = np.hypot(parts.releases_.moment_deviation, whole.releases_.moment_deviation)
    assert np.abs(difference).max() < 6 * deviation.max()
