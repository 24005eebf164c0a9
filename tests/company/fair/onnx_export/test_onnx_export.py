"""The ONNX file decides as `predict` does: the same rows, in double precision."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pandas as pd
import pytest
from onnx_models import SINGLES, agrees, fit, numbers_only, people, run
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, OneHotEncoder, StandardScaler
from torch import nn

from isonomy.common.sums.local import LocalOracle
from isonomy.company.fair.estimator import FairClassifier
from isonomy.company.fair.onnx_export import inputs_of
from isonomy.company.fair.torch_adapter import TorchClassifier
from isonomy.company.rehearsal.base_models import base_model

# --- Base models -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["logistic", "gbdt", "mlp"])
def test_pipelines_on_mixed_columns(name: str, tmp_path: Path) -> None:
    X, y, sex = people(1200)
    clf = fit(base_model(name, 0), X, y, sex)
    new = people(3000, seed=1)[0]
    new.loc[:5, "town"] = "never seen"
    assert clf.report_.returned == "tilt"
    path = clf.to_onnx(tmp_path / "m.onnx")
    assert agrees(clf, path, new) > 30
    assert agrees(clf, path, new.iloc[:1]) >= 0  # one row


@pytest.mark.filterwarnings("ignore:Found unknown categories:UserWarning")
def test_rare_categories_share_a_column(tmp_path: Path) -> None:
    X, y, sex = people(1200)
    rare = OneHotEncoder(
        handle_unknown="infrequent_if_exist", min_frequency=25, drop="first", sparse_output=False
    )
    numbers = make_pipeline(SimpleImputer(strategy="mean"), StandardScaler())
    base = make_pipeline(
        make_column_transformer((rare, ["town", "job", "owner"]), (numbers, ["income", "age"])),
        LogisticRegression(),
    )
    clf = fit(base, X, y, sex)
    new = people(2000, seed=2)[0]
    new.loc[:50, "town"] = "never seen"
    assert agrees(clf, clf.to_onnx(tmp_path / "m.onnx"), new) > 20


def test_an_unknown_category_is_an_error_where_it_is_one_for_the_model(tmp_path: Path) -> None:
    X, y, sex = people(1200)
    base = make_pipeline(
        make_column_transformer((OneHotEncoder(), ["job", "owner"]), ("passthrough", ["age"])),
        HistGradientBoostingClassifier(max_iter=20),
    )
    clf = fit(base, X, y, sex)
    path = clf.to_onnx(tmp_path / "m.onnx", X)
    agrees(clf, path, X)
    strange = X.iloc[:3].assign(job="never seen")
    with pytest.raises(ValueError, match="unknown categories"):
        clf.predict(strange)
    with pytest.raises(onnxruntime.capi.onnxruntime_pybind11_state.InvalidArgument):
        run(path, clf.schema_.inputs(strange))


@pytest.mark.parametrize(
    "base",
    [
        LogisticRegression(),
        HistGradientBoostingClassifier(max_iter=20),
        MLPClassifier((8, 8), activation="tanh", early_stopping=True, random_state=0),
    ],
    ids=["logistic", "gbdt", "mlp"],
)
def test_several_classes_from_one_matrix(base: Any, tmp_path: Path) -> None:
    X, y, sex = numbers_only(1500, classes=3)
    clf = fit(base, X, y, sex)
    path = clf.to_onnx(tmp_path / "m.onnx")
    assert agrees(clf, path, numbers_only(3000, 1)[0]) > 30
    assert list(inputs_of(X)) == ["X"]


@pytest.mark.parametrize(
    "settings",
    [
        {"notion": "equalized_odds"},
        {"notion": "equal_opportunity"},
        {"notion": "equal_fpr"},
        {"notion": "accuracy_parity"},
        {"notion": ["demographic_parity", "equal_fpr"], "tolerance": 0.02},
        {"keep_selection_rate": True},
    ],
    ids=str,
)
def test_every_notion(settings: dict[str, Any], tmp_path: Path) -> None:
    X, y, sex = numbers_only(4000)  # enough that every notion's gap is plain
    y = (y + (np.random.default_rng(3).random(4000) < 0.2 * (np.array(sex) == "f"))) % 2
    clf = fit(LogisticRegression(), X, y, sex, **settings)
    assert clf.model_.tilt.size > 0
    assert agrees(clf, clf.to_onnx(tmp_path / "m.onnx"), numbers_only(4000, 1)[0]) > 10


def test_many_groups_and_attributes(tmp_path: Path) -> None:
    X, y, sex = people(1500)
    race = np.random.default_rng(5).choice(["a", "b", "c"], 1500).tolist()
    oracle = LocalOracle.rehearse(range(1500), {"sex": sex, "race": race}, epsilon=20, delta=1e-5)
    clf = FairClassifier(
        base_model("logistic", 0),
        oracle=oracle,
        attribute=["sex", "race"],
        pos_label="yes",
        cv=2,
        random_state=0,
    ).fit(X, y)
    assert agrees(clf, clf.to_onnx(tmp_path / "m.onnx"), people(2000, 1)[0]) > 10


def test_a_base_model_that_was_kept(tmp_path: Path) -> None:
    X, y, sex = numbers_only(600)
    clf = fit(LogisticRegression(), X, y, sex, tolerance=0.9)
    assert clf.report_.returned == "base"
    assert agrees(clf, clf.to_onnx(tmp_path / "m.onnx"), X) == 0


def test_columns_with_numbers_for_names(tmp_path: Path) -> None:
    X, y, sex = numbers_only(900)
    table = pd.DataFrame(X, columns=[7, 3, 5])
    clf = fit(LogisticRegression(), table, y, sex)
    path = clf.to_onnx(tmp_path / "m.onnx", table)
    assert agrees(clf, path, pd.DataFrame(numbers_only(900, 1)[0], columns=[7, 3, 5])) > 10


def test_a_model_for_which_nothing_was_released(tmp_path: Path) -> None:
    X, _, sex = people(600)
    y = (np.arange(600) % 9 == 0).astype(int)  # nobody is ever chosen: fair whatever the groups
    clf = fit(base_model("logistic", 0), X, y, sex)
    assert clf.model_.features is None
    assert agrees(clf, clf.to_onnx(tmp_path / "m.onnx"), X) == 0


def test_trees_that_never_split(tmp_path: Path) -> None:
    X, y, sex = numbers_only(600)
    y = (np.arange(600) % 3 == 0).astype(int)
    clf = fit(HistGradientBoostingClassifier(min_samples_leaf=599), X, y, sex)
    X[0, 0] = np.nan
    assert agrees(clf, clf.to_onnx(tmp_path / "m.onnx"), X) == 0


@pytest.mark.parametrize("in_training", [False, True])
def test_torch_modules_and_the_twin(in_training: bool, tmp_path: Path) -> None:
    X, y, sex = people(1200)
    base = TorchClassifier(
        lambda i, o: nn.Sequential(nn.Linear(i, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, o)),
        epochs=4,
        learning_rate=0.01,
    )
    clf = fit(base, X, y, sex, in_training=in_training)
    path = clf.to_onnx(tmp_path / "m.onnx")
    agrees(clf, path, people(1500, 1)[0], within=SINGLES)
    assert clf.model_.retrained == in_training


def test_other_models_of_scikit_learn_convert_too(tmp_path: Path) -> None:
    X, y, sex = numbers_only(1500)
    base = make_pipeline(
        MinMaxScaler(), RandomForestClassifier(20, min_samples_leaf=10, random_state=0)
    )
    clf = fit(base, X.astype(np.float32), y, sex)
    agrees(clf, clf.to_onnx(tmp_path / "m.onnx", X), numbers_only(2000, 1)[0], within=SINGLES)
