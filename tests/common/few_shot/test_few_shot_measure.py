"""Measuring a few-shot model on the regulator's own tasks: once, held out, paid for, with noise."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from few_shot_kit import SeededBytes, tiny_pool, tiny_settings
from pydantic import ValidationError
from round_kit import (
    MEMBERS,
    ROUNDS,
    SIZE,
    Company,
    Regulator,
    few_shot_settings,
    make_federation,
    make_plan,
    pair,
)

from isonomy.common.agreements.few_shot_plan import REPLACED, FewShotPlan
from isonomy.common.base.errors import ConfigError, DataError, ProtocolError, ReplayRefused
from isonomy.common.crypto.params import DEFAULT_PARAMETERS
from isonomy.common.few_shot.learning.evaluate import count_decisions
from isonomy.common.few_shot.learning.learners import RegulatorLearner
from isonomy.common.few_shot.learning.models import Network
from isonomy.common.few_shot.rounds._messages import MeasureRequest, parse_request
from isonomy.common.few_shot.rounds.desk import RoundDesk
from isonomy.common.ledger.ledger import Ledger
from isonomy.common.privacy.accounting import gaussian_units, units_for
from isonomy.common.privacy.task_counts import SCALE, TaskCounts

MEASURING = few_shot_settings(measured_tasks=2, ways=2, shots=1, queries=2)
THETA = np.linspace(-1, 1, SIZE, dtype=np.float32)


def learner(**changes: Any) -> RegulatorLearner:
    settings = tiny_settings(**{"measured_tasks": 2, "regulator_tasks": 1, **changes})
    return RegulatorLearner(settings, tiny_pool(), _source=SeededBytes(3))


def first_theta(of: RegulatorLearner) -> np.ndarray:
    return Network.of(of.settings).initial(0)


# --- The learner ---------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["irdp", "dp_sgd", "pf_ld"])
def test_no_round_touches_a_measured_sample(method: str) -> None:
    side = learner(method=method, epsilon=100_000_000)
    held_out = side._held_out
    assert held_out.sum() == 2 * 4 * (2 + 2)
    for number in range(6):
        side.contribute(number, first_theta(side))
    assert not side.accounts.spent[held_out].any()
    assert side.accounts.spent[~held_out].any()
    assert side._measured is not None
    drawn = np.concatenate([side._measured.support, side._measured.query], axis=1)
    assert len(np.unique(drawn)) == drawn.size, "a sample is in one task at most"


def test_worst_case_accounts_run_out_although_measured_samples_never_pay() -> None:
    side = learner(method="dp_sgd", epsilon=1_000_000, inner_noise=1_500_000, query_noise=1_500_000)
    assert side._round is not None
    while side._round.can_pay():
        side.contribute(0, first_theta(side))
    assert not side.accounts.spent[side._held_out].any()


def test_a_measurement_is_the_exact_counts_and_noise_of_the_stated_deviation() -> None:
    side = learner()
    assert side._measured is not None
    theta = first_theta(side)
    exact = SCALE * count_decisions(theta, side.settings, side.pool, side._measured)
    sigma = 5 * SCALE
    noise = np.array([side.measure(theta, sigma) - exact for _ in range(400)]) / sigma
    assert abs(noise.mean()) < 0.06
    assert abs(noise.std() - 1) < 0.05
    people = exact[8:] // SCALE // TaskCounts(4, 2).weight
    assert people.sum() == 2 * 4 * 2, "every query of every task is in a cell"


def test_a_support_sample_of_one_task_moves_that_task_alone() -> None:
    side = learner()
    tasks, theta = side._measured, first_theta(side) + np.float32(0.3)
    assert tasks is not None
    bound = TaskCounts(4, 2).sensitivity_squared
    before = count_decisions(theta, side.settings, side.pool, tasks)
    moved = 0
    for place in (*tasks.support[0], *tasks.query[0]):
        inputs, groups = side.pool.inputs.copy(), np.asarray(side.pool.groups).copy()
        inputs[place], groups[place] = 40.0, 1 - groups[place]
        pool = replace(side.pool, inputs=inputs, groups=groups)
        change = count_decisions(theta, side.settings, pool, tasks) - before
        moved = max(moved, int((change**2).sum()))
    assert 4 < moved <= bound, "more than its own query, and never beyond the bound"


def test_no_choice_of_parameters_makes_it_fail() -> None:
    side = learner()
    for theta in (np.full(side.size, 3e38, np.float32), np.zeros(side.size, np.float32)):
        assert side.measure(theta, SCALE).shape == (12,)


def test_measured_tasks_stay_the_same_ones_after_a_restart() -> None:
    side = learner()
    state = side.contribute(0, first_theta(side)).state
    learner().restore(state)
    with pytest.raises(DataError, match="other measured tasks"):
        learner(seed=1).restore(state)


def test_tasks_without_attribute_or_samples_are_refused_before_anything_is_spent() -> None:
    settings = tiny_settings(measured_tasks=2, regulator_tasks=1)
    with pytest.raises(DataError, match="attribute"):
        RegulatorLearner(settings, tiny_pool(groups=False))
    with pytest.raises(DataError, match="measured_tasks"):
        learner(measured_tasks=4, regulator_tasks=3)
    with pytest.raises(ConfigError, match="no task"):
        learner(measured_tasks=0).measure(np.zeros(learner().size, np.float32), SCALE)


# --- The plan ------------------------------------------------------------------------------------


def test_the_plan_prices_it_within_the_cap_and_says_so(tmp_path: Path) -> None:
    federation = make_federation(tmp_path, settings=MEASURING)
    plan = federation.plan
    assert isinstance(plan, FewShotPlan)
    assert 0.99 * plan.cap_units < plan.measure_units <= plan.cap_units
    squared = TaskCounts(2, 2).sensitivity_squared * SCALE**2
    assert plan.measure_units == gaussian_units(squared, plan.measure_noise)
    assert "on 2 tasks of 12 samples that no round uses" in plan.describe()
    none = make_plan(federation, settings=few_shot_settings())
    assert "does not measure how accurate" in none.describe()
    with pytest.raises((ConfigError, ValidationError), match="leave none to the rounds"):
        make_plan(federation, settings=MEASURING.model_copy(update={"measured_tasks": 5}))
    huge = {"measured_tasks": 1, "ways": 1_000, "queries": 10_000}
    with pytest.raises((ConfigError, ValidationError), match="do not fit"):
        make_plan(federation, settings=few_shot_settings(**huge), samples=50_000_000)


# --- The desk and the wire -----------------------------------------------------------------------


@pytest.fixture
def plan(tmp_path: Path) -> FewShotPlan:
    made = make_federation(tmp_path / "federation", settings=MEASURING).plan
    assert isinstance(made, FewShotPlan)
    return made


def opened(plan: FewShotPlan, folder: Path) -> tuple[RoundDesk, Ledger]:
    path = folder / "ledger.jsonl"
    ledger = (
        Ledger.open(path)
        if path.exists()
        else Ledger.create(path, cap_units=units_for(300.0, 1e-5), delta=1e-5)
    )
    desk = RoundDesk(
        plan, Regulator, ledger, folder / "desk", members=MEMBERS, member_key_tag=b"t" * 32
    )
    return desk, ledger


def test_it_is_one_record_with_the_numbers_in_it(plan: FewShotPlan, tmp_path: Path) -> None:
    desk, ledger = opened(plan, tmp_path)
    with ledger:
        desk.contribute(0, THETA)
        record = desk.measure(1, THETA)
        assert record.units == plan.measure_units < REPLACED * plan.cap_units
        assert len(record.answer) == 8 * 12
        assert (record.event["round"], record.event["noise"]) == (1, plan.measure_noise)
        assert desk.answered == 1, "a measurement is no round"
        assert desk.measure(1, THETA.copy()) == record
        with pytest.raises(ReplayRefused, match="other parameters"):
            desk.measure(1, THETA + 1)
        with pytest.raises(ReplayRefused, match="ended the run"):
            desk.contribute(1, THETA)
    again, ledger = opened(plan, tmp_path)
    with ledger:
        assert again.measure(1, THETA) == record, "after a restart, too"
        with pytest.raises(ReplayRefused):
            again.measure(0, THETA)


def test_it_needs_a_round_before_and_a_plan_that_measures(
    plan: FewShotPlan, tmp_path: Path
) -> None:
    desk, ledger = opened(plan, tmp_path)
    with ledger, pytest.raises(ReplayRefused):
        desk.measure(0, THETA)
    federation = make_federation(tmp_path / "none")
    assert isinstance(federation.plan, FewShotPlan)
    other, ledger = opened(federation.plan, tmp_path / "none")
    with ledger:
        other.contribute(0, THETA)
        with pytest.raises(ConfigError, match="measures no tasks"):
            other.measure(1, THETA)


def test_a_request_is_read_whole_or_not_at_all() -> None:
    raw = MeasureRequest(3, THETA[:5]).dump()
    request = parse_request(raw, DEFAULT_PARAMETERS, 5)
    assert isinstance(request, MeasureRequest)
    assert (request.number, request.theta.tobytes()) == (3, THETA[:5].tobytes())
    for wrong in (raw[:-1], raw + b"x", raw[:4]):
        with pytest.raises(ProtocolError):
            parse_request(wrong, DEFAULT_PARAMETERS, 5)
    nan = MeasureRequest(3, np.full(5, np.nan, np.float32)).dump()
    with pytest.raises(ProtocolError, match="finite"):
        parse_request(nan, DEFAULT_PARAMETERS, 5)


def test_a_run_ends_with_its_measurement_and_a_second_start_changes_nothing(
    tmp_path: Path,
) -> None:
    with pair(tmp_path, settings=MEASURING) as both, both.ledger() as ledger:
        for _ in range(2):
            company = Company()
            with both.regulator(both.desk(ledger)) as outcome:
                assert both.train(company) == ROUNDS
            assert outcome.error is None
            assert outcome.measured == [ROUNDS]
        assert ledger.answers(both.plan.hash) == ROUNDS + 1
