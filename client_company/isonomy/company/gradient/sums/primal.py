"""The rows of a primal query: per-person constraint gradients without what they have in common.

    row of person p       g_p = Σ_{rows r of p in the event} w_r ∇h_r,     mass m_p = Σ_r w_r
    centred               g_p − m_p ḡ,          ḡ = Σ_p g_p / Σ_p m_p      known to the company
    released              Σ_p u_{A_p}·clip_C(g_p − m_p ḡ) + noise          one weighted blind sum

Centring is ours. The constraint weighs groups against the population, so the weights of all people
add up to nothing (up to the noise of the counts) and what people have in common cancels anyway.
Taking it out first makes rows shorter, hence the clipping bound, hence the noise; and it takes the
noise of the counts out of the answer to first order. Row norms do not depend on the attributes, so
the bound may be chosen from them for free. DP-FERMI may ask about plain rows instead (`mass` None).

The shape of the noise is free as well. Round noise hurts most where few people have gradients: the
loss is flat there, and a small push moves the model far. With Σ the second moment of the centred
rows, ask for

    rows  M g,   M = (Σ + κ·tr(Σ)/d)^−½,          and take M⁻¹ off the answer

which is the same mechanism on other rows (clipped as they are sent, so privacy is the same). The
noise then has the covariance ∝ Σ + κ·tr(Σ)/d. Why this M: if the loss has curvature H ≈ Σ, noise
costs tr(M⁻¹H⁻¹M⁻¹)·C², C² ≈ tr(MΣM), and Cauchy's inequality makes that least for M⁴ = Σ⁻¹H⁻¹. κ
keeps rare directions from making rows long. For models with d <= b only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from isonomy.common.base.errors import ConfigError
from isonomy.common.privacy.quantise import checked_norm
from isonomy.common.sums.oracle import GroupOracle, Label, NoiseLevel, Release
from isonomy.company.gradient.per_sample.ghost import ChunkGradients
from isonomy.company.gradient.sums._subspace import ROUNDING, Subspace
from isonomy.company.gradient.sums.filled import (
    FEW,
    FILL,
    LONGEST,
    Filled,
    Matrix,
    clip_factors,
    quantile,
)

Floats = NDArray[np.float64]
_SINGLE_ROUNDING = 1e-6  # of a sum of gradients in single precision, relative to their lengths
_COARSE = 1e-2  # error of a combination, relative, from which it is made in double precision


@dataclass(eq=False)
class CentredGradients:
    """G − m ḡᵀ = P G with P = I − m 1ᵀ/M.

    With `kappa` (models smaller than the chunk only) rows are M g, and `split` takes M⁻¹ off.
    """

    inner: ChunkGradients
    mass: Tensor | None  # (b,) float64, one per person; None: P = I
    kappa: float | None = None
    checked: bool = False  # were gradients of this model finite earlier in this round?
    _undo: Tensor | None = field(default=None, init=False)

    def __len__(self) -> int:
        return len(self.inner)

    @property
    def size(self) -> int:
        return self.inner.size

    @cached_property
    def gram(self) -> Floats:
        """P K Pᵀ, (b, b), in double precision: what is left after centring may be tiny."""
        return self._centre(self.inner.gram()).cpu().numpy()

    @cached_property
    def lengths(self) -> Floats:
        """(b,) of the rows."""
        if self.size <= len(self):
            return self.rows.square().sum(dim=1).sqrt().cpu().numpy()
        return np.sqrt(np.maximum(self.gram.diagonal(), 0.0))

    def filled(self, fill: float) -> tuple[Filled | None, Floats, bool]:
        """Rows from P K₁ Pᵀ, K₁ the first layer's part of K.

        Returns the rows, (b,) lengths (those of that part; for few people those of g), and whether
        gradients have so much in common that sums of them need double precision.
        """
        if len(self) <= FEW:
            return Filled.alone(len(self)), self.inner.lengths, False
        if not self.checked:  # layers behind the first are not looked at otherwise
            _ = self.inner.lengths  # raises if a gradient is not finite
        dtype = self.inner.outputs.dtype
        kernel = self.inner.gram(dtype, first=True)
        before = float(kernel.diagonal().sum())
        kernel = self._centre(kernel)
        squares = np.maximum(kernel.diagonal().cpu().numpy(), 0.0)
        # Σ w_i (g_i − m_i ḡ) is about √(after/before) of √Σ w_i²|g_i|², hence of Σ|w_i||g_i|/√b
        rest = math.sqrt(float(squares.sum()) / before) if before > 0 else 1.0
        coarse = dtype != torch.float64 and _SINGLE_ROUNDING * len(self) ** 0.5 > _COARSE * rest
        return (
            Filled.of(kernel.cpu().numpy(), fill=fill),
            np.sqrt(squares, dtype=np.float64),
            coarse,
        )

    @cached_property
    def rows(self) -> Tensor:
        """(b, d) float64, in the coordinates of M."""
        rows = self.inner.rows()
        if self.mass is not None:
            rows = rows - self.mass.to(rows)[:, None] * (rows.sum(dim=0) / self._whole)
        if self.kappa is None or not rows.any():
            return rows
        values, vectors = torch.linalg.eigh(rows.T @ rows / len(rows))  # Σ = V diag(values) Vᵀ
        values = values.clamp(min=0)
        root = (values + self.kappa * values.mean()).sqrt()
        self._undo = vectors * root  # M⁻¹ in the coordinates of V, (d, d)
        shaped: Tensor = rows @ (vectors / root)
        return shaped

    def combine(self, weights: Floats, *, double: bool = False) -> list[Tensor]:
        """Σ_i w_i (g_i − m_i ḡ) = Σ_i (w_i − Σ_j m_j w_j/M) g_i, one tensor per parameter."""
        return self.inner.combine(torch.from_numpy(self._plain(weights)), double=double)

    def per_row(self, weights: Floats) -> Tensor:
        """(rows,) weights of the rows' own gradients that give the same sum."""
        return self.inner.per_row(torch.from_numpy(self._plain(weights)))

    def split(self, flat: ArrayLike) -> list[Tensor]:
        """An answer in the coordinates of `rows`, one tensor per parameter."""
        if self._undo is None:
            return self.inner.split(flat)
        vector = torch.as_tensor(np.asarray(flat, dtype=np.float64)).to(self._undo.device)
        return self.inner.split((self._undo @ vector).cpu().numpy())

    def _plain(self, weights: Floats) -> Floats:
        if self.mass is None:
            return weights
        return weights - float(self.mass.cpu().numpy() @ weights) / self._whole

    def _centre(self, kernel: Tensor) -> Tensor:
        """P K Pᵀ for K, in its place."""
        if self.mass is None:
            return kernel
        mass = self.mass.to(kernel)
        mean = kernel.sum(dim=1) / self._whole  # (b,) g_i · ḡ
        mean -= mass * (0.5 * mean.sum() / self._whole)  # |ḡ|² shared out to the two products
        pair = torch.stack([mass, mean])
        return kernel.addmm_(pair.T, pair.flip(0), alpha=-1.0)

    @cached_property
    def _whole(self) -> float:
        """M, the sum of the masses."""
        return 0.0 if self.mass is None else float(self.mass.sum())


