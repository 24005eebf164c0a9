"""Real people: the ONNX file decides as `predict` for every row of Adult that was not trained on.

Both sides compute in double precision, so the agreement is exact for decisions and 1e-12 for
probabilities. A tie broken otherwise would need a margin or a score within rounding (about 1e-15)
of its threshold; none of these rows has one.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from isonomy.common.sums.local import LocalOracle
from isonomy.company.fair.estimator import FairClassifier
from isonomy.company.fair.onnx_export import inputs_of
from isonomy.company.rehearsal.base_models import base_model
from isonomy.company.rehearsal.datasets import Dataset, load
from isonomy.company.rehearsal.simulate import split_people

DATA = Path(os.environ.get("ISONOMY_DATA_DIR", Path(__file__).parents[5] / "shared" / "data"))
pytestmark = pytest.mark.skipif(
    not DATA.is_dir(), reason=f"no data in {DATA}; set ISONOMY_DATA_DIR to test on them"
)


@pytest.fixture(scope="module")
def adult() -> Dataset:
    return load("adult", DATA, "sex")


def changed_by_the_tilt(
    adult: Dataset, base: str, people: int, folds: int, path: Path, settings: dict[str, Any]
) -> int:
    """Fit, export, run on the test people, compare; how many decisions the tilt changed."""
    training, test = split_people(len(adult.ids), 0)
    training = training[:people]
    X = adult.features.iloc[training].reset_index(drop=True)
    oracle = LocalOracle.rehearse(
        [adult.ids[i] for i in training],
        {"sex": [adult.attributes["sex"][i] for i in training]},
        epsilon=100,  # the noise must not decide whether there is a tilt to compare
        delta=1e-5,
    )
    clf = FairClassifier(
        base_model(base, 0), oracle=oracle, cv=folds, random_state=0, **settings
    ).fit(X, adult.target[training])
    new = adult.features.iloc[test].reset_index(drop=True)
    session = onnxruntime.InferenceSession(
        str(clf.to_onnx(path)), providers=["CPUExecutionProvider"]
    )
    decision, probabilities = session.run(None, inputs_of(new))
    expected = clf.predict(new)
    np.testing.assert_array_equal(decision, expected)
    np.testing.assert_allclose(probabilities, clf.predict_proba(new), rtol=0, atol=1e-12)
    return int((expected != clf.base_estimator_.predict(new)).sum())


@pytest.mark.parametrize(
    ("base", "notion"), [("gbdt", "demographic_parity"), ("logistic", "equalized_odds")]
)
def test_every_test_person_gets_the_same_decision(
    adult: Dataset, base: str, notion: str, tmp_path: Path
) -> None:
    settings = {"notion": notion}
    assert changed_by_the_tilt(adult, base, 4000, 2, tmp_path / "m.onnx", settings) > 100


@pytest.mark.slow
@pytest.mark.parametrize("base", ["logistic", "gbdt", "mlp"])
@pytest.mark.parametrize(
    "settings",
    [
        {"notion": "demographic_parity", "tolerance": 0.0},
        {"notion": "demographic_parity", "keep_selection_rate": True},
        {"notion": "equalized_odds"},
        {"notion": "equal_opportunity"},
        {"notion": "equal_fpr"},
        {"notion": "accuracy_parity"},
    ],
    ids=str,
)
def test_every_base_model_and_notion_on_all_of_adult(
    adult: Dataset, base: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    everybody = len(adult.ids)
    assert changed_by_the_tilt(adult, base, everybody, 5, tmp_path / "m.onnx", settings) > 50
