"""The individual filter in front of an oracle: its guarantees, and what it buys."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from federation import PLAN, Federation
from gradient_kit import Toy, linear, regulator, toy, trainer

from isonomy.common.base.errors import BudgetExceeded, ConfigError, TransportError
from isonomy.common.ledger.ledger import Ledger
from isonomy.common.privacy.accounting import UNITS_PER_MU2
from isonomy.common.sums.local import LocalChannel
from isonomy.common.sums.noise_and_budget import Custodian
from isonomy.common.sums.oracle import FilteredOracle, GroupOracle
from isonomy.common.sums.question import Prepared
from isonomy.company.gradient.fermi.fermi import DpFermi

RNG = np.random.default_rng(5)


def _individual(folder: Path, data: Toy, epsilon: float = 1.0) -> tuple[Federation, GroupOracle]:
    """A regulator whose plan reserves the cap for everybody once (`individual_filter`)."""
    home = regulator(folder, data.group, epsilon=epsilon)
    ledger = Ledger.create(folder / "individual.jsonl", cap_units=home.cap_units, delta=1e-5)
    custodian = Custodian(home.table, ledger, plan=PLAN, member_key=b"m" * 32)
    custodian.reserve(home.cap_units, individual=True)
    channel = LocalChannel(
        home.table, custodian, plan=PLAN, cap_units=home.cap_units, delta=1e-5, individual=True
    )
    return home, GroupOracle(channel)


def _listen(oracle: GroupOracle) -> list[Prepared]:
    seen: list[Prepared] = []
    channel: Any = oracle.channel
    exchange = channel.exchange

    def tapped(prepared: Prepared) -> Any:
        seen.append(prepared)
        return exchange(prepared)

    channel.exchange = tapped
    return seen


def _rounds(ask: Callable[[], object]) -> int:
    """How often it can be asked before a budget is spent."""
    for done in range(1000):
        try:
            ask()
        except BudgetExceeded:
            return done
    return 1000


@pytest.mark.parametrize("groups", [2, 3])
def test_nobody_above_the_cap(tmp_path: Path, groups: int) -> None:
    """Each person's exact μ_i², from what the oracle was really sent, for mixed queries."""
    data = toy(60, groups=groups)
    home, inner = _individual(tmp_path, data)
    sent = _listen(inner)
    oracle = FilteredOracle(inner, stretch=6.0, reserve=0.3)
    rows = RNG.normal(size=(60, 3)) * RNG.uniform(0.05, 1, size=(60, 1))
    for turn in range(12):
        oracle.weighted_sum(rows, np.arange(groups) * 0.7 - turn, norm=1.0, share=0.05)
        oracle.blind_sum(rows, norm=1.5, share=0.05)
        oracle.open_sum(rows[:, :1], norm=1.0, share=0.02)
    truth = [Fraction(0)] * 60
    for asked in sent:
        integers = asked.rows.astype(object)
        if asked.query.shape == "weighted":
            padded = [*integers, np.zeros_like(integers[0])]
            own = np.max(
                [((a - b) ** 2).sum(axis=1) for a in padded for b in padded], axis=0
            )  # the worst pair of groups, by brute force
        else:
            own = (integers**2).sum(axis=1) * (1 if groups == 2 else 2)
        for person, squared in enumerate(own):
            truth[person] += Fraction(int(squared), asked.query.noise**2)
    cap = Fraction(home.cap_units, UNITS_PER_MU2)
    assert max(truth) <= cap
    assert oracle.accounts.dropped > 0
    for mine, exact in zip(oracle.accounts.spent, truth, strict=True):
        assert exact <= Fraction(int(mine), UNITS_PER_MU2) <= exact + Fraction(40, UNITS_PER_MU2)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_is_charged_is_what_is_sent(tmp_path: Path, dtype: type) -> None:
    """To the unit, also in queries from which a row that is too long was taken out."""
    _, inner = _individual(tmp_path, toy(40))
    sent = _listen(inner)
    oracle = FilteredOracle(inner, stretch=4.0, reserve=0.0)
    rows = RNG.normal(size=(40, 6))
    rows *= 0.3 / np.linalg.norm(rows, axis=1, keepdims=True)
    rows = np.rint(rows * 2**20) * 0.7 / 2**20
    rows[0] *= 9
    charged = np.zeros(40, np.int64)
    charge = oracle.accounts._filters["blind"].charge

    def noted(norms_squared: np.ndarray, **more: Any) -> None:
        charged[:] = norms_squared
        charge(norms_squared, **more)

    oracle.accounts._filters["blind"].charge = noted  # type: ignore[method-assign]
    for _ in range(4):
        oracle.weighted_sum(rows.astype(dtype), [0.7, -0.3], norm=0.7, share=0.2)
        assert (charged == (sent[-1].rows[0].astype(np.int64) ** 2).sum(axis=1)).all()
    assert oracle.accounts.dropped == 1


