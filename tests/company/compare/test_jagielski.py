"""DP-postprocessing and DP-oracle-learner: exact small cases, and traps."""

from __future__ import annotations

import itertools
import warnings
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from isonomy.common.base.errors import ConfigError, DataError
from isonomy.common.sums.local import LocalOracle
from isonomy.common.sums.oracle import GroupOracle
from isonomy.company.compare.jagielski.game import Auditor
from isonomy.company.compare.jagielski.oracle_learner import Recipe, Training, mixture, play
from isonomy.company.compare.jagielski.postprocess import (
    AttributeNeededWarning,
    PostprocessedClassifier,
    person_of_row,
    solve,
)

SEEDS = st.integers(0, 2**32 - 1)
HIGHS = 2e-7  # how far HiGHS lets a constraint be missed (1e-7), after the clip to [0, 1]


def rates_of(counts: NDArray[np.float64], p: NDArray[np.float64]) -> NDArray[np.float64]:
    """(label, group) rates of positive decisions, straight from the definition."""
    chosen = np.einsum("yal,ya->la", counts, p)
    return np.asarray(chosen / counts.sum(axis=0).T)


def error_of(counts: NDArray[np.float64], p: NDArray[np.float64]) -> float:
    wrong = counts[:, :, 0] * p + counts[:, :, 1] * (1 - p)
    return float(wrong.sum() / counts.sum())


class TestLinearProgram:
    @settings(max_examples=30, deadline=None)
    @given(SEEDS, st.integers(2, 4), st.floats(0, 0.3))
    def test_the_rule_is_fair_and_no_grid_point_is_better(
        self, seed: int, groups: int, gamma: float
    ) -> None:
        rng = np.random.default_rng(seed)
        counts = rng.integers(1, 200, size=(2, groups, 2)).astype(float)
        rule = solve(counts, gamma)
        rates = rates_of(counts, rule)
        assert np.abs(rates[:, 1:] - rates[:, :1]).max() <= gamma + HIGHS
        for point in rng.random((300, 2, groups)):
            other = rates_of(counts, point)
            if np.abs(other[:, 1:] - other[:, :1]).max() <= gamma:
                assert error_of(counts, point) >= error_of(counts, rule) - HIGHS

    def test_an_exact_case(self) -> None:
        """Two groups, a perfect base model in one and a coin in the other, γ = 0, by hand.

        Group 1's base decisions say nothing, so FP_1 = TP_1 for every p; equality then forces
        FP_0 = TP_0: decide alike for everybody. Both labels are equally common: error ½.
        """
        counts = np.zeros((2, 2, 2))
        counts[0, 0, 0] = counts[1, 0, 1] = 100
        counts[:, 1, :] = 50
        assert error_of(counts, solve(counts, 0.0)) == pytest.approx(0.5)
        # With γ = 1 nothing binds: group 0 is decided perfectly, group 1 by a coin.
        assert error_of(counts, solve(counts, 1.0)) == pytest.approx(0.25)

    @pytest.mark.parametrize("notion", ["equal_fpr", "equal_opportunity"])
    def test_halves_bind_one_label_only(self, notion: str) -> None:
        counts = np.array([[[80, 30], [60, 5]], [[20, 70], [40, 95]]], dtype=float)
        both, half = solve(counts, 0.0), solve(counts, 0.0, notion)
        assert error_of(counts, half) < error_of(counts, both)
        label = 0 if notion == "equal_fpr" else 1
        rates = rates_of(counts, half)
        assert rates[label, 0] == pytest.approx(rates[label, 1], abs=1e-9)
        assert abs(rates[1 - label, 0] - rates[1 - label, 1]) > 0.01

    def test_counts_below_zero(self) -> None:
        counts = np.array([[[80.0, -3.0], [60, 5]], [[-1.0, 70], [40, 95]]])
        rule = solve(counts, 0.0)
        assert ((rule >= 0) & (rule <= 1)).all()

    def test_a_cell_without_people_is_not_compared(self) -> None:
        counts = np.array([[[80.0, 30.0], [60, -4]], [[20, 70], [40, -2]]])
        kept = np.maximum(counts, 0.0)
        # The label 1 has people of one group only: it is as if label 0 alone were compared.
        assert error_of(kept, solve(counts, 0.0)) == pytest.approx(
            error_of(kept, solve(counts, 0.0, "equal_fpr"))
        )

    def test_only_noise(self) -> None:
        with pytest.raises(DataError, match="no released count"):
            solve(np.full((2, 2, 2), -1.0), 0.0)

    @pytest.mark.parametrize("gamma", [-0.1, 1.5, float("nan")])
    def test_tolerance(self, gamma: float) -> None:
        with pytest.raises(ConfigError, match="γ"):
            solve(np.ones((2, 2, 2)), gamma)


