"""Saving and loading: the same decisions, no pickle unless asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

from isonomy.common.base.errors import ConfigError, DataError, VerificationError
from isonomy.common.sums.local import LocalOracle
from isonomy.company import load_model, save_model
from isonomy.company.fair.estimator import FairClassifier
from isonomy.company.fair.tilt.releases_file import load_releases, save_releases


@pytest.fixture(scope="module")
def fitted() -> tuple[FairClassifier, pd.DataFrame]:
    rng = np.random.default_rng(0)
    n = 1500
    a = rng.random(n) < 0.5
    X = pd.DataFrame(
        {"x": rng.normal(0, 1, n), "job": np.where(rng.random(n) < 0.2 + 0.6 * a, "p", "q")}
    )
    y = np.where(X["x"] + a + rng.normal(0, 0.5, n) > 0.5, "yes", "no")
    oracle = LocalOracle.rehearse(range(n), {"sex": a.astype(str).tolist()}, epsilon=9, delta=1e-5)
    base = make_pipeline(OneHotEncoder(handle_unknown="ignore"), LogisticRegression())
    clf = FairClassifier(
        base, oracle=oracle, pos_label="yes", keep_selection_rate=True, random_state=0
    )
    return clf.fit(X, y), X


def test_the_same_decisions_come_back(fitted: Any, tmp_path: Path) -> None:
    clf, X = fitted
    save_model(clf, tmp_path / "m", base_reference="registry/income:7")
    again = load_model(tmp_path / "m", estimator=clf.base_estimator_)
    assert clf.report_.returned == "tilt"
    np.testing.assert_array_equal(again.predict(X), clf.predict(X))
    np.testing.assert_array_equal(again.predict_proba(X), clf.predict_proba(X))
    assert again.report_ == clf.report_


def test_no_pickle_is_written_or_read_unless_trusted(fitted: Any, tmp_path: Path) -> None:
    clf, X = fitted
    save_model(clf, tmp_path / "plain")
    assert sorted(p.name for p in (tmp_path / "plain").iterdir()) == [
        "arrays.safetensors",
        "card.json",
        "card.md",
        "model.json",
    ]
    save_model(clf, tmp_path / "full", trust=True)
    with pytest.raises(ConfigError, match="trust"):
        load_model(tmp_path / "full")
    with pytest.raises(ConfigError, match="no base model"):
        load_model(tmp_path / "plain", trust=True)
    np.testing.assert_array_equal(
        load_model(tmp_path / "full", trust=True).predict(X), clf.predict(X)
    )


def test_changed_files_are_noticed(fitted: Any, tmp_path: Path) -> None:
    clf, _ = fitted
    save_model(clf, tmp_path / "m", trust=True)
    (tmp_path / "m" / "base.joblib").write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    with pytest.raises(VerificationError, match="base"):
        load_model(tmp_path / "m", trust=True)
    (tmp_path / "m" / "arrays.safetensors").write_bytes(b"\0" * 8)
    with pytest.raises(VerificationError, match="arrays"):
        load_model(tmp_path / "m", estimator=clf.base_estimator_)


@pytest.mark.parametrize("text", ["", "[]", '{"schema": 99}', "{"])
def test_foreign_files_are_refused(fitted: Any, tmp_path: Path, text: str) -> None:
    clf, _ = fitted
    save_model(clf, tmp_path / "m")
    (tmp_path / "m" / "model.json").write_text(text)
    with pytest.raises((ConfigError, DataError)):
        load_model(tmp_path / "m", estimator=clf.base_estimator_)


def test_an_occupied_folder_is_left_alone(fitted: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ConfigError, match="not empty"):
        save_model(fitted[0], tmp_path)


def test_the_card_tells_the_essentials(fitted: Any, tmp_path: Path) -> None:
    clf, _ = fitted
    save_model(clf, tmp_path / "m", base_reference="registry/income:7")
    card = json.loads((tmp_path / "m" / "card.json").read_text())
    assert card["privacy"]["epsilon_certified"] == pytest.approx(9, abs=1e-6)
    assert len(card["privacy"]["queries"]) == 6
    assert card["base_model"]["reference"] == "registry/income:7"
    text = (tmp_path / "m" / "card.md").read_text()
    assert "ε = 9" in text
    assert card["fingerprints"]["model.json"] in text


def test_releases_survive_the_disk_and_serve_again(fitted: Any, tmp_path: Path) -> None:
    clf, X = fitted
    save_releases(clf.releases_, tmp_path)
    again = load_releases(tmp_path)
    y = np.where(clf._outcome.view.land.y == 1, "yes", "no")
    spent = clf.oracle.budget.spent_units
    other = [
        FairClassifier(
            clf.estimator, oracle=clf.oracle, pos_label="yes", keep_selection_rate=True, releases=r
        ).fit(X, y)
        for r in (clf.releases_, again)
    ]
    np.testing.assert_array_equal(other[0].predict(X), other[1].predict(X))
    assert other[0].report_.returned == "tilt"
    assert clf.oracle.budget.spent_units == spent
    with pytest.raises(ConfigError, match="keep them"):
        save_releases(clf.releases_, tmp_path)
    (tmp_path / "releases.json").write_text("{}")
    with pytest.raises(ConfigError, match="schema"):
        load_releases(tmp_path)
