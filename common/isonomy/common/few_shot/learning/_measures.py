"""Accuracy and the two fairness measures of the paper, on decisions of many tasks together.

    GF = P(ŷ = 1 | A = 0)/P(ŷ = 1 | A = 1)                                        (24)
    EO = Σ_{y = 0, 1} P(ŷ = 1 | A = 0, y) − P(ŷ = 1 | A = 1, y)                   (26)

ŷ = 1: the predicted class is a positive one (of the half that is mostly coloured); y: the same of
the true class; A = 1: coloured. Fair is GF = 1 and EO = 0. In print, (26) has y = 0 in all but one
of its four terms; we read the first pair as y = 1, as its name says. The two pairs may cancel in
EO, so `odds` gives the larger of their absolute values beside it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from isonomy.common.base.errors import DataError


@dataclass(frozen=True)
class Measures:
    """Fractions, never NaN: a missing group is a DataError."""

    accuracy: float
    gf: float
    eo: float
    odds: float  # equalized-odds difference: max over y of |difference|


def measures(
    predicted: NDArray[np.int64],  # (n,) places in the task
    truth: NDArray[np.int64],  # (n,)
    decided: NDArray[np.bool_],  # (n,) ŷ
    actual: NDArray[np.bool_],  # (n,) y
    groups: NDArray[np.int8],  # (n,) A
) -> Measures:
    """All measures of one set of decisions."""
    rates = [_rate(decided, groups == a) for a in (0, 1)]
    gaps = [
        _rate(decided[half], groups[half] == 0) - _rate(decided[half], groups[half] == 1)
        for half in (actual, ~actual)
    ]
    gf = rates[0] / rates[1] if rates[1] > 0 else float(rates[0] == 0)
    accuracy = float((predicted == truth).mean())
    return Measures(accuracy, gf, sum(gaps), max(abs(gap) for gap in gaps))


def _rate(decided: NDArray[np.bool_], where: NDArray[np.bool_]) -> float:
    if not where.any():
        raise DataError("the test tasks lack one of the groups in one half of the classes")
    return float(decided[where].mean())
