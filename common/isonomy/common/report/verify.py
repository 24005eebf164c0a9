"""Verify a report: numbered checks that a third person can run without network or encryption.

    (1) report.json is canonical JSON of a schema that is known
    (2) report.sig holds the regulator's signature over exactly these bytes
    (3) every countersignature is that of a company of the plan
    (4) report.html, if it lies beside, is the page that was signed
    (5) rates, intervals, ratios and differences follow from the counts
    (6) the privacy account adds up: ε of the units, spent within the cap
    (7) the regulator's key is the one on the card that was handed over          (needs a card)
    (8) the plan in the report is the one that was agreed on                     (needs the plan)
    (9) the ledger holds, reaches the report's head, and gives the same numbers  (needs a ledger)

A signature proves that the owner of the key in the report signed it. Whose key that is, only (7),
(8) or comparing the fingerprint by telephone can tell. For (7), records of rotations lead from the
card of today to the key of then.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from isonomy.common.agreements.plan import MILLION, Plan
from isonomy.common.base.documents import read_bounded
from isonomy.common.base.errors import IsonomyError, VerificationError
from isonomy.common.crypto.params import open_parameters
from isonomy.common.keys.party import Card, fingerprint
from isonomy.common.keys.rotation import Rotation, retirement
from isonomy.common.people.cohort import group_count
from isonomy.common.privacy.shown import at_most
from isonomy.common.report._tables import shown_table
from isonomy.common.report.build import build_report, rounded_epsilon
from isonomy.common.report.few_shot import (
    AnyReport,
    FewShotReport,
    ReportedPlan,
    build_few_shot_report,
    check_training,
    read_report,
)
from isonomy.common.report.from_ledger import PlanHistory, plan_history
from isonomy.common.report.schema import ReportedAudit, ReportFile, ShownTable
from isonomy.common.report.sign import Signatures, check_companies, check_regulator
from isonomy.common.report.task_rates import task_table

MAX_HTML_BYTES = 1 << 25
_ROUNDING = 2  # millionths: another machine's last bit may round the other way

_NEEDS_SIGNATURE = (4, 7)  # what these compare with, anybody could have written

State = Literal["ok", "failed", "not given"]
Outcome = tuple[State, str]


class SignerUnknown(VerificationError):  # noqa: N818  (it reads as the event it is)
    """A report holds in itself, and nothing says whose key signed it."""


@dataclass(frozen=True)
class Check:
    """One numbered check and its outcome."""

    number: int
    what: str
    state: State
    detail: str = ""


@dataclass(frozen=True)
class ReportPaths:
    """The three files of a report, side by side under one stem."""

    report: Path

    @classmethod
    def of(cls, path: Path) -> ReportPaths:
        """From report.json or the folder that holds it."""
        return cls(path / "report.json" if path.is_dir() else path)

    @property
    def signatures(self) -> Path:
        return self.report.with_suffix(".sig")

    @property
    def html(self) -> Path:
        return self.report.with_suffix(".html")


class Verification:
    """Runs the checks in order; a failed one does not hide the others."""

    def __init__(
        self,
        paths: ReportPaths,
        *,
        card: Card | None = None,
        plan: ReportedPlan | None = None,
        ledger: Path | None = None,
        rotations: Sequence[Rotation] = (),
    ) -> None:
        self._rotations = rotations
        self._paths, self._card, self._plan, self._ledger = paths, card, plan, ledger
        self._data = read_bounded(paths.report, ReportFile.max_bytes)

    @cached_property
    def report(self) -> AnyReport:
        return read_report(self._data)

    @cached_property
    def _signatures(self) -> Signatures:
        path = self._paths.signatures
        if not path.exists():
            raise VerificationError(f"no signature beside the report: {path.name} is missing")
        return Signatures.load(path)

    def run(self) -> list[Check]:
        """All checks. Nothing is raised for a bad report: look at the states."""
        checks: tuple[tuple[str, Callable[[], Outcome]], ...] = (
            ("report.json is a report in canonical form", self._read),
            ("the regulator signed exactly this report", self._signed),
            ("countersignatures are those of the plan's companies", self._counter),
            ("report.html is the page that was signed", self._page),
            ("rates and intervals follow from the counts", self._arithmetic),
            ("the privacy account adds up", self._account),
            ("the key is the regulator's (card)", self._key),
            ("the plan is the one agreed on", self._named_plan),
            ("the ledger gives the same numbers", self._history),
        )
        outcomes: list[Check] = []
        for number, (what, check) in enumerate(checks, start=1):
            if number in _NEEDS_SIGNATURE and outcomes[1].state == "failed":
                outcomes.append(Check(number, what, "not given", "not checked, because (2) failed"))
                continue
            try:
                outcomes.append(Check(number, what, *check()))
            except IsonomyError as error:
                outcomes.append(Check(number, what, "failed", str(error)))
            if outcomes[0].state == "failed":
                break  # there is nothing to check the rest of
        return outcomes

    # --- The checks ----------------------------------------------------------------------------

    def _read(self) -> Outcome:
        report = self.report
        if isinstance(report, FewShotReport):
            content = f"{report.training.rounds} few-shot rounds"
        else:
            content = f"{len(report.audits)} audit{'s' * (len(report.audits) != 1)}"
        return "ok", f"plan {report.plan.hash.hex()[:16]}…, {content}"

    def _signed(self) -> Outcome:
        check_regulator(self.report, self._signatures)
        regulator = self.report.plan.regulator
        return "ok", f"{regulator.name}, fingerprint {fingerprint(regulator)}"

    def _counter(self) -> Outcome:
        names = check_companies(self.report, self._signatures)
        return ("ok", ", ".join(names)) if names else ("not given", "nobody has countersigned")

    def _page(self) -> Outcome:
        if not self._paths.html.exists():
            return "not given", "not checked: no report.html beside it"
        page = read_bounded(self._paths.html, MAX_HTML_BYTES)  # one too large has another hash
        if hashlib.sha256(page).hexdigest() != self.report.html_sha256:
            raise VerificationError("report.html was changed, or belongs to another report")
        return "ok", ""

    def _arithmetic(self) -> Outcome:
        report = self.report
        if isinstance(report, FewShotReport):
            if report.measured is None:
                return "not given", "this few-shot run was not measured, and its report has no rate"
            plan, measured = report.plan, report.measured
            again = task_table(measured.values, plan.counts, measured.noise)
            if not _same_numbers(again, measured.table):
                raise VerificationError("the measured rates do not follow from the released counts")
            return "ok", "1 table recomputed"
        for audit in report.audits:
            for table in audit.tables:
                self._check_table(report.plan, audit, table)
        count = sum(len(audit.tables) for audit in report.audits)
        return "ok", f"{count} table{'s' * (count != 1)} recomputed"

    def _check_table(self, plan: Plan, audit: ReportedAudit, table: ShownTable) -> None:
        """Raise VerificationError unless a table's numbers follow from its counts."""
        released = group_count(audit.attribute, plan.groups)
        if any(max(group.members, default=released) >= released for group in table.groups):
            raise VerificationError(f"audit {audit.name!r} names groups that were never released")
        again = shown_table(
            table.attribute,
            table.groups,
            table.withheld,
            cells=audit.cells,
            released=released,
            sigma=audit.noise / open_parameters(audit.people).row_bound,
        )
        if not _same_numbers(again, table):
            raise VerificationError(
                f"the numbers of audit {audit.name!r} by {table.attribute} do not follow from its "
                "counts"
            )

    def _account(self) -> Outcome:
        report = self.report
        if isinstance(report, FewShotReport):
            check_training(report.plan, report.training, report.measured)
            guaranteed, lost = report.plan.epsilon_millionths, report.training.lost_epsilon
            return (
                "ok",
                f"ε = {guaranteed / MILLION:g} guaranteed, {at_most(lost / MILLION)} at most lost",
            )
        plan, privacy = report.plan, report.privacy
        if privacy.spent_units > plan.cap_units:
            raise VerificationError("more was spent than the plan's cap allows")
        epsilon = rounded_epsilon(privacy.spent_units, plan.delta)
        if abs(privacy.spent_epsilon - epsilon) > _ROUNDING:
            raise VerificationError("the ε spent does not belong to the units spent")
        listed = sum(line.units for line in privacy.questions)
        in_full = plan.individual_filter or plan.record_privacy  # the cap counts as spent
        if not in_full and listed < privacy.spent_units:
            raise VerificationError("the questions listed cost less than what was spent")
        if sum(line.queries for line in privacy.questions) != privacy.answers:
            raise VerificationError("the questions listed are not as many as the answers")
        spent = at_most(privacy.spent_epsilon / MILLION)
        return "ok", f"ε = {plan.epsilon_millionths / MILLION:g} guaranteed, {spent} spent"

    def _key(self) -> Outcome:
        if self._card is None:
            detail = "no card was named: ask the regulator for the fingerprint under (2)"
            return "not given", detail
        signer = self.report.plan.regulator
        if self._card == signer:
            return "ok", self._card.name
        until = retirement(self._card, signer, self._rotations)
        if until is None:
            raise VerificationError(
                "the report names other keys than the card. If the regulator has a new identity "
                "since, name its rotation records too (--rotation)"
            )
        if self.report.created > until:
            raise VerificationError("the report was written after its key had been replaced")
        return "ok", f"{self._card.name}, with the key that it replaced later"

    def _named_plan(self) -> Outcome:
        if self._plan is None:
            return "not given", "not checked: no plan was named"
        if self._plan != self.report.plan:
            raise VerificationError("the report is about another plan")
        return "ok", self._plan.name

    def _history(self) -> Outcome:
        """Build the report again from the ledger; returns "ok" if every number is the same."""
        if self._ledger is None:
            return "not given", "not checked: no ledger was named"
        report = self.report
        head = bytes.fromhex(report.ledger.head)
        history = plan_history(self._ledger, report.plan.hash, until=head)
        wrong = _differences(report, history)
        if wrong:
            raise VerificationError(f"the ledger says otherwise about: {', '.join(wrong)}")
        return "ok", f"{history.records} records up to the report's head"


