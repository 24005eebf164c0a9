"""The proxy g_a(x, y) ≈ P(A = a | x, y), from one noisy moment per label.

In one stratum (people with the same label, or everybody) with rows φ_i and ξ_i = 1[A_i = a] − p:

    released   m = Σ_i φ_i 1[A_i = a] + noise,  noise ~ N(0, s²I)
    model      ξ_i = φ_iᵀβ + η_i,   β ~ N(0, τ²I),   η_i of variance v = p(1 − p)
    hence      c = m − p Σφ ~ N(0, τ²G² + vG + s²I),   G = Σ φφᵀ  (public)

In the eigenbasis of G (eigenvalues ℓ_j) everything is diagonal. With D_j = τ²ℓ_j² + vℓ_j + s²:

    τ²         maximises  −½ Σ_j (ln D_j + c_j²/D_j)              (empirical Bayes)
    E[β_j]     = τ²ℓ_j c_j / D_j                                  for people not seen: the rule
    E[Σ u_i ξ_i] = Σ_j w_j (τ²ℓ_j + v) c_j / D_j,  w = Φᵀu        for the people in the release
    cov of two such sums, given m
               = v·⟨u, u'⟩_⊥ + Σ_j w_j w'_j (τ²ℓ_j + v) s² / (ℓ_j D_j)

⟨u, u'⟩_⊥ is the inner product of the parts of u, u' outside the span of Φ: what the moment says
nothing about. As s → 0 the third line becomes least squares and the last term vanishes: the sums in
the span are then known exactly. For new people, T(u) = Σ_i u_i φ_iᵀβ given m has

    mean Σ_j w_j E[β_j],    covariance Σ_j w_j w'_j τ²(vℓ_j + s²)/D_j

and covariance Σ_j w_j w'_j τ²s²/D_j with the sums over the people in the release.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from isonomy.company.fair.inputs.feature_rows import FeatureRows

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_RANK = 1e-9  # eigenvalues below this part of the largest are the null space


@dataclass(frozen=True)
class Geometry:
    """What is public about one stratum: its rows (n, d), eigenvalues (r,), directions (d, r)."""

    rows: FeatureRows
    people: Ints  # indices of the stratum's entries
    eigenvalues: Floats
    directions: Floats
    total: Floats  # (d,) Σφ
    # Φᵀu by the hash of u: a fit asks for few of them, again and again, and each reads all of φ.
    _known: dict[str, Floats] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, rows: FeatureRows, people: Ints, scale: float = 1.0) -> Geometry:
        """From these people's rows. `scale`: how many times as many people the release has."""
        gram, total = np.zeros((rows.width, rows.width)), np.zeros(rows.width)
        for _, part in rows.parts(people):
            gram += part.T @ part
            total += part.sum(axis=0)
        eigenvalues, directions = np.linalg.eigh(scale * gram)
        inside = eigenvalues > _RANK * max(float(eigenvalues[-1]), 1e-300)
        return cls(rows, people, eigenvalues[inside], directions[:, inside], total)

    def moments(self, u: Floats) -> Floats:
        """w = Φᵀu in the eigenbasis; (n, t) -> (r, t)."""
        names = [hashlib.sha256(np.ascontiguousarray(one).data).hexdigest() for one in u.T]
        new = {name: at for at, name in enumerate(names) if name not in self._known}
        if new:
            asked = u[:, list(new.values())]
            sums = np.zeros((self.rows.width, len(new)))
            for part, rows in self.rows.parts(self.people) if asked.any() else ():
                sums += rows.T @ asked[part]
            self._known.update(zip(new, (self.directions.T @ sums).T, strict=True))
        known = [self._known[name] for name in names]
        return np.array(known).reshape(len(names), len(self.eigenvalues)).T

    def spread(self, coefficients: Floats) -> Floats:
        """φ_iᵀ of coefficients in the eigenbasis; (r, t) -> (n, t)."""
        columns = self.directions @ coefficients
        return np.concatenate([rows @ columns for _, rows in self.rows.parts(self.people)])


@dataclass(frozen=True)
class Posterior:
    """What the moment of one group and one stratum tells."""

    share: float  # p
    variance: float  # v
    prior: float  # τ²
    beta: Floats  # (d,) E[β]: prediction is p + φᵀβ
    inside: Floats  # (r,) (τ²ℓ + v) c / D: the fit to the people in the release
    uncertainty: Floats  # (r,) (τ²ℓ + v) s² / (ℓ D): of sums over the people in the release
    rule: Floats  # (r,) τ²ℓ c / D: β in the eigenbasis
    spread: Floats  # (r,) τ² (vℓ + s²) / D: variance of β
    shared: Floats  # (r,) τ² s² / D: covariance of β with those sums


def fit_posterior(
    geometry: Geometry,
    moment: Floats,
    share: float,
    deviation: float,
    total: Floats | None = None,
) -> Posterior:
    """Posterior of one group in one stratum, from its released moment (d,).

    total: (d,) Σφ over the people of the release, if they are more than those of the geometry.
    """
    if total is None:
        total = geometry.total
    ell = geometry.eigenvalues
    v, s2 = max(share * (1 - share), 1e-6), deviation**2
    c = geometry.directions.T @ (moment - share * total)  # (r,)

    def cost(log_prior: float) -> float:
        D = np.exp(log_prior) * ell**2 + v * ell + s2
        return float(np.sum(np.log(D) + c**2 / D))

    # τ²·‖φ‖² is the variance of φᵀβ; beyond e^12 or below e^-20 nothing changes any more.
    prior = float(np.exp(minimize_scalar(cost, bounds=(-20.0, 12.0), method="bounded").x))
    D = prior * ell**2 + v * ell + s2
    return Posterior(
        share=share,
        variance=v,
        prior=prior,
        beta=geometry.directions @ (prior * ell * c / D),
        inside=(prior * ell + v) * c / D,
        uncertainty=(prior * ell + v) * s2 / (ell * D),
        rule=prior * ell * c / D,
        spread=prior * (v * ell + s2) / D,
        shared=prior * s2 / D,
    )