class TestAuditor:
    def test_multipliers_are_those_of_the_paper(self) -> None:
        auditor = Auditor(3, (0, 1), gamma=0.1, bound=5.0, step=1.0)
        rates = np.array([[0.1, 0.3, 0.2], [0.7, 0.6, 0.9]])
        auditor.learn(rates)
        theta = []
        for label, group, sign in itertools.product((0, 1), (1, 2), (1, -1)):
            theta.append(sign * (rates[label, group] - rates[label, 0]) - 0.1)
        weights = np.exp(theta)
        expected = 5.0 * weights / (1 + weights.sum())
        np.testing.assert_allclose(auditor.multipliers().ravel(), expected, rtol=1e-12)

    def test_costs_are_those_of_subroutine_2(self) -> None:
        auditor = Auditor(3, (0, 1), gamma=0.0, bound=2.0, step=1.0)
        auditor.learn(np.array([[0.1, 0.3, 0.2], [0.7, 0.6, 0.9]]))
        lam, shares = auditor.multipliers(), np.array([[0.2, 0.1, 0.2], [0.3, 0.1, 0.1]])
        costs = auditor.costs(shares)
        for label in (0, 1):
            signed = lam[label, :, 0] - lam[label, :, 1]
            assert costs[label, 0] == pytest.approx(-signed.sum() / shares[label, 0])
            assert costs[label, 1] == pytest.approx(signed[0] / shares[label, 1])

    def test_large_steps_do_not_overflow(self) -> None:
        auditor = Auditor(2, (0,), gamma=0.0, bound=3.0, step=1e6)
        auditor.learn(np.array([[0.0, 1.0]]))
        assert auditor.multipliers().sum() == pytest.approx(3.0)


# --- On an oracle ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lending() -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64], list[str]]:
    rng = np.random.default_rng(3)
    group = rng.integers(0, 2, 3000)
    x = rng.normal(size=(3000, 4)) + 0.7 * group[:, None] * np.array([1, 0.5, 0, 0])
    y = (x.sum(axis=1) + rng.normal(size=3000) > 0.6).astype(np.int64)
    return x, y, group, [f"p{n}" for n in range(3000)]


@pytest.fixture
def oracle(lending, tmp_path) -> GroupOracle:
    _, _, group, ids = lending
    values = {"sex": ["f" if g else "m" for g in group]}
    return LocalOracle.rehearse(
        ids, values, epsilon=1.0, delta=1e-6, groups={"sex": ["m", "f"]}, folder=tmp_path
    )


def test_postprocessing(lending, oracle: GroupOracle) -> None:
    x, y, group, ids = lending
    model = PostprocessedClassifier(
        estimator=LogisticRegression(), tolerance=0.0, oracle=oracle, random_state=0
    ).fit(x, y, ids=ids)
    labels = [("m", "f")[g] for g in group]
    with pytest.warns(AttributeNeededWarning, match="learns about it"):
        decided = model.predict(x, sensitive_features=labels)
    base = model.estimator_.predict(x)
    chances = model.rule_[base, group]  # without the coins' own spread
    assert abs(decided.mean() - chances.mean()) < 0.06  # four deviations of 3,000 coins

    def gap(d: NDArray[np.float64]) -> float:
        return max(
            abs(d[(group == 0) & (y == v)].mean() - d[(group == 1) & (y == v)].mean())
            for v in (0, 1)
        )

    assert gap(chances) < 0.5 * gap(base)
    # One Laplace release within the cap: pure ε below the plan's, never the whole ε as a location.
    assert 0.9 < oracle.budget.spent_epsilon <= 1.0
    assert np.abs(model.counts_ - np.round(model.counts_)).max() > 0


