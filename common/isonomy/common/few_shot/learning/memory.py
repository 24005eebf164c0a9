"""Both sides in one process: the vectors are added, and nothing else happens to them.

The encrypted run must end with the same θ, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from isonomy.common.base.errors import BudgetExceeded, VerificationError
from isonomy.common.few_shot.rounds.sides import CompanySide, RegulatorSide


def run_in_memory(
    company: CompanySide,
    regulator: RegulatorSide,
    rounds: int,
    *,
    first: int = 0,
    on_round: Callable[[int], None] | None = None,
) -> NDArray[np.float32]:
    """Rounds `first` … `rounds` − 1; θ at the end. BudgetExceeded ends the regulator's part."""
    if company.fingerprint != regulator.fingerprint:
        raise VerificationError("the two sides have different models or settings; compare them")
    theta, left = company.theta(), True
    for number in range(first, rounds):
        total = company.contribute(number)
        if left:
            try:
                total = total + regulator.contribute(number, theta).values
            except BudgetExceeded:  # of worst-case accounts: depends on the draws alone
                left = False
        theta = company.step(number, total)
        if on_round is not None:
            on_round(number)
    return theta


__all__ = ["run_in_memory"]
