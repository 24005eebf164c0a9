"""A `GradientFairClassifier` as one ONNX file: columns, coding, network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx_models import SINGLES, numbers_only, people, run
from sklearn.preprocessing import StandardScaler
from torch import nn

from isonomy.common.base.errors import ConfigError
from isonomy.common.sums.local import LocalOracle
from isonomy.company import GradientFairClassifier, load_model, save_model


def fitted(X: Any, y: Any, sex: list[str], **settings: Any) -> GradientFairClassifier:
    oracle = LocalOracle.rehearse(range(len(y)), {"sex": sex}, epsilon=20, delta=1e-5)
    short = {"rounds": 1, "warmup_steps": 20}
    return GradientFairClassifier(oracle=oracle, trainer_options=short, **settings).fit(X, y)


CASES: dict[str, dict[str, Any]] = {
    "text": {"pos_label": "no"},
    "passthrough": {"module": "mlp", "encoder": "passthrough", "pos_label": "yes"},
    "transformer": {"module": nn.Linear(2, 1), "encoder": StandardScaler(), "pos_label": "yes"},
    "three": {"module": "mlp", "pos_label": 1},
}


@pytest.mark.parametrize("name", CASES)
def test_the_file_decides_as_the_model(name: str, tmp_path: Path) -> None:
    X, y, sex = people(400) if name == "text" else numbers_only(400, classes=2 + (name == "three"))
    settings = dict(CASES[name])
    if settings["pos_label"] not in y.tolist():
        settings["pos_label"] = y.max()
    if isinstance(settings.get("module"), nn.Module):
        settings["module"] = nn.Linear(X.shape[1], 1)
    clf = fitted(X, y, sex, **settings)
    folder = save_model(clf, tmp_path / "m", onnx=True, X=X)
    decision, probabilities = run(folder / "model.onnx", clf.schema_.inputs(X))
    np.testing.assert_allclose(probabilities, clf.predict_proba(X), rtol=0, atol=SINGLES)
    np.testing.assert_array_equal(decision, clf.predict(X))
    again = load_model(folder).to_onnx(tmp_path / "again.onnx")  # on made-up rows
    np.testing.assert_array_equal(run(again, clf.schema_.inputs(X))[0], decision)


def test_arrays_with_more_axes_are_refused(tmp_path: Path) -> None:
    X, y, sex = numbers_only(200)
    module = nn.Sequential(nn.Flatten(), nn.Linear(X.shape[1], 1))
    clf = fitted(X[:, None].astype(np.float32), y, sex, module=module, pos_label=y.max())
    with pytest.raises(ConfigError, match=r"torch\.onnx\.export"):
        clf.to_onnx(tmp_path / "m.onnx")
