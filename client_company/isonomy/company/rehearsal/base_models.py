"""The base models of a rehearsal: a pipeline from the mixed table to a decision or a number.

| name | model | numbers | categories |
|---|---|---|---|
| `logistic` | scikit-learn's LogisticRegression | z-scored, gaps filled with the median | one-hot |
| `gbdt` | HistGradientBoostingClassifier, its defaults | as they are | one-hot |
| `mlp` | MLPClassifier, one hidden layer of 64, early stopping | as for logistic | one-hot |

Where the target is a number: `gbdt` is HistGradientBoostingRegressor, and `ridge` is RidgeCV.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator, clone
from sklearn.compose import ColumnTransformer, make_column_selector
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.utils import get_tags

from isonomy.common.base.errors import ConfigError

MAX_CATEGORIES = 200  # of one column; the rarest share a column beyond that


_MODELS: dict[str, Callable[[int], Any]] = {
    "logistic": lambda seed: LogisticRegression(max_iter=2_000),
    "gbdt": lambda seed: HistGradientBoostingClassifier(random_state=seed),
    "mlp": lambda seed: MLPClassifier((64,), early_stopping=True, random_state=seed),
}
_REGRESSORS: dict[str, Callable[[int], Any]] = {
    "ridge": lambda seed: RidgeCV(np.geomspace(1, 1e4, 9)),
    "gbdt": lambda seed: HistGradientBoostingRegressor(random_state=seed),
}
BASES: tuple[str, ...] = tuple(_MODELS)
REGRESSORS: tuple[str, ...] = tuple(_REGRESSORS)


def base_model(name: str, seed: int, *, number: bool = False) -> Pipeline:
    """An unfitted pipeline for any table; numbers and categories are told apart by its columns.

    `number`: the target is a number, not a label.
    """
    models = _REGRESSORS if number else _MODELS
    if name not in models:
        kind = "a number" if number else "a label"
        raise ConfigError(
            f"unknown base model {name!r}; where the target is {kind} there are {', '.join(models)}"
        )
    one_hot = OneHotEncoder(
        handle_unknown="infrequent_if_exist", max_categories=MAX_CATEGORIES, sparse_output=False
    )
    fill = SimpleImputer(strategy="median", keep_empty_features=True)
    numbers = "passthrough" if name == "gbdt" else make_pipeline(fill, StandardScaler())
    encoder = ColumnTransformer(
        [
            ("categories", one_hot, make_column_selector(dtype_exclude="number")),
            ("numbers", numbers, make_column_selector(dtype_include="number")),
        ]
    )
    return make_pipeline(encoder, models[name](seed))


class Fits:
    """Fitted models by the rows they were fitted on. Clones share it: that is its purpose."""

    def __init__(self) -> None:
        self.models: dict[str, Any] = {}

    # scikit-learn's clone copies parameters: a copied cache would be an empty one.
    def __deepcopy__(self, memo: dict[int, Any]) -> Fits:
        return self


class Remembered(BaseEstimator):  # type: ignore[misc]
    """A base model that is fitted once on the same rows, however many ε are swept over them."""

    def __init__(self, estimator: Any, fits: Fits) -> None:
        self.estimator = estimator
        self.fits = fits

    def fit(self, X: pd.DataFrame, y: Any) -> Remembered:
        rows = pd.util.hash_pandas_object(X, index=True).to_numpy()
        key = hashlib.sha256(rows.tobytes() + np.asarray(y).tobytes()).hexdigest()
        if key not in self.fits.models:
            self.fits.models[key] = clone(self.estimator).fit(X, y)
        self.fitted_ = self.fits.models[key]
        self.classes_ = getattr(self.fitted_, "classes_", None)
        return self

    def predict(self, X: pd.DataFrame) -> Any:
        return self.fitted_.predict(X)

    def predict_proba(self, X: pd.DataFrame) -> Any:
        return self.fitted_.predict_proba(X)

    def __sklearn_tags__(self) -> Any:
        return get_tags(self.estimator)  # a classifier or a regressor, as the model is
