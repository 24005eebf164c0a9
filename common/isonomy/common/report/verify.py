"""Verify a report: numbered checks that a third person can run without network or encryption.

    (1) report.json is canonical JSON of a schema that is known
    (2) report.sig holds the regulator's signature over exactly these bytes
    (3) every countersignature is that of a company of the plan
    (4) report.html, if it lies beside, is the page that was signed
    (5) rates, intervals, ratios and differences follow from the counts
    (6) the privacy account adds up: ε of the units, spent within the cap
    (7) the regulator's key is the one on the card that was handed over          (needs a card)
    (8) the plan is the one that the report names                                (needs the plan)
    (9) the ledger holds, reaches the report's head, and gives the same numbers  (needs a ledger)

A signature proves that the owner of the key in the report signed it. Whose key that is, only (7)
or comparing the fingerprint by telephone can tell. All failures are VerificationErrors.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from isonomy.common.agreements.plan import MILLION, Plan
from isonomy.common.base.errors import ConfigError, IsonomyError, VerificationError
from isonomy.common.crypto.params import parameter_set
from isonomy.common.keys.party import Card, fingerprint
from isonomy.common.people.cohort import group_count
from isonomy.common.privacy.accounting import units_for
from isonomy.common.report.from_ledger import plan_history
from isonomy.common.report.report import build_report, rounded_epsilon
from isonomy.common.report.schema import MAX_REPORT_BYTES, Audit, Limits, ReportFile, ShownTable
from isonomy.common.report.sign import MAX_SIGNATURE_BYTES, Signatures, check_signatures
from isonomy.common.report.tables import shown_table

MAX_HTML_BYTES = 1 << 25
_ROUNDING = 2  # millionths: another machine's last bit may round the other way

State = Literal["ok", "failed", "not given"]


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
        plan: Plan | None = None,
        ledger: Path | None = None,
    ) -> None:
        self._paths, self._card, self._plan, self._ledger = paths, card, plan, ledger
        self._data = read_bounded(paths.report, MAX_REPORT_BYTES)
        self._report: ReportFile | None = None

    @property
    def report(self) -> ReportFile:
        if self._report is None:
            raise VerificationError("report.json could not be read")
        return self._report

    def run(self) -> list[Check]:
        """All checks. Nothing is raised for a bad report: look at the states."""
        return list(self._run())

    def _run(self) -> Iterator[Check]:
        first = self._check(1, "report.json is a report in canonical form", self._read)
        yield first
        if first.state == "failed":
            return
        yield self._check(2, "the regulator signed exactly this report", self._signed)
        yield self._check(3, "countersignatures are those of the plan's companies", self._counter)
        yield self._check(4, "report.html is the page that was signed", self._page)
        yield self._check(5, "rates and intervals follow from the counts", self._arithmetic)
        yield self._check(6, "the privacy account adds up", self._account)
        yield self._check(7, "the key is the regulator's (card)", self._key)
        yield self._check(8, "the plan is the one named", self._named_plan)
        yield self._check(9, "the ledger gives the same numbers", self._history)

    def _check(self, number: int, what: str, run: Callable[[], tuple[State, str]]) -> Check:
        try:
            return Check(number, what, *run())
        except IsonomyError as error:
            return Check(number, what, "failed", str(error))

    # --- The checks ----------------------------------------------------------------------------

    def _read(self) -> tuple[State, str]:
        self._report = ReportFile.from_json(self._data)
        return "ok", f"plan {self.report.run.plan[:16]}…, {len(self.report.audits)} audits"

    def _signed(self) -> tuple[State, str]:
        check_signatures(self._data, self.report, self._signatures())
        regulator = self.report.run.regulator
        return "ok", f"{regulator.name}, fingerprint {fingerprint(regulator)}"

    def _counter(self) -> tuple[State, str]:
        names = check_signatures(self._data, self.report, self._signatures())
        return ("ok", ", ".join(names)) if names else ("not given", "nobody has countersigned")

    def _page(self) -> tuple[State, str]:
        if not self._paths.html.exists():
            return "not given", "no report.html beside it"
        page = read_bounded(self._paths.html, MAX_HTML_BYTES)
        if hashlib.sha256(page).hexdigest() != self.report.html_sha256:
            raise VerificationError("report.html was changed, or belongs to another report")
        return "ok", ""

    def _arithmetic(self) -> tuple[State, str]:
        bound = parameter_set(self.report.run.parameters).row_bound
        for audit in self.report.audits:
            for table in audit.tables:
                self._same_table(audit, table, bound)
        return "ok", f"{sum(len(own.tables) for own in self.report.audits)} tables recomputed"

    def _same_table(self, audit: Audit, table: ShownTable, row_bound: int) -> None:
        released = group_count(audit.attribute, self.report.run.groups)
        if any(max(own.members, default=released) >= released for own in table.groups):
            raise VerificationError(f"audit {audit.name!r} names groups that were never released")
        again = shown_table(
            table.attribute,
            table.groups,
            table.withheld,
            cells=audit.cells,
            released=released,
            sigma=audit.noise / row_bound,
        )
        same = (
            again.rates.keys() == table.rates.keys()
            and all(_close(own, table.rates[name]) for name, own in again.rates.items())
            and _close(again.impact_ratios, table.impact_ratios)
            and again.differences.keys() == table.differences.keys()
            and all(_near(own, table.differences[n]) for n, own in again.differences.items())
        )
        if not same:
            raise VerificationError(
                f"the numbers of audit {audit.name!r} by {table.attribute} do not follow from its "
                "counts"
            )

    def _account(self) -> tuple[State, str]:
        own = self.report.privacy
        if not _is_probability(own.delta):
            raise VerificationError("δ is not a decimal number between 0 and 1")
        if own.cap_units != units_for(own.cap_epsilon / MILLION, float(own.delta)):
            raise VerificationError("the cap's units do not belong to its ε")
        if own.spent_units > own.cap_units:
            raise VerificationError("more was spent than the cap allows")
        if abs(own.spent_epsilon - rounded_epsilon(own.spent_units, own.delta)) > _ROUNDING:
            raise VerificationError("the ε spent does not belong to the units spent")
        listed = sum(line.units for line in own.asked)
        if not own.individual_filter and listed < own.spent_units:
            raise VerificationError("the questions listed cost less than what was spent")
        if sum(line.queries for line in own.asked) != own.answers:
            raise VerificationError("the questions listed are not as many as the answers")
        spent = f"{own.spent_epsilon / MILLION:.4g}"
        return "ok", f"ε = {own.cap_epsilon / MILLION:g} guaranteed, {spent} spent"

    def _key(self) -> tuple[State, str]:
        if self._card is None:
            return "not given", "compare the fingerprint under (2) with the regulator by telephone"
        if self._card != self.report.run.regulator:
            raise VerificationError("the report names other keys than the card")
        return "ok", self._card.name

    def _named_plan(self) -> tuple[State, str]:
        if self._plan is None:
            return "not given", ""
        if self._plan.hash.hex() != self.report.run.plan:
            raise VerificationError("the report is about another plan")
        return "ok", self._plan.name

    def _history(self) -> tuple[State, str]:
        if self._ledger is None:
            return "not given", ""
        if self._plan is None:
            raise ConfigError("a ledger is compared under its plan: give --plan too")
        if self._plan.hash.hex() != self.report.run.plan:
            raise VerificationError("the report is about another plan")
        report = self.report
        history = plan_history(
            self._ledger, self._plan.hash, until=bytes.fromhex(report.ledger.head)
        )
        again = build_report(
            self._plan,
            history,
            created=report.created,
            software=report.software,
            settings=report.settings,
            officer=report.officer,
            company=report.company,
            told={own.query_id: own.totals for own in report.audits},
        )
        wrong = [
            name
            for name in ("run", "privacy", "ledger", "inspections", "unknowns", "deletions")
            if getattr(again, name) != getattr(report, name)
        ]
        if [_raw(own) for own in again.audits] != [_raw(own) for own in report.audits]:
            wrong.append("audits")
        if wrong:
            raise VerificationError(f"the ledger says otherwise about: {', '.join(wrong)}")
        return "ok", f"{history.records} records up to the report's head"

    def _signatures(self) -> Signatures:
        path = self._paths.signatures
        if not path.exists():
            raise VerificationError(f"no signature beside the report: {path.name} is missing")
        return Signatures.from_json(read_bounded(path, MAX_SIGNATURE_BYTES))


def require(checks: list[Check]) -> None:
    """Raise VerificationError unless no check failed."""
    failed = [own for own in checks if own.state == "failed"]
    if failed:
        numbers = ", ".join(f"({own.number}) {own.what}: {own.detail}" for own in failed)
        raise VerificationError(f"the report does not hold: {numbers}")


def read_bounded(path: Path, limit: int) -> bytes:
    """A file, if it is not larger than it may be."""
    try:
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    if len(data) > limit:
        raise VerificationError(f"{path} is larger than {limit} bytes: no report")
    return data


def _is_probability(text: str) -> bool:
    try:
        return 0.0 < float(text) < 1.0
    except ValueError:
        return False


def _raw(audit: Audit) -> object:
    """What of an audit stands in the ledger or follows from it without rounding."""
    tables = [(own.attribute, own.groups, own.withheld) for own in audit.tables]
    return audit.model_copy(update={"tables": ()}), tables


def _close(one: tuple[Limits | None, ...], two: tuple[Limits | None, ...]) -> bool:
    if len(one) != len(two):
        return False
    return all(_near(a, b) for a, b in zip(one, two, strict=True))


def _near(one: Limits | None, two: Limits | None) -> bool:
    if one is None or two is None:
        return one is two
    return max(abs(a - b) for a, b in zip(one, two, strict=True)) <= _ROUNDING


__all__ = ["Check", "ReportPaths", "Verification", "require"]
