"""Whole records: what it all costs."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import dp_accounting
import numpy as np
import pytest
import torch
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from gradient_kit import Toy, linear, regulator, toy, trainer
from record_kit import (
    CASES,
    FAST,
    OWN,
    PLAN,
    attribute_names,
    case_data,
    home_of,
    loss_run,
)
from scipy.stats import binom
from torch import nn

from isonomy.common.base.errors import BudgetExceeded
from isonomy.common.privacy.accounting import UNITS_PER_MU2
from isonomy.company.gradient.pf_ld.pf_ld import PFLD
from isonomy.company.gradient.record import privacy as record_privacy
from isonomy.company.gradient.record.privacy import Part, RecordPrivacy, RecordRun
from isonomy.company.gradient.record.releases import (
    most_often,
)
from isonomy.company.gradient.run.paper_epsilon import GUARANTEE, theorem_3_3


@pytest.mark.parametrize("name", CASES)
def test_accounting_matches_what_was_asked(tmp_path: Path, name: str) -> None:
    """ε again, from the oracle's own log and by dp-accounting: no step is left out."""
    strategy, data, model, chunk = case_data(name)
    home = home_of(tmp_path, name, data)
    oracle = home.local()
    own = trainer(
        model, strategy, oracle, chunk_size=chunk, attribute=attribute_names(name), **FAST
    )
    result = own.fit(data.x, data.y)
    papers, budget = result.epsilons.as_in_papers, oracle.budget
    assert papers.is_guarantee
    assert papers.label == GUARANTEE
    assert papers.epsilon <= OWN.epsilon
    assert 0 < budget.spent_units <= budget.cap_units
    assert result.history[-1].extra["epsilon_records"] == pytest.approx(papers.epsilon, rel=1e-6)

    moves = 1.0 if data.group.max() == 1 else 2.0
    if "two attributes" in name:
        moves = (2 + 1) / 2  # three groups and two; a record is in one of each
    chunks = 1 if chunk is None else -(-len(data.y) // chunk)
    stages = {  # a mean: columns of a step share it anew each time
        purpose: sum(units * n for (units, _), n in stage.queries.items())
        / stage.queries.total()
        / UNITS_PER_MU2
        for purpose, stage in oracle.log.stages.items()
    }
    counts = sum(mu2 for p, mu2 in stages.items() if "counts" in p or "people per group" in p)
    dual = _worst_label(stages, ("fermi W", "pf_ld: dual"))
    primal = _worst_label(stages, ("fermi θ", "pf_ld: gradient"))
    if "pf_ld, odds" in name:
        primal *= data.y.max()  # events of one label are asked about one by one
    if "two attributes" in name:
        primal *= 2
    gaussian, sampled = dp_accounting.GaussianDpEvent, dp_accounting.PoissonSampledDpEvent
    orders = [1 + x / 10 for x in range(1, 100)] + list(range(11, 64)) + [80, 128, 256, 512]
    accountant = RdpAccountant(orders)
    accountant.compose(gaussian((counts / moves) ** -0.5))
    accountant.compose(gaussian((dual / moves) ** -0.5), 3)
    accountant.compose(sampled(1 / chunks, gaussian((primal / 4) ** -0.5)), 2 * chunks)
    parts = _parts_of(own, data)
    accountant.compose(gaussian(parts["totals"].multiplier), parts["totals"].times)
    steps = 3 + 2 * 2 * chunks
    accountant.compose(sampled(1 / chunks, gaussian(parts["loss"].multiplier)), steps)
    told = {"counts": counts / moves, "dual": dual / moves, "primal": primal / 4}
    for kind, mu2 in told.items():
        assert parts[kind].multiplier == pytest.approx(mu2**-0.5, rel=1e-3)
    assert parts["totals"].times == (4 if "odds" in name else 3)
    assert papers.epsilon == pytest.approx(accountant.get_epsilon(OWN.delta * 0.999), rel=0.02)


def _worst_label(stages: dict[str, float], begins: tuple[str, ...]) -> float:
    """Columns of one label add up; people have one label."""
    by_label: dict[str, float] = {}
    for purpose, mu2 in stages.items():
        if purpose.startswith(begins):
            label = purpose.split(", column")[0]
            by_label[label] = by_label.get(label, 0.0) + mu2
    return max(by_label.values())


def _parts_of(own: Any, data: Toy) -> dict[str, Part]:
    """The plan of the same run, made again on a fresh oracle of the same cap."""
    from isonomy.company.gradient.training.checks import plan_record, prepare_run

    own.oracle.accounts.restore(0 * own.oracle.accounts.state())
    run = prepare_run(own, data.x, data.y, None, torch.Generator().manual_seed(0))
    plan_record(run, own.strategy)
    assert run.record is not None
    return run.record.parts


def test_prv_is_at_most_rdp_and_agrees_with_pld() -> None:
    run = RecordRun(RecordPrivacy(epsilon=3.0), np.arange(10), np.arange(10), 0.1, 100, 0.05, 200)
    run.plan({"dual": Part(12.0, 16), "primal": Part(6.0, 100, 0.1)}, 16)
    rdp = run.epsilon().epsilon
    prv = copy.copy(run)
    prv.settings = RecordPrivacy(epsilon=3.0, accountant="prv")
    accountant = PLDAccountant()
    for part in run.parts.values():
        event = dp_accounting.GaussianDpEvent(part.multiplier)
        if part.rate < 1:
            event = dp_accounting.PoissonSampledDpEvent(part.rate, event)
        accountant.compose(event, part.times)
    told = accountant.get_epsilon(run.settings.delta * 0.999)
    assert prv.epsilon().epsilon == pytest.approx(told, abs=0.02)
    assert told <= rdp <= 3.0
    assert rdp > 2.7  # and the budget is used


def test_nothing_is_released_unplanned(tmp_path: Path) -> None:
    run = loss_run(tmp_path, toy(60), warmup_steps=0, rounds=1, local_steps=2)
    assert run.record is not None
    for _ in range(2):
        run.record.loss_gradient(run, nn.functional.cross_entropy, None)
    with pytest.raises(BudgetExceeded, match="planned no further"):
        run.record.loss_gradient(run, nn.functional.cross_entropy, None)
    with pytest.raises(KeyError):
        run.record.released("something else", np.zeros(1))


def test_nobody_takes_part_too_often(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Were somebody drawn every time, they would be left out after M steps: the cap holds."""
    monkeypatch.setattr(
        record_privacy, "poisson", lambda people, rate, source: np.ones(people, np.bool_)
    )
    data = toy(200)
    home = regulator(tmp_path, data.group, epsilon=PLAN)
    oracle = home.local()
    settings = {**FAST, "local_steps": 1, "rounds": 3}
    trainer(linear(), PFLD(primal_norm=0.5), oracle, chunk_size=10, **settings).fit(data.x, data.y)
    asked = sum(oracle.log.stages["pf_ld: gradient"].queries.values())
    assert asked == most_often(60, 1 / 20, OWN.epsilon, OWN.delta) < 60
    assert oracle.budget.spent_units <= oracle.budget.cap_units


def test_most_often_covers_the_tail() -> None:
    for steps, rate in ((10, 0.1), (300, 0.03), (60, 0.2)):
        for epsilon in (0.5, 8.0):  # (1 + e^ε) of it is taken off δ
            most, tail = most_often(steps, rate, epsilon, 1e-5), 1e-8 / (1 + math.exp(epsilon))
            assert binom.sf(most, steps, rate) <= tail
            assert binom.sf(most - 1, steps, rate) > tail
    assert most_often(15, 1.0, 1.0, 1e-5) == 15


def test_theorem_3_3() -> None:
    """Worked out by hand for round numbers."""
    sigma_w, sigma_theta = theorem_3_3(
        epsilon=1.0,
        delta=math.exp(-10),
        steps=100,
        people=1000,
        rho=0.25,
        diameter=2.0,
        lipschitz=0.6,
    )
    assert sigma_w**2 == pytest.approx(16 * 1e-3 / 0.25)
    assert sigma_theta**2 == pytest.approx(16 * 1.44 * 1e-3 / 0.25)
