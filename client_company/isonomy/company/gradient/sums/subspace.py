"""A chunk's clipped gradients in coordinates of their own span, and the way back.

With c_i = min(1, C/|g_i|) the clipped gradients ḡ_i = c_i g_i have the Gram matrix K̄ = c K c. A
factor K̄ = R Rᵀ with R of size b × r, r = rank, gives rows ρ_i with the same lengths and angles as
the ḡ_i: there is Q (d × r, orthonormal columns) with ḡ_i = Q ρ_i, and Q = Ḡᵀ W for a b × r matrix W
that is computed from R alone. So

    the oracle sums ρ_i in r columns:    z = Σ_i u_{A_i} ρ_i + N(0, s² I_r)
    combine(c ∘ W z)              =  Q z = Σ_i u_{A_i} ḡ_i + Q N(0, s² I_r)

which is the d-dimensional answer with its noise projected onto the span. Same sensitivity (lengths
and differences are equal), same guarantee (leaving out directions that hold noise only is
post-processing), noise energy s²·r instead of s²·d.

R is a Cholesky factor: W = R⁻ᵀ, or [R₁₁⁻ᵀ; 0] where the last person adds no direction, as with
centred gradients. Where more directions are missing, pivots show the rank, and W is that in pivot
order. What is left out of a row is shorter than √(rounding) of the longest. Truncation to the
leading `rank` directions (`_leading`) trades bias for noise: rows are projected, never lengthened.

`filled` has less noise at the same price and without bias, and is what is used unless rows must be
as long as gradients: under the individual filter, where everybody pays for their own row's length,
and for truncation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import blas, lapack, solve_triangular
from torch import Tensor

from isonomy.common.base.errors import ConfigError
from isonomy.common.privacy.quantise import checked_norm
from isonomy.common.sums.oracle import GroupOracle, Release
from isonomy.company.gradient.per_sample.ghost import ChunkGradients, rounding_of
from isonomy.company.gradient.per_sample.triangles import Matrix, mirrored
from isonomy.company.gradient.sums.filled import FEW, FILL, Filled, clip_factors, fill_for

_INSIDE = 1.0 - 2.0**-30  # clip a hair inside, so that the oracle need not clip again
_MIXED = 100.0  # mixed rows are nearly parallel: weak directions among them are rounding sooner
_SKETCH = 4  # `keep` tries a quarter of the directions
_Solve = Callable[[NDArray[np.float64]], NDArray[np.float64]]


@dataclass(frozen=True)
class Subspace:
    """Rows for the oracle and the map from its answer to weights of gradients."""

    rows: NDArray[np.float64]  # (b, r), |row_i| = min(|g_i|, norm)
    clipped: int
    _scale: NDArray[np.float64]  # (b,) clipping factors c
    _solve: _Solve  # z (r,) -> W z (b,)

    @classmethod
    def of(
        cls,
        gram: Tensor | Matrix,
        *,
        norm: float,
        rank: int | None = None,
        keep: float = 1.0,
        floor: Tensor | NDArray[np.float64] | None = None,
    ) -> Subspace:
        """Clip to `norm` and choose coordinates. Of `gram` the lower triangle is looked at.

        `rank` keeps that many leading directions. `keep` below 1 takes a quarter as many
        directions as there are people if they hold that part of Σ|ḡ_i|², else all. `floor` (b,):
        how far rounding reaches on the diagonal of `gram`; directions below it are left out.
        """
        norm = checked_norm(norm)
        kernel = _array(gram).astype(np.float64, copy=False)
        squares = np.maximum(kernel.diagonal(), 0.0)
        lengths = np.sqrt(squares)
        scale = _INSIDE * norm / np.maximum(lengths, _INSIDE * norm)  # at most 1
        least = rounding_of(torch.float64) * squares
        if floor is not None:
            least = np.maximum(_array(floor), least)
        if rank is not None and rank < 1:
            raise ConfigError(f"rank is the number of directions to keep, at least 1; got {rank}")
        if not 0 < keep <= 1:
            raise ConfigError(f"keep is a part of the gradients' energy, above 0 to 1; got {keep}")
        reach = float((least * scale * scale).max())
        rows, solve = _factor(kernel, scale, reach, rank, keep)
        return cls(rows, int(np.count_nonzero(lengths > norm)), scale, solve)

    @property
    def rank(self) -> int:
        return int(self.rows.shape[1])

    def back(self, z: ArrayLike) -> Tensor:
        """(b,) weights w with Σ_i w_i g_i = Q z; clipping is in them."""
        answer = np.asarray(z, dtype=np.float64)
        if answer.shape != (self.rank,):
            raise ConfigError(f"expected {self.rank} coordinates, got shape {answer.shape}")
        return torch.from_numpy(self._scale * self._solve(answer))


def private_gradient(
    oracle: GroupOracle,
    grads: ChunkGradients,
    weights: ArrayLike,
    *,
    norm: float,
    share: float | None = None,
    sigma: float | None = None,
    people: ArrayLike | None = None,
    attribute: str | None = None,
    rank: int | None = None,
    keep: float = 1.0,
    fill: float | None = FILL,
    purpose: str = "gradient",
) -> tuple[list[Tensor], Release]:
    """Σ_i u_{A_i} clip_C(g_i) + noise: one tensor per parameter, and the release.

    `weights` u: one per group. `people`: cohort positions along the rows of `grads`; not needed if
    it was made with `people_of_row`. `sigma`: deviation for rows of length `norm`; others get as
    much more or less. Takes d columns if that is fewer than the chunk has people (then the
    release's values are the gradient itself), else noisy weights (`filled`), or (`fill` None, a
    truncation, or an oracle that charges for rows) coordinates in the chunk's span.
    """
    positions = _positions(grads, people)

    def ask(rows: Matrix, reach: float) -> Release:
        return oracle.weighted_sum(
            rows,
            weights,
            norm=reach,
            attribute=attribute,
            people=positions,
            sigma=None if sigma is None else sigma * (reach / norm),
            share=share,
            purpose=purpose,
        )

    if rank is None and grads.size <= len(grads):
        release = ask(grads.rows().cpu().numpy(), norm)
        return grads.split(release.values), release
    own_fill = fill_for(oracle, fill, rank, keep)
    if own_fill is not None:
        few = len(grads) <= FEW
        filled = (
            Filled.alone(len(grads)) if few else Filled.of(grads.first_triangle(), fill=own_fill)
        )
        if filled is not None:
            factors = clip_factors(grads.plain_lengths, checked_norm(norm))  # raises before asking
            release = ask(filled.rows, filled.norm)
            return grads.combine(torch.from_numpy(factors * filled.back(release.values))), release
    own = Subspace.of(grads.triangle, norm=norm, rank=rank, keep=keep, floor=grads.floor)
    release = ask(own.rows, norm)
    return grads.combine(own.back(release.values)), release


def _positions(grads: ChunkGradients, people: ArrayLike | None) -> NDArray[np.int64]:
    if people is None and grads.people is None:
        raise ConfigError("name the people of the chunk: people=…, or people_of_row=… in of()")
    if people is None:
        return np.asarray(grads.people)
    given = np.asarray(people)
    distinct = np.unique(given)
    if grads.people is not None:
        if not np.array_equal(distinct, grads.people):
            raise ConfigError("people are not those that the gradients were made with")
        return grads.people
    if given.shape != (len(grads),):
        raise ConfigError(f"{len(grads)} gradients, but {given.size} people were named")
    if len(distinct) != len(given):
        raise ConfigError(
            "rows of one person are added before they are clipped: make the gradients with "
            "people_of_row=…, then leave people out"
        )
    return given


def _array(values: Tensor | Matrix) -> Matrix:
    return values.detach().cpu().numpy() if isinstance(values, Tensor) else values


def _factor(
    kernel: NDArray[np.float64],
    scale: NDArray[np.float64],
    floor: float,
    rank: int | None,
    keep: float,
) -> tuple[NDArray[np.float64], _Solve]:
    """R (b, r) with R Rᵀ = c K c up to rounding (or its leading part), and z -> W z."""
    people = len(kernel)
    if (kernel.diagonal() * scale * scale).max() <= floor:  # nobody has a gradient: one column of 0
        return np.zeros((people, 1)), lambda z: np.zeros(people)
    if rank is not None and rank < people:
        return _leading(_whole(kernel, scale), floor, rank)
    if keep < 1.0 and rank is None:
        whole = _whole(kernel, scale)
        rows, solve = _leading(whole, floor, -(-people // _SKETCH))
        if np.einsum("ij,ij->", rows, rows) >= keep * whole.trace():
            return rows, solve
    straight = _straight(kernel, scale, floor)
    if straight is not None:
        return straight
    factor, order, rows = _pivoted(_whole(kernel, scale), floor)

    def exact(z: NDArray[np.float64]) -> NDArray[np.float64]:
        weights = np.empty(people)
        weights[order] = _turned(factor, z)
        return weights

    return rows, exact


def _whole(kernel: NDArray[np.float64], scale: NDArray[np.float64]) -> NDArray[np.float64]:
    """c K c, both triangles."""
    made = mirrored(kernel)
    made *= scale
    made *= scale[:, None]
    return made


def _straight(
    kernel: NDArray[np.float64], scale: NDArray[np.float64], floor: float
) -> tuple[NDArray[np.float64], _Solve] | None:
    """Cholesky without pivots, several times as quick; None if a direction but the last is missing.

    Of K itself: if K = L Lᵀ, then c K c = (cL)(cL)ᵀ, and few rows have a c below 1. The last pivot
    is lifted by a known amount, so that LAPACK does not stop at a person who adds nothing to the
    others (centred gradients add up to zero).
    """
    people = len(kernel)
    if people < 2:
        return None
    whole, lift = kernel.copy(), float(kernel.diagonal().max())
    whole[-1, -1] += lift
    upper, info = lapack.dpotrf(whole.T, lower=0, clean=1, overwrite_a=1)  # UᵀU = K
    pivots = (upper.diagonal() * scale) ** 2
    if info != 0 or pivots[:-1].min() <= floor:
        return None
    rest = float(upper[-1, -1]) ** 2 - lift
    rank = people if rest * float(scale[-1]) ** 2 > floor else people - 1
    if rank == people:
        upper[-1, -1] = np.sqrt(rest)
    few = np.flatnonzero(scale < 1.0)
    rows = upper.T[:, :rank]  # L
    rows[few] *= scale[few, None]  # and with it U: what is solved below is (cL)ᵀ

    def back(z: NDArray[np.float64]) -> NDArray[np.float64]:
        whole = np.zeros(people)
        whole[:rank] = z
        made: NDArray[np.float64] = blas.dtrsv(upper, whole, lower=0)
        return made

    return rows, back


def _leading(
    kernel: NDArray[np.float64], floor: float, rank: int
) -> tuple[NDArray[np.float64], _Solve]:
    """The leading directions, nearly: random combinations of the rows, multiplied by K̄ once more.

    With Ω (b × rank) and Ωᵀ K̄ Ω = L Lᵀ, the columns of Q = Ḡᵀ Ω L⁻ᵀ are orthonormal, R = K̄ Ω L⁻ᵀ
    holds the rows projected onto them, and W = Ω L⁻ᵀ. (Halko, Martinsson & Tropp 2011; far quicker
    than eigenvectors, and whatever the basis is worth, R and W belong together.) What Ω starts from
    is fixed: which directions are kept is no secret, and a run must repeat.
    """
    largest = float(kernel.diagonal().max())
    rough = (kernel / largest).astype(np.float32) @ _start(len(kernel), rank)
    mixed = rough.astype(np.float64) / np.sqrt(np.einsum("ij,ij->j", rough, rough))
    image = kernel @ mixed
    factor, order, part = _pivoted(mixed.T @ image, _MIXED * floor)
    found = part.shape[1]
    basis, image = mixed[:, order], image[:, order[:found]]
    corner = factor[:found, :found]
    rows = solve_triangular(corner, image.T, lower=True, check_finite=False).T

    def back(z: NDArray[np.float64]) -> NDArray[np.float64]:
        made: NDArray[np.float64] = basis @ _turned(factor, z)
        return made

    return np.ascontiguousarray(rows), back


@lru_cache(maxsize=8)
def _start(people: int, rank: int) -> NDArray[np.float32]:
    return np.random.default_rng(0).standard_normal((people, rank), dtype=np.float32)


def _pivoted(
    matrix: NDArray[np.float64], floor: float
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.float64]]:
    """Cholesky with pivots down to `floor`: L (n, n), the order of its rows, and L (n, r) in ours.

    The first pivot is always taken, so r >= 1.
    A symmetric matrix's transpose is the column order that LAPACK wants, without a copy. Beyond
    the rank r the factor is made that of an identity, so that one can solve with all of it.
    """
    factor, pivots, rank, _ = lapack.dpstrf(matrix.T, tol=floor, lower=1, overwrite_a=1)
    torch.from_numpy(factor.T).triu_()  # LAPACK leaves the other triangle as it was
    rows = np.empty((len(matrix), rank))
    rows[pivots - 1] = factor[:, :rank]
    factor[rank:, rank:] = np.eye(len(matrix) - rank)
    return factor, pivots - 1, rows


def _turned(factor: NDArray[np.float64], z: NDArray[np.float64]) -> NDArray[np.float64]:
    """L₁₁⁻ᵀ z, followed by zeros."""
    whole = np.zeros(len(factor))
    whole[: len(z)] = z
    made: NDArray[np.float64] = blas.dtrsv(factor, whole, lower=1, trans=1)
    return made


__all__ = ["Subspace", "private_gradient"]
