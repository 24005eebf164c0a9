"""The constraint's weights and dual step in an exact small case; GF and EO against fairlearn."""

from __future__ import annotations

import numpy as np
import pytest
from fairlearn.metrics import (
    MetricFrame,
    demographic_parity_ratio,
    equalized_odds_difference,
    selection_rate,
)
from few_shot_kit import SeededBytes, tiny_pool, tiny_settings
from hypothesis import given, settings
from hypothesis import strategies as st

from isonomy.common.base.errors import DataError
from isonomy.common.few_shot.learning._fair import OddsMultipliers, cells_of, one_hot
from isonomy.common.few_shot.learning._measures import measures
from isonomy.common.few_shot.learning.evaluate import TestSet, evaluate
from isonomy.common.few_shot.learning.learners import RegulatorLearner
from isonomy.common.few_shot.learning.models import Network


def test_weights_make_the_mean_penalty_the_lagrangian_of_the_violations() -> None:
    """mean_i u(A_i, y_i)·s_i = Σ_e λ_e (E[s | 1, e] − E[s | 0, e]) for exact shares."""
    rng = np.random.default_rng(0)
    groups, halves = rng.integers(0, 2, 60).astype(np.int8), rng.integers(0, 2, 60).astype(bool)
    cells, soft = cells_of(groups, halves), rng.random(60)
    counts = np.bincount(cells, minlength=4).astype(float)
    multipliers = OddsMultipliers(counts / 60, np.array([0.7, -1.3]))
    gaps = [
        soft[(groups == 1) & (halves == e)].mean() - soft[(groups == 0) & (halves == e)].mean()
        for e in (False, True)
    ]
    assert (multipliers.weights(cells) * soft).mean() == pytest.approx(
        0.7 * gaps[0] - 1.3 * gaps[1]
    )
    sums = one_hot(cells, soft - 0.5).sum(axis=0)
    assert multipliers.violations(sums, 60) == pytest.approx(np.array(gaps))


@settings(deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=2), st.floats(0.01, 10))
def test_multipliers_stay_within_their_bound(violation: list[float], bound: float) -> None:
    multipliers = OddsMultipliers(np.full(4, 0.25), np.zeros(2)).step(
        np.array(violation), 1.0, bound
    )
    assert (np.abs(multipliers.lam) <= bound).all()


def test_shares_that_noise_made_negative_are_lifted() -> None:
    multipliers = OddsMultipliers.start(np.array([-5.0, 0.0, 30.0, 70.0]), 100, 9.0)
    assert multipliers.shares.tolist() == [0.09, 0.09, 0.3, 0.7]
    assert np.isfinite(multipliers.weights(np.arange(4))).all()


def test_shares_are_released_once_and_charged_to_everyone() -> None:
    settings = tiny_settings(method="pf_ld")
    regulator = RegulatorLearner(settings, tiny_pool(), _source=SeededBytes(0))
    theta = regulator.network.initial(0)
    first = regulator.contribute(0, theta).spent
    price = -(-(10**12) * 10**12 // settings.share_noise**2)
    assert int(first.min()) == pytest.approx(price, rel=1e-6)  # those who were in no task
    idle = first == first.min()
    second = regulator.contribute(1, theta).spent
    assert (second[idle] == first[idle]).any()  # nobody pays for the shares again


def test_dual_ascent_follows_the_sign_of_a_violation() -> None:
    """A θ that decides by the group alone: λ must rise for the label where A = 1 is chosen more."""
    settings = tiny_settings(
        method="fair", inner_rate=1, dual_rate=100_000, regulator_tasks=3, width=4
    )
    pool = tiny_pool(each=20)
    network = Network.of(settings)
    regulator = RegulatorLearner(settings, pool, _source=SeededBytes(1))
    theta = network.initial(0) * 0
    regulator.contribute(0, theta)
    round_ = regulator._round
    assert round_ is not None
    assert round_.multipliers is not None
    flat = round_.multipliers.violations(np.zeros(4), 10)
    assert flat == pytest.approx(np.zeros(2))
    chosen_more = round_.multipliers.violations(np.array([-1.0, 0.0, 1.0, 0.0]), 10)
    assert chosen_more[0] > 0
    assert round_.multipliers.step(chosen_more, 0.1, 2.0).lam[0] > round_.multipliers.lam[0]


# --- Measures -------------------------------------------------------------------------------------


def _decisions(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    groups, actual = rng.integers(0, 2, 400).astype(np.int8), rng.integers(0, 2, 400).astype(bool)
    chance = 0.2 + 0.4 * actual + 0.3 * groups
    return rng.random(400) < chance, actual, groups


@pytest.mark.parametrize("seed", range(5))
def test_gf_and_eo_agree_with_fairlearn(seed: int) -> None:
    decided, actual, groups = _decisions(seed)
    figures = measures(decided.astype(int), actual.astype(int), decided, actual, groups)
    rates = MetricFrame(
        metrics=selection_rate, y_true=actual, y_pred=decided, sensitive_features=groups
    ).by_group
    assert figures.gf == pytest.approx(rates[0] / rates[1])
    ratio = demographic_parity_ratio(actual, decided, sensitive_features=groups)
    assert min(figures.gf, 1 / figures.gf) == pytest.approx(ratio)
    odds = equalized_odds_difference(actual, decided, sensitive_features=groups)
    assert figures.odds == pytest.approx(odds)
    gaps = [
        decided[(groups == 0) & (actual == y)].mean()
        - decided[(groups == 1) & (actual == y)].mean()
        for y in (False, True)
    ]
    assert figures.eo == pytest.approx(sum(gaps))


def test_a_perfect_classifier_is_fair_on_balanced_queries() -> None:
    actual = np.tile([True, False], 20)
    groups = np.repeat([0, 1], 20).astype(np.int8)
    figures = measures(actual.astype(int), actual.astype(int), actual, actual, groups)
    assert (figures.accuracy, figures.gf, figures.eo, figures.odds) == (1.0, 1.0, 0.0, 0.0)


def test_a_group_that_is_missing_is_an_error_and_not_a_number() -> None:
    actual = np.array([True, False])
    with pytest.raises(DataError, match="lack one of the groups"):
        measures(np.zeros(2, int), np.zeros(2, int), actual, actual, np.zeros(2, np.int8))


def test_balanced_queries_hold_every_image_in_both_groups() -> None:
    """A θ that cannot see the group is fair on balanced queries, whatever it decides."""
    pool = tiny_pool(each=10)
    settings = tiny_settings(method="none")
    blind = pool.inputs.copy()
    result = evaluate(
        Network.of(settings).initial(1), settings, TestSet(pool, blind), tasks=10, seed=0
    )
    assert result.balanced.gf == pytest.approx(1.0)
    assert result.balanced.eo == pytest.approx(0.0)
    assert result.natural.eo != pytest.approx(0.0)
