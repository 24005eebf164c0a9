"""What the exchange knows about the two learners: vectors of integers in, parameters out.

    company    g_c = contribute(t)             whole numbers: fixed point, FRACTION_BITS
    regulator  g_r = contribute(t, θ_t)        the same, private before it is encrypted
    server     Enc(g_c) + Enc(g_r)             under the company's key
    company    θ_{t+1} = step(t, g_c + g_r)    to the regulator, under the regulator's key

The exchange carries bits and never looks at them; learners never see a socket, a key or a file. An
encrypted run and one that adds the vectors in memory therefore end with the same θ, bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

FRACTION_BITS = 20
"""A contribution c stands for c·2^-20."""

MAX_ABS = 2**41
"""|c| of one contribution is below this, so that the sum of two stays exact modulo 2^44."""


@dataclass(frozen=True)
class Contribution:
    """The regulator's part of one round, noise included, and what it cost.

    `spent` is each sample's account after this round, in units of μ² (the filter's); it must be on
    disk before `values` leave.
    """

    values: NDArray[np.int64]  # (d,)
    spent: NDArray[np.int64] = field(repr=False)  # (samples,)
    state: bytes = field(repr=False)  # all that the next round needs (multipliers, filter)


class Side(Protocol):
    """What both learners have: d parameters, and a hash of architecture and settings."""

    @property
    def size(self) -> int: ...
    @property
    def fingerprint(self) -> bytes: ...


class CompanySide(Side, Protocol):
    """Holds θ and takes the outer step."""

    def theta(self) -> NDArray[np.float32]:
        """(d,) current parameters."""

    def contribute(self, number: int) -> NDArray[np.int64]:
        """(d,) the company's meta-gradient of round `number`."""

    def step(self, number: int, total: NDArray[np.int64]) -> NDArray[np.float32]:
        """(d,) parameters after the outer step with the sum of both contributions."""

    def state(self) -> bytes:
        """All that a resumed run needs; no pickle."""

    def restore(self, state: bytes) -> None: ...


class RegulatorSide(Side, Protocol):
    """Holds private tasks. What leaves it is a Contribution, or what `measure` returns."""

    @property
    def samples(self) -> int:
        """How many samples (rows, images) it holds; each has an account."""

    def contribute(self, number: int, theta: NDArray[np.float32]) -> Contribution:
        """The regulator's part of round `number`. BudgetExceeded if no sample can pay."""

    def measure(self, theta: NDArray[np.float32], sigma: int) -> NDArray[np.int64]:
        """(12,) the counts of the measured tasks (TaskCounts) in 1/SCALE, with noise of σ."""

    def restore(self, state: bytes) -> None: ...