def _differences(report: AnyReport, history: PlanHistory) -> list[str]:
    """Build a report again from the ledger; returns the parts that are not the same."""
    fixed: dict[str, Any] = {
        "created": report.created,
        "software": report.software,
        "officer": report.officer,
        "written_by": report.written_by,
        "company": report.company,
    }
    if isinstance(report, FewShotReport):
        trained = build_few_shot_report(report.plan, history, **fixed)
        wrong = _unequal(trained, report, ("training", "ledger", "deletions", "approved_by"))
        again_measured, measured = trained.measured, report.measured
        if again_measured is not None and measured is not None:  # (5) compares the tables
            again_measured = again_measured.model_copy(update={"table": measured.table})
        return wrong + ["measured"] * (again_measured != measured)
    totals = {audit.query_id: audit.totals for audit in report.audits}
    again = build_report(report.plan, history, settings=report.settings, totals=totals, **fixed)
    names = ("privacy", "ledger", "inspections", "unknowns", "deletions", "approved_by")
    wrong = _unequal(again, report, names)
    if list(map(_raw, again.audits)) != list(map(_raw, report.audits)):
        wrong.append("audits")
    return wrong


def _unequal(one: AnyReport, two: AnyReport, names: Sequence[str]) -> list[str]:
    return [name for name in names if getattr(one, name) != getattr(two, name)]


