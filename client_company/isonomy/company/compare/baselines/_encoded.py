"""A rehearsal's table as numbers, and the base model without its encoder.

Baselines fit many models on one table: it is encoded once, as the base model encodes it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import has_fit_parameter

from isonomy.common.base.errors import ConfigError
from isonomy.company.rehearsal.strategies import Decide, Rehearsal, decider


@dataclass(frozen=True)
class Encoded:
    """Training rows as numbers, the unfitted model, and the base model's decisions."""

    encoder: Any
    model: Any  # unfitted
    rows: NDArray[np.float64]
    base_decide: Decide

    def decider(self, decide: Callable[[NDArray[np.float64]], NDArray[np.int64]]) -> Decide:
        """Decisions on raw features, from a function of encoded rows."""

        def on_features(features: pd.DataFrame) -> NDArray[np.int64]:
            rows = np.asarray(self.encoder.transform(features), dtype=np.float64)
            return np.asarray(decide(rows), dtype=np.int64)

        return on_features


def encode(rehearsal: Rehearsal, who: str, *, logistic: bool = False) -> Encoded:
    """Encode once. Refuses base models without weights; `logistic`: all but the logistic one."""
    pipeline = getattr(rehearsal.estimator, "estimator", rehearsal.estimator)
    if not isinstance(pipeline, Pipeline):
        raise ConfigError(f"{who} takes --base logistic, gbdt or mlp")
    if logistic and not isinstance(pipeline[-1], LogisticRegression):
        raise ConfigError(f"{who} trains a logistic model: take --base logistic")
    if not has_fit_parameter(pipeline[-1], "sample_weight"):
        raise ConfigError(f"{who} needs a base model that takes weights: logistic or gbdt")
    base = clone(rehearsal.estimator).fit(rehearsal.features, rehearsal.target)
    fitted = clone(pipeline[:-1]).fit(rehearsal.features, rehearsal.target)
    rows = np.asarray(fitted.transform(rehearsal.features), dtype=np.float64)
    return Encoded(fitted, pipeline[-1], rows, decider(base))
