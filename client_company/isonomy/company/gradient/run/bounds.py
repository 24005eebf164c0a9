"""How to choose a clipping bound: bias against variance (PF-LD, Theorems 4 and 5).

    E|G − G̃|    ≤ 2√S σ_p λ^max C_p/(min_i |B_Gi| − 1) + Σ_i λ_i Ê_{B_Gi} max(0, |∇h| − C_p)   (12)
    E|V_i − Ṽ_i| ≤ √2 σ_d C_d/(min_i |D_Gi| − 1)       + Ê_{D_Gi} max(0, |h| − C_d)             (13)

Both are  noise·C + weight·Ê max(0, x − C):  a line that rises and a convex function that falls, so
the sum is convex, and it is least where  noise = weight·P(x ≥ C),  a quantile of x.

The means over a group are private; the norms x = |∇h(z)| and |h(z)| of all people are the
company's own. So the mean over a group is replaced by the mean over everybody (equal if lengths do
not depend on the group), and group sizes by *released* counts. Nothing is spent on choosing C.

Where we differ: our noise is N(0, (σ·range(u)·C)² I_r) in the r directions that a chunk spans
(subspace.py), not in d, and follows the current weights u, not λ^max: `subspace_tradeoff`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from isonomy.common.base.errors import ConfigError, DataError
from isonomy.common.figures.figure import Figure
from isonomy.common.figures.panels import Level, Panel, Series
from isonomy.common.figures.style import GREEN, INK, ORANGE, SKY

LEAST_QUANTILE = 0.05
"""If noise outweighs all that clipping can lose, (12) is least at C = 0, which trains nothing."""

_POINTS = 201


@dataclass(frozen=True)
class Tradeoff:
    """bound(C) = noise·C + weight·mean(max(0, lengths − C)).

    Guarantees: convex in C, and `best` is its least argument, up to LEAST_QUANTILE.
    """

    lengths: NDArray[np.float64]  # (n,) of the company's own rows
    noise: float  # E|noise| per unit of C
    weight: float  # what a unit of lost length costs

    def __post_init__(self) -> None:
        if self.lengths.ndim != 1 or self.lengths.size == 0:
            raise DataError("a clipping bound needs the lengths of at least one row")
        if not np.isfinite(self.lengths).all() or (self.lengths < 0).any():
            raise DataError("lengths must be finite and not negative")
        if not (0 < self.noise < np.inf and 0 < self.weight < np.inf):
            raise ConfigError(
                "sigma must be above 0, and some multiplier or weight other than 0: else every "
                "clipping bound is as good"
            )

    def variance(self, norm: ArrayLike) -> NDArray[np.float64]:
        """The first term: grows with C, because noise is scaled to it."""
        return self.noise * np.asarray(norm, dtype=np.float64)

    def bias(self, norm: ArrayLike) -> NDArray[np.float64]:
        """The second term: what clipping to C takes away."""
        bound = np.asarray(norm, dtype=np.float64)
        excess = np.maximum(0.0, self.lengths - bound[..., None])
        return np.asarray(self.weight * excess.mean(axis=-1))

    def bound(self, norm: ArrayLike) -> NDArray[np.float64]:
        """Right-hand side of (12) or (13) at C."""
        return self.variance(norm) + self.bias(norm)

    @property
    def noise_dominates(self) -> bool:
        """No row is worth its noise: ask less often, or about more people at a time."""
        return self.noise >= self.weight

    @property
    def best(self) -> float:
        """C with noise = weight·P(length ≥ C): the bound's minimum.

        The slope right of C is noise − weight·(share of lengths above C), so the minimum is at the
        first length above which at most noise/weight of the rows lie.
        """
        share = max(1.0 - self.noise / self.weight, LEAST_QUANTILE)
        ordered = np.sort(self.lengths)
        index = min(int(np.ceil(share * len(ordered) - 1e-9)), len(ordered)) - 1
        best = float(ordered[max(index, 0)])
        return best if best > 0 else float(ordered[-1])

    def plot(self, title: str = "Error of a private gradient") -> Figure:
        """Noise, bias and their sum against C, with the minimum marked."""
        best, top = self.best, float(self.lengths.max())
        norms = np.linspace(0.0, max(1.1 * top, 1.5 * best), _POINTS)
        curves = (
            ("noise", self.variance(norms), ORANGE),
            ("lost by clipping", self.bias(norms), SKY),
            ("bound on the error", self.bound(norms), INK),
        )
        series = [
            Series(label, colour, "", list(zip(norms, values, strict=True)), line=True)
            for label, values, colour in curves
        ]
        least = Level(best, f"least at C = {best:.3g}", colour=GREEN)
        panel = Panel(
            "", "clipping bound C", "expected error, at most", series,
            x_from_zero=True, y_from_zero=True, levels=[least],
        )  # fmt: skip
        return Figure(title, [panel])


def primal_tradeoff(
    lengths: ArrayLike,
    multipliers: ArrayLike,
    *,
    sigma: float,
    bound: float,
    entries: int,
    smallest_group: float,
) -> Tradeoff:
    """Theorem 4, Eq. (12): |∇h| of a batch, λ, σ_p, λ^max, S (entries of the gradient), counts.

    `smallest_group`: from released counts, in the batch.
    """
    lam = float(np.abs(np.asarray(multipliers, dtype=np.float64)).sum())
    noise = 2.0 * np.sqrt(entries) * sigma * bound / _rest(smallest_group)
    return Tradeoff(_lengths(lengths), float(noise), lam)


def dual_tradeoff(values: ArrayLike, *, sigma: float, smallest_group: float) -> Tradeoff:
    """Theorem 5, Eq. (13): |h| of all people, σ_d, counts in the whole data."""
    noise = np.sqrt(2.0) * sigma / _rest(smallest_group)
    return Tradeoff(np.abs(_lengths(values)), float(noise), 1.0)


def subspace_tradeoff(
    lengths: ArrayLike, weights: ArrayLike, *, sigma: float, rank: int
) -> Tradeoff:
    """The same for one released sum Σ_i u_{A_i} clip_C(g_i) + N(0, (σ·range(u)·C)² I_r).

        E|error| ≤ √r·σ·range(u)·C + n·max|u|·mean(max(0, |g| − C))

    σ is the noise per sensitivity. Everything is a sum over the chunk, not a mean.
    """
    u = np.asarray(weights, dtype=np.float64)
    noise = np.sqrt(rank) * sigma * float(u.max() - u.min())
    values = _lengths(lengths)
    return Tradeoff(values, float(noise), float(np.abs(u).max()) * len(values))


def _lengths(values: ArrayLike) -> NDArray[np.float64]:
    return np.asarray(values, dtype=np.float64).reshape(-1)


def _rest(smallest_group: float) -> float:
    """|G| − 1 of the paper's sensitivities."""
    if not smallest_group > 1:
        raise DataError(f"smallest_group must be above 1, got {smallest_group:g}")
    return smallest_group - 1.0
