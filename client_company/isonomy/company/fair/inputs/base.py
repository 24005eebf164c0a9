"""The base model: fitted on all rows, and scored out of fold for everything that is audited.

Its decision is P(favourable | x) > cut, and the cut is read off the model itself where it has a
rule of its own (scikit-learn's FixedThresholdClassifier and TunedThresholdClassifierCV).
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import (
    FixedThresholdClassifier,
    GroupKFold,
    StratifiedKFold,
    TunedThresholdClassifierCV,
)
from sklearn.model_selection._search import BaseSearchCV
from sklearn.pipeline import Pipeline
from sklearn.utils import indexable
from sklearn.utils.metaestimators import _safe_split

from isonomy.common.base.errors import ConfigError, DataError
from isonomy.common.base.parallel import each
from isonomy.company.fair.inputs.people import People
from isonomy.company.fair.tilt.fit_report import Seconds
from isonomy.company.fair.tilt.rule import HALF

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


TIE = 1e-6  # of probabilities: single precision cannot tell more


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
    parts = list(splitter.split(np.zeros(len(labels)), labels, groups))
    classes = int(labels.max()) + 1
    if any(len(np.unique(labels[training])) < classes for training, _ in parts):
        raise DataError(
            "all rows of one class belong to so few people that a fold has none of them; "
            "out-of-fold scores need more. Nothing was spent."
        )
    # The whole fit takes longest, so it goes first: the folds then fill the other workers.
    whole, *folded = each(partial(_fit, base, *indexable(X, y)), [None, *parts])
    proba = np.full((len(labels), classes), np.nan)
    for (_, test), fold in zip(parts, folded, strict=True):
        if fold.proba.shape == (len(test), classes):
            proba[test] = fold.proba
    if not np.isfinite(proba).all():
        raise DataError("the base model's predict_proba must return one finite number per class")
    return whole.model, proba, Seconds(whole.seconds, sum(fold.seconds for fold in folded))


@dataclass(frozen=True)
class _Fit:
    """A model of all rows, or the probabilities of a fold's other rows."""

    model: Any
    proba: Floats
    seconds: float


def _fit(base: Any, X: Any, y: Any, part: tuple[Ints, Ints] | None) -> _Fit:
    """Fit all rows, or a fold's; out of fold, because a model knows its training rows too well."""
    started, model = time.perf_counter(), clone(base)
    if part is None:
        model.fit(X, y)
        return _Fit(model, np.zeros((0, 0)), time.perf_counter() - started)
    training, test = part
    model.fit(*_safe_split(model, X, y, training))
    unseen, _ = _safe_split(model, X, y, test, training)
    proba = np.asarray(model.predict_proba(unseen), dtype=np.float64)
    return _Fit(None, proba, time.perf_counter() - started)


# --- The rule ------------------------------------------------------------------------------------


def check_threshold(base: Any, threshold: Any, classes: int) -> None:
    """Refuse a threshold that cannot be, or that is one rule too many."""
    if threshold is None:
        return
    if (
        isinstance(threshold, bool)
        or not isinstance(threshold, int | float)
        or not 0 < threshold < 1
    ):
        raise ConfigError(f"threshold is a probability between 0 and 1; got {threshold!r}")
    if classes != 2:
        raise ConfigError(f"threshold needs two classes; there are {classes}")
    final = _final_model(base)
    if isinstance(final, FixedThresholdClassifier | TunedThresholdClassifierCV):
        raise ConfigError(
            f"{type(final).__name__} has a cut-off already; leave threshold out, or give the model "
            "without its wrapper"
        )


def cut_of(fitted: Any, threshold: float | None, X: Any, pos_label: Any, order: Ints) -> float:
    """The cut of the rule that is really in use: who is above it is selected.

    Refuses a model whose `predict` is not a rule on its probabilities: the tilt would move, and the
    report describe, a model that nobody runs. A tie may go either way.
    """
    if threshold is not None:
        return float(np.nextafter(threshold, 0.0))  # f > cut is f >= threshold
    proba = np.asarray(fitted.predict_proba(X), dtype=np.float64)[:, order]
    decisions = np.asarray(fitted.predict(X))
    if len(order) > 2:
        score = (decisions[:, None] == fitted.classes_[order]) * proba
        return _checked_cut(score.max(axis=1) < proba.max(axis=1) - TIE, HALF)
    selected, favourable = decisions == pos_label, proba[:, 1]
    cuts = _candidate_cuts(_final_model(fitted))
    wrong = [(selected != (favourable > cut)) & (abs(favourable - cut) > TIE) for cut in cuts]
    best = int(np.argmin([each.sum() for each in wrong]))
    return _checked_cut(wrong[best], cuts[best])


def _checked_cut(wrong: NDArray[np.bool_], cut: float) -> float:
    if wrong.any():
        raise ConfigError(
            f"the base model's predict disagrees with its probabilities for {int(wrong.sum())} of "
            f"{len(wrong)} rows, so a tilt of the probabilities would move a model that nobody "
            "runs. Nothing was spent. Give its cut-off (threshold=… or scikit-learn's "
            "FixedThresholdClassifier on predict_proba), or calibrate it (CalibratedClassifierCV)."
        )
    return cut


def _final_model(model: Any) -> Any:
    """The part of a pipeline, search or frozen model that decides."""
    if isinstance(model, Pipeline):
        return _final_model(model.steps[-1][1])
    if isinstance(model, FrozenEstimator):
        return _final_model(model.estimator)
    if isinstance(model, BaseSearchCV):  # fitted or not
        return _final_model(getattr(model, "best_estimator_", model.estimator))
    return model


def _candidate_cuts(model: Any) -> list[float]:
    """What the cut may be: the wrapper's threshold is for one of the two classes."""
    if isinstance(model, TunedThresholdClassifierCV):
        threshold = float(model.best_threshold_)
    elif isinstance(model, FixedThresholdClassifier) and model.threshold != "auto":
        threshold = float(model.threshold)
    else:
        return [HALF]
    return [float(np.nextafter(threshold, -np.inf)), 1.0 - threshold]
