"""fairlearn's ThresholdOptimizer (Hardt, Price and Srebro 2016) on the base model's scores.

Each group has thresholds of its own, randomised between two where that is needed; they are read
off the groups' ROC curves on the training people.

What it is: the usual post-processing without privacy.
What it is not: private, or possible without the attribute. **It needs the attribute of everybody it
decides about**, and treats people differently by it. It knows no tolerance: rates are made equal.
"""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
from fairlearn.postprocessing import ThresholdOptimizer
from numpy.typing import NDArray
from sklearn.base import clone

from isonomy.company.rehearsal.strategies import (
    Rehearsal,
    Trained,
    check_notion,
    decider,
    not_private,
)

_NAME = "threshold_optimizer"
_CONSTRAINTS = {
    "demographic_parity": "demographic_parity",
    "equalized_odds": "equalized_odds",
    "equal_opportunity": "true_positive_rate_parity",
    "equal_fpr": "false_positive_rate_parity",
}


def train(rehearsal: Rehearsal) -> Trained:
    """No options."""
    check_notion(_NAME, rehearsal.notion)
    rehearsal.options_among()
    groups = rehearsal.true_groups(_NAME)
    base = clone(rehearsal.estimator).fit(rehearsal.features, rehearsal.target)
    optimizer = ThresholdOptimizer(
        estimator=base,
        constraints=_CONSTRAINTS[rehearsal.notion],
        prefit=True,
        predict_method="predict_proba",
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pandas' deprecations inside fairlearn
        optimizer.fit(rehearsal.features, rehearsal.target, sensitive_features=groups)

    def by_group(features: pd.DataFrame, codes: NDArray[np.int64]) -> NDArray[np.int64]:
        decided = optimizer.predict(features, sensitive_features=codes, random_state=rehearsal.seed)
        return np.asarray(decided, dtype=np.int64)

    return not_private(decider(base), decider(base), _NAME, by_group)
