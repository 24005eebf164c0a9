"""Saving and loading: the same decisions, without a pickle."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import skops.io
from lightgbm import LGBMClassifier
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import FixedThresholdClassifier, GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler
from torch import nn
from xgboost import XGBClassifier

from isonomy.common.base.errors import ConfigError, DataError, VerificationError
from isonomy.common.sums.local import LocalOracle
from isonomy.company import GradientFairClassifier, TorchClassifier, load_model, save_model
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
    save_model(clf, tmp_path / "m")
    assert sorted(p.name for p in (tmp_path / "m").iterdir()) == [
        "card.json",
        "card.md",
        "model.json",
        "model.skops",
    ]
    again = load_model(tmp_path / "m")
    assert clf.report_.returned == "tilt"
    np.testing.assert_array_equal(again.predict(X), clf.predict(X))
    np.testing.assert_array_equal(again.predict_proba(X), clf.predict_proba(X))
    assert again.report_ == clf.report_
    assert (again.notion, again.pos_label, again.cv) == (clf.notion, "yes", clf.cv)
    with pytest.raises(ConfigError, match="Copies have no oracle"):
        again.fit(X, clf.predict(X))
    with pytest.raises(ConfigError, match="without its training rows"):
        again.frontier()


def small(estimator: Any, **settings: Any) -> FairClassifier:
    """Hardly trained, on people of two numbers."""
    X, y, group = numbers()
    oracle = LocalOracle.rehearse(range(len(X)), {"sex": group}, epsilon=50, delta=1e-5)
    return FairClassifier(estimator, oracle=oracle, cv=2, **settings).fit(X, y)


def numbers() -> tuple[np.ndarray, np.ndarray, list[str]]:
    rng = np.random.default_rng(0)
    a = rng.random(400) < 0.4
    X = np.column_stack([rng.normal(0, 1, 400), rng.normal(2.5 * a, 1.0)])
    y = (X[:, 0] - 1.3 * a + rng.normal(0, 0.7, 400) > 0.3).astype(int)
    return X, y, np.where(a, "f", "m").tolist()


def gradient(module: Any) -> Any:
    X, y, group = numbers()
    oracle = LocalOracle.rehearse(range(len(X)), {"sex": group}, epsilon=50, delta=1e-5)
    options = {"rounds": 1, "warmup_steps": 5, "callbacks": [lambda *_: None]}
    return GradientFairClassifier(module, oracle=oracle, trainer_options=options).fit(X, y)


def network(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(inputs, 4), nn.BatchNorm1d(4), nn.Dropout(0.1), nn.Linear(4, outputs)
    )


KEPT: dict[str, Callable[[], Any]] = {
    "boosting": lambda: small(HistGradientBoostingClassifier(max_iter=3)),
    "forest": lambda: small(RandomForestClassifier(3, random_state=0)),
    "search": lambda: small(GridSearchCV(LogisticRegression(), {"C": [0.1, 1.0]}, cv=2)),
    "cut": lambda: small(FixedThresholdClassifier(LogisticRegression(), threshold=0.2)),
    "torch": lambda: small(TorchClassifier(epochs=1)),
    "lambda": lambda: small(TorchClassifier(lambda i, o: nn.Linear(i, o), epochs=1)),
    "function": lambda: small(make_pipeline(StandardScaler(), TorchClassifier(network, epochs=1))),
    "retrained": lambda: small(TorchClassifier(epochs=1), in_training=True),
    "gradient": lambda: gradient("mlp"),
    "gradient module": lambda: gradient(nn.Linear(2, 1)),
    "alone": lambda: TorchClassifier(lambda i, o: nn.Linear(i, o), epochs=1).fit(*numbers()[:2]),
}


@pytest.mark.filterwarnings("ignore:After the tilt nearly")  # of a hardly trained network
@pytest.mark.parametrize("name", KEPT)
def test_every_estimator_comes_back_without_a_pickle(name: str, tmp_path: Path) -> None:
    model, X = KEPT[name](), numbers()[0]
    folder = save_model(model, tmp_path / "m")
    trust = name == "function"  # `network` is a function of this file
    if trust:
        with pytest.raises(ConfigError, match=r"network.*trust=True"):
            load_model(folder)
    again = load_model(folder, trust=trust)
    assert type(again) is type(model)
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    np.testing.assert_array_equal(again.predict(X), model.predict(X))


class Squared(nn.Linear):
    """A layer that torch does not have."""

    def forward(self, rows: Any) -> Any:
        return super().forward(rows) ** 2


def boosters() -> list[Any]:
    return [
        LGBMClassifier(n_estimators=3, verbose=-1),
        XGBClassifier(n_estimators=3),
        TorchClassifier(Squared(2, 2), epochs=1),
    ]


@pytest.mark.filterwarnings("ignore:After the tilt nearly", "ignore:X does not have valid feature")
@pytest.mark.parametrize("base", boosters(), ids=lambda base: type(base).__name__)
def test_foreign_types_need_trust_when_loading(base: Any, tmp_path: Path) -> None:
    model, X = small(base), numbers()[0]
    folder = save_model(model, tmp_path / "m")
    with pytest.raises(ConfigError, match=r"(lightgbm|xgboost|Squared).*trust=True"):
        load_model(folder)
    np.testing.assert_array_equal(load_model(folder, trust=True).predict(X), model.predict(X))


def test_what_skops_cannot_write_is_refused_and_the_refusal_names_a_way(tmp_path: Path) -> None:
    X, y, _ = numbers()
    hooked = TorchClassifier(nn.Linear(2, 2), epochs=1).fit(X, y)
    hooked.module_.register_forward_hook(print)
    steps = make_pipeline(FunctionTransformer(lambda rows: rows), LogisticRegression())
    for model in (hooked, small(steps)):
        with pytest.raises(ConfigError, match=r"skops cannot write.*joblib"):
            save_model(model, tmp_path / "m")
    with pytest.raises(ConfigError, match="keep a LogisticRegression with"):
        save_model(LogisticRegression().fit(X, y), tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_a_file_that_names_code_runs_nothing(fitted: Any, tmp_path: Path) -> None:
    folder = save_model(fitted[0], tmp_path / "m")
    victim = tmp_path / "victim"
    code = skops.io.dumps(Path(victim))  # any object whose type is not known
    for name in ("isonomy.common.base.private_files.write_private", "os.system"):
        module, _, last = name.rpartition(".")
        state = {"__class__": last, "__module__": module, "__loader__": "ConstructorFromReduceNode"}
        arguments = skops.io.dumps((str(victim), "x"))
        content = json.loads(zipfile.ZipFile(io.BytesIO(arguments)).read("schema.json"))
        with zipfile.ZipFile(folder / "model.skops", "w") as file:
            file.writestr("schema.json", json.dumps({**content, **state, "content": content}))
        with pytest.raises(VerificationError, match=r"model\.skops"):
            load_model(folder)
        _adopt(folder)
        with pytest.raises(ConfigError, match=rf"{last}.*trust=True"):
            load_model(folder)
        assert not victim.exists()
    (folder / "model.skops").write_bytes(code)
    _adopt(folder)
    with pytest.raises((ConfigError, DataError), match=r"model\.skops"):
        load_model(folder)


def _adopt(folder: Path) -> None:
    """Give model.json the hash of the file beside it, as somebody who changes both would."""
    state = json.loads((folder / "model.json").read_text())
    content = (folder / "model.skops").read_bytes()
    state["files"]["model.skops"] = hashlib.sha256(content).hexdigest()
    (folder / "model.json").write_text(json.dumps(state))


@pytest.mark.parametrize("adopted", [False, True])
def test_truncated_changed_and_foreign_files_are_refused(
    fitted: Any, tmp_path: Path, adopted: bool
) -> None:
    folder = save_model(fitted[0], tmp_path / "m")
    whole = (folder / "model.skops").read_bytes()
    foreign = skops.io.dumps(LogisticRegression())
    for content in (
        b"",
        b"\0" * 8,
        whole[: len(whole) // 2],
        whole[:-1],
        b"cos\nsystem\n.",
        foreign,
    ):
        (folder / "model.skops").write_bytes(content)
        if adopted:
            _adopt(folder)
        with pytest.raises(DataError if adopted else VerificationError, match=r"model\.skops"):
            load_model(folder)
    (folder / "model.skops").unlink()
    with pytest.raises(VerificationError, match="is missing"):
        load_model(folder)
    with pytest.raises(DataError, match="cannot be read"):
        load_model(tmp_path / "nowhere")


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"schema": 99}', "{", '{"schema": 4}', '{"schema": 4, "files": {"../x": ""}}'],
)
def test_foreign_files_are_refused(fitted: Any, tmp_path: Path, text: str) -> None:
    clf, _ = fitted
    save_model(clf, tmp_path / "m")
    (tmp_path / "m" / "model.json").write_text(text)
    with pytest.raises((ConfigError, DataError)):
        load_model(tmp_path / "m")


def test_an_occupied_folder_is_left_alone(fitted: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ConfigError, match="not empty"):
        save_model(fitted[0], tmp_path)


def test_the_card_tells_the_essentials(fitted: Any, tmp_path: Path) -> None:
    clf, _ = fitted
    save_model(clf, tmp_path / "m")
    card = json.loads((tmp_path / "m" / "card.json").read_text())
    assert card["privacy"]["epsilon_certified"] == pytest.approx(9, abs=1e-6)
    assert len(card["privacy"]["queries"]) == 6
    assert card["base_model"] == "sklearn.pipeline.Pipeline"
    for name in ("model.json", "model.skops"):
        content = (tmp_path / "m" / name).read_bytes()
        assert card["fingerprints"][name] == hashlib.sha256(content).hexdigest()
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
