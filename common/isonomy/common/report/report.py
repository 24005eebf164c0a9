"""Build a report from a plan and what the ledger says about it.

Every number in it comes from the regulator's own ledger: nothing is taken from the company but the
totals that its queries carried, and what is marked as its word. All audits of the run are shown,
not the best one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from isonomy.common.agreements.plan import Plan
from isonomy.common.base.errors import ConfigError
from isonomy.common.crypto.params import parameter_set
from isonomy.common.privacy.accounting import epsilon_of
from isonomy.common.report.from_ledger import PlanHistory
from isonomy.common.report.schema import (
    MAX_LINES,
    Asked,
    CompanyWord,
    Deletion,
    Inspections,
    LedgerPoint,
    OfficerWord,
    Privacy,
    ReportFile,
    Run,
    Settings,
)
from isonomy.common.report.tables import audit_of, unknowns_of

DELETION = "deletion"  # kind of the ledger's note


def build_report(
    plan: Plan,
    history: PlanHistory,
    *,
    created: int,
    software: str,
    settings: Settings | None = None,
    officer: OfficerWord | None = None,
    company: CompanyWord | None = None,
    told: Mapping[str, Sequence[int]] | None = None,
) -> ReportFile:
    """The whole report, without its HTML's hash. A pure function of its arguments."""
    if history.reserved_units > plan.cap_units:
        raise ConfigError("the ledger reserved more for this plan than the plan allows")
    wanted = settings or Settings()
    row_bound = parameter_set(plan.parameters).row_bound
    audits = [audit_of(own, plan.groups, row_bound, wanted, told or {}) for own in history.answers]
    unknowns = [unknowns_of(own, plan.groups, row_bound) for own in history.answers]
    return ReportFile(
        created=created,
        software=software,
        run=run_of(plan),
        settings=wanted,
        privacy=privacy_of(plan, history),
        ledger=LedgerPoint(
            ledger_id=history.ledger_id.hex(), head=history.head.hex(), records=history.records
        ),
        inspections=inspections_of(plan, history),
        audits=tuple(own for own in audits if own is not None),
        unknowns=tuple(own for own in unknowns if own is not None),
        company=company,
        officer=officer or OfficerWord(),
        deletions=deletions_of(plan, history),
    )


def run_of(plan: Plan) -> Run:
    """The plan's terms."""
    return Run(
        plan=plan.hash.hex(),
        name=plan.name,
        strategy=plan.strategy,
        notion=plan.notion,
        tolerance=plan.tolerance_millionths,
        groups=plan.groups,
        people=plan.cohort_size,
        cohort_root=plan.cohort_root,
        parameters=plan.parameters,
        companies=plan.companies,
        regulator=plan.regulator,
        inspection_deadline=plan.inspection_deadline,
    )


def privacy_of(plan: Plan, history: PlanHistory) -> Privacy:
    """Cap, spending, and what it was spent on."""
    asked: dict[tuple[str, str, str], Asked] = {}
    for own in history.answers:
        event = own.debit.event
        key = (str(event["purpose"]), str(event["kind"]), str(event["attributes"]))
        if key not in asked and len(asked) >= MAX_LINES - 1:
            key = ("other purposes", "", "")
        old = asked.get(key)
        asked[key] = Asked(
            purpose=key[0],
            kind=key[1],
            attributes=key[2],
            queries=1 + (old.queries if old else 0),
            units=own.debit.units + (old.units if old else 0),
            first=min(own.time, old.first) if old else own.time,
            last=max(own.time, old.last) if old else own.time,
        )
    return Privacy(
        delta=plan.delta,
        cap_units=plan.cap_units,
        cap_epsilon=plan.epsilon_millionths,
        spent_units=history.spent_units,
        spent_epsilon=rounded_epsilon(history.spent_units, plan.delta),
        individual_filter=plan.individual_filter,
        record_privacy=plan.record_privacy,
        answers=len(history.answers),
        asked=tuple(asked.values()),
    )


def rounded_epsilon(units: int, delta: str) -> int:
    """ε of some units in millionths, rounded up: never less than it is."""
    return math.ceil(epsilon_of(units, float(delta)) * 1e6)


def inspections_of(plan: Plan, history: PlanHistory) -> Inspections:
    """How far each inspected request came, by the ledger: drawn while it ran, or opened later."""
    steps = Counter(own.step for own in history.inspections)
    return Inspections(
        rate=plan.inspection_millionths,
        auditor=plan.auditor,
        waits=plan.regulator_audits or plan.inspection_waits,
        demanded=len(history.inspections),
        opened=steps["opened"] + steps["passed"] + steps["failed"],
        passed=steps["passed"],
        failed=steps["failed"],
    )


def deletions_of(plan: Plan, history: PlanHistory) -> tuple[Deletion, ...]:
    """Deletions of this run or of a whole cohort, as the ledger notes them."""
    own_run = f"run {plan.hash.hex()}"
    found = []
    for time, note in history.notes:
        target = str(note.event.get("target", ""))
        if note.kind != DELETION or not (target == own_run or target.startswith("cohort ")):
            continue
        what = "the people of this run" if target == own_run else target
        record = str(note.event.get("record_sha256", ""))
        found.append(Deletion(time=time, what=f"{what} (record {record[:16]}…)"))
    return tuple(found)