def training(lending, oracle: GroupOracle) -> Training:
    x, y, _, ids = lending
    rows = np.column_stack([np.ones(len(x)), x])
    return Training(rows, y, person_of_row(oracle, ids), (0, 1))


def test_one_budget_for_both_players(lending, oracle: GroupOracle) -> None:
    """T rounds of learner and auditor and the count together: at most the plan's ε."""
    table = training(lending, oracle)
    rules = play(oracle, "sex", table, 0.0, Recipe(rounds=5))
    assert rules.shape == (5, 5)
    assert oracle.budget.spent_epsilon <= 1.0
    assert oracle.budget.remaining_share < 0.05
    chances = mixture(rules, table.rows)
    assert set(np.round(chances * 5, 9)) <= {0, 1, 2, 3, 4, 5}
    draws = np.random.default_rng(0).random(len(chances))
    assert np.mean((draws < chances) != table.label) < 0.35


def test_the_game_finds_the_fair_mixture_without_noise(lending, tmp_path) -> None:
    """At an ε where noise vanishes the gap closes; without constraint pressure it does not."""
    _, y, group, ids = lending
    gaps = {}
    for bound in (1e-6, 2.0):
        values = {"sex": ["f" if g else "m" for g in group]}
        (tmp_path / str(bound)).mkdir()
        free = LocalOracle.rehearse(
            ids,
            values,
            epsilon=500.0,
            delta=1e-6,
            groups={"sex": ["m", "f"]},
            folder=tmp_path / str(bound),
        )
        table = training(lending, free)
        rules = play(free, "sex", table, 0.0, Recipe(rounds=30, bound=bound))
        chances = mixture(rules, table.rows)
        gaps[bound] = max(
            abs(chances[(group == 0) & (y == v)].mean() - chances[(group == 1) & (y == v)].mean())
            for v in (0, 1)
        )
    assert gaps[2.0] < 0.5 * gaps[1e-6]


class TestBadInput:
    def test_no_attribute_at_prediction(self, lending, oracle: GroupOracle) -> None:
        x, y, _, ids = lending
        model = PostprocessedClassifier(estimator=LogisticRegression(), oracle=oracle).fit(
            x, y, ids=ids
        )
        with pytest.raises(ConfigError, match="sensitive_features"):
            model.predict(x)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", AttributeNeededWarning)
            with pytest.raises(DataError, match="no group"):
                model.predict(x, sensitive_features=["x"] * len(x))

    def test_nothing_is_spent_on_wrong_settings(self, lending, oracle: GroupOracle) -> None:
        x, y, _, ids = lending
        model = partial(PostprocessedClassifier, estimator=LogisticRegression(), oracle=oracle)
        for wrong in ({"notion": "demographic_parity"}, {"share": 0.0}):
            with pytest.raises(ConfigError):
                model(**wrong).fit(x, y, ids=ids)
        with pytest.raises(DataError, match="two classes"):
            model().fit(x, np.zeros(len(x)), ids=ids)
        with pytest.raises(DataError, match="one row"):
            model().fit(x, y, ids=[ids[0], *ids[:-1]])
        assert oracle.budget.spent_units == 0

    @pytest.mark.parametrize(
        "wrong", [{"rounds": 0}, {"bound": 0.0}, {"share": 1.5}, {"rounds": "paper"}]
    )
    def test_a_recipe_is_checked(self, wrong: dict[str, Any]) -> None:
        with pytest.raises(ConfigError):
            Recipe(**wrong)
