"""The torch adapter and the in-training twin."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.base import clone
from torch import nn

from isonomy.common.base.errors import ConfigError
from isonomy.common.sums.local import LocalOracle
from isonomy.company.fair.estimator import FairClassifier
from isonomy.company.fair.torch_adapter import TorchClassifier


def linear(inputs: int, outputs: int) -> nn.Module:
    return nn.Linear(inputs, outputs)


def people(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    a = (rng.random(n) < 0.5).astype(int)
    X = np.column_stack([rng.normal(0, 1, n), rng.normal(1.5 * a, 1, n)])
    y = (X[:, 0] - 1.2 * a + rng.normal(0, 0.7, n) > -0.3).astype(int)
    return X, y, a


def test_a_module_is_a_classifier() -> None:
    X, y, _ = people(1500)
    model = TorchClassifier(linear, epochs=5, learning_rate=0.02)
    state = torch.get_rng_state()
    model.fit(X, y)
    assert torch.equal(torch.get_rng_state(), state)  # leaves torch's randomness alone
    assert (model.predict(X) == y).mean() > 0.7
    np.testing.assert_allclose(model.predict_proba(X).sum(axis=1), 1)
    twin = clone(model).fit(X, y)
    np.testing.assert_array_equal(twin.predict_proba(X), model.predict_proba(X))


def test_divergence_is_said() -> None:
    X, y, _ = people(200)
    with pytest.raises(ConfigError, match="diverged"):
        TorchClassifier(linear, epochs=3, learning_rate=float("inf")).fit(X, y)


def test_the_twin_trains_the_gap_away() -> None:
    X, y, a = people(2500)
    oracle = LocalOracle.rehearse(
        range(2500), {"sex": a.astype(str).tolist()}, epsilon=20, delta=1e-5
    )
    base = TorchClassifier(linear, epochs=12, learning_rate=0.02)
    clf = FairClassifier(
        base, tolerance=0.03, oracle=oracle, in_training=True, cv=2, random_state=0
    ).fit(X, y)
    X_new, _, a_new = people(8000, seed=1)

    def gap(h: np.ndarray) -> float:
        return float(abs(h[a_new == 0].mean() - h[a_new == 1].mean()))

    before = gap(clf.base_estimator_.predict(X_new))
    trained = gap(clf.fair_estimator_.predict(X_new))
    assert trained < 0.5 * before  # by training alone
    assert gap(clf.predict(X_new)) < 0.07  # and with what the tilt corrects
    assert oracle.budget.spent_units <= oracle.budget.cap_units