@dataclass(frozen=True)
class Answer:
    """What came back: weights of people's gradients, or (small models) the gradient itself."""

    grads: CentredGradients
    release: Release
    weights: Floats | None = None
    double: bool = False  # the weighted sum needs double precision

    def tensors(self) -> list[Tensor]:
        """The gradient, one tensor per trainable parameter."""
        if self.weights is not None:
            return self.grads.combine(self.weights, double=self.double)
        return self.grads.split(self.release.values)


def private_sum(
    oracle: GroupOracle,
    grads: CentredGradients,
    weights: Sequence[float],
    *,
    norm: float | None,
    attribute: str,
    noise: NoiseLevel,
    part: float = LONGEST,
    fill: float | None = FILL,
    label: Label,
) -> Answer:
    """Σ_p u_{A_p}·clip_C(g_p − m_p ḡ) + noise, by one weighted blind sum.

    In d columns where the model is smaller than the chunk; else as noisy weights (filled.py), or,
    with `fill` None or an oracle that charges for the length of rows, in the chunk's span
    (subspace.py). C is `norm`; None: the quantile `part` of the centred lengths. Noisy weights take
    lengths for that from the first layer, and hold a given `norm` against the plain lengths.
    `noise`: share=… or sigma=…, the latter for rows of length 1.
    """
    if grads.inner.people is None:
        raise ConfigError("name the people of the chunk: people_of_row=… in ChunkGradients.of")
    sigma, share = noise.get("sigma"), noise.get("share")

    def ask(rows: Matrix, bound: float, *, triangular: bool = False) -> Release:
        return oracle.weighted_sum(
            rows,
            weights,
            norm=bound,
            attribute=attribute,
            people=grads.inner.people,
            triangular=triangular,
            **label,
            share=share,
            sigma=None if sigma is None else sigma * bound,
        )

    large = grads.size > len(grads)
    if large and fill is not None and not oracle.capabilities.filtered:
        filled, lengths, coarse = grads.filled(fill)
        if filled is not None:
            if norm is not None:
                lengths, bound = grads.inner.lengths, checked_norm(norm)
            elif filled.longest is not None and part == LONGEST:
                bound = filled.longest
            else:
                bound = clipping_bound(lengths, part)
            release = ask(filled.rows, filled.norm, triangular=True)
            answer = filled.back(release.values) * clip_factors(lengths, bound)
            return Answer(grads, release, answer, coarse)
    bound = clipping_bound(grads.lengths, part) if norm is None else norm
    if not large:
        return Answer(grads, ask(grads.rows.cpu().numpy(), bound))
    span = Subspace.of(grads.gram, norm=bound, floor=ROUNDING * grads.inner.lengths**2)
    release = ask(span.rows, bound)
    return Answer(grads, release, span.back(release.values), double=True)


def clipping_bound(lengths: Floats, part: float) -> float:
    """C_p: a quantile of the company's own row lengths. Independent of the attributes, so free."""
    bound = quantile(lengths, part)
    return bound if bound > 0 else max(float(lengths.max(initial=0.0)), 1e-12)
