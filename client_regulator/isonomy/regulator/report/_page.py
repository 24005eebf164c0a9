"""report.html: one self-contained page for people, made from report.json and nothing else.

An appendix (say, figures of a demonstration) may be added. It is plain data, escaped like all else,
under a heading that says that it is not the regulator's finding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from isonomy.common.agreements.notions import NOTIONS
from isonomy.common.keys.party import fingerprint
from isonomy.common.privacy.declarations import SCORED
from isonomy.common.privacy.shown import share_up
from isonomy.common.report.audit_cells import CELL_NAMES, MEASURES
from isonomy.common.report.few_shot import AnyReport, FewShotReport
from isonomy.common.report.schema import Limits, ReportedAudit, ReportFile, ShownTable
from isonomy.regulator.report import _few_shot_words as few_shot_words
from isonomy.regulator.report import _svg as svg
from isonomy.regulator.report import _words as words
from isonomy.regulator.report._template import page_of, readable
from isonomy.regulator.report.appendix import Appendix


def render(report: AnyReport, appendix: Appendix | None = None) -> bytes:
    """Return the page, which depends on the report and the appendix alone."""
    added = {
        "appendix": appendix.sections() if appendix else [],
        "appendix_title": appendix.title if appendix else "",
        "fingerprint": fingerprint,
    }
    if isinstance(report, FewShotReport):
        lines = few_shot_words.lines(report)
        return page_of("few_shot.html.j2", report=report, notions=NOTIONS, **lines, **added)
    return _run_page(report, added)


def _run_page(report: ReportFile, added: dict[str, Any]) -> bytes:
    """Return the page of a run with audits."""
    report = readable(report)
    usable = [audit for audit in report.audits if audit.tables]
    last = words.judged(usable) if usable else None
    scored = [audit for audit in usable if audit.selected == SCORED and audit is not last]
    return page_of(
        "report.html.j2",
        report=report,
        headline=words.headline(report, usable),
        notion=words.main_notion(report),
        summary=_summary(report, usable),
        figures=_figures(usable),
        usable=usable,
        problems=[audit for audit in report.audits if audit.problem],
        last=last,
        screening=words.four_fifths(report, last) if last else [],
        law144=[table for audit in (last, *scored[-1:]) if audit for table in _law144(audit)],
        selected=words.selected_words(report, usable),
        whom=words.company_words(report),
        whose=words.whose_words(usable),
        files=words.model_words(report, usable),
        in_full=words.in_full_words(report),
        carrier=words.CARRIER_WORDS[report.plan.carrier],
        law144_words=words.law144_words(report, usable),
        unknowns=words.unknown_words(report),
        meaning=words.privacy_meaning(report),
        spent_share=share_up(report.privacy.spent_units, report.plan.cap_units),
        inspections=words.inspection_words(report),
        rate_words=words.RATE_WORDS,
        **added,
    )


def _summary(report: ReportFile, usable: Sequence[ReportedAudit]) -> list[dict[str, Any]]:
    """Return a line per audit and attribute: largest difference, smallest ratio, verdicts."""
    notion, limit, lines = words.main_notion(report), report.settings.four_fifths, []
    for audit in usable:
        for table in words.single_tables(audit):
            ratios = [ratio for ratio in table.impact_ratios if ratio is not None]
            screened = limit and audit.selected != SCORED
            lines.append(
                {
                    "name": audit.name,
                    "by": table.attribute,
                    "people": audit.people,
                    "labelled": notion in table.differences,
                    "difference": table.differences.get(notion),
                    "target": "" if audit.selected == SCORED else _target(report, table),
                    "ratio": min(ratios) if ratios else None,
                    "screen": words.screen_verdict([table], limit)[0] if screened else "",
                    "accuracy": _overall_accuracy(audit),
                }
            )
    return lines


def _target(report: ReportFile, table: ShownTable) -> str:
    if report.plan.notion not in words.NOTION_WORDS:
        return ""
    most = report.plan.tolerance_millionths
    return words.target_verdict([table], report.plan.notion, most)[0]


def _overall_accuracy(audit: ReportedAudit) -> int | None:
    """Return the accuracy over all people, from the company's totals: unverified, no noise."""
    if audit.cells != "yd" or len(audit.totals) != len(CELL_NAMES["yd"]):
        return None
    return round(1_000_000 * (audit.totals[0] + audit.totals[3]) / max(sum(audit.totals), 1))


def _figures(usable: Sequence[ReportedAudit]) -> list[dict[str, Any]]:
    """Return, per attribute, a plot of each rate, with all audits side by side."""
    attributes = dict.fromkeys(table.attribute for audit in usable for table in audit.tables)
    return [_figure(attribute, usable) for attribute in attributes]


def _figure(attribute: str, usable: Sequence[ReportedAudit]) -> dict[str, Any]:
    """Return what the template shows of one attribute: plots, their legend, and tables."""
    tables = [(a, table) for a in usable for table in a.tables if table.attribute == attribute]
    labels = list(dict.fromkeys(g.label for _, table in tables for g in table.groups))
    plots = []
    for name in dict.fromkeys(m.name for audit, _ in tables for m in MEASURES[audit.cells]):
        series = [
            svg.IntervalSeries(audit.name, _marks(labels, table, table.rates.get(name, ())))
            for audit, table in tables
        ]
        plots.append((words.RATE_WORDS[name], Markup(svg.intervals(labels, series))))  # noqa: S704
    return {
        "attribute": attribute,
        "legend": Markup(svg.legend([audit.name for audit, _ in tables])),  # noqa: S704
        "plots": [(title, plot) for title, plot in plots if plot],
        "tables": tables,
        "rates": [n for n in words.RATE_WORDS if any(n in table.rates for _, table in tables)],
        "notions": [n for n in NOTIONS if any(n in table.differences for _, table in tables)],
    }


def _marks(
    labels: Sequence[str], table: ShownTable, rates: Sequence[Limits | None]
) -> list[svg.Mark | None]:
    marks = {
        group.label: svg.Mark(*(value / 1e6 for value in limits))
        for group, limits in zip(table.groups, rates, strict=False)
        if limits is not None
    }
    return [marks.get(label) for label in labels]


def _law144(audit: ReportedAudit) -> list[dict[str, Any]]:
    """Return people, selected, selection rate and impact ratio of each group, by table."""
    selected = next(m for m in MEASURES[audit.cells] if m.name == "selection_rate").hits
    return [
        {
            "attribute": table.attribute,
            "audit": audit.name,
            "rate": "scoring rate" if audit.selected == SCORED else "selection rate",
            "chosen": "above the median" if audit.selected == SCORED else "selected",
            "withheld": table.withheld,
            "rows": [
                {
                    "label": group.label,
                    "people": group.counts and sum(group.counts),
                    "size": audit.without_value.get(table.attribute),
                    "selected": group.counts and sum(group.counts[cell] for cell in selected),
                    "rate": rate,
                    "ratio": ratio,
                }
                for group, rate, ratio in zip(
                    table.groups, table.rates["selection_rate"], table.impact_ratios, strict=True
                )
            ],
        }
        for table in audit.tables
    ]
