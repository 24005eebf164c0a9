"""MLflow keeps both estimators, in its default format (skops) and as a pickle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import skops.io
from sklearn.linear_model import LogisticRegression

from isonomy.common.sums.local import LocalOracle
from isonomy.company import FairClassifier, GradientFairClassifier

mlflow = pytest.importorskip("mlflow", reason="needs the extra isonomy[mlflow]")
pytestmark = pytest.mark.filterwarnings("ignore")  # of MLflow, about its own stores

SHORT = {"rounds": 1, "warmup_steps": 5}


@pytest.mark.parametrize("form", ["skops", "cloudpickle"])
@pytest.mark.parametrize(
    "model",
    [FairClassifier(LogisticRegression(), cv=2), GradientFairClassifier(trainer_options=SHORT)],
    ids=["tilt", "pf_ld"],
)
def test_a_model_comes_back_from_mlflow(
    model: Any, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    rng = np.random.default_rng(0)
    a = rng.random(300) < 0.4
    X = np.column_stack([rng.normal(0, 1, 300), rng.normal(2.5 * a, 1.0)])
    y = (X[:, 0] - a > 0).astype(int)
    oracle = LocalOracle.rehearse(
        range(300), {"sex": a.astype(str).tolist()}, epsilon=50, delta=1e-5
    )
    model.set_params(oracle=oracle).fit(X, y)
    mlflow.set_tracking_uri((tmp_path / "store").as_uri())
    with mlflow.start_run():
        logged = mlflow.sklearn.log_model(
            model,
            name="fair",
            serialization_format=form,
            skops_trusted_types=skops.io.get_untrusted_types(data=skops.io.dumps(model)),
            pip_requirements=["isonomy[company]"],
        )
    again = mlflow.sklearn.load_model(logged.model_uri)
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    assert "left out of copies" in repr(again.oracle)
    served = mlflow.pyfunc.load_model(logged.model_uri)
    np.testing.assert_array_equal(served.predict(X), model.predict(X))
