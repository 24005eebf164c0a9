"""Noisy weights of people: how a chunk's gradients are asked for where the model is the larger.

    ask with rows R (b × b), one row ρ_i per person, |ρ_i| <= C'
    the oracle answers     z = Rᵀu + η,    η ~ N(0, s² I),  s ∝ C'          u_i: the group's weight
    weights                R⁻ᵀz = u + R⁻ᵀη
    the gradient           Σ_i (u + R⁻ᵀη)_i ḡ_i = Σ_i u_i ḡ_i + N(0, s² Ḡᵀ(R Rᵀ)⁻¹Ḡ)

Not biased, whatever R is; and the guarantee does not look at gradients at all, only at the length
of R's rows, which the oracle clips in integers. So R may be whatever makes the noise small:

    noise energy           s²·tr(K̄ M⁻¹),      K̄ = ḠḠᵀ,   M = R Rᵀ,   M_ii = C'²

M is the first layer's part of K̄ plus a diagonal such that M_ii = C'²: each row is filled up with a
direction of its own. ADR 10 measures that against K̄ alone, the identity and the whole of K̄. Where
the first layer's angles are not those of whole gradients, noise is larger and nothing is wrong.

`fill` is the least part of a row that is its own: d_i² >= fill/(1 + fill)·C'². Between 0.1 and 1 it
hardly matters for the energy. It keeps M far from singular, so that single precision without
pivots is enough, and M⁻¹ below (1 + fill)/fill/C'² whatever the first layer looks like.

Clipping to C_p is not for privacy here. It keeps a few long gradients from carrying most noise.
Under the individual filter, where people pay for the length of their rows, the bare span is used.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import blas, lapack

from isonomy.common.base.errors import ConfigError

Matrix = NDArray[np.floating]  # single or double precision

FILL = 0.3
FEW = 32  # people up to which everybody's weight has noise of its own
LONGEST = 0.98  # quantile of the kernel's lengths that fills a row up to 1/(1 + fill)
_SINGLE, _DOUBLE = np.dtype(np.float32), np.dtype(np.float64)
_OUTSIDE = {_SINGLE: 1.0 + 2.0**-14, _DOUBLE: 1.0 + 2.0**-30}
_FACTORS = {_SINGLE: lapack.spotrf, _DOUBLE: lapack.dpotrf}
_SOLVERS = {_SINGLE: blas.strsv, _DOUBLE: blas.dtrsv}


@dataclass(frozen=True)
class Filled:
    """R, and the way back from an answer to weights."""

    rows: Matrix  # (b, b) lower triangular
    norm: float  # C', the bound that goes to the oracle
    longest: float | None = None  # the quantile LONGEST of the kernel's lengths

    @classmethod
    def of(cls, kernel: Matrix, *, fill: float = FILL) -> Filled | None:
        """R for a kernel, which is written over.

        None where rounding has left a matrix that is not one of inner products.
        """
        check_fill(fill)
        squares = np.maximum(kernel.diagonal(), 0.0)
        most = quantile(squares, LONGEST) or float(squares.max()) or 1.0
        norm = math.sqrt((1.0 + fill) * most)
        # M = c K c off the diagonal, c < 1 for the few longest; what is factored is M/c²
        few = np.flatnonzero(squares > most)
        kernel.flat[:: len(kernel) + 1] = norm**2
        kernel[few, few] = squares[few] * (norm**2 / most)
        upper, info = _FACTORS[kernel.dtype](kernel.T, lower=0, clean=1, overwrite_a=1)
        if info != 0:
            return None
        rows = upper.T
        rows[few] *= np.sqrt(most / squares[few])[:, None]
        # The bound is a hair above C', so that the oracle does not clip what rounding has added.
        return cls(rows, norm * _OUTSIDE[rows.dtype], math.sqrt(most))

    @classmethod
    def alone(cls, people: int) -> Filled:
        """M = I: for few people a kernel gains less than it costs (energy 1.1 for 16)."""
        return cls(np.eye(people, dtype=np.float32), _OUTSIDE[_SINGLE])

    def back(self, z: ArrayLike) -> NDArray[np.float64]:
        """(b,) R⁻ᵀz."""
        answer = np.asarray(z, dtype=np.float64)
        if answer.shape != (len(self.rows),):
            raise ConfigError(f"expected {len(self.rows)} coordinates, got shape {answer.shape}")
        weights: Matrix = _SOLVERS[self.rows.dtype](self.rows.T, answer, lower=0)
        return weights.astype(np.float64, copy=False)


def check_fill(fill: float) -> None:
    """Raise unless rows can be filled by this much."""
    if not 0 < fill < math.inf:
        raise ConfigError(f"fill is a positive number or None, got {fill}")


def clip_factors(lengths: NDArray[np.float64], norm: float) -> NDArray[np.float64]:
    """(b,) c_i = min(1, C/|g_i|)."""
    factors: NDArray[np.float64] = norm / np.maximum(lengths, norm)
    return factors


def quantile(values: NDArray[np.floating], part: float) -> float:
    """np.quantile's default for one quantile, without its preparations."""
    place = part * (len(values) - 1)
    below = int(place)
    above = min(below + 1, len(values) - 1)
    ordered = np.partition(values, (below, above))
    low, high = float(ordered[below]), float(ordered[above])
    return low + (high - low) * (place - below)
