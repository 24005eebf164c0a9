"""fairlearn's ExponentiatedGradient (Agarwal et al. 2018) with the true attributes.

What it is: the usual non-private method, a ceiling for what reductions can reach.
What it is not: private in any sense, or possible for a company that has no attributes.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from fairlearn.reductions import DemographicParity, EqualizedOdds, ExponentiatedGradient
from numpy.typing import NDArray
from sklearn.base import clone

from isonomy.company.compare.baselines._encoded import encode
from isonomy.company.rehearsal.strategies import Rehearsal, Trained, check_notion, not_private

_NAME = "exponentiated_gradient"
_MOMENTS = {"demographic_parity": DemographicParity, "equalized_odds": EqualizedOdds}
LEAST_BOUND = 0.001  # fairlearn's linear programs want some slack


def train(rehearsal: Rehearsal) -> Trained:
    """Options: `max_iter` (50), `eta0` (2.0) of fairlearn; tolerance is its difference bound."""
    check_notion(_NAME, rehearsal.notion)
    options: dict[str, Any] = {"max_iter": 50, **rehearsal.options_among("max_iter", "eta0")}
    groups = rehearsal.true_groups(_NAME)
    data = encode(rehearsal, _NAME)
    bound = max(rehearsal.tolerance, LEAST_BOUND)
    moment = _MOMENTS[rehearsal.notion](difference_bound=bound)
    mitigator = ExponentiatedGradient(clone(data.model), moment, eps=bound, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pandas' deprecations inside fairlearn
        mitigator.fit(data.rows, rehearsal.target, sensitive_features=groups)

    def decide(rows: NDArray[np.float64]) -> NDArray[np.int64]:
        return np.asarray(mitigator.predict(rows, random_state=rehearsal.seed), dtype=np.int64)

    return not_private(data.decider(decide), data.base_decide, _NAME)
