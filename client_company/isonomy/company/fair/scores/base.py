"""The base model of a score: a regressor, or the probability that a classifier gives."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone, is_classifier
from sklearn.model_selection import GroupKFold, KFold, cross_val_predict

from isonomy.common.base.errors import ConfigError, DataError
from isonomy.company.fair.inputs.people import People
from isonomy.company.fair.tilt.fit_report import Seconds

Floats = NDArray[np.float64]


def checked_target(base: Any, y: Any, rows: int, folds: int) -> Floats:
    """The target as numbers; refuses what cannot be scored, before anything is spent."""
    if not (isinstance(folds, int) and folds >= 2):
        raise ConfigError(f"cv must be at least 2 folds, got {folds!r}")
    try:
        target = np.asarray(y, dtype=np.float64)
    except (TypeError, ValueError):
        raise DataError("y must be one number per row") from None
    if target.shape != (rows,) or not np.isfinite(target).all():
        raise DataError(f"y must be one finite number per row ({rows}); got shape {target.shape}")
    if np.ptp(target) == 0:
        raise DataError("y is the same for everybody; there is nothing to score")
    if is_classifier(base) and not (
        hasattr(base, "predict_proba") and np.isin(target, (0, 1)).all()
    ):
        raise ConfigError(
            "a classifier gives a score by predict_proba, and its labels must be 0 and 1; for "
            "other targets take a regressor"
        )
    return target


def score_of(model: Any, X: Any) -> Floats:
    """(n,) f(x): the prediction, or the probability of 1."""
    if is_classifier(model):
        return np.asarray(model.predict_proba(X), dtype=np.float64)[:, 1]
    return np.asarray(model.predict(X), dtype=np.float64).reshape(-1)


def fit_scores(
    base: Any, X: Any, y: Floats, people: People, folds: int, random_state: Any
) -> tuple[Any, Floats, Seconds]:
    """The fitted model, (rows,) out-of-fold scores, and how long it took.

    Folds are shuffled, and rows of one person stay in one fold.
    """
    whose = people.position[people.entry]
    splitter = GroupKFold if people.repeated else KFold
    folds = min(folds, len(np.unique(whose)))
    cut = splitter(folds, shuffle=True, random_state=random_state)
    parts = cut.split(y, y, whose if people.repeated else None)
    classifier = is_classifier(base)
    target = y.astype(np.int64) if classifier else y
    method = "predict_proba" if classifier else "predict"
    started = time.perf_counter()
    score = cross_val_predict(clone(base), X, target, cv=list(parts), method=method)
    between = time.perf_counter()
    fitted = clone(base).fit(X, target)
    seconds = Seconds(time.perf_counter() - between, between - started)
    score = np.asarray(score[:, 1] if classifier else score, dtype=np.float64).reshape(-1)
    if score.shape != y.shape or not np.isfinite(score).all():
        raise DataError("the base model gives no finite score per row")
    return fitted, score, seconds
