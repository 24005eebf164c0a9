"""A report's tables as one CSV file, for a spreadsheet: a line for each group and measure.

A name that begins like a formula would be computed by a spreadsheet, so such a text gets an
apostrophe in front. Numbers are written by this module alone and stay as they are.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator

from isonomy.common.people.cohort import without_value
from isonomy.common.report.few_shot import AnyReport, FewShotReport
from isonomy.common.report.schema import Limits, ReportFile, ShownTable
from isonomy.regulator.report._words import UNMEASURED

HEAD = ("audit", "by", "group", "measure", "value", "low", "high", "unit", "remark")
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
Cell = str | float


def csv_tables(report: AnyReport) -> bytes:
    """Return the file, in UTF-8 with the mark by which spreadsheets know it."""
    if isinstance(report, FewShotReport):
        return _file(_measured(report))
    return _file(_audited(report))


def _file(rows: Iterable[tuple[Cell, ...]]) -> bytes:
    stream = io.StringIO(newline="")
    writer = csv.writer(stream, quoting=csv.QUOTE_NONNUMERIC)
    writer.writerow(HEAD)
    writer.writerows(map(safe_cells, rows))
    return stream.getvalue().encode("utf-8-sig")


def _audited(report: ReportFile) -> Iterator[tuple[Cell, ...]]:
    for audit in report.audits:
        if audit.problem:
            yield audit.name, "", "", "", "", "", "", "", audit.problem
        for table in audit.tables:
            for line in _lines(table):
                yield audit.name, table.attribute, *line


def _measured(report: FewShotReport) -> Iterator[tuple[Cell, ...]]:
    name = "measured tasks"
    if report.measured is None:
        yield name, "", "", "", "", "", "", "", "not measured"
        return
    for line in _lines(report.measured.table):
        if line[1] != "people":  # a group's queries are no people
            yield name, "few-shot group", *line


def _lines(table: ShownTable) -> Iterator[tuple[Cell, ...]]:
    """Yield group, measure, value, limits, unit and remark of everything that a table shows."""
    for place, group in enumerate(table.groups):
        people = None if group.counts is None else sum(group.counts) / 1e6
        noisy = "noised count" if people is not None else UNMEASURED
        yield group.label, "people", "" if people is None else people, "", "", "people", noisy
        for name, rates in table.rates.items():
            yield group.label, name, *_limits(rates[place])
        missing = "left out of impact ratios" if without_value(group.label) else UNMEASURED
        yield group.label, "impact_ratio", *_limits(table.impact_ratios[place], missing)
    for notion, limits in table.differences.items():
        yield "largest difference", notion, *_limits(limits)
    for label in table.withheld:
        yield label, "", "", "", "", "", "withheld: too few people"


def _limits(limits: Limits | None, missing: str = UNMEASURED) -> tuple[Cell, ...]:
    if limits is None:
        return "", "", "", "share", missing
    return *(part / 1e6 for part in limits), "share", ""


def safe_cells(cells: tuple[Cell, ...]) -> list[Cell]:
    """Return cells of which no spreadsheet computes anything."""
    return [f"'{c}" if isinstance(c, str) and c.startswith(_FORMULA) else c for c in cells]
