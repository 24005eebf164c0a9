"""`pos_label`: the favourable decision is named, never guessed, and every text says which it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx_models import agrees
from sklearn.linear_model import LogisticRegression

from isonomy.common.base.errors import ConfigError
from isonomy.common.sums.local import LocalOracle
from isonomy.company import (
    FairClassifier,
    GradientFairClassifier,
    audit,
    load_model,
    save_model,
)
from isonomy.company.fair.tilt.torch_twin import Lagrangian

N = 2000
WORDS = np.array(["deny", "approve"])  # the favourable one is first in the alphabet


def people(n: int = N, seed: int = 0) -> tuple[np.ndarray, np.ndarray, list[str]]:
    rng = np.random.default_rng(seed)
    a = rng.random(n) < 0.4
    X = np.column_stack([rng.normal(0, 1, n), rng.normal(2.5 * a, 1.0)])
    y = (X[:, 0] - 1.3 * a + rng.normal(0, 0.7, n) > -0.5).astype(int)
    return X, y, np.where(a, "f", "m").tolist()


def oracle(sex: list[str], epsilon: float = 500.0) -> Any:
    return LocalOracle.rehearse(range(len(sex)), {"sex": sex}, epsilon=epsilon, delta=1e-5)


@pytest.mark.parametrize("notion", ["demographic_parity", "equal_opportunity"])
def test_words_are_made_fair_as_numbers_are(notion: str, tmp_path: Path) -> None:
    X, y, sex = people()
    settings = {"notion": notion, "tolerance": 0.02, "cv": 2, "random_state": 0}
    base = LogisticRegression(tol=1e-10)
    numbers = FairClassifier(base, oracle=oracle(sex), **settings).fit(X, y)
    words = FairClassifier(base, oracle=oracle(sex), pos_label="approve", **settings)
    words.fit(X, WORDS[y])
    assert words.classes_.tolist() == ["approve", "deny"]
    assert words.report_.base_selection_rate == numbers.report_.base_selection_rate
    assert words.report_.base_violation == pytest.approx(numbers.report_.base_violation, abs=0.01)
    assert words.report_.returned == numbers.report_.returned == "tilt"
    new = people(seed=1)[0]
    assert (words.predict(new) == WORDS[numbers.predict(new)]).mean() > 0.98
    proba = words.predict_proba(new)
    clear = abs(proba[:, 0] - 0.5) > 1e-9
    assert (words.classes_[proba.argmax(axis=1)] == words.predict(new))[clear].all()
    assert "Selected means decision = approve" in str(words.report_)

    save_model(words, tmp_path / "m", onnx=True)
    again = load_model(tmp_path / "m")
    np.testing.assert_array_equal(again.predict(new), words.predict(new))
    np.testing.assert_array_equal(again.predict_proba(new), proba)
    assert agrees(words, tmp_path / "m" / "model.onnx", new) > 10
    stored = onnx.load(tmp_path / "m" / "model.onnx").metadata_props
    assert {p.key: p.value for p in stored}["isonomy.pos_label"] == "approve"
    assert json.loads((tmp_path / "m" / "card.json").read_text())["pos_label"] == "approve"
    assert "| Selected means | decision = approve |" in (tmp_path / "m" / "card.md").read_text()


def test_the_twin_knows_which_output_is_favourable() -> None:
    X, y, sex = people(600)
    land = FairClassifier(LogisticRegression(), oracle=oracle(sex)).fit(X, y)._outcome.view.land
    logits, rows = torch.randn(600, 2), torch.arange(600)
    penalties = []
    for order in ([0, 1], [1, 0]):
        twin = Lagrangian(land, np.arange(600), np.array(order))
        twin.lam = np.array([[1.0], [-1.0]])
        penalties.append(float(twin.penalty(logits[:, order], rows)))
    assert penalties[0] == pytest.approx(penalties[1])
    assert penalties[0] != 0


def test_the_gradient_classifier_decides_alike() -> None:
    X, y, sex = people(600)
    options = {"rounds": 2, "warmup_steps": 20}
    settings = {"notion": "equal_opportunity", "strategy": "f_ld", "trainer_options": options}
    numbers = GradientFairClassifier(oracle=oracle(sex), **settings).fit(X, y)
    words = GradientFairClassifier(oracle=oracle(sex), pos_label="approve", **settings)
    words.fit(X, WORDS[y])
    np.testing.assert_array_equal(words.predict(X), WORDS[numbers.predict(X)])
    np.testing.assert_allclose(words.predict_proba(X), numbers.predict_proba(X)[:, ::-1])


@pytest.mark.parametrize("pos_label", [None, "aprove", 1, ["approve"]])
def test_what_is_not_named_is_refused_and_nothing_is_spent(pos_label: Any) -> None:
    X, y, sex = people(600)
    asked = oracle(sex)
    for kind in (FairClassifier, GradientFairClassifier):
        with pytest.raises(ConfigError, match="pos_label"):
            kind(oracle=asked, pos_label=pos_label).fit(X, WORDS[y])
    with pytest.raises(ConfigError, match="pos_label"):
        audit(asked, WORDS[y], share=0.5, pos_label=pos_label)
    with pytest.raises(ConfigError, match="pos_label"):
        FairClassifier(LogisticRegression(), oracle=asked).fit(X, y + 1)
    assert asked.budget.spent_units == 0


def test_usual_classes_need_no_name() -> None:
    X, y, sex = people(600)
    for classes in ([-1, 1], [False, True], [0.0, 1.0], ["0", "1"]):
        labels = np.array(classes)[y]
        clf = FairClassifier(LogisticRegression(), oracle=oracle(sex), cv=2).fit(X, labels)
        assert clf.pos_label_ == classes[1]
        found = audit(oracle(sex), labels, share=0.5)
        assert found.totals[1] == y.sum()
    assert audit(oracle(sex), ["deny"] * 600, share=0.5, pos_label="approve").totals == (600, 0)
