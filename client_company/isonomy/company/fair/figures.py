"""Pictures of a fitted model, from its report and its frontier: estimates with their intervals.

Nothing here looks at people. What a picture shows is in `report_`, or was computed from releases
that were paid for: it spends nothing, and whoever may see the report may see it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from isonomy.common.figures.figure import Figure
from isonomy.common.figures.panels import Level, Panel, Series
from isonomy.common.figures.style import BLUE, GREY, RED, TOLERATED
from isonomy.company.fair.tilt.fit_report import AttributeReport, GroupRate, Point, Report

_TOO_FEW = "too few people for this budget"
_SAME = "The decisions do not depend on the person, so every group has the same rate."
_UNMEASURED = "The gap cannot be measured at this budget."
_SHIFT = 0.16  # of a row: before above, after below its middle
_FRONTIER_NOTE = (
    "Accuracy: the company's own, out of fold, on the training people. Gap: estimated from noised "
    "releases, bars are 95 % intervals."
)
_GROUPS_NOTE = "Rates are estimated from noised releases; bars are 95 % intervals, one group each."

Limits = tuple[float, float, float]


def verdict(report: Report) -> str:
    """Gap and tolerance of each attribute, in words that hold for every report."""
    several = len(report.by_attribute) > 1
    return " ".join(
        f"{each.attribute}: {_verdict(report, each)}" if several else _verdict(report, each)
        for each in report.by_attribute
    )


def _verdict(report: Report, each: AttributeReport) -> str:
    if each.after is None:
        return _UNMEASURED
    low, high = each.after.low, each.after.high
    interval = f"95\u00a0% interval {_percent(low)} to {_percent(high)}"
    gap = f"gap {_percent(each.after.value)}, {interval}"
    if _several_notions(report):  # each may have its own tolerance
        return f"Largest {gap}."
    gap = f"{gap}; tolerance {_tolerance(each.tolerance)}"
    if low > each.tolerance:
        return f"Not met: {gap}."
    if high <= each.tolerance and not each.unmeasured:
        return f"Met: {gap}."
    small = len(each.unmeasured)
    more = f" {small} group{'s' * (small > 1)} cannot be measured at this budget." if small else ""
    return f"Inconclusive: {gap}.{more}"


def _several_notions(report: Report) -> bool:
    return " + " in report.notion


def frontier_figure(report: Report, points: Sequence[Point]) -> Figure:
    """Accuracy against the gap, for other tolerances, the base model and this model."""
    base = _Place("base model", report.base_violation, report.base_interval, report.base_error)
    model = _Place("this model", report.violation, report.interval, report.error)
    others = [
        _Place(f"tolerance {_percent(p.tolerance)}", p.violation, p.interval, p.error)
        for p in points
    ]
    series = [
        _places("other tolerances", GREY, "circle", others, line=True),
        _places("base model", RED, "diamond", [base]),
        _places("this model", BLUE, "star", [model]),
    ]
    levels = []
    if not _several_notions(report) and len(report.by_attribute) == 1:  # else one band says little
        tolerated = f"tolerated: up to {_tolerance(report.tolerance)}"
        levels = [Level(100 * report.tolerance, tolerated, band=True, colour=TOLERATED)]
    panel = Panel(
        "", "estimated gap between groups, %", "accuracy, %", series,
        x_from_zero=True, y_span=0.5, message="" if any(s.points for s in series) else _UNMEASURED,
        levels=levels,
    )  # fmt: skip
    title = f"Accuracy against the gap: {_what(report)}"
    return Figure(title, [panel], verdict(report), _FRONTIER_NOTE)


@dataclass(frozen=True)
class _Place:
    """Where a model lies; without gap and interval it cannot be drawn."""

    name: str
    gap: float | None
    interval: tuple[float, float] | None
    error: float


def _places(
    label: str, colour: str, mark: str, places: Sequence[_Place], *, line: bool = False
) -> Series:
    marks, texts, limits = [], [], []
    for place in places:
        if place.gap is not None and place.interval is not None:
            accuracy = 1 - place.error
            marks.append((100 * place.gap, 100 * accuracy))
            limits.append((100 * place.interval[0], 100 * place.interval[1]))
            texts.append(f"{place.name}: gap {_percent(place.gap)}, accuracy {_percent(accuracy)}")
    return Series(label, colour, mark, marks, texts, line=line, x_limits=limits)


def groups_figure(report: Report) -> Figure:
    """Each group's rates before and after; a panel for each attribute and rate."""
    parts: dict[tuple[str, str], list[GroupRate]] = {}
    for rate in report.rates:
        parts.setdefault((rate.attribute, rate.event), []).append(rate)
    panels = [
        _group_panel(
            f"{event}, by {attribute}, %" if len(parts) > 1 else f"{event}, %",
            rates,
            unchanged=report.returned == "base",
        )
        for (attribute, event), rates in parts.items()
    ] or [Panel("", "rate, %", "", [], message=_SAME)]
    note = f"Selected means decision = {report.pos_label}. {_GROUPS_NOTE}"
    return Figure(f"Rates by group: {_what(report)}", panels, verdict(report), note)


def _group_panel(x_label: str, rates: Sequence[GroupRate], *, unchanged: bool) -> Panel:
    """One rate: a row for each group."""
    before, after = [rate.before for rate in rates], [rate.after for rate in rates]
    if unchanged:
        series = [_rows("base model, returned unchanged", RED, "diamond", 0.0, after)]
    else:
        series = [
            _rows("base model", RED, "diamond", -_SHIFT, before),
            _rows("this model", BLUE, "star", _SHIFT, after),
        ]
    names = [rate.group for rate in rates]
    notes = {number: _TOO_FEW for number, limits in enumerate(after) if limits is None}
    return Panel(
        "", x_label, "", series, x_span=10.0, x_within=(0.0, 100.0), rows=names, row_notes=notes
    )


def _rows(
    label: str, colour: str, mark: str, shift: float, rates: Sequence[Limits | None]
) -> Series:
    marks, texts, limits = [], [], []
    for number, rate in enumerate(rates):
        if rate is not None:
            value, low, high = rate
            marks.append((100 * value, number + shift))
            limits.append((100 * low, 100 * high))
            texts.append(f"{label}: {_percent(value)} ({_percent(low)} to {_percent(high)})")
    return Series(label, colour, mark, marks, texts, x_limits=limits)


def _what(report: Report) -> str:
    return f"{report.notion.replace('_', ' ')} by {' and '.join(report.attributes)}"


def _percent(value: float) -> str:
    return f"{100 * value:.2f}\u00a0%"


def _tolerance(value: float) -> str:
    return f"{100 * value:g}\u00a0%"
