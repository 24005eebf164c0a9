"""A picture of a score by group: the share of people above each level, before and after."""

from __future__ import annotations

from isonomy.common.figures.figure import Figure
from isonomy.common.figures.panels import Panel, Series
from isonomy.common.figures.style import BLUE, GREEN, ORANGE, RED, RESERVE
from isonomy.company.fair.scores.score_report import ScoreReport

_COLOURS = (RED, BLUE, GREEN, ORANGE, *RESERVE)
_NOTE = "Shares are estimates from noised releases, for new people like those of the training."


def scores_figure(report: ScoreReport) -> Figure:
    """Two panels for each attribute: one line per group, which lie on each other if it is fair."""
    panels = [
        Panel(
            f"{attribute}: {title}",
            "level that is exceeded",
            "share of people, %",
            _lines(report, attribute, after=after),
            y_from_zero=True,
        )
        for attribute in report.attributes
        for title, after in (("base model", False), ("fair score", True))
    ]
    verdict = str(report.by_attribute[0])
    return Figure(f"Scores by {' and '.join(report.attributes)}", panels, verdict, _NOTE)


def _lines(report: ScoreReport, attribute: str, *, after: bool) -> list[Series]:
    groups: dict[str, list[tuple[float, float]]] = {}
    for rate in report.rates:
        limits = rate.after if after else rate.before
        if rate.attribute == attribute and limits is not None:
            line = groups.setdefault(rate.group, [])
            line.append((float(len(line) + 1), 100 * limits[0]))
    return [
        Series(group, _COLOURS[number % len(_COLOURS)], "circle", line, line=True)
        for number, (group, line) in enumerate(groups.items())
    ]
