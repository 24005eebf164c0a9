"""Both sides in one process: the vectors are added, and nothing else happens to them.

The encrypted run must end with the same θ, bit for bit.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from isonomy.common.base.errors import BudgetExceeded, VerificationError
from isonomy.common.few_shot.rounds.sides import CompanySide, RegulatorSide


def run_in_memory(
    company: CompanySide, regulator: RegulatorSide, rounds: int
) -> NDArray[np.float32]:
    """θ after all rounds. After BudgetExceeded the company goes on without the regulator."""
    if company.fingerprint != regulator.fingerprint:
        raise VerificationError("the two sides have different models or settings; compare them")
    theta, regulator_pays = company.theta(), True
    for number in range(rounds):
        total = company.contribute(number)
        if regulator_pays:
            try:
                total = total + regulator.contribute(number, theta).values
            except BudgetExceeded:  # of worst-case accounts: depends on the draws alone
                regulator_pays = False
        theta = company.step(number, total)
    return theta
