"""The papers' measures: against fairlearn, by hand, and the floor against closed forms."""

from __future__ import annotations

import fairlearn.metrics as fairlearn
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from isonomy.common.agreements.notions import NOTIONS
from isonomy.common.base.errors import ConfigError, DataError
from isonomy.company.rehearsal.measures import (
    equalized_odds_sum,
    group_fairness,
    noise_floor,
    rates,
    violation,
)

Ints = NDArray[np.int64]


def _sample(seed: int, people: int, groups: int) -> tuple[Ints, Ints, Ints]:
    """Every (group, label) cell holds people, as fairlearn needs it."""
    rng = np.random.default_rng(seed)
    group = np.concatenate([np.repeat(np.arange(groups), 2), rng.integers(groups, size=people)])
    truth = np.concatenate([np.tile([0, 1], groups), rng.integers(2, size=people)])
    return truth, rng.integers(2, size=len(truth)), group


FAIRLEARN = {
    "demographic_parity": fairlearn.demographic_parity_difference,
    "equalized_odds": fairlearn.equalized_odds_difference,
    "equal_opportunity": fairlearn.equal_opportunity_difference,
    "equal_fpr": lambda y, h, *, sensitive_features: fairlearn.MetricFrame(
        metrics=fairlearn.false_positive_rate,
        y_true=y,
        y_pred=h,
        sensitive_features=sensitive_features,
    ).difference(),
    "accuracy_parity": lambda y, h, *, sensitive_features: fairlearn.MetricFrame(
        metrics=lambda a, b: float(np.mean(a != b)),
        y_true=y,
        y_pred=h,
        sensitive_features=sensitive_features,
    ).difference(),
}


@pytest.mark.parametrize("notion", NOTIONS)
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32), people=st.integers(0, 200), groups=st.integers(2, 5))
def test_agrees_with_fairlearn(notion: str, seed: int, people: int, groups: int) -> None:
    truth, decisions, group = _sample(seed, people, groups)
    expected = FAIRLEARN[notion](truth, decisions, sensitive_features=group)
    assert violation(notion, truth, decisions, group, groups) == pytest.approx(expected, abs=1e-12)


def test_by_hand() -> None:
    group = np.array([0, 0, 0, 0, 1, 1, 1, 1])
    truth = np.array([1, 1, 0, 0, 1, 0, 0, 0])
    chosen = np.array([1, 0, 1, 0, 1, 0, 0, 0])
    # selected 2/4 and 1/4; true positives 1/2 and 1/1; false positives 1/2 and 0/3; wrong 2/4, 0/4
    expected = {
        "demographic_parity": 1 / 4,
        "equalized_odds": 1 / 2,
        "equal_opportunity": 1 / 2,
        "equal_fpr": 1 / 2,
        "accuracy_parity": 1 / 2,
    }
    for notion, value in expected.items():
        assert violation(notion, truth, chosen, group, 2) == pytest.approx(value)


def test_an_empty_group_is_left_out_and_has_no_rate() -> None:
    truth, chosen = np.array([0, 1, 0, 1]), np.array([1, 1, 0, 1])
    group = np.array([0, 0, 2, 2])  # nobody in group 1: its rate is not 0
    assert violation("demographic_parity", truth, chosen, group, 3) == pytest.approx(0.5)
    assert np.isnan(rates("demographic_parity", truth, chosen, group, 3)).tolist() == [
        [False, True, False]
    ]


def test_an_empty_label_cell_is_left_out_of_its_event_only() -> None:
    truth = np.array([0, 1, 0, 0])  # no positives in group 1
    chosen = np.array([0, 1, 1, 0])
    group = np.array([0, 0, 1, 1])
    value = violation("equalized_odds", truth, chosen, group, 2)
    assert value == pytest.approx(0.5)  # false positive rates alone
    true_positives, false_positives = rates("equalized_odds", truth, chosen, group, 2)
    assert np.isnan(true_positives).tolist() == [False, True]
    assert np.isfinite(false_positives).all()
    with pytest.raises(DataError, match="no event has people in two groups"):
        violation("equal_opportunity", truth, chosen, group, 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([0, 1], [0.2, 0.9], [0, 1], 2), "hard, not probabilities"),
        (([0, 1], [0, 1, 1], [0, 1], 2), "one length"),
        (([0, 2], [0, 1], [0, 1], 2), "0 or 1"),
        (([], [], [], 2), "nobody|integers"),
        (([0, 1], [0, 1], [0, 2], 2), "between 0 and 1"),
        (([0, 1], [0, 1], [0, 0], 1), "at least two groups"),
    ],
)
def test_bad_input(arguments: tuple[list[int], list[int], list[int], int], message: str) -> None:
    with pytest.raises(DataError, match=message):
        violation("demographic_parity", *arguments)


