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

from isonomy.common.privacy.quantise import checked_norm
from isonomy.common.sums.oracle import GroupOracle
from isonomy.company.gradient.per_sample.ghost import ChunkGradients, rounding_of, too_coarse
from isonomy.company.gradient.per_sample.triangles import Matrix, mirrored, row_sums, subtract_pair
from isonomy.company.gradient.sums.filled import (
    FEW,
    FILL,
    LONGEST,
    Filled,
    clip_factors,
    fill_for,
    quantile,
)
from isonomy.company.gradient.sums.subspace import Subspace

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
    looked: bool = False  # were this model's gradients found finite a few steps ago?
    _undo: Tensor | None = field(default=None, init=False)
    _apart: float | None = field(default=None, init=False)  # how long centred rows are, of 1

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
        # centred in double precision: what is left of long gradients becomes directions of its own
        gram = self._centre(self.inner.take_triangle().astype(np.float64, copy=False))
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
        mass, whole = self._mass.astype(lower.dtype, copy=False), self._whole
        mean = row_sums(lower) / whole  # (b,) g_i · ḡ
        mean -= mass * (0.5 * mean.sum() / whole)  # |ḡ|² shared out to the two products
        return subtract_pair(lower, mass, mean)

    @cached_property
    def norms(self) -> Tensor:
        """(b,) float64."""
        if self.size <= len(self):
            return self.rows.square().sum(dim=1).sqrt()
        squares = np.maximum(self.triangle.diagonal(), 0.0)
        return torch.from_numpy(np.sqrt(squares, dtype=np.float64))

    @property
    def plain_lengths(self) -> NDArray[np.float64]:
        """(b,) |g_i|, with what all have in common."""
        return self.inner.plain_lengths

    def filled(self, fill: float) -> tuple[Filled | None, NDArray[np.float64]]:
        """Rows from P K₁ Pᵀ, K₁ the first layer's part of K; and (b,) that part's lengths.

        For few people everybody's weight by itself, and plain lengths.
        """
        if len(self) <= FEW:
            self._apart = 1.0
            return Filled.alone(len(self)), self.plain_lengths
        if not self.looked:  # the other layers' gradients are not looked at otherwise
            self.inner.check_finite()
        lower = self.inner.first_triangle()
        before = float(lower.diagonal().sum())
        made = self._centre(lower)
        squares = np.maximum(made.diagonal(), 0.0)
        self._apart = math.sqrt(float(squares.sum()) / before) if before > 0 else 1.0
        return Filled.of(made, fill=fill), np.sqrt(squares, dtype=np.float64)

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

    def combine(self, weights: Tensor, length: float | None = None) -> list[Tensor]:
        """Σ_i w_i (g_i − m_i ḡ) = Σ_i (w_i − Σ_j m_j w_j/M) g_i; `length` of it, if it is known."""
        own = self._centred(weights)
        return self.inner.combine(torch.from_numpy(own), double=self._cancels(own, length))

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
        """As in ChunkGradients, with the length of the sum from the better Gram matrix.

        Or from how far the first layer's gradients cancel: then Σ w_i (g_i − m_i ḡ) is about
        apart·√Σ w_i²|g_i|² long, which is at least apart/√b of Σ|w_i||g_i|.
        """
        dtype = self.inner.outputs.dtype
        if dtype == torch.float64:
            return False
        if length is None and self._apart is not None:
            return too_coarse(dtype, math.sqrt(len(self)), self._apart**2)
        if length is None:
            length = math.sqrt(max(float(weights @ (self.gram.numpy() @ weights)), 0.0))
        reach = float(np.abs(weights) @ self.plain_lengths)
        return too_coarse(dtype, reach, length * length)

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
    length: float | None = None  # of the sum that the weights stand for, if it is known
    flat: NDArray[np.float64] | None = None

    def tensors(self) -> list[Tensor]:
        if self.weights is not None:
            return self.grads.combine(self.weights, self.length)
        return self.grads.split(self.flat if self.flat is not None else ())


def private_sum(
    oracle: GroupOracle,
    grads: CentredGradients,
    weights: Sequence[float],
    *,
    norm: float | None,
    attribute: str,
    noise: Mapping[str, float],
    part: float = LONGEST,
    rank: int | None = None,
    keep: float = 1.0,
    fill: float | None = FILL,
    purpose: str,
) -> Answer:
    """Σ_p u_{A_p}·clip_C(g_p − m_p ḡ) + noise.

    In d columns where the model is smaller than the chunk, in the chunk's span (subspace.py) or as
    noisy weights (filled.py). C is `norm`; None: the quantile `part` of the centred lengths. Noisy
    weights take lengths for that from the first layer, and hold a given `norm` against the plain
    lengths. `noise`: share=… or sigma=…, the latter for rows of length 1.
    """
    sigma, share = noise.get("sigma"), noise.get("share")

    def ask(rows: Matrix, reach: float) -> NDArray[np.float64]:
        release = oracle.weighted_sum(
            rows,
            weights,
            norm=reach,
            attribute=attribute,
            people=grads.people,
            purpose=purpose,
            share=share,
            sigma=None if sigma is None else sigma * reach,
        )
        return release.values

    large = grads.size > len(grads)
    own_fill = fill_for(oracle, fill, rank, keep)
    if large and own_fill is not None:
        filled, lengths = grads.filled(own_fill)
        if filled is not None:
            if norm is not None:
                lengths, bound = grads.plain_lengths, checked_norm(norm)
            elif filled.longest is not None and part == LONGEST:
                bound = filled.longest
            else:
                bound = clipping_bound(lengths, part)
            answer = filled.back(ask(filled.rows, filled.norm))
            answer *= clip_factors(lengths, bound)
            return Answer(grads, torch.from_numpy(answer))
    bound = clipping_bound(grads.norms.numpy(), part) if norm is None else norm
    if not large:
        return Answer(grads, flat=ask(grads.rows.cpu().numpy(), bound))
    own = Subspace.of(grads.triangle, norm=bound, rank=rank, keep=keep, floor=grads.floor)
    z = ask(own.rows, bound)
    return Answer(grads, own.back(z), float(np.linalg.norm(z)))


def clipping_bound(norms: NDArray[np.float64], part: float) -> float:
    """C_p: a quantile of the company's own row norms. Independent of the attributes, so free."""
    bound = quantile(norms, part)
    return bound if bound > 0 else max(float(norms.max(initial=0.0)), 1e-12)


__all__ = ["Answer", "CentredGradients", "Persons", "clipping_bound", "private_sum"]
