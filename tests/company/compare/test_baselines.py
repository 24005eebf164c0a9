"""Competitors for comparison: reductions, covariance, DP-SGD; exact small cases and refusals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from opacus import GradSampleModule
from opacus.accountants import RDPAccountant
from sklearn.linear_model import LogisticRegression

from isonomy.common.base.errors import ConfigError
from isonomy.company.compare.baselines import dp_sgd, linear_post, raco_dp, zafar
from isonomy.company.compare.baselines._reductions import mixture_weights, reduce
from isonomy.company.fair.tilt.notions import events_of
from isonomy.company.fair.tilt.rule import Tilt, decide, margins
from isonomy.company.rehearsal.datasets.lending import lending
from isonomy.company.rehearsal.measures import violation
from isonomy.company.rehearsal.settings import Settings
from isonomy.company.rehearsal.simulate import simulate
from isonomy.company.rehearsal.strategies import NOTIONS_OF
from isonomy.company.rehearsal.tables_and_plots import _plots, table

Floats = NDArray[np.float64]


@pytest.fixture(scope="module")
def people() -> tuple[Floats, NDArray[np.int64], NDArray[np.int64]]:
    rng = np.random.default_rng(5)
    group = rng.integers(0, 2, 2500)
    x = rng.normal(size=(2500, 3)) + 0.8 * group[:, None] * np.array([1.0, 0.5, 0.0])
    y = (x.sum(axis=1) + rng.normal(size=2500) > 0.6).astype(np.int64)
    return x, y, group


class TestMixture:
    def test_by_hand(self) -> None:
        """Errors .1 and .3, gaps .4 and −.2: a gap of 0 needs one third and two thirds."""
        chances = mixture_weights(np.array([0.1, 0.3]), np.array([[0.4], [-0.2]]), 0.0, 100.0)
        np.testing.assert_allclose(chances, [1 / 3, 2 / 3], atol=1e-7)
        loose = mixture_weights(np.array([0.1, 0.3]), np.array([[0.4], [-0.2]]), 0.4, 100.0)
        np.testing.assert_allclose(loose, [1, 0], atol=1e-7)

    def test_what_cannot_be_met_is_approached(self) -> None:
        chances = mixture_weights(np.array([0.1, 0.3]), np.array([[0.4], [0.2]]), 0.0, 100.0)
        np.testing.assert_allclose(chances, [0, 1], atol=1e-7)


@pytest.mark.parametrize("notion", ["demographic_parity", "equalized_odds"])
def test_reductions_on_true_groups(people, notion: str) -> None:
    x, y, group = people
    model = LogisticRegression()
    mixture = reduce(model, x, y, np.eye(2)[group], notion, 0.01, rounds=30)
    expected = np.zeros(len(y))  # without the coins' own spread
    for own, chance in zip(mixture.models, mixture.chances, strict=True):
        expected += chance * own.predict(x)
    cells = [np.ones(len(y), bool)] if notion == "demographic_parity" else [y == 0, y == 1]
    gaps = [expected[c & (group == 1)].mean() - expected[c & (group == 0)].mean() for c in cells]
    base = violation(notion, y, LogisticRegression().fit(x, y).predict(x), group, 2)
    assert base > 0.1
    assert np.abs(gaps).max() < 0.011
    drawn = mixture.decide(x, seed=0)
    assert abs(drawn.mean() - expected.mean()) < 0.04
    assert np.mean(drawn != y) < 0.35


class TestZafar:
    @pytest.mark.parametrize("notion", ["demographic_parity", "equalized_odds"])
    def test_the_covariance_is_zero(self, people, notion: str) -> None:
        x, y, group = people
        rows = np.column_stack([np.ones(len(x)), x])
        covariances = zafar.covariance_rows(rows, y, group, notion)
        free = zafar.fit(rows, y, np.zeros_like(covariances))
        assert np.abs(covariances @ free).max() > 0.01  # the bound binds
        strict = zafar.fit(rows, y, covariances)
        np.testing.assert_allclose(covariances @ strict, 0, atol=1e-9)

    def test_without_constraint_it_is_scikit_learns(self, people) -> None:
        x, y, _ = people
        rows = np.column_stack([np.ones(len(x)), x])
        theirs = LogisticRegression(tol=1e-8, max_iter=1000).fit(x, y)
        ours = zafar.fit(rows, y, np.zeros((1, rows.shape[1])))
        np.testing.assert_allclose(ours[1:], theirs.coef_[0], atol=2e-3)
        np.testing.assert_allclose(ours[0], theirs.intercept_[0], atol=2e-3)

    def test_covariance_by_hand(self) -> None:
        rows = np.array([[1.0, 2.0], [1.0, 4.0], [1.0, 6.0], [1.0, 12.0]])
        found = zafar.covariance_rows(
            rows, np.zeros(4), np.array([0, 1, 0, 1]), "demographic_parity"
        )
        np.testing.assert_allclose(found, [[0.0, 0.5 * (16 - 8) / 4]])


class TestDpSgd:
    def test_steps_and_counts_are_within_the_budget(self) -> None:
        sigma = dp_sgd.noise_multiplier(0.01, 500, 1.0, 1e-5)
        accountant = RDPAccountant()
        accountant.history = [(sigma, 0.01, 500), (dp_sgd.COUNT_NOISE, 1.0, 1)]
        assert 0.99 < accountant.get_epsilon(1e-5) <= 1.0
        with pytest.raises(ConfigError, match="no noise keeps"):
            dp_sgd.noise_multiplier(0.01, 500, 0.01, 1e-9)

    def test_each_person_moves_the_sums_by_at_most_the_clip(self) -> None:
        """The joint norm over all layers is what the noise is made for."""
        torch.manual_seed(0)
        model = dp_sgd.PenalisedLogistic(3, 2)
        private = GradSampleModule(model, loss_reduction="sum")
        optimizer = dp_sgd.SystemNoiseOptimizer(
            torch.optim.SGD(model.parameters(), lr=1.0),
            noise_multiplier=0.0,
            max_grad_norm=[0.6, 0.5, 0.4],
            expected_batch_size=1,
        )
        scores, penalty = private(
            100 * torch.randn(1, 3, requires_grad=True), torch.full((1, 2), 9.0)
        )
        torch.sum(scores + penalty).backward()
        optimizer.step()
        norms = [float(p.detach().norm()) for p in model.parameters()]
        np.testing.assert_allclose(norms, [0.6, 0.5, 0.4], atol=1e-3)
        assert optimizer.max_grad_norm == pytest.approx(np.linalg.norm([0.6, 0.5, 0.4]))

    def test_the_penalty_narrows_the_gap(self, people) -> None:
        """Without relevant noise: ρ = 0 is plain logistic regression, large ρ is fairer."""
        x, y, group = people
        gaps = {}
        for weight in (0.0, 50.0):
            recipe = dp_sgd.Recipe(epochs=12, lot=250, weight=weight, clip=5.0, learning_rate=0.5)
            model, spent = dp_sgd.fit(
                x, y, group, "demographic_parity", recipe, epsilon=200.0, delta=1e-5
            )
            assert spent <= 200.0
            with torch.no_grad():
                decided = (model.score(torch.as_tensor(x).float())[:, 0] > 0).numpy().astype(int)
            gaps[weight] = violation("demographic_parity", y, decided, group, 2)
            assert np.mean(decided != y) < 0.4
        assert gaps[50.0] < 0.5 * gaps[0.0]

    def test_lots_may_be_empty(self) -> None:
        rng = np.random.default_rng(0)
        x, y, group = rng.normal(size=(40, 2)), rng.integers(2, size=40), rng.integers(2, size=40)
        recipe = dp_sgd.Recipe(epochs=1, lot=1)
        model, _ = dp_sgd.fit(x, y, group, "equalized_odds", recipe, epsilon=5.0, delta=1e-3)
        assert all(bool(p.isfinite().all()) for p in model.parameters())

    @pytest.mark.parametrize("wrong", [{"epochs": 0}, {"clip": 0.0}, {"weight": -1.0}])
    def test_wrong_settings(self, wrong) -> None:
        with pytest.raises(ConfigError):
            dp_sgd.Recipe(**wrong)


class TestLinearPost:
    @pytest.mark.parametrize("notion", ["demographic_parity", "equalized_odds"])
    def test_the_rule_is_the_linear_programme_s(self, people, notion: str) -> None:
        """True groups as predictions: equal rates, and no rule of another λ nearby errs less."""
        x, y, group = people
        score = LogisticRegression().fit(x, y).predict_proba(x)
        events = events_of(notion, (0, 1))
        strata = 1 if notion == "demographic_parity" else 2
        cell = group + 2 * y if strata == 2 else group
        shares = np.bincount(cell, minlength=2 * strata) / len(y)
        joint = np.eye(2)[group]
        if strata == 2:
            joint = (score[:, :, None] * joint[:, None, :]).reshape(len(y), 4)
        rule = linear_post.Rule(events, shares.reshape(strata, 2))
        cost = rule.costs(score, joint)

        def outcome(lam: Floats) -> tuple[float, float]:
            """Expected error, and the largest expected gap beyond the tolerance."""
            chosen = decide(margins(score, cost, Tilt(lam)))
            rates = cost.rates(chosen[:, None] / len(y)).reshape(rule.shape)
            loss = float(np.mean(np.where(chosen == 1, score[:, 0], score[:, 1])))
            return loss, float(np.ptp(rates, axis=0).max() - 0.02)

        lam = linear_post.solve(score[:, 1], cost, rule.shape, 0.02)
        error, excess = outcome(lam)
        assert outcome(np.zeros(rule.shape))[1] > 0.1
        assert excess < 0.005  # a few people lie on the line, whom the programme splits
        np.testing.assert_allclose(lam.sum(axis=0), 0, atol=1e-9)
        for factor in (0.8, 0.9, 1.1, 1.2):
            other, beyond = outcome(factor * lam)
            assert other > error - 0.002 or beyond > excess

    def test_a_tolerance_that_is_met_changes_nothing(self, people) -> None:
        x, y, group = people
        score = LogisticRegression().fit(x, y).predict_proba(x)
        rule = linear_post.Rule(
            events_of("demographic_parity", (0, 1)), np.bincount(group)[None] / len(y)
        )
        cost = rule.costs(score, np.eye(2)[group])
        np.testing.assert_allclose(linear_post.solve(score[:, 1], cost, (2, 1), 0.99), 0)


class TestRacoDp:
    def test_the_budget_is_kept(self) -> None:
        rows, group = np.ones((50, 1)), np.arange(50) % 3
        cells = raco_dp.Cells.of(group % 2, group, "equalized_odds")
        recipe = raco_dp.Recipe(epochs=2, lot=10)
        theta, spent = raco_dp.fit(
            rows, group % 2, cells, recipe, tolerance=0.0, epsilon=1.0, delta=1e-3
        )
        assert 0.9 < spent <= 1.0
        assert np.isfinite(theta).all()

    def test_one_person_moves_the_histogram_by_at_most_root_two(self) -> None:
        cells = raco_dp.Cells.of(np.array([0, 1, 1]), np.array([0, 2, 1]), "equalized_odds")
        whole = cells.histogram(np.array([0, 1, 2]), np.array([0.2, 1.0, 0.5]))
        part = cells.histogram(np.array([0, 2]), np.array([0.2, 0.5]))
        assert whole.shape == (2, 2, 3)
        assert np.linalg.norm(whole - part) == pytest.approx(np.sqrt(2))
        assert whole[1].sum() == 3

    @pytest.mark.parametrize("notion", ["demographic_parity", "equalized_odds"])
    def test_multipliers_narrow_the_gap(self, people, notion: str) -> None:
        """Without relevant noise."""
        x, y, group = people
        rows, gaps = np.column_stack([np.ones(len(x)), x]), {}
        cells = raco_dp.Cells.of(y, group, notion)
        for tolerance in (1.0, 0.02):
            recipe = raco_dp.Recipe(epochs=15, lot=500, clip=5.0)
            theta, _ = raco_dp.fit(
                rows, y, cells, recipe, tolerance=tolerance, epsilon=300.0, delta=1e-5
            )
            decided = (rows @ theta > 0).astype(np.int64)
            gaps[tolerance] = violation(notion, y, decided, group, 2)
            assert np.mean(decided != y) < 0.4
        assert gaps[0.02] < 0.5 * gaps[1.0]

    @pytest.mark.parametrize("wrong", [{"epochs": 0}, {"histogram_share": 1.0}, {"clip": 0.0}])
    def test_wrong_settings(self, wrong) -> None:
        with pytest.raises(ConfigError):
            raco_dp.Recipe(**wrong)


# --- In a rehearsal ------------------------------------------------------------------------------

QUICK = {
    "dp_postprocess": {},
    "dp_oracle": {"rounds": 3},
    "exponentiated_gradient": {"max_iter": 5},
    "linear_post": {},
    "threshold_optimizer": {},
    "zafar": {},
    "randomised_response": {"rounds": 4},
    "dp_sgd_penalty": {"epochs": 2},
    "raco_dp": {"epochs": 2, "lot": 256},
}
NOT_PRIVATE = ("exponentiated_gradient", "linear_post", "threshold_optimizer", "zafar")
NEED_EVERYBODY_S = ("dp_postprocess", "threshold_optimizer")  # attribute, to decide


@pytest.mark.parametrize("strategy", QUICK)
def test_every_competitor_rehearses(strategy: str) -> None:
    settings = Settings(
        strategy=strategy,
        notion="equalized_odds",
        base="logistic",
        epsilons=(8.0,),  # few people: at 1 the noise alone may decide
        seeds=1,
        options=QUICK[strategy],
    )
    result = simulate(lending(900, seed=1), settings).results[0]
    (run,) = result.runs
    assert run.returned == strategy
    assert 0 < run.test_error < 0.5
    shown = result.to_json()
    assert shown.get("attribute_at_prediction", False) is (strategy in NEED_EVERYBODY_S)
    if strategy in NOT_PRIVATE:
        assert run.epsilon_spent == float("inf")
        assert shown["runs"][0]["epsilon_spent"] is None
        assert "true attributes" in shown["accounting"]
    else:
        assert 7.0 < run.epsilon_spent <= 8.0
    if strategy in ("dp_postprocess", "randomised_response"):
        assert "pure ε" in shown["accounting"]
    elif strategy in ("dp_sgd_penalty", "raco_dp"):
        assert "trusted" in shown["accounting"]


@pytest.mark.parametrize("strategy", NOTIONS_OF)
def test_other_notions_are_refused_before_anything_is_read(strategy: str) -> None:
    with pytest.raises(ConfigError, match=f"{strategy} is for"):
        Settings(strategy=strategy, notion="accuracy_parity")


@pytest.mark.parametrize(
    "strategy", [*NOT_PRIVATE, "randomised_response", "dp_sgd_penalty", "raco_dp"]
)
def test_what_needs_attributes_is_no_protocol(strategy: str) -> None:
    settings = Settings(
        strategy=strategy, notion="equalized_odds", base="logistic", seeds=1, encrypted=True
    )
    with pytest.raises(ConfigError, match="without encryption"):
        simulate(lending(300, seed=1), settings)


def test_wrong_options_and_base_models() -> None:
    few = lending(300, seed=1)
    for strategy, base, options, text in (
        ("zafar", "gbdt", {}, "logistic"),
        ("dp_sgd_penalty", "gbdt", {}, "logistic"),
        ("raco_dp", "gbdt", {}, "logistic"),
        ("zafar", "logistic", {"fraction": 2}, "no option fraction"),
        ("randomised_response", "logistic", {"epochs": 3}, "no option epochs"),
        ("dp_oracle", "logistic", {"bound": "paper"}, "must be a number"),
    ):
        settings = Settings(
            strategy=strategy, notion="equalized_odds", base=base, seeds=1, options=options
        )
        with pytest.raises(ConfigError, match=text):
            simulate(few, settings)


def test_what_decides_by_attribute_says_so_beside_its_numbers() -> None:
    aware = Settings(strategy="dp_postprocess", notion="equal_fpr", base="logistic", seeds=1)
    blind = replace(aware, strategy="dp_oracle", options={"rounds": 2})
    few = lending(600, seed=1)
    for settings, said in ((aware, True), (blind, False)):
        simulation = simulate(few, settings)
        assert ("reveal, the attribute" in str(table(simulation).caption)) is said
        assert ("reveal, the attribute" in _plots(simulation)) is said
        assert simulation.results[0].to_json().get("attribute_at_prediction", False) is said
