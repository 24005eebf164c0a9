"""Privacy of all features: the four releases' sensitivities, the accounting, the paper's levels."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import dp_accounting
import numpy as np
import pytest
import torch
from dp_accounting.rdp import RdpAccountant
from fermi_kit import double_run
from gradient_kit import regulator, toy
from scipy.stats import binom

from isonomy.common.accounting import UNITS_PER_MU2
from isonomy.common.errors import BudgetExceeded, ConfigError
from isonomy.company.gradient import record_privacy
from isonomy.company.gradient.paper_epsilon import GUARANTEE
from isonomy.company.gradient.record_privacy import (
    RecordPrivacy,
    RecordPrivateFermi,
    most_often,
    private_total,
    theorem_3_3,
)
from isonomy.company.gradient.strategy import Run, trainable

OWN = RecordPrivacy(epsilon=20.0, steps=4, rate=0.5)


def _fitted(folder: Path, groups: int = 2) -> tuple[Run, RecordPrivateFermi]:
    data = toy(400, groups=groups)
    run = double_run(regulator(folder, data.group, epsilon=4.0), data)
    return run, RecordPrivateFermi(OWN).fit(run)


@pytest.mark.parametrize("groups", [2, 3])
def test_both_budgets_hold(tmp_path: Path, groups: int) -> None:
    run, fermi = _fitted(tmp_path, groups)
    assert fermi.record_.epsilon <= OWN.epsilon
    assert fermi.record_.is_guarantee
    assert fermi.record_.label == GUARANTEE
    budget = run.oracle.budget
    assert 0 < budget.spent_units <= budget.cap_units
    assert all(torch.isfinite(p).all() for p in trainable(run.model))


@pytest.mark.parametrize("groups", [2, 3])
def test_accounting_matches_what_was_asked(tmp_path: Path, groups: int) -> None:
    """ε again, from the oracle's own log and by dp-accounting: no step is left out."""
    run, fermi = _fitted(tmp_path, groups)
    moves = 1 if groups == 2 else 2

    def worst(purpose: str) -> float:
        return max(units for units, _ in run.oracle.log.stages[purpose].queries) / UNITS_PER_MU2

    step = worst("fermi θ") / 4 + worst("fermi W") / moves + 2 / fermi.multiplier_**2
    gaussian = dp_accounting.GaussianDpEvent
    accountant = RdpAccountant([1 + x / 10 for x in range(1, 100)] + list(range(12, 64)))
    accountant.compose(
        dp_accounting.PoissonSampledDpEvent(OWN.rate, gaussian(step**-0.5)), OWN.steps
    )
    accountant.compose(gaussian((worst("fermi counts") / moves) ** -0.5))
    other = accountant.get_epsilon(OWN.delta * 0.999)
    assert fermi.record_.epsilon == pytest.approx(other, rel=0.02)


def test_half_a_range_is_enough_for_a_record() -> None:
    """Adding a person with any group changes Σ (u_a − ū) v by at most range(u)/2 · C."""
    rng = np.random.default_rng(0)
    for _ in range(50):
        u, v = rng.normal(size=4), rng.normal(size=5)
        v /= np.linalg.norm(v)
        centred = u - (u.max() + u.min()) / 2
        assert max(np.linalg.norm(c * v) for c in centred) <= np.ptp(u) / 2 + 1e-12


def test_private_total_is_a_clipped_sum_with_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.random.default_rng(1).normal(size=(50, 6))
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    exact = (rows * np.minimum(1, 1.5 / norms)).sum(axis=0)
    draws = np.stack([private_total(rows, 1.5, 2.0) for _ in range(300)])
    assert draws.mean(axis=0) == pytest.approx(exact, abs=5 * 3.0 / math.sqrt(300))
    assert draws.std(axis=0).mean() == pytest.approx(3.0, rel=0.1)
    monkeypatch.setattr(
        record_privacy, "rounded_gaussian", lambda sigma, size, source: np.zeros(size, np.int64)
    )
    assert private_total(rows, 1.5, 2.0) == pytest.approx(exact, abs=1e-4)


