"""The report of a few-shot run: what was trained, what it can do, what a sample can have lost.

It comes from the ledger's records of rounds. A record names its round, its price and the hashes of
θ and of the regulator's share; what single samples really paid stands in no ledger, because it
depends on them. So the report gives bounds: at most `round_units` per answered round and never
more than the cap, for a sample that is left out; four times as many units for one that is
exchanged, its attribute included. A measured sample is in no round; it pays the measurement's price
once, which is the same for both.

No round answers how accurate or how fair the model is. Where the plan measures tasks, the last
record does: twelve noised counts, from which every rate and interval follows (task_rates).
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from isonomy.common.agreements.agreement import kind_of
from isonomy.common.agreements.few_shot_plan import KIND, MEASURE, REPLACED, FewShotPlan
from isonomy.common.agreements.plan import Plan
from isonomy.common.base.canonical import hash_bytes
from isonomy.common.base.documents import Document, kind_of_content
from isonomy.common.base.errors import VerificationError
from isonomy.common.keys.party import Hex32
from isonomy.common.ledger.records import DebitRecord
from isonomy.common.privacy.task_counts import CELLS, COLUMNS
from isonomy.common.report.build import deletions_of, ledger_point, rounded_epsilon
from isonomy.common.report.from_ledger import PlanHistory
from isonomy.common.report.schema import (
    Deletion,
    LedgerPoint,
    OfficerWord,
    ReportFile,
    ShownTable,
    Signed,
    Statement,
    Time,
    Whole,
)
from isonomy.common.report.task_rates import task_table

NUMBERS = CELLS * len(COLUMNS)
_ROUNDING = 2  # another machine's last bit may round the other way


class Training(BaseModel):
    """The rounds that were answered. Units are 10^-12 of μ²; ε is rounded up, in millionths."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    rounds: Whole
    first: Time  # of the answers; 0 if there is none
    last: Time
    transcript: Hex32  # over request and answer of every round, in order
    lost_units: Whole  # the most for a sample that is left out
    lost_epsilon: Whole
    replaced_epsilon: Whole  # the most for a sample that is exchanged for another
    reserved_units: Whole  # in the ledger, for every sample and for good


class Measured(BaseModel):
    """The measurement of the trained model on tasks that no round used."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    tasks: Whole
    rounds: Whole  # before it
    time: Time
    sequence: Whole
    theta: Hex32  # the hash of the parameters that were measured
    noise: Whole  # deviation of each number, in 1/SCALE of a count
    values: tuple[Signed, ...] = Field(min_length=NUMBERS, max_length=NUMBERS)
    table: ShownTable  # follows from the values


class FewShotReport(Document):
    """A whole report.json of a few-shot run."""

    word: ClassVar[str] = "few-shot report"

    schema_version: Literal["isonomy/few-shot-report/v1"] = "isonomy/few-shot-report/v1"
    created: Time
    software: str
    html_sha256: str = ""
    plan: FewShotPlan
    training: Training
    measured: Measured | None  # None: no measurement is in the ledger
    ledger: LedgerPoint
    company: Statement | None
    officer: OfficerWord
    written_by: str  # the officer who had this report written
    approved_by: tuple[str, ...]  # the plan's approving officers, by the ledger
    deletions: tuple[Deletion, ...]


AnyReport = ReportFile | FewShotReport
ReportedPlan = Plan | FewShotPlan


def read_report(data: bytes) -> AnyReport:
    """Read a report of either kind; ConfigError for anything else."""
    few_shot = kind_of_content(data) == FewShotReport.word
    return FewShotReport.from_json(data) if few_shot else ReportFile.from_json(data)


def load_plan(path: Path) -> ReportedPlan:
    """Read a plan that a report can be about."""
    return FewShotPlan.load(path) if kind_of(path) == KIND else Plan.load(path)


def build_few_shot_report(
    plan: FewShotPlan,
    history: PlanHistory,
    *,
    created: int,
    software: str,
    officer: OfficerWord,
    written_by: str = "",
    company: Statement | None = None,
) -> FewShotReport:
    """The whole report, without its HTML's hash. A pure function of its arguments."""
    return FewShotReport(
        created=created,
        software=software,
        plan=plan,
        training=_training(plan, history),
        measured=_measured(plan, history),
        ledger=ledger_point(history),
        company=company,
        officer=officer,
        written_by=written_by,
        approved_by=history.approved_by,
        deletions=deletions_of(plan, history),
    )


