"""The min–max form of exponential Rényi mutual information, for one stratum of people.

Equations and reasons are in `fermi`; here are the formulas, one method each. The stratum is
everybody (demographic parity) or the people with one label (equalized odds).

| name | shape | meaning |
|---|---|---|
| w | (k, l) | the maximising variable W, a function of released numbers only |
| shares | (k,) | P̂_S, released once with noise; floored, see `Ermi.of` |
| centre | (k, l) | √P·1ᵀ: W under independence, and the middle of its ball |
| mean | (l,) | the centre c of the rows: the batch's own mean prediction F̄ |
| basis | (l, l − 1) | orthonormal columns, all orthogonal to (1, …, 1) |
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isonomy.common.base.errors import ConfigError, DataError

Floats = NDArray[np.float64]
_FLOOR_DEVIATIONS = 3.0  # a released count below this many deviations is taken as that many
_RAREST = 0.01  # a class predicted more rarely is taken as this rare where one divides by it


@dataclass
class Ermi:
    """ψ of Theorem C.1 with its gradients: a min–max problem with the coupling ⟨U(W)_{A_i}, h_i⟩.

    Everything but `moments` and `public` sees released numbers only, so W never depends on an
    attribute beyond what was paid for.
    """

    shares: Floats
    basis: Floats
    radius: float
    sharpness: float = 1.0
    label: int | None = None
    newton: bool = False  # take W* − W as the direction of ascent, not the gradient
    small: tuple[int, ...] = ()  # groups whose released count was floored
    w: Floats = field(init=False)
    centre: Floats = field(init=False)
    mean: Floats = field(init=False)

    def __post_init__(self) -> None:
        classes = len(self.basis)
        self.centre = np.sqrt(self.shares)[:, None] * np.ones((1, classes))
        self.w = self.centre.copy()
        self.mean = np.full(classes, 1.0 / classes)

    @classmethod
    def of(
        cls,
        counts: Floats,
        deviation: Floats,
        people: float,
        *,
        classes: int,
        radius: float,
        sharpness: float = 1.0,
        newton: bool = False,
        label: int | None = None,
    ) -> Ermi:
        """From released counts. A count within its noise of zero is floored at three deviations.

        The floor bounds u = 2 W/√P and thereby the noise; the theorem's ρ > 0 plays that role in
        the paper, where it is assumed. Fewer than two groups above the floor are an error: there
        is then nothing to compare.
        """
        floor = np.maximum(_FLOOR_DEVIATIONS * deviation, 1.0)
        small = tuple(int(a) for a in np.flatnonzero(counts < floor))
        if len(counts) - len(small) < 2:
            where = "" if label is None else f" with label {label}"
            raise DataError(
                f"among the people{where} fewer than two groups are large enough to be measured at "
                "this budget; merge groups, or approve a plan with a larger ε"
            )
        shares = np.minimum(np.maximum(counts, floor) / people, 1.0)
        return cls(shares, sum_zero_basis(classes), radius, sharpness, label, newton, small)

    @property
    def columns(self) -> int:
        return int(self.basis.shape[1])

    @property
    def suffix(self) -> str:
        return "" if self.label is None else f", y={self.label}"

    @property
    def bound(self) -> float:
        """max_j ‖e_j − c‖: no h can be longer, so the open sum never clips."""
        corners = np.eye(len(self.mean)) - self.mean
        return float(np.sqrt((corners**2).sum(axis=1).max())) * (1 + 1e-6)

    def chances(self, outputs: Tensor) -> Tensor:
        """(b, l) F = softmax(β·logits)."""
        return torch.softmax(self.sharpness * outputs, dim=1)

    def centre_on(self, outputs: Tensor, weight: Tensor) -> None:
        """Take the batch's own mean prediction F̄ as the centre c of its rows."""
        f = self.chances(outputs).detach().double().cpu().numpy()
        weights = weight.cpu().numpy()
        self.mean = np.asarray(weights @ f / weights.sum())

    def moments(self, outputs: Tensor) -> Tensor:
        """(b, l − 1) h = Bᵀ(F − c)."""
        f = self.chances(outputs)
        away = f - torch.as_tensor(self.mean, dtype=f.dtype, device=f.device)
        return away @ torch.as_tensor(self.basis, dtype=f.dtype, device=f.device)

    def public(self, outputs: Tensor, w: Floats) -> Tensor:
        """(b,) −Σ_j ‖W_·j‖² F_ij."""
        f = self.chances(outputs)
        return -f @ torch.as_tensor((w**2).sum(axis=0), dtype=f.dtype, device=f.device)

    def coupling(self, w: Floats) -> Floats:
        """(k, l − 1) U = 2 P^{-1/2} W B."""
        return np.asarray(2.0 * (w / np.sqrt(self.shares)[:, None]) @ self.basis)

    def joint(self, sums: Floats, mass: float) -> Floats:
        """(k, l) Σ_i s_i F_iᵀ / m, from the released sums of h."""
        return np.asarray(sums @ self.basis.T / mass + np.outer(self.shares, self.mean))

    def ascent(self, w: Floats, sums: Floats, mass: float) -> Floats:
        """∇_W of 1/m Σ ψ: −2 W diag(F̄) + 2 P^{-1/2}·joint. With `newton`: W* − W.

        W* maximises Σ ψ; W* − W is the gradient, preconditioned by 1/(2 F̄_j).
        """
        joint = self.joint(sums, mass) / np.sqrt(self.shares)[:, None]
        gradient = 2.0 * (joint - w * self.mean)
        return gradient / (2.0 * np.maximum(self.mean, _RAREST)) if self.newton else gradient

    def project(self, w: Floats) -> Floats:
        return project_ball(w, self.centre, self.radius)

    def gap(self, sums: Floats, deviation: float, mass: float) -> tuple[float, float]:
        """max_{j,a,b} |p̂(j|a) − p̂(j|b)| and the deviation of the noise in it."""
        sizes = mass * self.shares
        rates = sums @ self.basis.T / sizes[:, None]  # (k, l), relative to c
        spread = rates.max(axis=0) - rates.min(axis=0)
        j = int(spread.argmax())
        a, b = int(rates[:, j].argmax()), int(rates[:, j].argmin())
        # Noise enters the groups but the last; the last one is minus their sum.
        k = len(sizes)
        effect = np.vstack([np.eye(k - 1), -np.ones((1, k - 1))]) / sizes[:, None]  # (k, k − 1)
        noise = float(np.linalg.norm(effect[a] - effect[b])) * deviation
        return float(spread[j]), noise * float(np.linalg.norm(self.basis[j]))


