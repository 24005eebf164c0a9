"""The feature map of lenders who pool: what it takes, and that a plan fixes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from session_kit import Federation

from isonomy.common.agreements.feature_map import PublicFeatures
from isonomy.common.agreements.plan import Plan
from isonomy.common.base.errors import ConfigError

AGE = {"name": "age", "low": "18", "high": "90"}
HOME = {"name": "home", "levels": ["rent", "own"]}


def features(*columns: dict[str, Any], seed: int = 1) -> PublicFeatures:
    return PublicFeatures.of({"columns": list(columns), "seed": seed})


def test_ranges_and_levels() -> None:
    age, home = features(AGE, HOME).columns
    assert (age.middle, age.distance) == (54, 18)
    assert home.levels == ("rent", "own")
    assert features({**AGE, "typical": "40", "spread": "12.5"}).columns[0].distance * 2 == 25


@pytest.mark.parametrize(
    "column",
    [
        {"name": "age"},
        {"name": "age", "low": "5"},
        {**AGE, "low": "90"},
        {**AGE, "low": "many"},
        {**AGE, "low": "nan"},
        {**AGE, "high": "Infinity"},
        {**AGE, "typical": "91"},
        {**AGE, "spread": "0"},
        {**AGE, "spread": "73"},
        {**AGE, "levels": ["a", "b"]},
        {"name": "home", "levels": ["rent"]},
        {"name": "home", "levels": ["rent", "rent"]},
        {"name": "home", "levels": [f"{n}" for n in range(51)]},
        {"name": "", "low": "0", "high": "1"},
        {"name": "a\nb", "low": "0", "high": "1"},
        {**AGE, "low": 18},
    ],
)
def test_what_is_no_column(column: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        features(column)


def test_names_differ_and_the_seed_is_bounded() -> None:
    with pytest.raises(ConfigError, match="same name"):
        features(AGE, AGE)
    for seed in (-1, 2**32):
        with pytest.raises(ConfigError):
            features(AGE, seed=seed)


def test_a_plan_of_several_companies_fixes_it(tmp_path: Path) -> None:
    both = Federation.create(tmp_path / "two", companies=("a", "b"), feature_map=features(AGE))
    plan = Plan.from_json(both.plan.to_json())
    assert plan.feature_map == features(AGE)
    assert "age" in plan.describe()
    other = Federation.create(tmp_path / "other", companies=("a", "b"))
    assert b"feature_map" not in other.plan.to_json()
    with pytest.raises(ConfigError, match="several companies"):
        Federation.create(tmp_path / "one", feature_map=features(AGE))