def check_training(plan: FewShotPlan, training: Training, measured: Measured | None) -> None:
    """Raise VerificationError unless the bounds follow from the plan and what was answered."""
    if measured is not None:
        agreed = (plan.settings.measured_tasks, training.rounds, plan.measure_noise)
        if (measured.tasks, measured.rounds, measured.noise) != agreed:
            raise VerificationError("the measurement is not the one that the plan agrees on")
    if training.rounds > plan.settings.rounds:
        raise VerificationError("more rounds were answered than the plan allows")
    if training.reserved_units != plan.held_units:
        raise VerificationError("the ledger set something else aside than the plan says")
    bounds = _bounds(plan, training.rounds, measured=measured is not None)
    if any(abs(getattr(training, name) - bound) > _ROUNDING for name, bound in bounds.items()):
        raise VerificationError("what a sample can have lost does not follow from the rounds")


def _rounds(history: PlanHistory) -> list[DebitRecord]:
    return [debit for debit in history.answers if debit.event.get("kind") != MEASURE]


def _training(plan: FewShotPlan, history: PlanHistory) -> Training:
    """Return what the ledger says; VerificationError unless its records are the plan's rounds."""
    rounds = _rounds(history)
    for number, debit in enumerate(rounds):
        event, price = debit.event, REPLACED * plan.round_units
        if (event.get("kind"), event.get("round"), debit.units) != ("few_shot", number, price):
            raise VerificationError(f"record {debit.seq} is not round {number} of this plan")
    times = [debit.time for debit in rounds] or [0]
    hashes = [part for debit in rounds for part in (debit.request_hash, debit.answer)]
    measured = _measured(plan, history)
    training = Training(
        rounds=len(rounds),
        first=times[0],
        last=times[-1],
        transcript=hash_bytes("isonomy/few-shot/transcript/v1", *hashes).hex(),
        reserved_units=history.reserved_units,
        **_bounds(plan, len(rounds), measured=measured is not None),
    )
    check_training(plan, training, measured)
    return training


def _measured(plan: FewShotPlan, history: PlanHistory) -> Measured | None:
    """Return the measurement in the ledger, if there is one."""
    debit = next((each for each in history.answers if each.event.get("kind") == MEASURE), None)
    if debit is None:
        return None
    event, size = debit.event, 8 * NUMBERS
    agreed = (plan.measure_units, plan.measure_noise, len(_rounds(history)), size)
    if (debit.units, event.get("noise"), event.get("round"), len(debit.answer)) != agreed:
        raise VerificationError(f"record {debit.seq} is not a measurement under this plan")
    values = tuple(int(value) for value in np.frombuffer(debit.answer, "<i8"))
    return Measured(
        tasks=plan.settings.measured_tasks,
        rounds=len(_rounds(history)),
        time=debit.time,
        sequence=debit.seq,
        theta=str(event["theta"]),
        noise=plan.measure_noise,
        values=values,
        table=task_table(values, plan.counts, plan.measure_noise),
    )


def exchanged_units(plan: FewShotPlan, rounds: int, *, measured: bool) -> int:
    """Return the most that a sample can have lost that is exchanged: in rounds, or measured."""
    return max(REPLACED * _trained(plan, rounds), measured * plan.measure_units)


def _trained(plan: FewShotPlan, rounds: int) -> int:
    return min(plan.cap_units, rounds * plan.round_units)


def _bounds(plan: FewShotPlan, rounds: int, *, measured: bool) -> dict[str, int]:
    left_out = max(_trained(plan, rounds), measured * plan.measure_units)
    exchanged = exchanged_units(plan, rounds, measured=measured)
    return {
        "lost_units": left_out,
        "lost_epsilon": rounded_epsilon(left_out, plan.delta),
        "replaced_epsilon": rounded_epsilon(exchanged, plan.delta),
    }