def test_unknown_notion() -> None:
    with pytest.raises(ConfigError, match="demographic_parity, equalized_odds"):
        violation("kindness", [0, 1], [0, 1], [0, 1], 2)


# --- The noise floor -----------------------------------------------------------------------------


def test_floor_of_two_groups_is_the_folded_normal_mean() -> None:
    """E|N(0, r(1 − r)(1/n₀ + 1/n₁))| = deviation·√(2/π)."""
    group = np.repeat([0, 1], [7_630, 3_676])
    chosen = (np.arange(len(group)) % 5 == 0).astype(int)
    deviation = np.sqrt(0.16 * (1 / 7_630 + 1 / 3_676))
    floor = noise_floor("demographic_parity", chosen, chosen, group, 2)
    assert floor == pytest.approx(deviation * np.sqrt(2 / np.pi), rel=0.04)


@pytest.mark.parametrize("notion", NOTIONS)
def test_floor_is_the_mean_violation_of_fair_decisions(notion: str) -> None:
    rng = np.random.default_rng(1)
    group, truth = rng.choice(3, 1_500, p=[0.6, 0.3, 0.1]), rng.integers(2, size=1_500)
    fair = [(rng.random(1_500) < 0.2 + 0.5 * truth).astype(int) for _ in range(300)]
    seen = np.mean([violation(notion, truth, chosen, group, 3) for chosen in fair])
    assert noise_floor(notion, truth, fair[0], group, 3) == pytest.approx(seen, rel=0.08)


def test_floor_of_repeated_people_counts_people() -> None:
    """Rows that repeat a person add no certainty; taken as independent they would seem to."""
    rng = np.random.default_rng(2)
    own_choice, own_group = rng.integers(2, size=60), rng.integers(2, size=60)
    people = np.repeat(np.arange(60), 50)
    chosen, group = own_choice[people], own_group[people]
    once = noise_floor("demographic_parity", own_choice, own_choice, own_group, 2)
    rows = noise_floor("demographic_parity", chosen, chosen, group, 2)
    by_person = noise_floor("demographic_parity", chosen, chosen, group, 2, people=people)
    assert by_person == pytest.approx(once, rel=0.1)
    assert rows < by_person / 4


def test_floor_is_reproducible_and_zero_without_choice() -> None:
    group, nobody = np.array([0, 1] * 50), np.zeros(100, dtype=int)
    assert noise_floor("demographic_parity", nobody, nobody, group, 2) == 0.0
    some = (np.arange(100) < 30).astype(int)
    first = noise_floor("demographic_parity", some, some, group, 2)
    assert first == noise_floor("demographic_parity", some, some, group, 2) > 0


# --- The measures of Wang et al. 2024 ------------------------------------------------------------


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32), people=st.integers(0, 200))
def test_group_fairness_is_24(seed: int, people: int) -> None:
    _, decisions, group = _sample(seed, people, 2)
    by_group = [decisions[group == a].mean() for a in (0, 1)]
    found = group_fairness(decisions, group)
    if by_group[1] == 0:
        assert np.isnan(found)
    else:
        assert found == pytest.approx(by_group[0] / by_group[1])
    if min(by_group) > 0:
        theirs = fairlearn.demographic_parity_ratio(decisions, decisions, sensitive_features=group)
        assert min(found, 1 / found) == pytest.approx(theirs)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32), people=st.integers(0, 200))
def test_equalized_odds_sum_is_26(seed: int, people: int) -> None:
    truth, decisions, group = _sample(seed, people, 2)
    expected = sum(
        sign * decisions[(group == a) & (truth == y)].mean()
        for y in (0, 1)
        for a, sign in ((0, 1), (1, -1))
    )
    assert equalized_odds_sum(truth, decisions, group) == pytest.approx(expected, abs=1e-12)
    assert abs(expected) <= 2 * violation("equalized_odds", truth, decisions, group, 2) + 1e-12


def test_equalized_odds_sum_may_cancel_where_11_does_not() -> None:
    group = np.array([0, 0, 1, 1])
    truth = np.array([1, 0, 1, 0])
    chosen = np.array([1, 0, 0, 1])
    assert equalized_odds_sum(truth, chosen, group) == 0.0
    assert violation("equalized_odds", truth, chosen, group, 2) == 1.0


def test_max_pairwise_is_over_all_pairs() -> None:
    """Tran et al. 2021: the largest difference between any two groups, not to the population."""
    group = np.repeat([0, 1, 2], 10)
    chosen = np.concatenate([np.arange(10) < k for k in (2, 5, 9)]).astype(int)
    truth = np.zeros(30, int)
    assert violation("demographic_parity", truth, chosen, group, 3) == pytest.approx(0.7)
