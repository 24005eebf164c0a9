"""The proxy's and the audits' formulas against dense Gaussian conditioning."""

from __future__ import annotations

import numpy as np
import pytest
from geometry_kit import geometry_of

from isonomy.company.fair.inputs.proxy import Geometry, Posterior, fit_posterior
from isonomy.company.fair.tilt._audits import Audit, Knowledge, Stratum

N, D, S = 60, 5, 2.0


@pytest.fixture
def world() -> tuple[np.ndarray, np.ndarray, float]:
    rng = np.random.default_rng(3)
    rows = rng.standard_normal((N, D)) / 4
    member = (rows @ np.array([3.0, -2.0, 0, 0, 1.0]) + 0.3 * rng.standard_normal(N) > 0).astype(
        float
    )
    moment = rows.T @ member + S * rng.standard_normal(D)
    return rows, moment, 0.5


def dense(rows: np.ndarray, posterior: Posterior) -> tuple[np.ndarray, np.ndarray]:
    """Joint covariance of (ξ_1..ξ_n) and of c with ξ, straight from the model."""
    xi = posterior.prior * rows @ rows.T + posterior.variance * np.eye(len(rows))
    return xi, rows.T @ xi


def test_beta_is_the_ridge_posterior(world: tuple[np.ndarray, np.ndarray, float]) -> None:
    rows, moment, share = world
    post = fit_posterior(geometry_of(rows), moment, share, S)
    G = rows.T @ rows
    noise = post.variance * G + S**2 * np.eye(D)
    c = moment - share * rows.sum(axis=0)
    exact = post.prior * G @ np.linalg.solve(post.prior * G @ G + noise, c)
    np.testing.assert_allclose(post.beta, exact, rtol=1e-8)


def test_prior_maximises_the_marginal_likelihood(
    world: tuple[np.ndarray, np.ndarray, float],
) -> None:
    rows, moment, share = world
    post = fit_posterior(geometry_of(rows), moment, share, S)
    G, c = rows.T @ rows, moment - share * rows.sum(axis=0)

    def log_likelihood(prior: float) -> float:
        kernel = prior * G @ G + post.variance * G + S**2 * np.eye(D)
        return float(-np.linalg.slogdet(kernel)[1] - c @ np.linalg.solve(kernel, c)) / 2

    best = log_likelihood(post.prior)
    assert all(best >= log_likelihood(post.prior * f) - 1e-6 for f in (0.01, 0.5, 0.9, 1.1, 2, 100))


def covariance_of(post: Posterior, geometry: Geometry, u: np.ndarray) -> np.ndarray:
    """Of Σ_i u_i ξ_i given the moment: what it says nothing about, and what it leaves open."""
    w = geometry.moments(u)
    outside = u.T @ u - w.T @ (w / geometry.eigenvalues[:, None])
    return np.asarray(post.variance * outside + w.T @ (w * post.uncertainty[:, None]))


def test_sums_and_covariance_equal_dense_conditioning(
    world: tuple[np.ndarray, np.ndarray, float],
) -> None:
    rows, moment, share = world
    geometry = geometry_of(rows)
    post = fit_posterior(geometry, moment, share, S)
    xi, cross = dense(rows, post)
    kernel = cross @ rows + S**2 * np.eye(D)
    u = np.random.default_rng(0).standard_normal((N, 3))
    c = moment - share * rows.sum(axis=0)
    mean = u.T @ cross.T @ np.linalg.solve(kernel, c)
    covariance = u.T @ (xi - cross.T @ np.linalg.solve(kernel, cross)) @ u
    np.testing.assert_allclose(geometry.moments(u).T @ post.inside, mean, rtol=1e-8)
    np.testing.assert_allclose(covariance_of(post, geometry, u), covariance, rtol=1e-8, atol=1e-9)


