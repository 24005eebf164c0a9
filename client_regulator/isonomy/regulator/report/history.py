"""All reports of one company on one page: differences against the target, verdicts, budget.

A report is written at one moment of a plan, so a plan may have several. Each is a line; the budget
counts each plan once, as its newest report has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from isonomy.common.base.errors import ConfigError
from isonomy.common.privacy.shown import at_most
from isonomy.common.report.build import rounded_epsilon
from isonomy.common.report.few_shot import AnyReport, FewShotReport, exchanged_units
from isonomy.common.report.schema import ReportedAudit, ReportFile
from isonomy.regulator.report import _few_shot_lines as few_shot
from isonomy.regulator.report import _svg as svg
from isonomy.regulator.report import _words as words
from isonomy.regulator.report._template import page_of
from isonomy.regulator.report.collection import VerifiedReport, check_same_company
from isonomy.regulator.report.diff import described, verdicts


def history_of(reports: Sequence[VerifiedReport]) -> dict[str, Any]:
    """Return the lines of the page, the oldest report first, and the budget of all plans.

    Numbers are as in report.json: millionths, [value, low, high], null where the noise drowns them.
    """
    if not reports:
        raise ConfigError("there is no report to show")
    check_same_company(reports)
    different = {report.sha256: report for report in reports}.values()  # a copy is no second one
    ordered = sorted(different, key=lambda each: (each.report.created, each.sha256))
    newest = {each.report.plan.hash: each.report for each in ordered}.values()
    delta = min((report.plan.delta for report in newest), key=float)
    units = sum(map(_spent_units, newest))
    return {
        "companies": list(ordered[0].companies),
        "reports": [_line(each) for each in ordered],
        "budget": {
            "plans": len(newest),
            "spent_epsilon": rounded_epsilon(units, delta),
            "delta": delta,
        },
        "cautions": _cautions([r.report for r in ordered if isinstance(r.report, ReportFile)]),
    }


def _spent_units(report: AnyReport) -> int:
    """Return what a plan has taken of a person, or of a sample that is exchanged for another."""
    if isinstance(report, FewShotReport):
        was_measured = report.measured is not None
        return exchanged_units(report.plan, report.training.rounds, measured=was_measured)
    return report.privacy.spent_units


def render_history(history: dict[str, Any]) -> bytes:
    """Return the page of a history."""
    lines = history["reports"]
    names = dict.fromkeys(gap["attribute"] for line in lines for gap in line["differences"])
    return page_of(
        "history.html.j2",
        history=history,
        figures=[(name, Markup(_figure(name, lines))) for name in names],  # noqa: S704
        budget=Markup(_budget(lines)),  # noqa: S704  (svg escapes)
    )


def _line(each: VerifiedReport) -> dict[str, Any]:
    """Return one report: its differences by attribute, verdicts and budget."""
    report = each.report
    if isinstance(report, FewShotReport):
        return {**described(each), **few_shot.history_line(report)}
    usable = _usable(report)
    last = words.judged(usable) if usable else None
    notion, (target, screen) = words.main_notion(report), verdicts(report)
    return {
        **described(each),
        "kind": "audits",
        "audit": last.name if last else "",
        "people": report.plan.cohort_size,
        "notion": notion,
        "target": report.plan.tolerance_millionths if report.plan.notion == notion else None,
        "target_verdict": target,
        "screen_verdict": screen,
        "differences": [
            {"attribute": table.attribute, "value": table.differences.get(notion)}
            for table in (last.tables if last else ())
        ],
        "epsilon": report.plan.epsilon_millionths,
        "spent_epsilon": report.privacy.spent_epsilon,
        "delta": report.plan.delta,
        "inspections_failed": report.inspections.failed,
        "summary": f"target {target}, four-fifths screen {screen}",
    }


def _usable(report: ReportFile) -> list[ReportedAudit]:
    return [audit for audit in report.audits if audit.tables]


def _cautions(reports: Sequence[ReportFile]) -> list[str]:
    """Return why the lines may not be about the same thing."""
    sets = (
        ("are about different notions of fairness", {words.main_notion(r) for r in reports}),
        ("are about different people", {r.plan.cohort_root for r in reports}),
        ("name different keys of the companies", {r.plan.companies for r in reports}),
        (
            "are not all about people whom the model met in the same way (trained on, held out, "
            "live), or do not say",
            {words.judged(usable).whose for r in reports if (usable := _usable(r))},
        ),
    )
    return [f"These reports {why}." for why, values in sets if len(values) > 1]


def _figure(attribute: str, lines: Sequence[dict[str, Any]]) -> str:
    """Return a plot: a row for each report, its difference with the interval, and the target."""
    kind = "few-shot" if attribute == few_shot.BY else "audits"
    lines = [line for line in lines if line["kind"] == kind]
    marks: list[svg.Mark | None] = []
    for line in lines:
        values = {gap["attribute"]: gap["value"] for gap in line["differences"]}
        limits = values.get(attribute)
        marks.append(svg.Mark(*(part / 1e6 for part in limits)) if limits else None)
    targets = [None if line["target"] is None else line["target"] / 1e6 for line in lines]
    series = [svg.IntervalSeries("difference", marks)]
    return svg.intervals([_day(line) for line in lines], series, limits=targets, unit="")


def _budget(lines: Sequence[dict[str, Any]]) -> str:
    """Return bars of what each plan spent of its cap, in drawings that fit on a sheet."""
    bars = [_bar(line) for line in lines]
    starts = range(0, len(bars), svg.MOST_ROWS)
    return "".join(svg.bars(bars[at : at + svg.MOST_ROWS], limit=1.0) for at in starts)


def _bar(line: dict[str, Any]) -> tuple[str, float, str]:
    spent, cap = line["spent_epsilon"] / 1e6, line["epsilon"] / 1e6
    return _day(line), spent / cap, f"{at_most(spent, 3)} of {cap:g}"


def _day(line: dict[str, Any]) -> str:
    return words.day(line["created"])[:10]
