"""Build a report from a plan and what the ledger says about it.

Every number in it comes from the regulator's own ledger: nothing is taken from the company but the
totals that its queries carried, and what is marked as its word. All audits of the run are shown,
not the best one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from isonomy.common.agreements.agreement import Agreement
from isonomy.common.agreements.plan import Plan
from isonomy.common.base.errors import ConfigError, VerificationError
from isonomy.common.crypto.params import parameter_set
from isonomy.common.ledger.records import DebitRecord
from isonomy.common.privacy.accounting import epsilon_of
from isonomy.common.privacy.declarations import Audit, Unknowns
from isonomy.common.privacy.queries import asks_alone
from isonomy.common.report._tables import audit_of, unknowns_of
from isonomy.common.report.audit_unknowns import declaration_of
from isonomy.common.report.from_ledger import PlanHistory
from isonomy.common.report.schema import (
    MAX_LINES,
    Deletion,
    Inspections,
    LedgerPoint,
    OfficerWord,
    Privacy,
    Questions,
    ReportFile,
    ReportSettings,
    Statement,
)

DELETION = "deletion"  # kind of the ledger's note
_EVENT = (("purpose", "kind", "attributes"), ("people", "noise"))  # of an answer: words, numbers


def build_report(
    plan: Plan,
    history: PlanHistory,
    *,
    created: int,
    software: str,
    officer: OfficerWord,
    written_by: str = "",
    settings: ReportSettings | None = None,
    company: Statement | None = None,
    totals: Mapping[str, Sequence[int]] | None = None,
) -> ReportFile:
    """The whole report, without its HTML's hash. A pure function of its arguments.

    `totals` are people per cell by query id, for audits whose query could not carry them.
    """
    if history.reserved_units > plan.cap_units:
        raise ConfigError("the ledger reserved more for this plan than the plan allows")
    settings = settings or ReportSettings()
    if settings.company:
        history = history.of_company(plan, settings.company)
    answers = history.answers
    for each in answers:
        words, numbers = ([each.event.get(name) for name in names] for names in _EVENT)
        if any(type(word) is not str for word in words) or any(
            type(number) is not int or number < 0 for number in numbers
        ):
            raise VerificationError(f"record {each.seq} does not say what was asked")
    row_bound = parameter_set(plan.parameters).row_bound
    audits = [
        audit_of(each, plan.groups, settings, totals or {})
        for each in _audited(plan, settings, answers)
    ]
    unknowns = [unknowns_of(each, plan.groups, row_bound) for each in answers]
    return ReportFile(
        created=created,
        software=software,
        plan=plan,
        settings=settings,
        privacy=privacy_of(plan, history),
        ledger=ledger_point(history),
        inspections=inspections_of(plan, history, created),
        audits=tuple(audit for audit in audits if audit is not None),
        unknowns=tuple(share for share in unknowns if share is not None),
        company=company,
        officer=officer,
        written_by=written_by,
        approved_by=history.approved_by,
        deletions=deletions_of(plan, history),
    )


def _audited(
    plan: Plan, settings: ReportSettings, answers: Sequence[DebitRecord]
) -> list[DebitRecord]:
    """Whose audits a report shows: of several companies, those of all, then its company's own."""
    together = [each for each in answers if asks_alone(each.query_id, plan.hash) is None]
    if len(plan.companies) == 1:
        return list(answers)
    return together + [each for each in answers if settings.company and each not in together]


def ledger_point(history: PlanHistory) -> LedgerPoint:
    """Where the ledger stood."""
    return LedgerPoint(
        ledger_id=history.ledger_id.hex(), head=history.head.hex(), records=history.records
    )


def privacy_of(plan: Plan, history: PlanHistory) -> Privacy:
    """What was spent, and on which questions."""
    lines: dict[tuple[Any, ...], list[DebitRecord]] = {}
    for debit in history.answers:
        event, declaration = debit.event, declaration_of(debit)
        strategy = "audit" if isinstance(declaration.content, Audit) else declaration.strategy
        names = (str(event[name]) for name in ("purpose", "kind", "attributes"))
        asked_by = "regulator" if isinstance(declaration.content, Unknowns) else "company"
        key = (*names, strategy, declaration.notion, asked_by)
        if key not in lines and len(lines) >= MAX_LINES - 2:
            key = ("other purposes", "", "", "", "", asked_by)
        lines.setdefault(key, []).append(debit)
    fields = ("purpose", "kind", "attributes", "strategy", "notion", "asked_by")
    questions = tuple(
        Questions(
            **dict(zip(fields, key, strict=True)),
            queries=len(debits),
            units=sum(debit.units for debit in debits),
            first=min(debit.time for debit in debits),
            last=max(debit.time for debit in debits),
        )
        for key, debits in lines.items()
    )
    return Privacy(
        spent_units=history.spent_units,
        spent_epsilon=rounded_epsilon(history.spent_units, plan.delta),
        answers=len(history.answers),
        questions=questions,
    )


def rounded_epsilon(units: int, delta: str) -> int:
    """ε of some units in millionths, rounded up: never less than it is."""
    return math.ceil(epsilon_of(units, float(delta)) * 1e6)


def inspections_of(plan: Plan, history: PlanHistory, created: int) -> Inspections:
    """How far each inspected request came, by the ledger: drawn while it ran, or opened later.

    What was demanded and not opened by the plan's deadline failed, whether the ledger says so yet
    (the next session would write it) or not.
    """
    steps = Counter(inspection.step for inspection in history.inspections)
    if plan.inspections_over(datetime.fromtimestamp(created, UTC).date()):
        steps["overdue"] += steps["demanded"]
    return Inspections(
        demanded=len(history.inspections),
        opened=steps["opened"] + steps["passed"] + steps["failed"],
        passed=steps["passed"],
        failed=steps["failed"] + steps["overdue"],
        overdue=steps["overdue"],
    )


def deletions_of(plan: Agreement, history: PlanHistory) -> tuple[Deletion, ...]:
    """Deletions of this run or of a whole cohort, as the ledger notes them."""
    this_run = f"run {plan.hash.hex()}"
    deletions = []
    for time, note in history.notes:
        target = str(note.event.get("target", ""))
        if note.kind != DELETION or not (target == this_run or target.startswith("cohort ")):
            continue
        what = "the people of this run" if target == this_run else target
        record = str(note.event.get("record_sha256", ""))
        deletions.append(Deletion(time=time, what=f"{what} (record {record[:16]}…)"))
    return tuple(deletions)