def test_dropped_rows_are_zero(tmp_path: Path) -> None:
    """Whoever is out enters no group, the last one (total minus the rest) included."""
    data = toy(40)
    _, inner = _individual(tmp_path, data, epsilon=40.0)
    oracle = FilteredOracle(inner, stretch=4.0, reserve=0.0)
    rows = np.full((40, 1), 0.05)
    rows[:5] = 1.0
    first = oracle.blind_sum(rows, norm=1.0, share=0.2).values  # the five cannot afford a second
    second = oracle.blind_sum(rows, norm=1.0, share=0.2).values
    assert oracle.accounts.dropped == 5
    assert first.sum() == pytest.approx(rows.sum(), abs=1e-3)
    assert second.sum() == pytest.approx(rows[5:].sum(), abs=1e-3)
    weighted = oracle.weighted_sum(rows, [1.0, 3.0], norm=1.0, share=0.2)
    exact = (rows[:, 0] * np.where(data.group == 0, 1.0, 3.0))[5:].sum()
    spread = 5 * float(weighted.deviation[0])
    assert weighted.values[0] == pytest.approx(exact, abs=spread)
    assert abs(5 * 2.0) > spread  # the five would have shown
    table = pd.DataFrame(oracle.accounts.drops)
    assert table.dropped.tolist() == [0, 5, 5]
    assert table.newly_dropped.tolist() == [0, 5, 0]


def test_a_failed_query_is_free(tmp_path: Path) -> None:
    data = toy(30)
    _, inner = _individual(tmp_path, data)
    oracle = FilteredOracle(inner)
    channel: Any = inner.channel
    exchange = channel.exchange

    def broken(prepared: Prepared) -> Any:
        raise TransportError("the line is dead")

    channel.exchange = broken
    with pytest.raises(TransportError):
        oracle.blind_sum(np.ones((30, 1)), norm=1.0, share=0.1)
    assert oracle.accounts.spent.max() == 0
    assert oracle.position[0] == 0
    channel.exchange = exchange
    oracle.blind_sum(np.ones((30, 1)), norm=1.0, share=0.1)
    assert oracle.position[0] == 1


def test_another_plan_refuses(tmp_path: Path) -> None:
    """Without `individual_filter` in the plan the ledger would charge everybody the full price."""
    oracle = regulator(tmp_path, toy(30).group, epsilon=1.0).local()
    with pytest.raises(ConfigError, match="no individual filter"):
        FilteredOracle(oracle, stretch=5.0)
    assert oracle.budget.spent_units == 0


def test_everybody_out_ends_the_run(tmp_path: Path) -> None:
    data = toy(30)
    _, inner = _individual(tmp_path, data)
    oracle = FilteredOracle(inner, reserve=0.0)
    oracle.blind_sum(np.ones((30, 1)), norm=1.0, share=0.9)
    with pytest.raises(BudgetExceeded, match="nobody has budget left"):
        oracle.blind_sum(np.ones((30, 1)), norm=1.0, share=0.9)


def test_more_rounds_at_the_same_epsilon(tmp_path: Path) -> None:
    """Rows of half the bound: four times the rounds at the same noise, with nobody dropped."""
    data = toy(80)
    rows = np.full((80, 1), 0.5)
    plain = regulator(tmp_path, data.group, epsilon=1.0).local()
    deviation = float(plain.blind_sum(rows, norm=1.0, share=0.1).deviation[0])
    rounds = 1 + _rounds(lambda: plain.blind_sum(rows, norm=1.0, sigma=deviation))
    (tmp_path / "own").mkdir()
    _, inner = _individual(tmp_path / "own", data)
    oracle = FilteredOracle(inner, reserve=0.0)
    filtered = _rounds(lambda: oracle.blind_sum(rows, norm=1.0, sigma=deviation))
    assert rounds in (9, 10)
    assert filtered >= 4 * rounds - 1
    assert oracle.budget.spent_units <= oracle.budget.cap_units
    assert pd.DataFrame(oracle.accounts.drops).dropped.max() == 0


def test_any_strategy_runs_on_it(tmp_path: Path) -> None:
    data = toy(300)
    _, inner = _individual(tmp_path, data, epsilon=2.0)
    oracle = FilteredOracle(inner, stretch=3.0)
    result = trainer(linear(), DpFermi(clip=3.0), oracle, rounds=3).fit(data.x, data.y)
    assert result.stopped == "rounds"
    assert oracle.budget.spent_units <= oracle.budget.cap_units
    assert len(pd.DataFrame(oracle.accounts.drops)) == 1 + 3 + 4  # counts, θ, W


def test_goes_on_after_a_break(tmp_path: Path) -> None:
    data = toy(30)
    _, inner = _individual(tmp_path, data)
    oracle = FilteredOracle(inner)
    oracle.blind_sum(np.ones((30, 1)), norm=1.0, share=0.1)
    asked, spent = oracle.position
    other = FilteredOracle(inner)
    other.go_on_from(asked, spent)
    assert (other.accounts.spent == oracle.accounts.spent).all()
    with pytest.raises(ConfigError, match="another cohort"):
        other.go_on_from(asked, spent[:, :5])


def test_bad_input(tmp_path: Path) -> None:
    data = toy(30)
    _, inner = _individual(tmp_path, data)
    with pytest.raises(ConfigError, match="stretch"):
        FilteredOracle(inner, stretch=0.5)
    with pytest.raises(ConfigError, match="reserve"):
        FilteredOracle(inner, reserve=1.0)
    with pytest.raises(ConfigError, match="Gaussian"):
        FilteredOracle(inner).open_sum(np.ones((30, 1)), norm=1.0, epsilon=0.1)
    inner.blind_sum(np.ones((30, 1)), norm=1.0, share=0.1)
    with pytest.raises(ConfigError, match="has answered nothing yet"):
        FilteredOracle(inner)
