"""A chunk's clipped gradients in coordinates of their own span, and the way back.

With c_i = min(1, C/|g_i|) the clipped gradients ḡ_i = c_i g_i have the Gram matrix K̄ = c K c. A
factor K̄ = R Rᵀ with R of size b × r, r = rank, gives rows ρ_i with the same lengths and angles as
the ḡ_i: there is Q (d × r, orthonormal columns) with ḡ_i = Q ρ_i, and Q = Ḡᵀ W for a b × r matrix W
that is computed from R alone. So

    the oracle sums ρ_i in r columns:    z = Σ_i u_{A_i} ρ_i + N(0, s² I_r)
    combine(c ∘ W z)              =  Q z = Σ_i u_{A_i} ḡ_i + Q N(0, s² I_r)

which is the d-dimensional answer with its noise projected onto the span. Sensitivity and guarantee
are the same (lengths and differences are equal, and leaving out directions that contain only noise
is post-processing), and the noise energy is s²·r instead of s²·d.

R is a Cholesky factor with pivots, and W = [R₁₁⁻ᵀ; 0] in the order of the pivots. What a row loses
is shorter than √(rounding) of the longest.

`filled` has less noise at the same price and is used instead wherever rows need not be as long as
gradients. They must be under the individual filter, where people pay for the length of their rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import blas, lapack

from isonomy.common.base.errors import ConfigError
from isonomy.common.privacy.quantise import checked_norm

Floats = NDArray[np.float64]
ROUNDING = 1e-13  # of a Gram matrix in double precision, relative to squared lengths
_INSIDE = 1.0 - 2.0**-30  # clip a hair inside the bound, so that the oracle need not clip again


@dataclass(frozen=True)
class Subspace:
    """Rows for the oracle and the map from its answer to weights of gradients."""

    rows: Floats  # (b, r), |row_i| = min(|g_i|, norm)
    clipped: int
    _scale: Floats  # (b,) clipping factors c
    _factor: Floats  # (b, b) rows of R in pivot order; beyond the rank an identity
    _order: NDArray[np.int64]  # (b,) the pivots

    @classmethod
    def of(cls, gram: Floats, *, norm: float, floor: Floats | None = None) -> Subspace:
        """Clip to `norm` and choose coordinates.

        `floor` (b,): how far rounding reaches on the diagonal of `gram`; directions below it are
        left out. At least one direction remains.
        """
        norm = checked_norm(norm)
        squares = np.maximum(gram.diagonal(), 0.0)
        lengths = np.sqrt(squares)
        scale = _INSIDE * norm / np.maximum(lengths, _INSIDE * norm)  # at most 1
        least = ROUNDING * squares if floor is None else np.maximum(floor, ROUNDING * squares)
        clipped = gram * scale * scale[:, None]
        people, tolerance = len(gram), float((least * scale * scale).max())
        if clipped.diagonal().max() <= tolerance:  # nobody has a gradient: one column of zeros
            factor, order = np.eye(people), np.arange(people)
            rows = np.zeros((people, 1))
        else:
            # A symmetric matrix's transpose is the column order that LAPACK wants, without a copy.
            factor, pivots, rank, _ = lapack.dpstrf(clipped.T, tol=tolerance, lower=1)
            factor, order = np.tril(factor), pivots - 1
            rows = np.empty((people, rank))
            rows[order] = factor[:, :rank]
            factor[rank:, rank:] = np.eye(people - rank)
        return cls(rows, int(np.count_nonzero(lengths > norm)), scale, factor, order)

    @property
    def rank(self) -> int:
        return int(self.rows.shape[1])

    def back(self, z: ArrayLike) -> Floats:
        """(b,) weights w with Σ_i w_i g_i = Q z; clipping is in them."""
        answer = np.asarray(z, dtype=np.float64)
        if answer.shape != (self.rank,):
            raise ConfigError(f"expected {self.rank} coordinates, got shape {answer.shape}")
        if not self.rows.any():
            return np.zeros(len(self.rows))
        padded = np.zeros(len(self._factor))
        padded[: self.rank] = answer
        weights = np.empty(len(padded))
        weights[self._order] = blas.dtrsv(self._factor, padded, lower=1, trans=1)  # R₁₁⁻ᵀ z, 0, …
        return self._scale * weights
