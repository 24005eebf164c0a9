"""The search against exact solutions of tiny problems, and the notions against fairlearn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from fairlearn.metrics import (
    MetricFrame,
    demographic_parity_difference,
    equal_opportunity_difference,
    equalized_odds_difference,
    false_positive_rate,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from sklearn.metrics import zero_one_loss

from isonomy.company.fair.tilt.notions import Event, events_of
from isonomy.company.fair.tilt.rule import Tilt, costs, decide, margins, probabilities
from isonomy.company.fair.tilt.search import (
    Draws,
    Landscape,
    balance,
    bisect,
    prices,
    search,
    weighted_quantile,
)


def violation(
    events: Sequence[Event], decided: np.ndarray, y: np.ndarray, groups: np.ndarray
) -> float:
    """The exact violation, with the groups in hand."""
    worst = 0.0
    for event in events:
        members, z = event.members(y), event.happened(decided, y)
        present = np.unique(groups[members])
        rates = [float(z[members & (groups == group)].mean()) for group in present]
        worst = max(worst, max(rates) - min(rates)) if rates else worst
    return worst


def landscape(
    notion: str, tolerance: float, *, n: int = 4000, groups: int = 2, seed: int = 0
) -> tuple[Landscape, np.ndarray]:
    """People whose group is known exactly: the proxy is perfect, the estimates are the truth."""
    rng = np.random.default_rng(seed)
    a = rng.integers(0, groups, n)
    f = rng.beta(1.5 + a, 3.0, n)
    y = (rng.random(n) < f).astype(np.int64)
    events = events_of(notion, (0, 1))
    member = np.eye(groups)[a]
    by_label = any(event.by_label for event in events)
    # A rule for equal errors needs people whose group is in doubt: with none, a whole group flips.
    doubt = rng.uniform(0.2, 0.8, (n, 1))
    guess = doubt * member + (1 - doubt) / groups if notion == "accuracy_parity" else member
    proxy = np.stack([guess, guess]) if by_label else member[None]
    weight = np.ones(n)
    shares = (
        np.stack([member[y == c].sum(axis=0) for c in (0, 1)]) if by_label else member.sum(0)[None]
    ) / n
    proba = np.column_stack([1 - f, f])
    counts = np.column_stack([member[e.members(y)].sum(axis=0) for e in events])
    land = Landscape(
        events=events,
        blocks=(slice(0, groups),),
        y=y,
        weight=weight,
        proba=proba,
        cost=costs(events, proba, proxy, shares),
        member=member,
        counts=counts,
        tolerance=np.full((1, len(events)), tolerance),
    )
    return land, a


def sure(land: Landscape, deviation: float = 0.002) -> Draws:
    """Estimates that are nearly exact: the same few draws for any decisions."""
    draws = deviation * np.random.default_rng(0).standard_normal((64, *land.shape))
    return lambda decided: draws


def expected_error(land: Landscape, decided: np.ndarray) -> float:
    f = land.proba[:, 1]
    return float(np.mean(np.where(decided == 1, 1 - f, f)))


def exact_optimum(land: Landscape, a: np.ndarray, tolerance: float) -> float:
    """Least expected error of any (randomised) rule with demographic parity, by linear program."""
    f = land.proba[:, 1]
    n, groups = len(f), a.max() + 1
    gaps = []
    for i in range(groups):
        for j in range(groups):
            if i != j:
                gaps.append((a == i) / (a == i).sum() - (a == j) / (a == j).sum())
    found = linprog(
        (1 - 2 * f) / n, A_ub=np.array(gaps), b_ub=[tolerance] * len(gaps), bounds=(0, 1)
    )
    return float(found.fun + f.mean())


@pytest.mark.parametrize("tolerance", [0.0, 0.05])
def test_perfect_proxy_reaches_the_exact_optimum_of_two_groups(tolerance: float) -> None:
    land, a = landscape("demographic_parity", tolerance, n=1500)
    decided, _ = land.decide(search(land, sure(land)))
    assert violation(land.events, decided, land.y, a) <= tolerance + 2e-3
    assert expected_error(land, decided) == pytest.approx(
        exact_optimum(land, a, tolerance), abs=5e-4
    )


def test_perfect_proxy_reaches_the_exact_optimum_of_four_groups() -> None:
    land, a = landscape("demographic_parity", 0.04, n=1500, groups=4)
    decided, _ = land.decide(search(land, sure(land)))
    assert violation(land.events, decided, land.y, a) <= 0.04 + 5e-3
    assert expected_error(land, decided) == pytest.approx(exact_optimum(land, a, 0.04), abs=3e-3)


@pytest.mark.parametrize(
    "notion", ["equalized_odds", "equal_opportunity", "equal_fpr", "accuracy_parity"]
)
def test_each_notion_comes_within_its_tolerance(notion: str) -> None:
    land, a = landscape(notion, 0.03)
    base, _ = land.decide(Tilt.none(*land.shape))
    decided, _ = land.decide(search(land, sure(land)))
    assert violation(land.events, base, land.y, a) > 0.06
    assert violation(land.events, decided, land.y, a) <= 0.03 + 5e-3


def test_bisection_finds_the_smallest_tilt() -> None:
    land, _ = landscape("demographic_parity", 0.05)
    tilt = bisect(land)
    rates = land.rates(land.decide(tilt)[0])
    assert np.ptp(rates) <= 0.05
    assert np.ptp(land.rates(land.decide(tilt.times(0.99))[0])) > 0.05
    assert tilt.lam.sum() == pytest.approx(0)


def test_a_base_model_within_tolerance_gets_no_tilt() -> None:
    land, _ = landscape("demographic_parity", 0.9)
    assert search(land, sure(land)).size == 0


def test_prices_and_bisection_agree() -> None:
    land, _ = landscape("demographic_parity", 0.02)
    one, two = bisect(land), balance(land, sure(land), Tilt.none(2, 1), 1.0)
    assert two.lam[0, 0] == pytest.approx(one.lam[0, 0], rel=0.1)


@pytest.mark.parametrize("notion", ["demographic_parity", "equalized_odds"])
def test_the_selection_rate_is_kept(notion: str) -> None:
    land, _ = landscape(notion, 0.02)
    rate = float((land.proba[:, 1] > 0.5).mean())
    kept = replace(land, keep_rate=rate)
    tilt = search(kept, sure(kept))
    decided = decide(margins(land.proba, land.cost, tilt))  # the offset is in the tilt
    assert decided.mean() == pytest.approx(rate, abs=2e-3)
    assert kept.excess(kept.rates(decided)).max() <= 5e-3


def test_no_more_than_the_price_is_paid() -> None:
    land, a = landscape("demographic_parity", 0.01, groups=3)
    cheap, full = search(land, sure(land), price=0.03), search(land, sure(land))
    assert cheap.size <= 0.03 < full.size
    left = [violation(land.events, land.decide(t)[0], land.y, a) for t in (cheap, full)]
    assert left[0] > 0.05 > left[1]


def test_prices_are_how_often_a_group_is_at_an_end() -> None:
    land, _ = landscape("demographic_parity", 0.05, groups=3)
    rates = np.array([[0.5, 0.4, 0.1], [0.1, 0.2, 0.3], [0.42, 0.4, 0.38]])[:, :, None]
    np.testing.assert_allclose(prices(land, rates)[:, 0] * 3, [0, 0, 0])
    assert prices(land, rates[:1])[:, 0].tolist() == [1, 0, -1]
    assert not prices(land, rates[2:]).any()  # within the tolerance
    # A group that is as likely to be the highest as the lowest is not chased.
    unsure = np.array([[0.5, 0.3, 0.9], [0.5, 0.3, 0.1]])[:, :, None]
    assert prices(land, unsure)[2, 0] == 0


# --- Notions ------------------------------------------------------------------------------------

_metrics = {
    "demographic_parity": demographic_parity_difference,
    "equalized_odds": equalized_odds_difference,
    "equal_opportunity": equal_opportunity_difference,
    "equal_fpr": lambda y, h, *, sensitive_features: MetricFrame(
        metrics=false_positive_rate, y_true=y, y_pred=h, sensitive_features=sensitive_features
    ).difference(),
    "accuracy_parity": lambda y, h, *, sensitive_features: MetricFrame(
        metrics=zero_one_loss, y_true=y, y_pred=h, sensitive_features=sensitive_features
    ).difference(),
}


@pytest.mark.parametrize("notion", sorted(_metrics))
@pytest.mark.parametrize("groups", [2, 4])
def test_violation_is_fairlearns(notion: str, groups: int) -> None:
    rng = np.random.default_rng(groups)
    a, y = rng.integers(0, groups, 500), rng.integers(0, 2, 500)
    h = (rng.random(500) < 0.3 + 0.1 * a).astype(np.int64)
    expected = _metrics[notion](y, h, sensitive_features=a)
    assert violation(events_of(notion, (0, 1)), h, y, a) == pytest.approx(expected)


def test_violation_of_three_classes_is_the_worst_class() -> None:
    h, a = np.array([0, 1, 2, 2, 2, 2]), np.array([0, 0, 0, 1, 1, 1])
    events = events_of("demographic_parity", range(3))
    assert violation(events, h, np.zeros(6, dtype=np.int64), a) == pytest.approx(2 / 3)


# --- The rule -----------------------------------------------------------------------------------


def test_rule_is_the_written_formula() -> None:
    rng = np.random.default_rng(0)
    f, g = rng.random(20), rng.random((2, 20, 2))
    proba, shares = np.column_stack([1 - f, f]), np.array([[0.3, 0.2], [0.1, 0.4]])
    events = events_of(["equalized_odds", "accuracy_parity"], (0, 1))
    cost = np.stack([costs(events, proba, g, shares).of(unit)[:, 0] for unit in np.eye(6)], axis=1)
    cost = cost.reshape(20, 2, 3)
    for a in (0, 1):
        np.testing.assert_allclose(cost[:, a, 0], (1 - f) * g[0, :, a] / shares[0, a])
        np.testing.assert_allclose(cost[:, a, 1], f * g[1, :, a] / shares[1, a])
        p = shares[:, a].sum()
        np.testing.assert_allclose(cost[:, a, 2], ((1 - f) * g[0, :, a] - f * g[1, :, a]) / p)


@given(st.integers(2, 4), st.integers(0, 10_000))
@settings(max_examples=50, deadline=None)
def test_probabilities_keep_the_decision(classes: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    proba = rng.dirichlet(np.ones(classes), 30)
    margin = proba[:, 1:] - proba[:, :1] + rng.normal(0, 0.5, (30, classes - 1))
    tilted = probabilities(proba, margin)
    np.testing.assert_allclose(tilted.sum(axis=1), 1)
    assert (tilted >= 0).all()
    chosen = decide(margin)
    assert (tilted[np.arange(30), chosen] >= tilted.max(axis=1) - 1e-12).all()


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=30), st.floats(0.01, 0.99))
def test_weighted_quantile_leaves_the_rest_above(values: list[float], level: float) -> None:
    v = np.array(values)
    cut = weighted_quantile(v, np.ones(len(v)), level)
    assert (v > cut).mean() <= 1 - level + 1e-9
    assert (v >= cut).mean() >= 1 - level - 1e-9


def test_event_members_and_statistics() -> None:
    y, h = np.array([0, 1, 1]), np.array([1, 1, 0])
    event = Event("e", "chosen", labels=(1,))
    assert event.members(y).tolist() == [False, True, True]
    assert event.happened(h, y).tolist() == [1.0, 1.0, 0.0]
    assert Event("w", "wrong").happened(h, y).tolist() == [1.0, 0.0, 1.0]