def require(checks: list[Check]) -> None:
    """Raise VerificationError unless no check failed."""
    failed = [check for check in checks if check.state == "failed"]
    if failed:
        numbers = ", ".join(f"({check.number}) {check.what}: {check.detail}" for check in failed)
        raise VerificationError(f"the report does not hold: {numbers}")


def _raw(audit: ReportedAudit) -> object:
    """What of an audit stands in the ledger or follows from it without rounding."""
    tables = [(table.attribute, table.groups, table.withheld) for table in audit.tables]
    return audit.model_copy(update={"tables": ()}), tables


def _same_numbers(one: ShownTable, two: ShownTable) -> bool:
    """Whether two tables are of the same groups, counts included, and equal but for rounding."""
    derived = ("rates", "impact_ratios", "differences")
    same = all(_near(getattr(one, name), getattr(two, name)) for name in derived)
    return same and one.groups == two.groups


def _near(one: object, two: object) -> bool:
    """Whether two tables of numbers are equal but for rounding."""
    if isinstance(one, int) and isinstance(two, int):
        return abs(one - two) <= _ROUNDING
    if isinstance(one, Mapping) and isinstance(two, Mapping):
        return one.keys() == two.keys() and all(_near(one[name], two[name]) for name in one)
    if isinstance(one, tuple) and isinstance(two, tuple):
        return len(one) == len(two) and all(map(_near, one, two))
    return one is two  # None: a number that the noise drowns
