"""φ(x): the public features in which the proxy for the attribute is linear.

    φ(x) = [ 0.3, stretched z-scores and one-hots, √(2/r)·cos(ωx + b) | score bins ]

Everything in φ is a function of the company's own columns and of its model's score, so nothing here
costs privacy. Each block is centred and has mean square norm about 1, so that none drowns the
others in the noise; the constant is small because the counts are released anyway. A column of
deviation d is divided by √d: halfway between columns as they are, where rare categories vanish, and
unit variance, where they take over.

With three groups and more (`many`) noise is larger, and small groups are told by rare categories.
There columns have unit variance, and there are no waves: they would take more than they tell.

The part that depends on x alone comes first, and its norm is clipped at the 75 % quantile. Clipping
is part of φ (the same for people not seen), so it biases nothing; a lower bound on the norm means
less noise for everybody. The bins of the base model's score follow: a release can serve another
base model by leaving them out, because the noise is independent from column to column. Rows are
divided by the bound, so ‖φ(x)‖ ≤ 1 for every x.

The clip, the stretching and the balance of the blocks were chosen on training people of Adult,
ACSIncome, Credit and Bank, as a compromise: weak proxies (Credit, ACSIncome) gain clearly, Adult
and Bank lose a little by the balancing and get some of it back by the stretching.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import _safe_indexing

from isonomy.common.base.errors import CapacityError, DataError
from isonomy.common.crypto.params import DEFAULT_PARAMETERS
from isonomy.company.fair.inputs.columns import ColumnCoder, Columns

Floats = NDArray[np.float64]

BINS = 10
FOURIER = 200
CONSTANT = 0.3
LEAST_DEVIATION = 0.02  # rarer than 4 in 10,000: not stretched any further
BANDWIDTH = 0.5  # of the Fourier features' kernel, in median distances
CLIP_QUANTILE = 0.75
MAX_LINEAR = 600  # wider tables are projected on this many public principal directions
MAX_FITTED = 50_000  # rows that the constants are made of
_PART_ROWS = 4_096
MAX_CODED = DEFAULT_PARAMETERS.max_columns - FOURIER - BINS - 1


class Draws(Protocol):
    """What draws random numbers: numpy's generator, or one that never changes (public_map.py)."""

    def standard_normal(self, size: Any, /) -> Any: ...
    def uniform(self, low: float, high: float, size: Any, /) -> Any: ...
    def integers(self, low: int, high: int, size: Any, /) -> Any: ...


@dataclass(frozen=True)
class FeatureMap:
    """φ with all its constants; `rows(X, score)` gives (n, d), norm ≤ 1."""

    coder: ColumnCoder  # how a table becomes numbers (z-scores, one-hots)
    centre: Floats  # (l,) mean of the coded columns
    stretch: Floats  # (l,) factor of each column: 1/√deviation, over the block's root mean square
    basis: Floats  # (l, m) or (0, 0) public principal directions of a very wide table
    omega: Floats  # (l, r) random Fourier features √(2/r)·cos(xω + b)
    phase: Floats  # (r,)
    fourier_centre: Floats  # (r,) their mean
    edges: Floats  # (bins − 1,) quantiles of the score
    shares: Floats  # (bins,) people per bin, for centring
    limit: float  # 75 % quantile of the norm of the x part
    bins: bool = True  # False: the part of φ that does not know the base model

    @property
    def norm(self) -> float:
        """Largest norm before scaling: √(limit² + largest squared norm of a centred bin)."""
        centred = np.eye(len(self.shares)) - self.shares
        return float(np.hypot(self.limit, np.linalg.norm(centred, axis=1).max()))

    @property
    def width(self) -> int:
        linear = self.basis.shape[1] or len(self.centre)
        return 1 + linear + len(self.phase) + (len(self.shares) if self.bins else 0)

    def without_bins(self) -> FeatureMap:
        """The same features less the score's: what another base model can use."""
        return replace(self, bins=False)

    def columns(self, released: Floats) -> Floats:
        """The columns of a full release that belong to this map: (k, d_full) -> (k, d)."""
        return released[:, : self.width]

    def rows(self, X: Any, score: Floats | None = None) -> Floats:
        """(n, d) φ(x) / norm."""
        inner = self._x_part(self.coder.code(X))  # (n, 1 + l + r)
        # Clipped the same way for people not seen, so that training and prediction agree.
        inner *= np.minimum(1.0, self.limit / np.linalg.norm(inner, axis=1))[:, None]
        if not self.bins:
            return inner / self.norm
        if score is None:
            raise DataError("these features have bins of the base model's score; give the score")
        bins = np.eye(len(self.shares))[np.searchsorted(self.edges, score)] - self.shares
        return np.hstack([inner, bins]) / self.norm

    def _x_part(self, coded: Floats) -> Floats:
        centred = (coded - self.centre) * self.stretch
        waves = _waves(coded, self.omega, self.phase)
        linear = centred @ self.basis if self.basis.size else centred
        constant = np.full((len(coded), 1), CONSTANT)
        return np.hstack([constant, linear, waves - self.fourier_centre])


