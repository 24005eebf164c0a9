"""scikit-learn's own checks, on estimators that make themselves a rehearsal oracle.

docs/compatibility.md lists the checks that do not hold and why; there is no other list.
"""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.utils.estimator_checks import check_estimator
from sklearn.utils.validation import _num_samples

from isonomy.common.base.errors import IsonomyError
from isonomy.common.sums.local import LocalOracle
from isonomy.company import FairClassifier, GradientFairClassifier

PAGE = Path(__file__).parents[3] / "docs" / "compatibility.md"


class Rehearsal:
    """Fits on any rows: half of the people, by row number, are one group."""

    def fit(self: Any, X: Any, y: Any) -> Any:
        rows, labels = _num_samples(X), np.asarray(y)
        groups = np.where(np.arange(rows) % 2, "u", "v").tolist()
        self.oracle = LocalOracle.rehearse(
            range(rows), {"half": groups}, epsilon=1000, delta=1e-5, groups={"half": ("u", "v")}
        ) if rows else None  # fmt: skip
        self.pos_label = np.unique(labels)[-1] if labels.ndim and labels.size else None
        try:
            return super().fit(X, y)
        except IsonomyError as error:  # scikit-learn's checks look for ValueError
            raise ValueError(str(error)) from error
        finally:
            self.oracle = self.pos_label = None  # a fit may not change settings


class Tilted(Rehearsal, FairClassifier):
    def __init__(self, random_state: Any = None) -> None:
        super().__init__(LogisticRegression(), random_state=random_state)

    def __sklearn_clone__(self) -> Tilted:
        return type(self)(self.random_state)


class Trained(Rehearsal, GradientFairClassifier):
    def __init__(self, random_state: Any = 0) -> None:
        short = {"rounds": 1, "warmup_steps": 100}
        super().__init__(trainer_options=short, random_state=random_state)

    def __sklearn_clone__(self) -> Trained:
        return type(self)(self.random_state)


def exceptions(estimator: str) -> dict[str, str]:
    rows = re.findall(r"^\| `(check_\w+)` \| (.+) \| (.+) \|$", PAGE.read_text(), re.MULTILINE)
    assert rows
    return {check: reason for check, whose, reason in rows if estimator in whose.split(", ")}


@pytest.mark.parametrize("model", [Tilted(), Trained()], ids=["tilt", "gradient"])
def test_check_estimator(model: Any) -> None:
    listed = exceptions(type(model).__mro__[2].__name__)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = check_estimator(model, on_fail=None, expected_failed_checks=listed)
    failed = [
        f"{result['check_name']}: {' '.join(str(result['exception']).split())[:160]}"
        for result in results
        if result["status"] == "failed"
    ]
    assert not failed, "\n".join(failed)
    assert sum(r["status"] == "passed" for r in results) > 40
    assert set(listed) == {r["check_name"] for r in results if r["check_name"] in listed}


def test_without_an_oracle_it_says_so() -> None:
    with pytest.raises(IsonomyError, match="needs oracle"):
        FairClassifier().fit(np.zeros((3, 1)), [0, 1, 0])