def test_without_noise_the_span_is_known_exactly(
    world: tuple[np.ndarray, np.ndarray, float],
) -> None:
    rows, _, share = world
    member = (rows[:, 0] > 0).astype(float)
    post = fit_posterior(geometry_of(rows), rows.T @ member, share, 1e-9)
    geometry = geometry_of(rows)
    u = rows @ np.array([1.0, 2.0, 0, 0, 0])  # in the span of Φ
    estimate = share * u.sum() + geometry.moments(u[:, None])[:, 0] @ post.inside
    assert estimate == pytest.approx(u @ member, abs=1e-6)
    assert covariance_of(post, geometry, u[:, None])[0, 0] == pytest.approx(0, abs=1e-9)


def test_audits_condition_like_a_gaussian_process(
    world: tuple[np.ndarray, np.ndarray, float],
) -> None:
    """β, the misfit r and the sampling η, written out densely and conditioned on all releases."""
    rows, moment, share = world
    geometry = geometry_of(rows)
    post = fit_posterior(geometry, moment, share, S)
    rng = np.random.default_rng(1)
    asked, new = rng.standard_normal((N, 2)), rng.standard_normal((N, 1))
    values, deviation = np.array([[2.0, -1.0]]), np.array([0.7])
    stratum = Stratum(np.arange(N), geometry, (post,))
    known = Knowledge([stratum], N, [Audit(asked, values, deviation)])

    outside = np.eye(N) - rows @ np.linalg.solve(rows.T @ rows, rows.T)
    misfit = (known.scale - 1) * post.variance * outside  # of r, which new people share
    expected = post.prior * rows @ rows.T + misfit  # of E[ξ | x]
    xi = expected + post.variance * np.eye(N)
    seen = np.hstack([rows, asked])  # what the releases sum up
    kernel = seen.T @ xi @ seen + np.diag([S**2] * D + [0.49] * 2)
    data = np.concatenate([moment, values[0]]) - share * seen.sum(axis=0)
    cross = seen.T @ expected @ new[:, 0]
    mean = share * new.sum() + cross @ np.linalg.solve(kernel, data)
    variance = new[:, 0] @ expected @ new[:, 0] - cross @ np.linalg.solve(kernel, cross)
    assert known.memberships[:, 0] @ new[:, 0] == pytest.approx(mean, rel=1e-7)
    assert known.deviations(new)[0, 0] == pytest.approx(np.sqrt(variance), rel=1e-6)


def test_without_audits_the_proxy_is_all_there_is(
    world: tuple[np.ndarray, np.ndarray, float],
) -> None:
    rows, moment, share = world
    geometry = geometry_of(rows)
    post = fit_posterior(geometry, moment, share, S)
    known = Knowledge([Stratum(np.arange(N), geometry, (post,))], N, [])
    np.testing.assert_allclose(known.memberships[:, 0], post.share + rows @ post.beta)


def test_an_audit_that_says_more_makes_surer(world: tuple[np.ndarray, np.ndarray, float]) -> None:
    rows, moment, share = world
    geometry = geometry_of(rows)
    stratum = Stratum(np.arange(N), geometry, (fit_posterior(geometry, moment, share, S),))
    u = np.random.default_rng(2).standard_normal((N, 1))
    found = [
        Knowledge([stratum], N, [Audit(u, np.array([[3.0]]), np.array([s]))]).deviations(u)[0, 0]
        for s in (1e-6, 10.0, 1e6)
    ]
    assert found == sorted(found)


def test_constant_events_are_left_out(world: tuple[np.ndarray, np.ndarray, float]) -> None:
    rows, moment, share = world
    geometry = geometry_of(rows)
    stratum = Stratum(np.arange(N), geometry, (fit_posterior(geometry, moment, share, S),))
    nothing = Audit(np.zeros((N, 1)), np.array([[5.0]]), np.array([1.0]))
    plain = Knowledge([stratum], N, [])
    np.testing.assert_array_equal(Knowledge([stratum], N, [nothing]).memberships, plain.memberships)
