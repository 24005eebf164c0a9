"""Whole records: what is refused before anything is asked."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from gradient_kit import linear, regulator, toy, trainer
from record_kit import (
    FAST,
    PLAN,
)

from isonomy.common.base.errors import BudgetExceeded, ConfigError
from isonomy.common.sums.oracle import FilteredOracle
from isonomy.company.gradient.fermi.fermi import DpFermi
from isonomy.company.gradient.pf_ld.f_ld import FLD
from isonomy.company.gradient.pf_ld.pf_ld import PFLD
from isonomy.company.gradient.record.privacy import RecordPrivacy


@pytest.mark.parametrize(
    ("strategy", "settings", "text"),
    [
        (PFLD(), {}, "C_p must be a number"),
        (PFLD(primal_norm="bound"), {}, "C_p must be a number"),
        (PFLD(primal_norm=0.5, primal_multiplier=5.0), {}, "noise follows from the budget"),
        (DpFermi(), {}, "bound on ∇h must be a number"),
        (DpFermi(clip=0.5, w_update="chunk"), {}, 'w_update="round"'),
        (FLD(), {}, "f_ld cannot run under record privacy"),
        (PFLD(primal_norm=0.5), {"record_privacy": 3.0}, "RecordPrivacy"),
    ],
)
def test_what_looks_at_records_is_refused(
    tmp_path: Path, strategy: Any, settings: dict[str, Any], text: str
) -> None:
    data = toy(200)
    oracle = regulator(tmp_path, data.group).local()
    with pytest.raises(ConfigError, match=text):
        trainer(linear(), strategy, oracle, **{**FAST, **settings}).fit(data.x, data.y)
    assert oracle.budget.spent_units == 0


def test_a_filter_and_record_privacy_are_refused(tmp_path: Path) -> None:
    data = toy(200)
    home = regulator(tmp_path, data.group)
    home.individual = True
    oracle = FilteredOracle(home.local())
    with pytest.raises(ConfigError, match="do not go together"):
        trainer(linear(), PFLD(primal_norm=0.5), oracle, **FAST).fit(data.x, data.y)
    assert oracle.budget.spent_units == 0


def test_too_little_is_refused_before_anything_is_asked(tmp_path: Path) -> None:
    data = toy(200)
    oracle = regulator(tmp_path, data.group, epsilon=4.0).local()
    little = {**FAST, "record_privacy": RecordPrivacy(epsilon=0.05)}
    with pytest.raises(BudgetExceeded, match="would cost records more"):
        trainer(linear(), PFLD(primal_norm=0.5), oracle, **little).fit(data.x, data.y)
    assert oracle.budget.spent_units == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"epsilon": 0.0}, {"epsilon": math.nan}, {"epsilon": True}, {"clip": 0.0},
        {"clip": math.inf}, {"delta": 1.0}, {"totals": 1.0}, {"accountant": "moments"},
    ],
)  # fmt: skip
def test_settings_are_checked(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        RecordPrivacy(**{"epsilon": 1.0, **wrong})


def test_a_plan_that_promises_record_privacy_takes_nothing_else(tmp_path: Path) -> None:
    from sklearn.linear_model import LogisticRegression

    from isonomy.company import FairClassifier, GradientFairClassifier

    data = toy(300)
    home = regulator(tmp_path, data.group, epsilon=PLAN)
    home.records = True
    oracle = home.local()
    with pytest.raises(ConfigError, match="the approved plan promises"):
        trainer(linear(), PFLD(), oracle).fit(data.x, data.y)
    with pytest.raises(ConfigError, match="the approved plan promises"):
        FairClassifier(LogisticRegression(), oracle=oracle).fit(data.x, data.y)
    with pytest.raises(ConfigError, match="the approved plan promises"):
        GradientFairClassifier("logistic", oracle=oracle).fit(data.x, data.y)
    assert oracle.budget.spent_units == 0
    trainer(linear(), PFLD(primal_norm=0.5), oracle, **FAST).fit(data.x, data.y)
    assert oracle.budget.spent_units > 0