def fit_features(X: Any, score: Floats, rng: Draws, *, many: bool = False) -> FeatureMap:
    """All constants of φ from X and the (out-of-fold) score; `rng` draws the Fourier features.

    many: the proxy must tell three groups or more apart.
    """
    n = len(score)
    if n > MAX_FITTED:  # constants of so many rows are those of all
        chosen = np.unique(rng.integers(0, n, MAX_FITTED))
        X, score, n = _safe_indexing(X, chosen), score[chosen], len(chosen)
    columns = Columns.of(X)
    coder = ColumnCoder.fit(columns)
    if coder.width > MAX_CODED:
        raise CapacityError(
            f"X makes {coder.width} columns after one-hot coding; {MAX_CODED} fit into a query. "
            "Drop columns that are nearly unique per person."
        )
    coded = coder.code(columns)  # (n, l)
    width = coded.shape[1]
    bandwidth = BANDWIDTH * _typical_distance(coded, rng)
    fourier = 0 if many else FOURIER
    omega = rng.standard_normal((width, fourier)) / bandwidth
    phase = rng.uniform(0.0, 2 * np.pi, fourier)
    waves = [_waves(coded[part], omega, phase).sum(axis=0) for part in _parts(n)]
    deviation = coded.std(axis=0)
    least = np.maximum(deviation, LEAST_DEVIATION)
    stretch = 1 / (least if many else np.sqrt(least))
    stretch /= float(np.linalg.norm(deviation * stretch)) or 1.0
    edges = np.unique(np.quantile(score, np.arange(1, BINS) / BINS))
    shares = np.bincount(np.searchsorted(edges, score), minlength=len(edges) + 1) / n
    # Without a limit first: the limit is a quantile of the norms that the other constants give.
    draft = FeatureMap(
        coder=coder,
        centre=coded.mean(axis=0),
        stretch=stretch,
        basis=_principal(coded * stretch) if width > MAX_LINEAR else np.zeros((0, 0)),
        omega=omega,
        phase=phase,
        fourier_centre=np.sum(waves, axis=0) / n,
        edges=edges,
        shares=shares,
        limit=np.inf,
    )
    norms = [np.linalg.norm(draft._x_part(coded[part]), axis=1) for part in _parts(n)]
    limit = float(np.quantile(np.concatenate(norms), CLIP_QUANTILE))
    return replace(draft, limit=limit)


def _waves(coded: Floats, omega: Floats, phase: Floats) -> Floats:
    return np.asarray(np.cos(coded @ omega + phase) * wave_height(len(phase)))


def _parts(n: int) -> list[slice]:
    """The rows in parts: their waves take 1.6 kB a row."""
    return [slice(start, start + _PART_ROWS) for start in range(0, n, _PART_ROWS)]


def wave_height(features: int) -> float:
    """√(2/r): r such waves have mean square norm 1 together."""
    return float(np.sqrt(2.0 / max(features, 1)))


def _typical_distance(coded: Floats, rng: Draws) -> float:
    """Median distance of random pairs: the usual bandwidth of a Gaussian kernel."""
    one, other = rng.integers(0, len(coded), (2, 1000))
    distance = float(np.median(np.linalg.norm(coded[one] - coded[other], axis=1)))
    return distance or 1.0


def _principal(coded: Floats) -> Floats:
    """(l, MAX_LINEAR) leading directions of the public covariance."""
    from sklearn.utils.extmath import randomized_svd

    centred = coded - coded.mean(axis=0)
    _, _, directions = randomized_svd(centred, MAX_LINEAR, random_state=0)
    return np.ascontiguousarray(directions.T)
