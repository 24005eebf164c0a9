"""Audits: what the moment could not tell about hard decisions is measured, and then predicted.

Decisions with event rates r_e give centred rows u_e = M_e·(z_e − r_e), which sum to zero. An audit
releases q = Σ_{i: A_i=a} u_i + noise. Given the moment, such sums are jointly Gaussian (proxy.py)
with covariance K, so q_t − prediction_t ~ N(0, K_tt' + s²1[t=t']): a Gaussian process over
decisions. What we want is not the sum over these very people but what to expect of *new* people,

    T(u) = Σ_i u_i E[ξ | x_i],      E[ξ | x_i] = φ_iᵀβ + r(x_i)

r is what is not linear in φ: of variance (κ − 1)v outside the span of Φ, so that ξ has κv there; κ
is set by marginal likelihood over all groups. Then, given the moment,

    cov(T(u), q_t)  = Σ_j w_j w_tj τ² s² / D_j + (κ − 1)v·⟨u, u_t⟩_⊥
    cov(T(u), T(u)) = Σ_j w_j² τ² (vℓ_j + s²) / D_j + (κ − 1)v·⟨u, u⟩_⊥

Both are linear in u, so the conditioned estimate is again a weighted sum over people,
Σ_i ĝ_a(i) u_i, and one matrix ĝ (entries, groups) holds all that the releases know:
`Knowledge.memberships`. Aiming at these very people instead would chase their sampling noise, which
for small groups is what the proxy overfits.

The last group of an attribute is the public total minus the others; it needs no model of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from isonomy.company.fair.inputs.proxy import Geometry, Posterior

Floats = NDArray[np.float64]

SCALE_FLOOR = 1.0  # κ − 1 at least: audits are never taken for mere sampling noise
_SCALES = 1.0 + np.geomspace(SCALE_FLOOR, 1000.0, 31)


@dataclass(frozen=True)
class Stratum:
    """People with one label (or all of them), their geometry, and one posterior per group."""

    people: NDArray[np.int64]  # indices of entries (people.py)
    geometry: Geometry
    posteriors: tuple[Posterior, ...]  # of the free groups: all but each attribute's last


@dataclass(frozen=True)
class Audit:
    """One released audit: the centred rows in question and the answer for the free groups."""

    rows: Floats  # (entries, events)
    values: Floats  # (free groups, events)
    deviation: Floats  # (free groups,)


class Knowledge:
    """Everything that is known about T(u) = Σ_i u_i P(A = a | x_i) for the free groups."""

    def __init__(self, strata: Sequence[Stratum], entries: int, audits: Sequence[Audit]) -> None:
        self.strata, self.entries = tuple(strata), entries
        self.groups = len(strata[0].posteriors)
        self.scale = float(_SCALES[0])
        self._solved: Floats = np.zeros((self.groups, 0, 0))
        rows = np.hstack([np.zeros((entries, 0)), *(audit.rows for audit in audits)])
        used = np.flatnonzero(np.abs(rows).sum(axis=0) > 0)  # a constant event tells nothing
        self.audited = rows[:, used]  # (entries, t)
        self._values = self._noise = weights = np.zeros((self.groups, len(used)))
        if len(used):
            values = np.hstack([audit.values for audit in audits])[:, used]  # (groups, t)
            noise = np.hstack([np.repeat(a.deviation[:, None], a.rows.shape[1], 1) for a in audits])
            noise = noise[:, used] ** 2
            self._values, self._noise = values, noise
            residual = values - self._fitted()
            inside, outside = self._kernels(self.audited, self.audited, "uncertainty")
            self.scale = _likeliest_scale(residual, inside, outside, noise)
            kernel = inside + self.scale * outside + noise[:, :, None] * np.eye(len(used))
            self._solved = np.asarray(np.linalg.inv(kernel), np.float64)  # (groups, t, t)
            weights = np.einsum("gst,gt->gs", self._solved, residual)
        self.memberships = self._spread(weights)

    def deviations(self, u: Floats) -> Floats:
        """(groups, events) standard deviation of the estimated T(u), u (entries, events)."""
        inside, outside = self._kernels(u, u, "spread")
        variance = np.einsum("gee->ge", inside + (self.scale - 1) * outside).copy()
        inside, outside = self._kernels(self.audited, u, "shared")
        cross = inside + (self.scale - 1) * outside  # (groups, t, events)
        variance -= np.einsum("gte,gts,gse->ge", cross, self._solved, cross)
        return np.asarray(np.sqrt(np.maximum(variance, 0.0)))

    def answers(self, u: Floats) -> tuple[Floats, Floats]:
        """(groups, events) the nearest audit's answer for each u, carried over to u; its variance.

        The prior plays a part only where decisions changed since that audit. So this holds for a
        small group that no feature tells apart, whom the prior takes for everybody else.
        """
        rows = np.hstack([np.zeros((self.entries, 1)), self.audited])  # no audit: all is new
        nearest = np.stack([((rows - column[:, None]) ** 2).sum(axis=0).argmin() for column in u.T])
        change = u - rows[:, nearest]
        nothing = np.zeros((self.groups, 1))
        values = np.hstack([nothing, self._values])[:, nearest]
        noise = np.hstack([nothing, self._noise])[:, nearest]
        return values + self.memberships.T @ change, noise + self.deviations(change) ** 2

    def _fitted(self) -> Floats:
        """(groups, t) what the moment alone says the audits' answers were: Σ_i u_i (p + φ_iᵀβ)."""
        fitted = np.zeros((self.groups, self.audited.shape[1]))
        for stratum in self.strata:
            rows = self.audited[stratum.people]
            w = stratum.geometry.moments(rows)  # (r, t)
            shares = np.array([p.share for p in stratum.posteriors])
            inside = np.stack([p.inside for p in stratum.posteriors])  # (groups, r)
            fitted += shares[:, None] * rows.sum(axis=0) + inside @ w
        return fitted

    def _kernels(self, u: Floats, other: Floats, factor: str) -> tuple[Floats, Floats]:
        """(groups, l, r) Σ_j w_j w'_j factor_j, and v·⟨u, u'⟩_⊥."""
        shape = (self.groups, u.shape[1], other.shape[1])
        inside, outside = np.zeros(shape), np.zeros(shape)
        for stratum in self.strata:
            a, b = u[stratum.people], other[stratum.people]
            wa = stratum.geometry.moments(a)
            wb = wa if other is u else stratum.geometry.moments(b)
            off = a.T @ b - wa.T @ (wb / stratum.geometry.eigenvalues[:, None])
            for group, posterior in enumerate(stratum.posteriors):
                inside[group] += wa.T @ (wb * getattr(posterior, factor)[:, None])
                outside[group] += posterior.variance * off
        return inside, outside

    def _spread(self, weights: Floats) -> Floats:
        """(entries, groups) p + φᵀβ, and the audits' surprise Σ_t weight_t · cov(T(e_i), q_t).

        weights: (groups, t). φ is read once for all of it.
        """
        spread = np.zeros((self.entries, self.groups))
        for stratum in self.strata:
            rows = self.audited[stratum.people]  # (n_s, t)
            w = stratum.geometry.moments(rows)  # (r, t)
            coefficients, outside = [], []
            for posterior, weight in zip(stratum.posteriors, weights, strict=True):
                off = (self.scale - 1) * posterior.variance
                along = posterior.shared - off / stratum.geometry.eigenvalues  # (r,)
                coefficients.append(posterior.rule + (w @ weight) * along)
                outside.append(off * weight)
            inside = stratum.geometry.spread(np.column_stack(coefficients))
            shares = np.array([p.share for p in stratum.posteriors])
            spread[stratum.people] = shares + inside + rows @ np.column_stack(outside)
        return spread


def _likeliest_scale(residual: Floats, inside: Floats, outside: Floats, noise: Floats) -> float:
    """κ on a grid: argmax Σ_groups ln N(residual; 0, inside + κ·outside + noise)."""
    best, best_cost = float(_SCALES[0]), np.inf
    for scale in _SCALES:
        cost = 0.0
        for group in range(len(residual)):
            kernel = inside[group] + scale * outside[group] + np.diag(noise[group])
            _, log_det = np.linalg.slogdet(kernel)
            cost += log_det + residual[group] @ np.linalg.solve(kernel, residual[group])
        if cost < best_cost - 1e-9:
            best, best_cost = float(scale), float(cost)
    return best
