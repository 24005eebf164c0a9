"""The auditor's side of DP-oracle-learner: multipliers by exponentiated gradient.

For every label y that the notion compares, group a ≠ 0 and sign ±, one constraint and multiplier:

    r(a,y,±) = ±(R_a,y − R_0,y) − γ          R_a,0 = FP_a,  R_a,1 = TP_a
    λ_k = B·exp(θ_k) / (1 + Σ exp θ),   θ ← θ + η·r̃                        Algorithm 3

and the cost of deciding 1 that they add for a person of group a and label y (Subroutine 2):

    w(a,y) = (λ(a,y,+) − λ(a,y,−)) / q(a,y)         for a ≠ 0
    w(0,y) = −Σ_{a≠0} (λ(a,y,+) − λ(a,y,−)) / q(0,y)

q(a,y) are shares from counts released once with noise: true group sizes are private too.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray


class Auditor:
    """Signed differences of rates in, costs per (group, label) out. Works on releases only."""

    def __init__(
        self, groups: int, labels: tuple[int, ...], *, gamma: float, bound: float, step: float
    ) -> None:
        self._gamma, self._bound, self._step = gamma, bound, step
        self.theta = np.zeros((len(labels), groups - 1, 2))  # (label, a − 1, sign)

    def multipliers(self) -> NDArray[np.float64]:
        """λ, in the simplex of total at most B; stable for large θ."""
        top = max(0.0, float(self.theta.max()))
        scaled = np.exp(self.theta - top)
        return np.asarray(self._bound * scaled / (math.exp(-top) + scaled.sum()))

    def costs(self, shares: NDArray[np.float64]) -> NDArray[np.float64]:
        """(labels, groups) added cost of deciding 1, for shares (labels, groups)."""
        lam = self.multipliers()
        signed = lam[..., 0] - lam[..., 1]  # (label, a − 1)
        return np.concatenate([-signed.sum(axis=1, keepdims=True), signed], axis=1) / shares

    def learn(self, rates: NDArray[np.float64], factor: float = 1.0) -> None:
        """One step of size η·factor on released rates (labels, groups)."""
        difference = rates[:, 1:] - rates[:, :1]
        violation = np.stack([difference, -difference], axis=-1) - self._gamma
        self.theta = self.theta + self._step * factor * violation
