"""A report's findings in plain sentences. Every sentence is a function of numbers in the report."""

from __future__ import annotations

import math
from datetime import UTC, datetime

from isonomy.common.report.audit_cells import AuditPurpose
from isonomy.common.report.audit_unknowns import unknowns_attribute
from isonomy.common.report.schema import Limits, ReportedAudit, ReportFile, ShownTable

NOTION_WORDS = {
    "demographic_parity": "shares of people selected",
    "equal_opportunity": "shares selected among people with label 1",
    "equal_fpr": "shares selected among people with label 0",
    "equalized_odds": "shares selected among people with the same label",
    "accuracy_parity": "shares of right decisions",
}
RATE_WORDS = {
    "selection_rate": "Selection rate",
    "true_positive_rate": "True positive rate",
    "false_positive_rate": "False positive rate",
    "accuracy": "Accuracy",
}


def percent(value: int, digits: int = 1) -> str:
    """Millionths as a percentage."""
    return f"{value / 10_000:.{digits}f} %"


def points(value: int) -> str:
    """Millionths as percentage points."""
    return f"{value / 10_000:.1f}"


def day(time: int) -> str:
    """Unix seconds as a day and minute in UTC."""
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d %H:%M UTC")


def attribute_words(attribute: str) -> str:
    """ "sex*race" as people say it."""
    return " and ".join(attribute.split("*"))


def purpose_words(purpose: str) -> str:
    """A query's purpose for people; the ledger keeps the exact text."""
    audit = AuditPurpose.parse(purpose)
    if audit is not None:
        return f"audit “{audit.name}”"
    attribute = unknowns_attribute(purpose)
    return purpose if attribute is None else f"how many have no {attribute}"


def main_notion(report: ReportFile) -> str:
    """The plan's notion if audits know it, else demographic parity."""
    return report.run.notion if report.run.notion in NOTION_WORDS else "demographic_parity"


def single_tables(audit: ReportedAudit) -> list[ShownTable]:
    """The tables that the summary speaks of: by one attribute each."""
    return [own for own in audit.tables if "*" not in own.attribute]


def headline(report: ReportFile) -> list[str]:
    """The finding in a few sentences: one per attribute, and one about the plan's aim."""
    notion = main_notion(report)
    found: dict[str, list[tuple[str, Limits]]] = {}
    for audit in report.audits:
        for table in single_tables(audit):
            limits = table.differences.get(notion)
            if limits is not None:
                found.setdefault(table.attribute, []).append((audit.name, limits))
    if not found:
        return [
            "No audit in this run could be evaluated, so this report makes no statement about the "
            "model's decisions. What was asked and what it cost is below."
        ]
    told = [_attribute_sentence(name, own, notion) for name, own in found.items()]
    worst = max((own[-1][1], name, own[-1][0]) for name, own in found.items())
    return [*told, _tolerance_sentence(report.run.tolerance, *worst)]


def _attribute_sentence(attribute: str, found: list[tuple[str, Limits]], notion: str) -> str:
    parts = [
        f"{points(own[0])} points in audit “{name}” (95 % interval {points(own[1])} to "
        f"{points(own[2])})"
        for name, own in found
    ]
    return (
        f"Between groups by {attribute_words(attribute)}, the {NOTION_WORDS[notion]} differ by "
        f"{', and by '.join(parts)}."
    )


def _tolerance_sentence(tolerance: int, found: Limits, attribute: str, name: str) -> str:
    aim = f"The plan aimed at no more than {points(tolerance)} percentage points. "
    last = f"audit “{name}”, by {attribute_words(attribute)},"
    if found[2] <= tolerance:
        return aim + f"The last {last} shows that this is met."
    if found[1] > tolerance:
        return aim + f"The last {last} shows that this is not met."
    side = "within" if found[0] <= tolerance else "above"
    return (
        aim + f"The estimate of the last {last} lies {side} that; with this many people and this "
        "privacy budget the interval reaches across it, so the audit alone cannot decide."
    )


def four_fifths(report: ReportFile, audit: ReportedAudit) -> list[str]:
    """What the screening signal says of each group, plainly."""
    limit = report.settings.four_fifths
    if not limit:
        return ["The screening signal is switched off in this report."]
    told = []
    for table in audit.tables:
        for group, found in zip(table.groups, table.impact_ratios, strict=True):
            if found is None or found[0] >= limit:
                continue
            certain = "clearly below" if found[2] < limit else "below, within the error"
            told.append(
                f"{group.label}: impact ratio {found[0] / 1e6:.2f} "
                f"({found[1] / 1e6:.2f} to {found[2] / 1e6:.2f}), {certain} {limit / 1e6:.2f}."
            )
    return told or [f"No shown group has an impact ratio below {limit / 1e6:.2f}."]


def privacy_meaning(report: ReportFile) -> str:
    """What ε means for one person, as the chance of a right guess."""
    cap = report.privacy.cap_epsilon / 1e6
    sure = 1 / (1 + math.exp(-min(cap, 50.0)))
    return (
        f"Suppose somebody who knows everything else about a person thinks that the odds of their "
        f"attribute being one value or another are even. After seeing every answer of this run, "
        f"that guess is right with a chance of at most {100 * sure:.0f} % instead of 50 % "
        f"(except for a failure of probability about {report.privacy.delta})."
    )


def inspection_words(report: ReportFile) -> str:
    """What inspections found, or that there were none."""
    own = report.inspections
    if own.demanded == 0:
        if own.rate == 0:
            return (
                "No inspections: the plan names none. A company that sent other rows than it "
                "should have would not have been caught; the counts rest on its honesty."
            )
        return (
            f"The plan inspects {percent(own.rate)} of the questions; in this run the draw fell on "
            "none of them."
        )
    words = (
        f"{own.demanded} requests of {report.privacy.answers} answers were inspected: {own.opened} "
        f"were opened, {own.passed} passed, {own.failed} failed."
    )
    if own.auditor == report.run.regulator.x25519:
        words += " The regulator is the auditor itself, so it saw the rows of these requests."
    if not own.waits:
        words += " Answers went out before the auditor's verdict."
    if own.failed:
        words += " A failed inspection means that the company did not follow the protocol."
    return words
