"""Models can be kept: pickles and copies of estimators, all but the oracle; and tuning is free."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
import sklearn
import torch
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

from isonomy.common.base.errors import BudgetExceeded, ConfigError, DataError
from isonomy.common.sums.local import LocalOracle
from isonomy.company import FairClassifier, GradientFairClassifier, TorchClassifier

N = 600


def people() -> tuple[np.ndarray, np.ndarray, list[str]]:
    rng = np.random.default_rng(0)
    a = rng.random(N) < 0.4
    X = np.column_stack([rng.normal(0, 1, N), rng.normal(2.5 * a, 1.0)])
    y = (X[:, 0] - 1.3 * a + rng.normal(0, 0.7, N) > 0.3).astype(int)
    return X, y, np.where(a, "f", "m").tolist()


def linear() -> nn.Module:
    """Weights that one epoch makes a model of: some begin so that everybody is decided alike."""
    layer = nn.Linear(2, 2)
    with torch.no_grad():
        layer.weight.copy_(0.1 * torch.eye(2))
        layer.bias.zero_()
    return layer


def oracle(epsilon: float = 50.0) -> Any:
    return LocalOracle.rehearse(range(N), {"sex": people()[2]}, epsilon=epsilon, delta=1e-5)


def through_joblib(model: Any, folder: Path) -> Any:
    joblib.dump(model, folder / "model.joblib")
    return joblib.load(folder / "model.joblib")


WAYS: list[Callable[[Any, Path], Any]] = [
    lambda model, folder: pickle.loads(pickle.dumps(model)),  # noqa: S301
    through_joblib,
    lambda model, folder: copy.deepcopy(model),
]
SHORT = {"rounds": 1, "warmup_steps": 5}


@pytest.mark.filterwarnings("ignore:After the tilt nearly")  # of a hardly trained network
@pytest.mark.parametrize("way", WAYS, ids=["pickle", "joblib", "deepcopy"])
@pytest.mark.parametrize(
    "model",
    [
        FairClassifier(LogisticRegression(), tolerance=0.02, cv=2),
        FairClassifier(TorchClassifier(linear(), epochs=1), cv=2),
        GradientFairClassifier(trainer_options=SHORT),
        GradientFairClassifier(strategy="dp_fermi", trainer_options=SHORT),
    ],
    ids=["tilt", "torch", "pf_ld", "dp_fermi"],
)
def test_a_model_can_be_kept(model: Any, way: Callable[[Any, Path], Any], tmp_path: Path) -> None:
    X, y, _ = people()
    asked = oracle()
    model = clone(model).set_params(oracle=asked)
    unfitted = way(model, tmp_path)
    with pytest.raises(ConfigError, match="Copies have no oracle"):
        unfitted.fit(X, y)
    assert asked.budget.spent_units == 0
    again = way(model.fit(X, y), tmp_path)
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    assert "left out of copies" in repr(again)
    with pytest.raises(AttributeError, match="set_params"):
        again.oracle.budget  # noqa: B018
    if isinstance(again, FairClassifier):
        assert again.report_ == model.report_
        np.testing.assert_array_equal(
            again.at(tolerance=0.1).predict(X), model.at(tolerance=0.1).predict(X)
        )
        assert model.at(tolerance=0.1).oracle is asked


def test_a_search_over_the_fair_model_is_refused_and_one_inside_it_is_free() -> None:
    X, y, _ = people()
    asked = oracle()
    fair = FairClassifier(LogisticRegression(), oracle=asked)
    with pytest.raises(ValueError, match="Tune without attributes"):
        GridSearchCV(fair, {"tolerance": [0.01, 0.1]}, cv=2, n_jobs=2).fit(X, y, ids=range(N))
    assert asked.budget.spent_units == 0
    search = GridSearchCV(LogisticRegression(), {"C": [0.1, 1.0]}, cv=2)
    clf = FairClassifier(search, oracle=asked, cv=2).fit(X, y)
    assert clf.base_estimator_.best_params_
    assert len(clf.releases_.queries) <= 6


def test_metadata_requests_survive_a_clone() -> None:
    with sklearn.config_context(enable_metadata_routing=True):
        for kind in (FairClassifier, GradientFairClassifier):
            other = clone(kind().set_fit_request(ids=True))
            assert other.get_metadata_routing().fit.requests["ids"] is True


def test_with_routing_ids_pass_through_pipelines_and_searches() -> None:
    X, y, groups = people()
    ids = [f"p{number}" for number in range(N)]
    asked = LocalOracle.rehearse(ids, {"sex": groups}, epsilon=50.0, delta=1e-5)
    order = np.random.default_rng(1).permutation(N)  # without ids, rows would be other people's
    X, y, ids = X[order], y[order], [ids[each] for each in order]
    search = GridSearchCV(LogisticRegression(), {"C": [0.1, 1.0]}, cv=2, n_jobs=2)
    with sklearn.config_context(enable_metadata_routing=True):
        fair = FairClassifier(search, oracle=asked, tolerance=0.02, cv=2).set_fit_request(ids=True)
        pipe = make_pipeline(StandardScaler(), fair).fit(X, y, ids=ids)
        report = pipe[-1].report_
        assert report.base_violation > 0.1 > 0.05 > report.violation
        spent = asked.budget.spent_units
        again = clone(pipe)
        again[-1].set_params(oracle=asked, releases=pipe[-1].releases_)
        again.fit(X, y, ids=ids)
        assert again[-1].report_.returned == report.returned
        assert asked.budget.spent_units == spent
        around = GridSearchCV(pipe, {"fairclassifier__tolerance": [0.01, 0.1]}, cv=2, n_jobs=2)
        with pytest.raises(ValueError, match="Tune without attributes"):
            around.fit(X, y, ids=ids)
        assert asked.budget.spent_units == spent
        network = GradientFairClassifier(oracle=asked, trainer_options=SHORT)
        pipe = make_pipeline(StandardScaler(), network.set_fit_request(ids=True))
        with pytest.raises(BudgetExceeded):
            pipe.fit(X, y, ids=ids)
        with pytest.raises(DataError, match="cohort"):
            pipe.set_params(gradientfairclassifier__oracle=oracle()).fit(X, y, ids=ids)


def test_reused_releases_say_what_was_spent_now_and_then() -> None:
    X, y, _ = people()
    asked = oracle(epsilon=9.0)
    first = FairClassifier(LogisticRegression(), oracle=asked, cv=2).fit(X, y)
    assert "spent on this model" in str(first.report_)
    base = LogisticRegression(C=0.1)
    second = FairClassifier(base, oracle=asked, releases=first.releases_, cv=2).fit(X, y)
    assert second.report_.reused
    assert f"nothing spent now; the releases cost ε = {second.report_.epsilon_spent:.3g}" in str(
        second.report_
    )


def test_a_module_or_a_function_that_makes_one() -> None:
    X, y, _ = people()
    net = nn.Linear(2, 2)
    before = net.weight.detach().clone()
    model = TorchClassifier(net, epochs=2).fit(X, y)
    assert (net.weight == before).all()
    np.testing.assert_array_equal(
        model.predict_proba(X), TorchClassifier(net, epochs=2).fit(X, y).predict_proba(X)
    )
    for wrong, text in ((nn.Linear(5, 2), "rows of 2 numbers"), (nn.Linear(2, 1), "one logit")):
        with pytest.raises(ConfigError, match=text):
            TorchClassifier(wrong).fit(X, y)


def test_attributes_of_several_kinds() -> None:
    with pytest.raises(DataError, match="several kinds"):
        LocalOracle.rehearse(range(3), {"sex": ["f", "m", 7]}, epsilon=1.0, delta=1e-5)
