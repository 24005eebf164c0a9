"""What is refused, and how an ONNX file belongs to a saved model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pandas as pd
import pytest
from lightgbm import LGBMClassifier
from onnx_models import agrees, fit, numbers_only, people
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from xgboost import XGBClassifier

from isonomy.common.base.errors import ConfigError, StorageError, VerificationError
from isonomy.company import load_model, save_model
from isonomy.company.fair.estimator import FairClassifier
from isonomy.company.fair.onnx_export import export, onnx_bytes
from isonomy.company.fair.onnx_export.schema import Schema
from isonomy.company.rehearsal.base_models import base_model

# --- Refusals ----------------------------------------------------------------------------------


class Foreign(ClassifierMixin, BaseEstimator):
    def fit(self, X: Any, y: Any) -> Foreign:
        self.classes_ = np.unique(y)
        return self

    def predict(self, X: Any) -> np.ndarray:
        return self.classes_[self.predict_proba(X).argmax(axis=1)]

    def predict_proba(self, X: Any) -> np.ndarray:
        p = 1 / (1 + np.exp(-np.asarray(X)[:, 0]))
        return np.column_stack([1 - p, p])


def test_a_model_that_does_not_convert_leaves_no_file(tmp_path: Path) -> None:
    X, y, sex = numbers_only(600)
    clf = fit(Foreign(), X, y, sex)
    with pytest.raises(ConfigError, match="Foreign does not convert"):
        clf.to_onnx(tmp_path / "m.onnx")
    with pytest.raises(ConfigError, match="Foreign does not convert"):
        save_model(clf, tmp_path / "folder", onnx=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("base", "way"),
    [
        (LGBMClassifier(n_estimators=2, verbose=-1), "HistGradientBoostingClassifier has"),
        (XGBClassifier(n_estimators=2), "save_model keeps it"),
        (HistGradientBoostingClassifier(max_iter=2, categorical_features=[1]), "OneHotEncoder"),
    ],
    ids=["lightgbm", "xgboost", "categories"],
)
@pytest.mark.filterwarnings("ignore:X does not have valid feature")
def test_boosting_without_an_exact_form_is_refused_with_the_way_out(
    base: Any, way: str, tmp_path: Path
) -> None:
    X, y, sex = numbers_only(600)
    X[:, 1] = np.digitize(X[:, 1], [-1, 0, 1])
    with pytest.raises(ConfigError, match=way):
        fit(base, X, y, sex).to_onnx(tmp_path / "m.onnx")
    assert list(tmp_path.iterdir()) == []


def test_a_form_that_decides_otherwise_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, y, sex = numbers_only(600)
    clf = fit(LogisticRegression(), X, y, sex)
    path = clf.to_onnx(tmp_path / "m.onnx")
    before = path.read_bytes()
    clf.model_.tilt.lam[:] *= 1.001  # the check compares with the model as it is now: still fine
    assert clf.to_onnx(path).read_bytes() != before
    before = path.read_bytes()
    wrong = LogisticRegression().fit(X, y)
    wrong.coef_ = wrong.coef_ * 1.01
    honest = clf.base_estimator_.predict_proba
    monkeypatch.setattr(wrong, "predict_proba", honest)  # says one thing, is another
    clf.base_estimator_ = wrong
    with pytest.raises(VerificationError, match="nothing was written"):
        clf.to_onnx(path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["m.onnx"]


@pytest.mark.parametrize("package", ["onnx", "skl2onnx"])
def test_a_missing_extra_is_named(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, y, sex = numbers_only(600)
    clf = fit(RandomForestClassifier(5, min_samples_leaf=20, random_state=0), X, y, sex)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=r"isonomy\[onnx\]"):
        clf.to_onnx(tmp_path / "m.onnx")
    assert list(tmp_path.iterdir()) == []


def test_the_check_needs_no_onnxruntime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    X, y, sex = people(600)
    clf = fit(
        base_model("gbdt", 0).set_params(histgradientboostingclassifier__max_iter=5), X, y, sex
    )
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "onnxruntime", None)
        path = clf.to_onnx(tmp_path / "m.onnx")
    agrees(clf, path, X)


def test_columns_that_onnx_cannot_hold(tmp_path: Path) -> None:
    X, y, sex = people(600)
    logistic = base_model("logistic", 0)
    mixed = X[["income", "job"]].assign(job=X["job"].where(X["job"] == "p", 3).astype(object))
    clf = fit(
        make_pipeline(
            make_column_transformer(("passthrough", ["income"])),
            HistGradientBoostingClassifier(max_iter=5),
        ),
        mixed,
        y,
        sex,
    )
    with pytest.raises(ConfigError, match="'job' holds neither"):
        clf.to_onnx(tmp_path / "m.onnx")
    empty = X[["income", "job"]].assign(job=X["job"].where(X["job"] == "p", ""))
    with pytest.raises(ConfigError, match="empty text"):
        fit(logistic, empty, y, sex).to_onnx(tmp_path / "m.onnx")
    taken = X[["income", "job"]].rename(columns={"income": "decision"})
    with pytest.raises(ConfigError, match="rename"):
        fit(base_model("logistic", 0), taken, y, sex).to_onnx(tmp_path / "m.onnx")
    with pytest.raises(StorageError, match="cannot write"):
        fit(logistic, X[["income", "job"]], y, sex).to_onnx(tmp_path / "no" / "m.onnx")
    assert list(tmp_path.iterdir()) == []


# --- With save and load ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[FairClassifier, pd.DataFrame, Path]:
    X, y, sex = people(800)
    clf = fit(base_model("logistic", 0), X, y, sex)
    return clf, X, save_model(clf, tmp_path_factory.mktemp("saved") / "m", onnx=True)


def copied(folder: Path, to: Path) -> Path:
    to.mkdir()
    for file in folder.iterdir():
        (to / file.name).write_bytes(file.read_bytes())
    return to


def test_the_card_names_the_onnx_file(saved: Any) -> None:
    import hashlib
    import json

    clf, X, folder = saved
    card = json.loads((folder / "card.json").read_text())
    digest = hashlib.sha256((folder / "model.onnx").read_bytes()).hexdigest()
    assert card["fingerprints"]["model.onnx"] == digest
    assert digest in (folder / "card.md").read_text()
    agrees(clf, folder / "model.onnx", X)


def test_a_changed_missing_or_foreign_onnx_file_is_refused(saved: Any, tmp_path: Path) -> None:
    clf, _, folder = saved
    load_model(folder)
    changed = copied(folder, tmp_path / "changed")
    content = bytearray((changed / "model.onnx").read_bytes())
    content[len(content) // 2] ^= 1
    (changed / "model.onnx").write_bytes(bytes(content))
    missing = copied(folder, tmp_path / "missing")
    (missing / "model.onnx").unlink()
    foreign = save_model(clf, tmp_path / "foreign")
    (foreign / "model.onnx").write_bytes((folder / "model.onnx").read_bytes())
    for broken in (changed, missing, foreign):
        with pytest.raises(VerificationError, match=r"model\.onnx"):
            load_model(broken)


def test_a_loaded_model_exports_the_same_file(saved: Any, tmp_path: Path) -> None:
    clf, X, folder = saved
    again = load_model(folder)
    assert again.schema_ == Schema.of(X)
    assert onnx_bytes(again) == (folder / "model.onnx").read_bytes()
    path = export(again, tmp_path / "m.onnx", X)
    agrees(clf, path, X)
    model = onnx.load(path)
    assert {p.key: p.value for p in model.metadata_props}["isonomy.notion"] == "demographic_parity"
