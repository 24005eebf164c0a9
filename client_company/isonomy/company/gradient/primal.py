"""The rows of a primal query: per-person constraint gradients without what they have in common.

    row of person p       g_p = Σ_{rows r of p in the event} w_r ∇h_r,     mass m_p = Σ_r w_r
    centred               g_p − m_p ḡ,          ḡ = Σ_p g_p / Σ_p m_p      known to the company
    released              Σ_p u_{A_p}·clip_C(g_p − m_p ḡ) + noise          one weighted blind sum

Centring is ours. The constraint weighs groups against the population, so the weights of all people
add up to nothing (up to the noise of the counts) and what people have in common cancels anyway.
Taking it out first makes rows shorter, hence the clipping bound, hence the noise; and it takes the
noise of the counts out of the answer to first order. Row norms do not depend on the attributes, so
the bound may be chosen from them for free.

So is the shape of the noise. Round noise hurts most where few people say anything: the loss is flat
there, and a small push moves the model far. With Σ the second moment of the centred rows, ask for

    rows  M g,   M = (Σ + κ·tr(Σ)/d)^−½,          and take M⁻¹ off the answer

which is the same mechanism on other rows (clipped as they are sent, so nothing changes for
privacy). The noise then has the covariance ∝ Σ + κ·tr(Σ)/d. Why this M: if the loss has curvature
H ≈ Σ, noise costs tr(M⁻¹H⁻¹M⁻¹)·C², C² ≈ tr(MΣM), and Cauchy's inequality makes that least for
M⁴ = Σ⁻¹H⁻¹. κ keeps rare directions from making rows long. For models with d <= b only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from isonomy.common.oracle import GroupOracle
from isonomy.company.gradient.ghost import ChunkGradients, rounding_of, too_coarse
from isonomy.company.gradient.subspace import Subspace
from isonomy.company.gradient.triangles import Matrix, mirrored, row_sums, subtract_pair

DROWNED = 1e3  # times rounding: shorter centred rows are not known well enough


@dataclass(frozen=True)
class Persons:
    """Who the rows of a query belong to: (rows,) number of the person, and the people in order."""

    index: Tensor  # (b,) int64
    people: NDArray[np.int64]  # (p,) cohort positions, ascending

    @classmethod
    def of(cls, people_of_row: NDArray[np.int64]) -> Persons:
        people, index = np.unique(people_of_row, return_inverse=True)
        return cls(torch.from_numpy(index.astype(np.int64)), people)

    def __len__(self) -> int:
        return len(self.people)

    def fold(self, rows: Tensor) -> Tensor:
        """(p, …) sums of each person's rows."""
        total = torch.zeros(len(self.people), *rows.shape[1:], dtype=rows.dtype)
        return total.index_add_(0, self.index, rows)


@dataclass(eq=False)
class CentredGradients:
    """G − m ḡᵀ = P G with P = I − m 1ᵀ/M.

    With `kappa` (models smaller than the chunk only) rows are M g, and `split` takes M⁻¹ off.
    """

    inner: ChunkGradients
    mass: Tensor  # (b,) float64, one per person
    kappa: float | None = None
    _undo: Tensor | None = field(default=None, init=False)

    def __len__(self) -> int:
        return len(self.inner)

    @property
    def size(self) -> int:
        return self.inner.size

    @property
    def people(self) -> NDArray[np.int64] | None:
        return self.inner.people

    @cached_property
    def gram(self) -> Tensor:
        """P K Pᵀ, (b, b) float64."""
        return torch.from_numpy(mirrored(self.triangle))

    @property
    def triangle(self) -> Matrix:
        """Its lower triangle (triangles.py)."""
        return self._triangle_and_floor[0]

    @property
    def floor(self) -> NDArray[np.float64]:
        """(b,) how far rounding reaches on the diagonal: that of K, which is the larger one."""
        return self._triangle_and_floor[1]

    @cached_property
    def _triangle_and_floor(self) -> tuple[Matrix, NDArray[np.float64]]:
        """Made again where what people have in common drowns the rest.

        First about a common part that is taken off the factors, so that little cancels; if that
        does not help (or people have several rows), in double precision.
        """
        gram = self._centre(self.inner.take_triangle())
        floor = self.inner.floor
        if not _drowned(gram, floor):
            return gram, floor
        rounding = rounding_of(self.inner.outputs.dtype)
        if self.inner.person_of_row is None:
            about = self.inner.gram_about(self.mass.to(self.inner.values.device)).cpu().numpy()
            floor = rounding * np.maximum(about.diagonal(), 0.0)
            gram = self._centre(about)
            if not _drowned(gram, floor):
                return gram, floor
        floor = self.inner.floor * (rounding_of(torch.float64) / rounding)
        return self._centre(self.inner.triangle_in(torch.float64)), floor

    def _centre(self, lower: Matrix) -> Matrix:
        """P K Pᵀ for K, in its place."""
        mass, whole = self._mass, self._whole
        mean = row_sums(lower) / whole  # (b,) g_i · ḡ
        mean -= mass * (0.5 * mean.sum() / whole)  # |ḡ|² shared out to the two products
        return subtract_pair(lower, mass, mean)

    @cached_property
    def norms(self) -> Tensor:
        """(b,) float64."""
        if self.size <= len(self):
            return self.rows.square().sum(dim=1).sqrt()
        return torch.from_numpy(np.sqrt(np.maximum(self.triangle.diagonal(), 0.0)))

    @cached_property
    def rows(self) -> Tensor:
        """(b, d) float64, in the coordinates of M."""
        rows = self.inner.rows()
        rows = rows - self.mass.to(rows)[:, None] * (rows.sum(dim=0) / self._whole)
        if self.kappa is None or not rows.any():
            return rows
        values, vectors = torch.linalg.eigh(rows.T @ rows / len(rows))  # Σ = V diag(values) Vᵀ
        values = values.clamp(min=0)
        root = (values + self.kappa * values.mean()).sqrt()
        self._undo = vectors * root  # M⁻¹ in the coordinates of V, (d, d)
        shaped: Tensor = rows @ (vectors / root)
        return shaped

    def combine(self, weights: Tensor) -> list[Tensor]:
        """Σ_i w_i (g_i − m_i ḡ) = Σ_i (w_i − Σ_j m_j w_j/M) g_i."""
        own = self._centred(weights)
        return self.inner.combine(torch.from_numpy(own), double=self._cancels(own))

    def plain_weights(self, weights: Tensor, length: float | None) -> Tensor | None:
        """(rows,) weights of the g_i that do the same; None if this sum needs more precision.

        `length` of the sum, if it is known already.
        """
        own = self._centred(weights)
        if self._cancels(own, length):
            return None
        return self.inner.per_row(torch.from_numpy(own))

    def _centred(self, weights: Tensor) -> NDArray[np.float64]:
        own = weights.double().cpu().numpy()
        return own - float(self._mass @ own) / self._whole

    def _cancels(self, weights: NDArray[np.float64], length: float | None = None) -> bool:
        """As in ChunkGradients, with the length of the sum from the better Gram matrix."""
        if self.inner.outputs.dtype == torch.float64:
            return False
        if length is None:
            length = math.sqrt(max(float(weights @ (self.gram.numpy() @ weights)), 0.0))
        reach = float(np.abs(weights) @ self.inner.lengths)
        return too_coarse(self.inner.outputs.dtype, reach, length * length)

    def split(self, flat: ArrayLike) -> list[Tensor]:
        if self._undo is None:
            return self.inner.split(flat)
        vector = torch.as_tensor(np.asarray(flat, dtype=np.float64)).to(self._undo.device)
        return self.inner.split((self._undo @ vector).cpu().numpy())

    @cached_property
    def _mass(self) -> NDArray[np.float64]:
        return self.mass.cpu().numpy()

    @cached_property
    def _whole(self) -> float:
        """M, the sum of the masses."""
        return float(self._mass.sum())


