"""The papers' figure against dp-accounting, and that it is never sold as a guarantee."""

from __future__ import annotations

from pathlib import Path

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from gradient_kit import regulator, toy

from isonomy.common.base.errors import ConfigError
from isonomy.company.gradient.run.paper_epsilon import (
    NOT_A_GUARANTEE,
    as_in_papers,
    steps_of,
    subsampled_epsilon,
)

RUNS = [
    {(1.1, 0.01): 500},
    {(4.0, 0.03): 300, (8.0, 0.03): 300, (20.0, 1.0): 1},
    {(15.0, 1.0): 15, (25.0, 1.0): 16},
]


def _event(steps: dict[tuple[float, float], int]) -> dp_accounting.DpEvent:
    parts = [
        dp_accounting.SelfComposedDpEvent(
            dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(multiplier)),
            times,
        )
        for (multiplier, rate), times in steps.items()
    ]
    return dp_accounting.ComposedDpEvent(parts)


@pytest.mark.parametrize("steps", RUNS)
def test_rdp_agrees_with_dp_accounting(steps: dict[tuple[float, float], int]) -> None:
    orders = [1 + x / 10 for x in range(1, 100)] + list(range(12, 64)) + [128, 256, 512]
    other = RdpAccountant(orders)
    other.compose(_event(steps))
    assert subsampled_epsilon(steps, 1e-5) == pytest.approx(other.get_epsilon(1e-5), rel=0.01)


def test_prv_agrees_with_the_pld_accountant() -> None:
    other = PLDAccountant()
    other.compose(_event(RUNS[0]))
    assert subsampled_epsilon(RUNS[0], 1e-5, "prv") == pytest.approx(
        other.get_epsilon(1e-5), abs=0.02
    )


def test_full_batches_give_no_amplification(tmp_path: Path) -> None:
    """Everybody in every query: the papers' figure cannot be below the exact one."""
    data = toy(300)
    oracle = regulator(tmp_path, data.group, epsilon=1.0).local()
    for _ in range(10):
        oracle.open_sum(np.ones((300, 1)), norm=1.0, share=0.1, purpose="rates")
    paper = as_in_papers(oracle)
    assert oracle.budget.spent_epsilon <= paper.epsilon <= 1.2 * oracle.budget.spent_epsilon
    assert paper.label == NOT_A_GUARANTEE
    assert "not a guarantee" in str(paper)


def test_chunks_look_cheaper_than_they_are(tmp_path: Path) -> None:
    """The reason for the label: sampling that the company can see through lowers the figure."""
    data = toy(400)
    oracle = regulator(tmp_path, data.group, epsilon=1.0).local()
    for _ in range(4):
        for part in np.split(np.arange(400), 8):
            oracle.open_sum(np.ones((50, 1)), norm=1.0, people=part, share=0.25, purpose="gradient")
    (steps,) = steps_of(oracle.log)
    ((multiplier, rate),) = steps
    assert rate == 50 / 400
    assert steps[multiplier, rate] == 32
    assert oracle.budget.spent_epsilon == pytest.approx(1.0, rel=1e-6)
    assert as_in_papers(oracle).epsilon < 0.75


def test_disjoint_people_do_not_add_up(tmp_path: Path) -> None:
    """Equalized odds: each label's stage is paid by its own people."""
    data = toy(300)
    oracle = regulator(tmp_path, data.group, epsilon=1.0).local()
    for label in (0, 1):
        people = np.flatnonzero(data.y == label)
        oracle.open_sum(
            np.ones((len(people), 1)), norm=1.0, people=people, share=0.5, purpose=f"y={label}"
        )
    assert len(steps_of(oracle.log)) == 2
    alone = subsampled_epsilon(steps_of(oracle.log)[0], 1e-5)
    assert as_in_papers(oracle).epsilon == pytest.approx(alone, rel=1e-6)


def test_nothing_asked_costs_nothing(tmp_path: Path) -> None:
    oracle = regulator(tmp_path, toy(50).group).local()
    assert as_in_papers(oracle).epsilon == 0.0


def test_bad_input() -> None:
    with pytest.raises(ConfigError, match="delta"):
        subsampled_epsilon({(1.0, 1.0): 1}, 0.0)
    with pytest.raises(ConfigError, match="sampling rate"):
        subsampled_epsilon({(1.0, 1.5): 1}, 1e-5)
    with pytest.raises(ConfigError, match="accountant"):
        subsampled_epsilon({(1.0, 1.0): 1}, 1e-5, "guess")  # type: ignore[arg-type]
