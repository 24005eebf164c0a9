"""Mozannar et al. 2020: attributes by randomised response, then noise-corrected reductions.

    Ã_i = A_i with chance e^ε/(e^ε + k − 1), else another group at random     (released once)
    e_i = row Ã_i of the inverse flip matrix,  E[e_i(a) given A_i] = 1[A_i = a]
    reductions with memberships e_i instead of 1[A_i = a]                     (`reductions.py`)

What it is: the local-privacy competitor. One release, pure ε, paid in the ledger through the same
rehearsal oracle; everything after it is post-processing, whatever is tried.
What it is not: a protocol of this product. A real regulator would hand out a table of randomised
attributes; ours never does.
Differs from the paper: it corrects group statistics before the reduction instead of relating the
two violations after it; for two groups both ask for the same equality. The final step of the paper,
a second sample with the attribute at prediction, is left out: predictions need no attribute here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from isonomy.common.agreements.plan import MILLION
from isonomy.common.base.errors import DataError
from isonomy.company.compare.baselines._encoded import encode
from isonomy.company.compare.baselines._randomised_response import (
    corrected_indicators,
    largest_epsilon,
    release,
)
from isonomy.company.compare.baselines._reductions import reduce
from isonomy.company.rehearsal.strategies import Rehearsal, Trained, check_notion

_NAME = "randomised_response"


def train(rehearsal: Rehearsal) -> Trained:
    """Options: `rounds`, `bound` and `step` of the reductions."""
    check_notion(_NAME, rehearsal.notion)
    options: dict[str, Any] = rehearsal.options_among("rounds", "bound", "step")
    oracle = rehearsal.oracle
    people = oracle.cohort.positions(rehearsal.ids)
    if len(np.unique(people)) != len(people):
        raise DataError(f"{_NAME} corrects people's statistics: each must have one row")
    data = encode(rehearsal, _NAME)
    millionths = largest_epsilon(oracle.budget.cap_units)
    reports = release(oracle, _NAME, millionths, rehearsal.attribute)
    groups = len(oracle.labels(rehearsal.attribute))
    membership = corrected_indicators(reports[people], millionths, groups)
    mixture = reduce(
        data.model,
        data.rows,
        rehearsal.target,
        membership,
        rehearsal.notion,
        rehearsal.tolerance,
        **options,
    )

    def decide(rows: NDArray[np.float64]) -> NDArray[np.int64]:
        return mixture.decide(rows, rehearsal.seed)

    return Trained(
        data.decider(decide),
        data.base_decide,
        _NAME,
        epsilon_spent=millionths / MILLION,
        accounting="pure ε of one randomised response, stronger than (ε, δ); it needs no δ",
    )