@pytest.mark.filterwarnings("ignore:Full backward hook")  # Opacus' own, about its hooks
def test_agrees_with_opacus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The company's loss step without noise is the clipped sum that Opacus' DP-SGD makes."""
    from opacus.grad_sample import GradSampleModule
    from opacus.optimizers import DPOptimizer

    run, fermi = _fitted(tmp_path)
    monkeypatch.setattr(
        record_privacy, "rounded_gaussian", lambda sigma, size, source: np.zeros(size, np.int64)
    )
    batch = record_privacy.Batch.of(run, run.chunks[0])
    assert fermi.problem is not None
    fermi.settings = RecordPrivacy(epsilon=20.0, strength=1e-9, clip_loss=0.5)  # the loss alone
    mine = fermi._company_gradient(run, fermi.problem, batch, np.zeros(1))

    wrapped = GradSampleModule(copy.deepcopy(run.model), loss_reduction="sum")
    optimiser = DPOptimizer(
        torch.optim.SGD(wrapped.parameters(), lr=1.0),
        noise_multiplier=0.0,
        max_grad_norm=0.5,
        expected_batch_size=1,
        loss_reduction="sum",
    )
    logit = wrapped(run.inputs[batch.rows])[:, 0]
    target = run.target[batch.rows].double()
    torch.nn.functional.binary_cross_entropy_with_logits(logit, target, reduction="sum").backward()
    optimiser.clip_and_accumulate()
    for ours, parameter in zip(mine, wrapped.parameters(), strict=True):
        assert torch.allclose(ours, parameter.summed_grad, atol=1e-3)


def test_nobody_takes_part_too_often(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Were somebody drawn every time, they would be left out after M steps: the cap holds."""
    monkeypatch.setattr(record_privacy, "_poisson", lambda people, rate: np.ones(people, np.bool_))
    own = RecordPrivacy(epsilon=20.0, steps=30, rate=0.05)
    most = most_often(30, 0.05, own.delta)
    assert most < 30
    data = toy(200)
    run = double_run(regulator(tmp_path, data.group, epsilon=4.0), data)
    RecordPrivateFermi(own).fit(run)
    asked = sum(run.oracle.log.stages["fermi W"].queries.values())
    assert asked == most
    assert run.oracle.budget.spent_units <= run.oracle.budget.cap_units


def test_most_often_covers_the_tail() -> None:
    for steps, rate in ((10, 0.1), (300, 0.03), (60, 0.2)):
        most = most_often(steps, rate, 1e-5)
        assert binom.sf(most, steps, rate) <= 1e-8
        assert binom.sf(most - 2, steps, rate) > 1e-8 or most >= steps


def test_too_little_is_refused_before_anything_is_asked(tmp_path: Path) -> None:
    data = toy(200)
    run = double_run(regulator(tmp_path, data.group, epsilon=4.0), data)
    with pytest.raises(BudgetExceeded, match="oracle releases alone"):
        RecordPrivateFermi(RecordPrivacy(epsilon=0.01, steps=4, rate=0.5)).fit(run)
    assert run.oracle.budget.spent_units == 0
    with pytest.raises(ConfigError, match="rate"):
        RecordPrivacy(epsilon=1.0, rate=0.0)
    with pytest.raises(ConfigError, match="parts of one budget"):
        RecordPrivacy(epsilon=1.0, theta=0.9)


def test_theorem_3_3() -> None:
    """Both sets of levels, worked out by hand for round numbers."""
    shared = {
        "epsilon": 1.0,
        "delta": math.exp(-10),
        "steps": 100,
        "people": 1000,
        "rho": 0.25,
        "diameter": 2.0,
        "lipschitz": 0.5,
        "classes": 2,
    }
    attributes = theorem_3_3(**shared, all_features=False)  # type: ignore[arg-type]
    everything = theorem_3_3(**shared, all_features=True)  # type: ignore[arg-type]
    assert attributes.w**2 == pytest.approx(16 * 1e-3 / 0.25)
    assert attributes.theta**2 == pytest.approx(16 * 1.0 * 1e-3 / 0.25)
    assert everything.w**2 == pytest.approx(32 * 1e-3 * (4 + 4))
    assert everything.theta**2 == pytest.approx(64 * 1e-3 / 0.25 + 32 * 16 * 0.25 * 4 * 1e-3)
    assert everything.theta > attributes.theta
