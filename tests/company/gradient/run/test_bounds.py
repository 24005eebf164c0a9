"""Clipping bounds: the papers' inequalities hold, and the minimum is the minimum."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isonomy.common.base.errors import ConfigError, DataError
from isonomy.company.gradient.run.bounds import (
    LEAST_QUANTILE,
    Tradeoff,
    dual_tradeoff,
    primal_tradeoff,
    subspace_tradeoff,
)


@settings(deadline=None, max_examples=100)
@given(
    st.lists(st.floats(0.01, 50), min_size=1, max_size=40),
    st.floats(0.01, 0.94),
    st.floats(0.1, 10),
)
def test_the_best_bound_is_least_on_a_fine_grid(
    lengths: list[float], part: float, weight: float
) -> None:
    tradeoff = Tradeoff(np.array(lengths), noise=part * weight, weight=weight)
    best = tradeoff.best
    grid = np.unique(np.concatenate([np.linspace(0, 55, 300), lengths]))
    assert float(tradeoff.bound(best)) <= float(tradeoff.bound(grid).min()) * (1 + 1e-12)
    slopes = np.diff(tradeoff.bound(np.linspace(0, 55, 300)))
    assert (np.diff(slopes) >= -1e-9).all()  # convex


def test_the_papers_condition_holds_at_the_minimum() -> None:
    lengths = np.arange(1.0, 101.0)
    tradeoff = Tradeoff(lengths, noise=0.3, weight=1.0)
    assert tradeoff.best == 70.0
    assert (lengths > 70).mean() == pytest.approx(0.3)


def test_equation_12_by_hand() -> None:
    tradeoff = primal_tradeoff(
        [1.0, 3.0], [0.5, -1.5], sigma=2.0, bound=5.0, entries=16, smallest_group=11
    )
    # 2·√16·2·5/10 · C  +  (0.5 + 1.5)·(0 + 1)/2 at C = 2
    assert float(tradeoff.variance(2.0)) == pytest.approx(16.0)
    assert float(tradeoff.bias(2.0)) == pytest.approx(1.0)
    assert float(tradeoff.bound(2.0)) == pytest.approx(17.0)


def test_equation_13_by_hand() -> None:
    tradeoff = dual_tradeoff([-4.0, 1.0], sigma=3.0, smallest_group=101)
    assert float(tradeoff.bound(2.0)) == pytest.approx(2**0.5 * 2 * 3 / 100 + 1.0)


@pytest.mark.parametrize("norm", [0.3, 1.0, 3.0])
def test_theorem_4_bounds_the_error_of_a_simulated_step(norm: float) -> None:
    """G̃ of Eq. (8) against G, with the paper's sensitivity, 200 draws of the noise."""
    rng = np.random.default_rng(0)
    people, size, lam, lam_max, sigma = 60, 25, np.array([0.4, 1.1]), 2.0, 1.5
    rows = rng.normal(size=(people, size)) * rng.uniform(0.02, 0.6, size=(people, 1))
    lengths = np.linalg.norm(rows, axis=1)
    groups = np.arange(people) % 2
    cut = rows * np.minimum(1.0, norm / lengths)[:, None]
    errors = []
    true = sum(weight * (rows.mean(0) - rows[groups == a].mean(0)) for a, weight in enumerate(lam))
    for _ in range(200):
        noise = rng.normal(size=size) * sigma * 2 * norm * lam_max / (people / 2 - 1)
        own = sum(
            weight * (rows.mean(0) - cut[groups == a].mean(0)) for a, weight in enumerate(lam)
        )
        errors.append(np.linalg.norm(true - own - noise))
    tradeoff = primal_tradeoff(
        lengths, lam, sigma=sigma, bound=lam_max, entries=size, smallest_group=people / 2
    )
    bound = float(tradeoff.bound(norm))
    assert np.mean(errors) <= bound
    assert np.mean(errors) > 0.2 * bound  # and it says something


@pytest.mark.parametrize("norm", [0.5, 2.0, 6.0])
def test_our_bound_holds_for_a_released_sum(norm: float) -> None:
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(40, 9)) * rng.uniform(0.1, 1.5, size=(40, 1))
    lengths = np.linalg.norm(rows, axis=1)
    weights = np.array([0.7, -0.4])
    u = weights[np.arange(40) % 2]
    cut = rows * np.minimum(1.0, norm / lengths)[:, None]
    noise = rng.normal(size=(300, 9)) * 1.2 * 1.1 * norm
    errors = np.linalg.norm(u @ rows - u @ cut - noise, axis=1)
    tradeoff = subspace_tradeoff(lengths, weights, sigma=1.2, rank=9)
    assert errors.mean() <= float(tradeoff.bound(norm))


def test_fewer_directions_allow_a_larger_bound() -> None:
    lengths = np.random.default_rng(0).gamma(2.0, size=256)
    few, many = (subspace_tradeoff(lengths, [1.0, -1.0], sigma=3.0, rank=r).best for r in (32, 400))
    assert few > many


def test_noise_that_dominates_leaves_the_shortest_rows() -> None:
    tradeoff = Tradeoff(np.arange(1.0, 101.0), noise=5.0, weight=1.0)
    assert tradeoff.noise_dominates
    assert tradeoff.best == LEAST_QUANTILE * 100
    zeros = Tradeoff(np.array([0.0, 0.0, 2.0]), noise=5.0, weight=1.0)
    assert zeros.best == 2.0  # a bound of 0 is none


def test_the_plot_shows_the_three_curves_and_the_minimum() -> None:
    tradeoff = Tradeoff(np.arange(1.0, 101.0), noise=0.3, weight=1.0)
    (panel,) = tradeoff.plot().panels
    assert [one.label for one in panel.series] == [
        "noise",
        "lost by clipping",
        "bound on the error",
    ]
    noise, lost, total = (np.array(one.points)[:, 1] for one in panel.series)
    np.testing.assert_allclose(total, noise + lost)
    assert panel.levels[0].value == 70.0


def test_bad_input_is_refused() -> None:
    with pytest.raises(DataError, match="at least one row"):
        Tradeoff(np.zeros(0), 1.0, 1.0)
    with pytest.raises(DataError, match="finite"):
        Tradeoff(np.array([1.0, np.nan]), 1.0, 1.0)
    with pytest.raises(ConfigError, match="above 0"):
        primal_tradeoff([1.0], [0.0], sigma=1.0, bound=1.0, entries=1, smallest_group=5)
    with pytest.raises(ConfigError, match="above 0"):
        dual_tradeoff([1.0], sigma=0.0, smallest_group=5)
    with pytest.raises(DataError, match="above 1"):
        dual_tradeoff([1.0], sigma=1.0, smallest_group=1)
