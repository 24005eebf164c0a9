"""A report's findings in plain sentences. Every sentence is a function of numbers in the report."""

from __future__ import annotations

import math
from datetime import UTC, datetime

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
    """Return millionths as a percentage."""
    return f"{value / 10_000:.{digits}f} %"


def points(value: int) -> str:
    """Return millionths as percentage points."""
    return f"{value / 10_000:.1f}"


def day(time: int) -> str:
    """Return Unix seconds as a day and minute in UTC."""
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d %H:%M UTC")


def attribute_words(attribute: str) -> str:
    """Return an attribute in words: "sex*race" is "sex and race"."""
    return " and ".join(attribute.split("*"))


def main_notion(report: ReportFile) -> str:
    """Return the plan's notion if audits know it, else demographic parity."""
    return report.plan.notion if report.plan.notion in NOTION_WORDS else "demographic_parity"


def single_tables(audit: ReportedAudit) -> list[ShownTable]:
    """Return the tables by one attribute, which the summary is about."""
    return [table for table in audit.tables if "*" not in table.attribute]


def headline(report: ReportFile) -> list[str]:
    """Return the result in a few sentences: one per attribute, and one about the plan's aim."""
    notion = main_notion(report)
    differences: dict[str, list[tuple[str, Limits]]] = {}
    for audit in report.audits:
        for table in single_tables(audit):
            limits = table.differences.get(notion)
            if limits is not None:
                differences.setdefault(table.attribute, []).append((audit.name, limits))
    if not differences:
        return [
            "No audit in this run could be evaluated, so this report makes no statement about the "
            "model's decisions. What was asked and what it cost is below."
        ]
    sentences = [_attribute_sentence(name, by, notion) for name, by in differences.items()]
    worst = max((by[-1][1], name, by[-1][0]) for name, by in differences.items())
    return [*sentences, _tolerance_sentence(report.plan.tolerance_millionths, *worst)]


def _attribute_sentence(attribute: str, audits: list[tuple[str, Limits]], notion: str) -> str:
    parts = [
        f"{points(value)} points in audit “{name}” (95 % interval {points(low)} to {points(high)})"
        for name, (value, low, high) in audits
    ]
    return (
        f"Between groups by {attribute_words(attribute)}, the {NOTION_WORDS[notion]} differ by "
        f"{', and by '.join(parts)}."
    )


def _tolerance_sentence(tolerance: int, limits: Limits, attribute: str, name: str) -> str:
    value, low, high = limits
    aim = f"The plan aimed at no more than {points(tolerance)} percentage points. "
    last = f"audit “{name}”, by {attribute_words(attribute)},"
    if high <= tolerance:
        return aim + f"The last {last} shows that this is met."
    if low > tolerance:
        return aim + f"The last {last} shows that this is not met."
    side = "within" if value <= tolerance else "above"
    return (
        aim + f"The estimate of the last {last} lies {side} that; with this many people and this "
        "privacy budget the interval reaches across it, so the audit alone cannot decide."
    )


def four_fifths(report: ReportFile, audit: ReportedAudit) -> list[str]:
    """Return what the screening signal says of each group."""
    limit = report.settings.four_fifths
    if not limit:
        return ["The screening signal is switched off in this report."]
    sentences = []
    for table in audit.tables:
        for group, ratio in zip(table.groups, table.impact_ratios, strict=True):
            if ratio is None or ratio[0] >= limit:
                continue
            certain = "clearly below" if ratio[2] < limit else "below, within the error"
            sentences.append(
                f"{group.label}: impact ratio {ratio[0] / 1e6:.2f} "
                f"({ratio[1] / 1e6:.2f} to {ratio[2] / 1e6:.2f}), {certain} {limit / 1e6:.2f}."
            )
    return sentences or [f"No shown group has an impact ratio below {limit / 1e6:.2f}."]


def privacy_meaning(report: ReportFile) -> str:
    """Return what ε means for one person, as the chance of a right guess."""
    cap = report.plan.epsilon_millionths / 1e6
    sure = 1 / (1 + math.exp(-min(cap, 50.0)))
    return (
        f"Suppose somebody who knows everything else about a person thinks that the odds of their "
        f"attribute being one value or another are even. After seeing every answer of this run, "
        f"that guess is right with a chance of at most {100 * sure:.0f} % instead of 50 % "
        f"(except for a failure of probability about {report.plan.delta})."
    )


def inspection_words(report: ReportFile) -> str:
    """Return what inspections found, or that there were none."""
    plan, counts = report.plan, report.inspections
    if counts.demanded == 0:
        if plan.inspection_millionths == 0:
            return (
                "No inspections: the plan names none. A company that sent other rows than it "
                "should have would not have been caught; the counts rest on its honesty."
            )
        rate = percent(plan.inspection_millionths)
        return f"The plan inspects {rate} of the queries; in this run none was drawn."
    words = (
        f"{counts.demanded} requests of {report.privacy.answers} answers were inspected: "
        f"{counts.opened} were opened, {counts.passed} passed, {counts.failed} failed."
    )
    if counts.overdue:
        words += (
            f" {counts.overdue} of the failed ones were never opened, and the last day for it "
            f"({plan.inspection_deadline}) is over."
        )
    waiting = counts.demanded - counts.opened - counts.overdue
    if waiting:
        words += f" {waiting} had not been opened when this report was written."
    if plan.regulator_audits:
        words += " The regulator is the auditor itself, so it saw the rows of these requests."
    if not (plan.regulator_audits or plan.inspection_waits):
        words += " Answers went out before the auditor's verdict."
    if counts.failed:
        words += " A failed inspection means that the company did not follow the protocol."
    return words