def _drowned(gram: Matrix, floor: NDArray[np.float64]) -> bool:
    """More than half of the people have rows that rounding could have made."""
    return 2 * int(np.count_nonzero(gram.diagonal() < DROWNED * floor)) > len(floor)


@dataclass(frozen=True)
class Answer:
    """What came back: weights of people's gradients, or (small models) the gradient itself."""

    grads: CentredGradients
    weights: Tensor | None = None
    length: float = 0.0  # of the sum that the weights stand for
    flat: NDArray[np.float64] | None = None

    def tensors(self) -> list[Tensor]:
        if self.weights is not None:
            return self.grads.combine(self.weights)
        return self.grads.split(self.flat if self.flat is not None else ())


def private_sum(
    oracle: GroupOracle,
    grads: CentredGradients,
    weights: Sequence[float],
    *,
    norm: float,
    attribute: str,
    noise: Mapping[str, float],
    rank: int | None = None,
    keep: float = 1.0,
    purpose: str,
) -> Answer:
    """Σ_p u_{A_p}·clip_C(g_p − m_p ḡ) + noise.

    In d columns where the model is smaller than the chunk, else in the coordinates of the chunk's
    own span, or of a part of it (`rank`, `keep`: subspace.py). `noise`: share=… or sigma=….
    """

    def ask(rows: NDArray[np.float64]) -> NDArray[np.float64]:
        release = oracle.weighted_sum(
            rows,
            weights,
            norm=norm,
            attribute=attribute,
            people=grads.people,
            purpose=purpose,
            share=noise.get("share"),
            sigma=noise.get("sigma"),
        )
        return release.values

    if grads.size <= len(grads):
        return Answer(grads, flat=ask(grads.rows.cpu().numpy()))
    subspace = Subspace.of(grads.triangle, norm=norm, rank=rank, keep=keep, floor=grads.floor)
    z = ask(subspace.rows)
    return Answer(grads, subspace.weights(z), length=float(np.linalg.norm(z)))


def clipping_bound(norms: Tensor, quantile: float) -> float:
    """C_p: a quantile of the company's own row norms. Independent of the attributes, so free."""
    own = norms.detach().cpu().numpy()
    bound = _quantile(own, quantile)
    return bound if bound > 0 else max(float(own.max(initial=0.0)), 1e-12)


def _quantile(values: NDArray[np.float64], quantile: float) -> float:
    """np.quantile's default for one quantile, without its preparations."""
    place = quantile * (len(values) - 1)
    below = int(place)
    above = min(below + 1, len(values) - 1)
    parted = np.partition(values, (below, above))
    low, high = float(parted[below]), float(parted[above])
    return low + (high - low) * (place - below)


__all__ = ["Answer", "CentredGradients", "Persons", "clipping_bound", "private_sum"]
