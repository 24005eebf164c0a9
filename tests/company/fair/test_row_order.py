"""Whose row is it, if no ids are given: refused wherever rows may be in another order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from federation import federation
from sklearn.linear_model import LinearRegression, LogisticRegression

from isonomy.common.base.errors import DataError
from isonomy.common.sums.local import LocalOracle
from isonomy.common.sums.oracle import GroupOracle
from isonomy.company import FairClassifier, FairRegressor, GradientFairClassifier, audit
from isonomy.company.gradient.pf_ld.pf_ld import PFLD
from isonomy.company.gradient.training.trainer import Trainer

N = 600
IDS = [f"person-{number}" for number in range(N)]
SMALL = {"trainer_options": {"rounds": 1, "warmup_steps": 1, "chunk_size": 300}}

Call = Callable[[GroupOracle, Any, Any, Any], Any]


def tilt(oracle: GroupOracle, X: Any, y: Any, ids: Any) -> Any:
    return FairClassifier(LogisticRegression(), oracle=oracle).fit(X, y, ids=ids)


def scores(oracle: GroupOracle, X: Any, y: Any, ids: Any) -> Any:
    return FairRegressor(LinearRegression(), oracle=oracle).fit(X, y, ids=ids)


def gradient(oracle: GroupOracle, X: Any, y: Any, ids: Any) -> Any:
    return GradientFairClassifier(oracle=oracle, **SMALL).fit(X, y, ids=ids)


def trainer(oracle: GroupOracle, X: Any, y: Any, ids: Any) -> Any:
    settings = {**SMALL["trainer_options"], "optimiser": torch.optim.SGD}
    made = Trainer(torch.nn.Linear(2, 1), PFLD(), oracle, **settings)
    return made.fit(np.asarray(X, dtype=np.float32), y, ids=ids)


def audited(oracle: GroupOracle, X: Any, y: Any, ids: Any) -> Any:
    return audit(oracle, y, ids=ids, share=0.5)


CALLS = (tilt, scores, gradient, trainer, audited)


def table() -> tuple[pd.DataFrame, pd.Series, list[str]]:
    rng = np.random.default_rng(0)
    sex = rng.random(N) < 0.5
    skill = rng.normal(0, 1, N)
    X = pd.DataFrame({"skill": skill, "hobby": rng.normal(2.0 * sex, 1.0)}, index=IDS)
    y = pd.Series((skill - sex + rng.normal(0, 0.5, N) > 0).astype(int), index=IDS)
    return X, y, np.where(sex, "f", "m").tolist()


def oracle_of(sex: list[str]) -> GroupOracle:
    return LocalOracle.rehearse(IDS, {"sex": sex}, epsilon=20.0, delta=1e-5)


@pytest.mark.parametrize("call", CALLS)
def test_a_shuffled_table_without_ids_is_refused_and_costs_nothing(call: Call) -> None:
    X, y, sex = table()
    oracle = oracle_of(sex)
    order = np.random.default_rng(1).permutation(N)
    for rows, labels in (
        (X.iloc[order], y.iloc[order]),  # named by ids
        (X.reset_index(drop=True).iloc[order], y.reset_index(drop=True).iloc[order]),  # numbered
        (X.to_numpy()[order], y.iloc[order]),  # the labels alone say it
    ):
        with pytest.raises(DataError, match=r"ids=.*Nothing was asked"):
            call(oracle, rows, labels, None)
    assert not oracle.budget.spent_units


@pytest.mark.parametrize("call", CALLS)
def test_a_federation_without_ids_is_refused_and_costs_nothing(call: Call, tmp_path: Path) -> None:
    X, y, sex = table()
    oracle = federation(tmp_path, {"sex": sex}, {"sex": ["f", "m"]}).company()
    with pytest.raises(DataError, match=r"ids=.*Nothing was asked"):
        call(oracle, X.to_numpy(), y.to_numpy(), None)
    assert not oracle.budget.spent_units


@pytest.mark.parametrize("call", CALLS)
def test_a_rehearsal_takes_rows_in_order_and_rows_in_any_order_with_ids(call: Call) -> None:
    X, y, sex = table()
    call(oracle_of(sex), X.reset_index(drop=True), y.to_numpy(), None)
    order = np.random.default_rng(1).permutation(N)
    mixed = X.iloc[order]
    call(oracle_of(sex), mixed, y.iloc[order], mixed.index)


def test_a_shuffled_table_is_refused_by_direct_questions_too() -> None:
    X, y, sex = table()
    oracle = oracle_of(sex)
    with pytest.raises(DataError, match="index"):
        oracle.blind_sum(X, norm=1.0, share=0.1)
    with pytest.raises(DataError, match="index"):
        oracle.counts(y, share=0.1)
    assert not oracle.budget.spent_units
    oracle.blind_sum(X, norm=1.0, share=0.1, people=oracle.cohort.positions(X.index))
