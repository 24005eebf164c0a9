"""Rehearse a fair score on public data, beside fairlearn's reductions without privacy.

    print(table(compare_scores("communities", data_dir="data", seeds=range(8))))

Communities and parkinsons are scored by their number, with `ridge` or `gbdt`; other sets by the
probability of their label, with a base model of `isonomy simulate`. Every seed is a random split of
the people, a quarter of them for the test. On test rows:

| figure | what it is |
|---|---|
| loss | mean squared error over the variance of the test target |
| distance | largest difference of two groups' distribution functions (Kolmogorov–Smirnov) |
| worst | the largest group's mean squared error over the same variance |
| floor | the distance that a score alike in both groups would show by chance |

fairlearn's exponentiated gradient and grid search bound each group's loss (`BoundedGroupLoss`) and
see the attribute in training. They have no constraint on the distribution of a score.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.linear_model import RidgeCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from isonomy.common.base.errors import ConfigError
from isonomy.common.sums.local import LocalOracle
from isonomy.company.fair.scores.base import score_of
from isonomy.company.fair.scores.regressor import FairRegressor
from isonomy.company.rehearsal.base_models import base_model
from isonomy.company.rehearsal.datasets import load

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

DELTA = 1e-5
TEST = 0.25
BASES: dict[str, Callable[[], Any]] = {
    "ridge": lambda: make_pipeline(StandardScaler(), RidgeCV(np.geomspace(1, 1e4, 9))),
    "gbdt": lambda: HistGradientBoostingRegressor(random_state=0),
}
_GRID = 15  # points of fairlearn's grid search


def compare_scores(
    name: str,
    *,
    data_dir: Path | str | None = None,
    base: str = "ridge",
    epsilons: Iterable[float] = (1.0,),
    seeds: Iterable[int] = range(8),
    tolerance: float = 0.05,
    rivals: bool = True,
) -> pd.DataFrame:
    """Means over the splits, a row per method, with the standard error of loss and distance."""
    data, regression = load(name, data_dir), name in ("communities", "parkinsons")
    if regression and base not in BASES:
        raise ConfigError(f"{name} is scored by a number; base is one of {', '.join(BASES)}")
    model = BASES[base]() if regression else base_model(base, 0)
    rows = []
    for seed in seeds:
        persons = np.random.default_rng(seed).permutation(len(data.ids))
        tested = np.isin(data.person_of_row, persons[: round(TEST * len(persons))])
        attribute = next(iter(data.groups))
        split = _Split(data, attribute, tested)
        methods = [*_methods(split, model, tuple(epsilons), seed, tolerance)]
        if rivals and regression:
            methods += _fairlearn(split, model)
        rows += [{"method": method, **split.figures(score)} for method, score in methods]
    frame = pd.DataFrame(rows)
    means = frame.groupby("method", sort=False).mean()
    errors = frame.groupby("method", sort=False)[["loss", "distance"]].sem()
    return means.join(errors.add_suffix(" ±"))


def table(frame: pd.DataFrame) -> str:
    """The figures as text."""
    return str(frame.round(3).to_string())


class _Split:
    """Training and test rows, with attributes that only measures and rivals may see."""

    def __init__(self, data: Any, attribute: str, tested: NDArray[np.bool_]) -> None:
        self.attribute, self.groups = attribute, data.groups[attribute]
        whose, codes = data.person_of_row, data.codes(attribute)
        self.X, self.test_X = data.features[~tested], data.features[tested]
        y = data.target.astype(np.float64) if data.score is None else data.score
        self.y, self.test_y = y[~tested], y[tested]
        self.codes, self.test_codes = codes[~tested], codes[tested]
        self.ids = [data.ids[person] for person in whose[~tested]]
        self.test_whose = whose[tested]
        people = np.unique(whose[~tested])
        self.people = [data.ids[person] for person in people]
        self.attributes = [data.attributes[attribute][person] for person in people]

    def figures(self, score: Floats) -> dict[str, float]:
        """What a score does on the test rows."""
        variance = float(self.test_y.var())
        squares = (self.test_y - score) ** 2 / variance
        by_group = [squares[self.test_codes == code].mean() for code in np.unique(self.test_codes)]
        return {
            "loss": float(squares.mean()),
            "distance": distance(score, self.test_codes),
            "worst": float(max(by_group)),
            "floor": self._floor(score),
        }

    def _floor(self, score: Floats) -> float:
        """The mean distance if people (not rows) were put into groups at random."""
        rng = np.random.default_rng(0)
        _, first, row = np.unique(self.test_whose, return_index=True, return_inverse=True)
        codes = self.test_codes[first]
        draws = [distance(score, rng.permutation(codes)[row]) for _ in range(50)]
        return float(np.mean(draws))


def distance(score: Floats, codes: Ints) -> float:
    """Kolmogorov–Smirnov: the largest difference of two groups' shares at most any score."""
    cuts = np.unique(score)
    parts = [np.sort(score[codes == code]) for code in np.unique(codes)]
    shares = np.stack([np.searchsorted(part, cuts, "right") / len(part) for part in parts])
    return float(np.ptp(shares, axis=0).max())


def _methods(
    split: _Split,
    model: Any,
    epsilons: tuple[float, ...],
    seed: int,
    tolerance: float,
) -> Iterable[tuple[str, Floats]]:
    """Names of methods with their test scores."""
    yield "base model", score_of(clone(model).fit(split.X, split.y), split.test_X)
    for epsilon in epsilons:
        oracle = LocalOracle.rehearse(
            split.people,
            {split.attribute: split.attributes},
            epsilon=epsilon,
            delta=DELTA,
            groups={split.attribute: split.groups},
        )
        fair = FairRegressor(model, oracle=oracle, tolerance=tolerance, random_state=seed)
        fair.fit(split.X, split.y, ids=split.ids)
        yield f"FairRegressor, ε = {epsilon:g}", fair.predict(split.test_X)


def _fairlearn(split: _Split, model: Any) -> Iterable[tuple[str, Floats]]:
    """fairlearn's reductions for regression: the least bound of a group's loss that they reach."""
    from fairlearn.reductions import (
        BoundedGroupLoss,
        ExponentiatedGradient,
        GridSearch,
        SquareLoss,
    )

    low, high = float(split.y.min()), float(split.y.max())
    scale = high - low
    y = (split.y - low) / scale  # fairlearn's losses want numbers from 0 to 1
    name = f"{type(model[-1]).__name__.lower()}__" if hasattr(model, "steps") else ""
    weights = {"sample_weight_name": f"{name}sample_weight"}
    loss = SquareLoss(0, 1)
    bounded = BoundedGroupLoss(loss, upper_bound=0.0)  # as small as can be
    gradient = ExponentiatedGradient(clone(model), bounded, eps=1e-3, max_iter=20, **weights)
    gradient.fit(split.X, y, sensitive_features=split.codes)
    yield (
        "fairlearn, exponentiated gradient",
        low + scale * gradient.predict(split.test_X, random_state=0),
    )
    grid = GridSearch(
        clone(model), BoundedGroupLoss(loss, upper_bound=0.0), grid_size=_GRID, **weights
    )
    grid.fit(split.X, y, sensitive_features=split.codes)
    yield "fairlearn, grid search", low + scale * grid.predict(split.test_X)
