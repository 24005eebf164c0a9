"""The outer step: plain gradient descent, or Adam (Kingma & Ba 2015), in numpy with a small state.

    m ← β₁m + (1−β₁)g,   v ← β₂v + (1−β₂)g²,   θ ← θ − β·m̂/(√v̂ + ε)

Moments are in double precision, θ in single: the θ that travels is the θ that is stepped on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isonomy.common.base.errors import DataError

BETA_1, BETA_2, TINY = 0.9, 0.999, 1e-8


class OuterOptimiser:
    """θ and the moments of its gradient."""

    def __init__(self, theta: NDArray[np.float32], kind: str, rate: float) -> None:
        self.theta, self._kind, self._rate = theta, kind, rate
        self._mean, self._square = np.zeros(theta.shape), np.zeros(theta.shape)
        self._steps = 0

    def step(self, gradient: NDArray[np.float64]) -> None:
        """One step down."""
        self._steps += 1
        move = gradient
        if self._kind == "adam":
            self._mean = BETA_1 * self._mean + (1 - BETA_1) * gradient
            self._square = BETA_2 * self._square + (1 - BETA_2) * gradient**2
            mean = self._mean / (1 - BETA_1**self._steps)
            square = self._square / (1 - BETA_2**self._steps)
            move = mean / (np.sqrt(square) + TINY)
        self.theta = (self.theta - self._rate * move).astype(np.float32)

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {
            "theta": self.theta,
            "mean": self._mean,
            "square": self._square,
            "steps": np.array([self._steps], np.int64),
        }

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Go on from `arrays`; DataError unless names, shapes and types are those of this θ."""
        if set(arrays) != set(self.arrays()) or any(
            arrays[name].shape != array.shape or arrays[name].dtype != array.dtype
            for name, array in self.arrays().items()
        ):
            raise DataError("this is not the state of a company's learner of this size")
        self.theta, self._steps = arrays["theta"], int(arrays["steps"][0])
        self._mean, self._square = arrays["mean"], arrays["square"]
