"""The report of a few-shot run: what was trained, and what each sample can have lost.

It comes from the ledger's records of rounds. A record names its round, its price and the hashes of
θ and of the regulator's share; what single samples really paid stands in no ledger, because it
depends on them. So the report gives bounds: at most `round_units` per answered round and never
more than the cap, for a sample that is left out; four times as many units for one that is
exchanged, its attribute included.

No round answers how accurate or how fair the model is, so this report states neither.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict

from isonomy.common.agreements.agreement import kind_of
from isonomy.common.agreements.few_shot_plan import KIND, REPLACED, FewShotPlan
from isonomy.common.agreements.plan import Plan
from isonomy.common.base.canonical import hash_bytes
from isonomy.common.base.documents import Document, kind_of_content
from isonomy.common.base.errors import VerificationError
from isonomy.common.keys.party import Hex32
from isonomy.common.report.from_ledger import PlanHistory
from isonomy.common.report.report import deletions_of, ledger_point, rounded_epsilon
from isonomy.common.report.schema import (
    Deletion,
    LedgerPoint,
    OfficerWord,
    ReportFile,
    Statement,
    Time,
    Whole,
)

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


class FewShotReport(Document):
    """A whole report.json of a few-shot run."""

    word: ClassVar[str] = "few-shot report"

    schema_version: Literal["isonomy/few-shot-report/v1"] = "isonomy/few-shot-report/v1"
    created: Time
    software: str
    html_sha256: str = ""
    plan: FewShotPlan
    training: Training
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
        ledger=ledger_point(history),
        company=company,
        officer=officer,
        written_by=written_by,
        approved_by=history.approved_by,
        deletions=deletions_of(plan, history),
    )


def check_training(plan: FewShotPlan, training: Training) -> None:
    """Raise VerificationError unless the bounds follow from the plan and the number of rounds."""
    if training.rounds > plan.settings.rounds:
        raise VerificationError("more rounds were answered than the plan allows")
    if training.reserved_units != plan.held_units:
        raise VerificationError("the ledger set something else aside than the plan says")
    bounds = _bounds(plan, training.rounds)
    if any(abs(getattr(training, name) - bound) > _ROUNDING for name, bound in bounds.items()):
        raise VerificationError("what a sample can have lost does not follow from the rounds")


def _training(plan: FewShotPlan, history: PlanHistory) -> Training:
    """Return what the ledger says; VerificationError unless its records are the plan's rounds."""
    for number, debit in enumerate(history.answers):
        event, price = debit.event, REPLACED * plan.round_units
        if (event.get("kind"), event.get("round"), debit.units) != ("few_shot", number, price):
            raise VerificationError(f"record {debit.seq} is not round {number} of this plan")
    times = [debit.time for debit in history.answers] or [0]
    hashes = [part for debit in history.answers for part in (debit.request_hash, debit.answer)]
    training = Training(
        rounds=len(history.answers),
        first=times[0],
        last=times[-1],
        transcript=hash_bytes("isonomy/few-shot/transcript/v1", *hashes).hex(),
        reserved_units=history.reserved_units,
        **_bounds(plan, len(history.answers)),
    )
    check_training(plan, training)
    return training


def _bounds(plan: FewShotPlan, rounds: int) -> dict[str, int]:
    bound = min(plan.cap_units, rounds * plan.round_units)
    return {
        "lost_units": bound,
        "lost_epsilon": rounded_epsilon(bound, plan.delta),
        "replaced_epsilon": rounded_epsilon(REPLACED * bound, plan.delta),
    }
