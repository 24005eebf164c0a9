"""scikit-learn's own checks, on a `FairClassifier` that makes itself a rehearsal oracle."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.utils.estimator_checks import check_estimator
from sklearn.utils.validation import _num_samples

from isonomy.common.base.errors import IsonomyError
from isonomy.common.sums.local import LocalOracle
from isonomy.company.fair.estimator import FairClassifier

_TINY = "a class has a single row there; out-of-fold scores need two"
MEANINGLESS = {
    "check_dont_overwrite_parameters": _TINY,
    "check_f_contiguous_array_estimator": _TINY,
    "check_methods_subset_invariance": _TINY,
    "check_fit2d_predict1d": _TINY,
    "check_estimators_overwrite_params": "the rehearsal oracle is set in fit",
    "check_dict_unchanged": "the rehearsal oracle is set in fit",
    "check_dont_overwrite_attributes": "the rehearsal oracle is set in fit",
    "check_do_not_raise_errors_in_init_or_set_param": "the rehearsal oracle is set in fit",
    "check_fit_idempotent": "fresh privacy noise in every fit",
    "check_methods_sample_order_invariance": "fresh privacy noise in every fit",
    "check_estimators_pickle": "adds NaN, which this base model refuses; test_copies pickles",
    "check_sample_weight_equivalence_on_dense_data": "sample_weight is refused, with reasons",
    "check_sample_weight_equivalence_on_sparse_data": "sample_weight is refused, with reasons",
    "check_sample_weights_invariance": "sample_weight is refused, with reasons",
    "check_sample_weights_list": "sample_weight is refused, with reasons",
    "check_sample_weights_pandas_series": "sample_weight is refused, with reasons",
    "check_sample_weights_not_an_array": "sample_weight is refused, with reasons",
    "check_sample_weights_shape": "sample_weight is refused, with reasons",
    "check_sample_weights_not_overwritten": "sample_weight is refused, with reasons",
    "check_sample_weights_not_overwritten_2": "sample_weight is refused, with reasons",
}


class Rehearsed(FairClassifier):
    """Fits on any rows: half of the people, by row number, are one group."""

    def __init__(self, estimator: Any = None, random_state: Any = None) -> None:
        super().__init__(estimator, random_state=random_state)

    def __sklearn_clone__(self) -> Rehearsed:
        return type(self)(LogisticRegression(), self.random_state)

    def fit(self, X: Any, y: Any) -> Rehearsed:  # type: ignore[override]
        rows = _num_samples(X)
        groups = np.where(np.arange(rows) % 2, "u", "v").tolist()
        self.oracle = LocalOracle.rehearse(
            range(rows), {"half": groups}, epsilon=1000, delta=1e-5, groups={"half": ("u", "v")}
        ) if rows else None  # fmt: skip
        labels = np.asarray(y)
        if labels.ndim == 1 and labels.size:
            self.pos_label = np.unique(labels)[-1]
        try:
            super().fit(X, y)
        except IsonomyError as error:  # scikit-learn's checks look for ValueError
            raise ValueError(str(error)) from error
        return self


def test_check_estimator() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = check_estimator(
            Rehearsed(LogisticRegression()), on_fail=None, expected_failed_checks=MEANINGLESS
        )
    failed = [
        f"{result['check_name']}: {' '.join(str(result['exception']).split())[:160]}"
        for result in results
        if result["status"] == "failed"
    ]
    assert not failed, "\n".join(failed)
    assert sum(r["status"] == "passed" for r in results) > 30


def test_without_an_oracle_it_says_so() -> None:
    with pytest.raises(IsonomyError, match="needs oracle"):
        FairClassifier().fit(np.zeros((3, 1)), [0, 1, 0])
