"""The base model: fitted on all rows, and scored out of fold for everything that is audited."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.model_selection import GroupKFold, StratifiedKFold, cross_val_predict

from isonomy.common.base.errors import ConfigError, DataError
from isonomy.company.fair.inputs.people import People
from isonomy.company.fair.tilt.report import Seconds

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def check_base(base: Any, labels: Ints, folds: int) -> None:
    """What can be known before a fit: scores, and enough rows of each class."""
    if not hasattr(base, "predict_proba"):
        raise ConfigError(
            f"{type(base).__name__} has no predict_proba; wrap it, e.g. in scikit-learn's "
            "CalibratedClassifierCV"
        )
    if not (isinstance(folds, int) and folds >= 2):
        raise ConfigError(f"cv must be at least 2 folds, got {folds!r}")
    if int(np.bincount(labels).min()) < 2:
        raise DataError("a class has a single row; out-of-fold scores need at least two")


def fit_base(
    base: Any, X: Any, y: Any, labels: Ints, people: People, folds: int, random_state: Any
) -> tuple[Any, Floats, Seconds]:
    """The fitted model, (rows, classes) out-of-fold probabilities, and how long it took.

    Folds are shuffled: files are often in order of time, and folds in file order would then score
    each part of the data by a model of another time. Rows of one person stay in one fold.
    """
    groups, splitter = None, None
    if people.repeated:
        groups = people.position[people.entry]
        folds = min(folds, len(np.unique(groups)))
        splitter = GroupKFold(folds, shuffle=True, random_state=random_state)
    else:
        folds = min(folds, int(np.bincount(labels).min()))
        splitter = StratifiedKFold(folds, shuffle=True, random_state=random_state)
    started = time.perf_counter()
    # Out of fold: a model knows its training rows too well to tell how it treats other people.
    proba = cross_val_predict(clone(base), X, y, cv=splitter, groups=groups, method="predict_proba")
    between = time.perf_counter()
    fitted = clone(base).fit(X, y)
    seconds = Seconds(time.perf_counter() - between, between - started)
    if proba.shape[1] != labels.max() + 1 or not np.isfinite(proba).all():
        raise DataError("the base model's predict_proba gives no finite number per class")
    return fitted, np.asarray(proba, dtype=np.float64), seconds
