"""φ of lenders who pool: the same function at each of them, from the plan and nobody's data.

All constants of φ (centres, stretches, bandwidth, clipping) are fitted as a single company fits
them, but to synthetic people, whom a public seed draws from the declared ranges and levels. So
there is one way to fit φ, and nothing about anybody in it. Only the bins of the score differ from
lender to lender: each takes the tenths of its own scores, so "the best tenth" means the same at
all of them.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from isonomy.common.agreements.feature_map import PublicColumn, PublicFeatures
from isonomy.common.base.errors import DataError
from isonomy.company.fair.inputs.columns import Columns
from isonomy.company.fair.inputs.features import BINS, FeatureMap, fit_features

Floats = NDArray[np.float64]

SYNTHETIC = 4096  # people


class _Frozen:
    """numpy's old generator: its numbers are promised never to change between versions."""

    def __init__(self, seed: int) -> None:
        self._state = np.random.RandomState(seed)

    def standard_normal(self, size: Any, /) -> Any:
        return self._state.standard_normal(size)

    def uniform(self, low: float, high: float, size: Any, /) -> Any:
        return self._state.uniform(low, high, size)

    def integers(self, low: int, high: int, size: Any, /) -> Any:
        return self._state.randint(low, high, size, dtype=np.int64)


def public_map(features: PublicFeatures, score: Floats) -> FeatureMap:
    """φ of the plan, with bins for this lender's (out-of-fold) score."""
    rng = _Frozen(features.seed)
    people = pd.DataFrame({each.name: _drawn(each, rng) for each in features.columns})
    fitted = fit_features(people, np.linspace(0.0, 1.0, SYNTHETIC), rng)
    # Equal shares even where scores are equal: the norm must be the same at every lender.
    edges = np.quantile(score, np.arange(1, BINS) / BINS)
    return replace(fitted, edges=edges, shares=np.full(BINS, 1 / BINS))


def check_table(features: PublicFeatures, X: Any) -> list[str]:
    """Compare a table with the plan's map; DataError if φ cannot be computed on it.

    Returns remarks about values that the map does not know.
    """
    columns, remarks = Columns.of(X), list[str]()
    absent = [each.name for each in features.columns if each.name not in columns.values]
    if absent:
        raise DataError(
            f"X lacks {len(absent)} columns of the plan's feature map, e.g. {absent[0]!r}. "
            "Nothing was asked."
        )
    for each in features.columns:
        values = columns.values[each.name]
        words = values.dtype == object
        if words != bool(each.levels):
            expected, there = ("words", "numbers") if each.levels else ("numbers", "words")
            raise DataError(
                f"column {each.name!r} has {expected} in the plan's feature map and {there} in X. "
                "Nothing was asked."
            )
        outside = _outside(each, values)
        if outside:
            what = "are none of its levels" if words else f"lie outside {each.low} to {each.high}"
            remarks.append(f"column {each.name!r} of the feature map: {outside:.1%} of X {what}")
    return remarks


def read_table(path: Path) -> pd.DataFrame:
    """A lender's table from a file."""
    try:
        is_csv = path.name.lower().endswith((".csv", ".csv.gz"))
        return pd.read_csv(path) if is_csv else pd.read_parquet(path)
    except (OSError, ValueError, ImportError) as error:
        raise DataError(f"cannot read the table {path}: {error}") from None


def _outside(column: PublicColumn, values: NDArray[Any]) -> float:
    """The share of values that the map cuts off or does not list; missing ones are none of them."""
    if column.levels:
        present = [value for value in values if value is not None]
        return float(np.mean([value not in column.levels for value in present] or [False]))
    numbers = values[~np.isnan(values)]
    beyond = (numbers < float(column.low)) | (numbers > float(column.high))
    return float(beyond.mean()) if len(beyond) else 0.0


def _drawn(column: PublicColumn, rng: _Frozen) -> NDArray[Any]:
    """Synthetic values: normal around the typical one, or levels that get rarer down the list."""
    if not column.levels:
        middle, spread = float(column.middle), float(column.distance)
        drawn = middle + spread * rng.standard_normal(SYNTHETIC)
        return np.asarray(np.clip(drawn, float(column.low), float(column.high)))
    weights = 1.0 / np.arange(1, len(column.levels) + 1)
    limits = np.cumsum(weights / weights.sum())[:-1]
    places = np.searchsorted(limits, rng.uniform(0.0, 1.0, SYNTHETIC))
    drawn_levels: NDArray[Any] = np.array(column.levels, dtype=object)[places]
    return drawn_levels