def project_ball(w: Floats, centre: Floats, radius: float) -> Floats:
    """The nearest point of {v : ‖v − centre‖ ≤ radius}, Frobenius norm."""
    away = w - centre
    length = float(np.linalg.norm(away))
    return w if length <= radius else centre + away * (radius / length)


def sum_zero_basis(classes: int) -> Floats:
    """(l, l − 1) orthonormal columns orthogonal to (1, …, 1): normalised Helmert contrasts.

    For two classes the one column is (−1, 1)/√2, so h = √2·(F_1 − c_1).
    """
    if classes < 2:
        raise ConfigError(f"a classifier has at least two classes, got {classes}")
    basis = np.zeros((classes, classes - 1))
    for c in range(1, classes):
        basis[:c, c - 1], basis[c, c - 1] = -1.0, c
        basis[:, c - 1] /= np.sqrt(c * (c + 1.0))
    return basis


def strata_of(notion: str, classes: int) -> tuple[int | None, ...]:
    """The labels that a notion conditions on; None is everybody."""
    if notion == "demographic_parity":
        return (None,)
    if notion == "equalized_odds":
        return tuple(range(classes))
    if notion in ("equal_opportunity", "equal_fpr") and classes == 2:
        return (1,) if notion == "equal_opportunity" else (0,)
    raise ConfigError(
        f"DP-FERMI has no form for {notion!r} with {classes} classes; it takes "
        "demographic_parity and equalized_odds, and for two classes equal_opportunity and equal_fpr"
    )
