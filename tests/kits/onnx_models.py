"""People, fits and comparisons that the tests of the ONNX export share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pandas as pd

from isonomy.common.sums.local import LocalOracle
from isonomy.company.fair.estimator import FairClassifier

DOUBLES = 1e-12  # double precision on both sides
SINGLES = 1e-6  # a part in single precision


def people(n: int, seed: int = 0) -> tuple[pd.DataFrame, np.ndarray, list[str]]:
    """Numbers with gaps, an integer, a boolean, text with a gap, and more than fifty levels."""
    rng = np.random.default_rng(seed)
    a = rng.random(n) < 0.5
    X = pd.DataFrame(
        {
            "income": np.where(rng.random(n) < 0.1, np.nan, rng.normal(0, 1, n)),
            "age": rng.integers(18, 80, n),
            "owner": rng.random(n) < 0.3,
            "job": np.where(rng.random(n) < 0.2 + 0.6 * a, "p", "q"),
            "town": [f"t{t}" for t in rng.integers(0, 60, n)],
        }
    )
    X["branch"] = pd.Series(rng.choice(["north", "south", "east"], n)).where(rng.random(n) > 0.1)
    y = np.where(np.nan_to_num(X["income"]) + a + rng.normal(0, 0.5, n) > 0.5, "yes", "no")
    return X, y, np.where(a, "f", "m").tolist()


def fit(base: Any, X: Any, y: Any, sex: list[str], **settings: Any) -> FairClassifier:
    oracle = LocalOracle.rehearse(range(len(y)), {"sex": sex}, epsilon=20, delta=1e-5)
    settings = {"oracle": oracle, "random_state": 0, "cv": 2, "pos_label": max(y), **settings}
    return FairClassifier(base, **settings).fit(X, y)


def run(path: Path, feeds: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    decision, probabilities = session.run(["decision", "probabilities"], feeds)
    return decision, probabilities


def agrees(clf: FairClassifier, path: Path, X: Any, within: float = DOUBLES) -> int:
    """Assert agreement; how many decisions the tilt changed."""
    decision, probabilities = run(path, clf.schema_.inputs(X))
    np.testing.assert_allclose(probabilities, clf.predict_proba(X), rtol=0, atol=within)
    np.testing.assert_array_equal(decision, clf.predict(X))
    return int((clf.predict(X) != clf.base_estimator_.predict(X)).sum())


def numbers_only(
    n: int, seed: int = 0, classes: int = 2
) -> tuple[np.ndarray, np.ndarray, list[str]]:
    rng = np.random.default_rng(seed)
    a = rng.random(n) < 0.5
    X = np.column_stack([rng.normal(0, 1, n), rng.normal(2 * a, 1, n), rng.random(n)])
    score = X[:, 0] + a + rng.normal(0, 0.5, n)
    y = np.digitize(score, np.quantile(score, np.arange(1, classes) / classes))
    return X, y, np.where(a, "f", "m").tolist()
