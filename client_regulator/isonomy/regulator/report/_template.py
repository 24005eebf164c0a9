"""The one way from a template to a page: escaping, the shared style, and how numbers are written.

Pages share `base.html.j2`: its style sheet knows light and dark screens, narrow ones (a table of
the class "list" becomes a list of rows, each number named by its cell's `data-of`) and paper.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import jinja2
from markupsafe import Markup

from isonomy.common.people.cohort import without_value
from isonomy.common.privacy.shown import at_most
from isonomy.common.report.schema import Limits, ReportFile, ShownTable
from isonomy.regulator.report import _words as words


def page_of(template: str, **fields: Any) -> bytes:
    """Return a page, which depends on the template and the fields alone."""
    folder = files("isonomy.regulator.report") / "templates"
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=jinja2.FunctionLoader(lambda name: (folder / name).read_text(encoding="utf-8")),
    )
    environment.filters.update(
        percent=words.percent,
        points=words.points,
        day=words.day,
        attribute=words.attribute_words,
        notion=words.notion_name,
        at_most=at_most,
        isolated=words.isolated,
        limits=_limits,
        people=_people,
        size=_size,
        verdict=_verdict,
    )
    environment.tests["without_value"] = without_value
    page = environment.get_template(template).render(**fields)
    return page.replace(" %", "\N{NO-BREAK SPACE}%").encode("utf-8")  # no line ends before a unit


def readable(report: ReportFile) -> ReportFile:
    """Return the report with the right-to-left names of its groups isolated.

    Without it a browser draws the numbers after such a name in the wrong order. No name of a plan
    can hold these marks itself: they are not printable.
    """

    def with_marks(table: ShownTable) -> ShownTable:
        groups = [g.model_copy(update={"label": words.isolated(g.label)}) for g in table.groups]
        withheld = tuple(map(words.isolated, table.withheld))
        return table.model_copy(update={"groups": tuple(groups), "withheld": withheld})

    audits = [
        audit.model_copy(update={"tables": tuple(map(with_marks, audit.tables))})
        for audit in report.audits
    ]
    return report.model_copy(update={"audits": tuple(audits)})


def _limits(limits: Limits | None, kind: str = "percent") -> Markup:
    """Return a value with its interval, for a cell of a table."""
    if limits is None:
        return Markup('<span class="small">too noisy</span>')
    scale, digits = (1e6, 2) if kind == "ratio" else (1e4, 1)
    value, low, high = (f"{limit / scale:.{digits}f}" for limit in limits)
    unit = " %" if kind == "percent" else ""
    return Markup(f'{value}{unit} <span class="ci">{low}–{high}</span>')  # noqa: S704  (numbers)


def _verdict(word: str) -> Markup:
    """Return a verdict for a cell; its colour says nothing that the word does not."""
    colour = {"met": " met", "not met": " unmet"}.get(word, "")
    return Markup('<b class="ci{}">{}</b>').format(colour, word)


def _size(limits: Limits) -> Markup:
    """Return a number of people with its interval, for a cell of a table."""
    value, low, high = map(_people, limits)
    return Markup(f'{value} <span class="ci">{low}–{high}</span>')  # noqa: S704  (numbers)


def _people(count: int | None) -> str:
    """Return millionths of people as a whole number: the noise is larger than one person."""
    if count is None:
        return "–"
    return f"{round(count / 1e6):,}"
