"""The constraint of PF-LD (Algorithm 4) on few-shot tasks: equalized odds between two groups.

    s(x)   = Σ_{c positive} softmax(f_θ'(x))_c                        soft ŷ = 1
    v_e    = E[s | A = 1, y = e] − E[s | A = 0, y = e],   e = 0, 1     (23), by label
    ℓ_i    = loss_i + u(A_i, y_i)·s_i,   u(a, e) = ±λ_e/p_ae           (20), per query sample
    λ_e   <- Π_[−λmax, λmax](λ_e + s·ṽ_e)                              line 9 and 10, signed

y is the half of the true class, p_ae the share of samples in a cell. By label, because base rates
differ between the groups by construction (9:1 against 1:9): equal selection rates would punish the
right answer. Signed multipliers, because |·| would need the sign of a private figure. p_ae is
released once with noise, and ṽ comes from noised sums; the samples' accounts pay for both. So λ and
u are functions of releases, and the gradient of ℓ_i is clipped once, as a whole.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

CELLS = 4  # (A, y) = (0, 0), (0, 1), (1, 0), (1, 1)
CENTRE = 0.5  # s − ½ is at most ½: the sum's sensitivity


def cells_of(groups: NDArray[np.int8], halves: NDArray[np.bool_]) -> NDArray[np.int64]:
    """(n,) cell of each sample: 2·A + y."""
    return 2 * groups.astype(np.int64) + halves


def one_hot(cells: NDArray[np.int64], values: NDArray[np.float64]) -> NDArray[np.float64]:
    """(n, 4) each sample's value in its cell."""
    rows = np.zeros((len(cells), CELLS))
    rows[np.arange(len(cells)), cells] = values
    return rows


@dataclass(frozen=True)
class OddsMultipliers:
    """Released shares and the current λ. The company could compute both: neither is private."""

    shares: NDArray[np.float64]  # (4,) positive
    lam: NDArray[np.float64]  # (2,) by y

    @classmethod
    def start(cls, counts: NDArray[np.float64], samples: int, floor: float) -> OddsMultipliers:
        """From noised counts; a count below `floor` (noise only) is raised to it."""
        return cls(np.maximum(counts, max(floor, 1.0)) / samples, np.zeros(2))

    def weights(self, cells: NDArray[np.int64]) -> NDArray[np.float64]:
        """(n,) u(A_i, y_i)."""
        signed = np.array([-self.lam[0], -self.lam[1], self.lam[0], self.lam[1]])
        return np.asarray((signed / self.shares)[cells])

    def violations(self, sums: NDArray[np.float64], samples: int) -> NDArray[np.float64]:
        """(2,) ṽ from noised sums of s − ½ by cell, over `samples` query samples."""
        means = sums / (self.shares * samples)  # (4,), centred
        return np.asarray(means[2:] - means[:2])

    def step(self, violations: NDArray[np.float64], rate: float, bound: float) -> OddsMultipliers:
        """Projected ascent."""
        return OddsMultipliers(self.shares, np.clip(self.lam + rate * violations, -bound, bound))
