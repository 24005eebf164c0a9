"""Two reports of one company beside each other.

A change counts only where two 95 % intervals do not touch: everything else is within the error,
however far apart the estimates are. That is stricter than a test of the difference itself, and it
holds whether the audits were of the same people or of others.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from isonomy.common.base.errors import ConfigError
from isonomy.common.privacy.shown import at_most
from isonomy.common.report.few_shot import FewShotReport
from isonomy.common.report.schema import Limits, ReportedAudit, ReportFile, ShownTable
from isonomy.regulator.report import _few_shot_lines as few_shot
from isonomy.regulator.report import _words as words
from isonomy.regulator.report._template import page_of
from isonomy.regulator.report.collection import VerifiedReport, check_same_company

SAME = "the same measurement"
Pair = tuple[ReportedAudit, ReportedAudit]


def compare(one: VerifiedReport, two: VerifiedReport) -> dict[str, Any]:
    """Return both reports side by side: the last audits' differences, terms and tables.

    Numbers are as in report.json: millionths, [value, low, high], null where the noise drowns them.
    """
    check_same_company((one, two))
    if one.sha256 == two.sha256:
        raise ConfigError(f"{one.path} and {two.path} are the same report")
    contents = (one.report, two.report)
    common = {
        "companies": list(one.companies),
        "reports": [described(each) for each in (one, two)],
    }
    match contents:
        case (ReportFile() as a, ReportFile() as b):
            return common | _of_audits(a, b)
        case (FewShotReport() as a, FewShotReport() as b):
            return common | _of_measurements(a, b)
    raise ConfigError(
        f"{one.path} is a {one.report.word} and {two.path} a {two.report.word}: they have no rates "
        "in common. `history` lists both"
    )


def _of_audits(one: ReportFile, two: ReportFile) -> dict[str, Any]:
    """Return cautions, terms, summary and tables of two reports of audits."""
    pairs = _pairs(one, two)
    tables = [list(_tables(pair)) for pair in pairs]
    return {
        "cautions": _cautions(one, two, pairs),
        "terms": _side_by_side(_terms(one), _terms(two)),
        "summary": _summary(tables[0] if tables else [], words.main_notion(two)),
        "tables": [table for each in tables for table in each],
    }


def _of_measurements(one: FewShotReport, two: FewShotReport) -> dict[str, Any]:
    """Return the same of two few-shot reports."""
    first, second = few_shot.table_of(one), few_shot.table_of(two)
    same = (one.plan.hash, one.measured) == (two.plan.hash, two.measured)
    tables = [_table("Measured tasks", first, second, same=same)] if first and second else []
    return {
        "cautions": few_shot.cautions(one, two),
        "terms": _side_by_side(few_shot.terms(one), few_shot.terms(two)),
        "summary": _summary(tables, few_shot.NOTION),
        "tables": tables,
    }


def _side_by_side(one: dict[str, str], two: dict[str, str]) -> list[dict[str, Any]]:
    names = dict.fromkeys([*one, *two])
    return [
        {"what": name, "values": [each.get(name, "–") for each in (one, two)]} for name in names
    ]


def _summary(tables: list[dict[str, Any]], notion: str) -> list[dict[str, Any]]:
    return [
        {"attribute": table["attribute"], **line}
        for table in tables
        for line in table["differences"]
        if line["notion"] == notion
    ]


def render_diff(comparison: dict[str, Any]) -> bytes:
    """Return the page of a comparison."""
    return page_of("diff.html.j2", diff=comparison, rate_words=words.RATE_WORDS)


def described(report: VerifiedReport) -> dict[str, Any]:
    """Return which report it is: file, hash, time and plan."""
    contents = report.report
    return {
        "file": str(report.path),
        "sha256": report.sha256,
        "created": contents.created,
        "plan": contents.plan.hash.hex(),
        "name": contents.plan.name,
    }


def verdicts(report: ReportFile) -> tuple[str, str]:
    """Return the last usable audit's verdicts: on the target, and of the four-fifths screen."""
    usable = [audit for audit in report.audits if audit.tables]
    if not usable:
        return "no audit could be evaluated", "no audit could be evaluated"
    last, limit, plan = words.judged(usable), report.settings.four_fifths, report.plan
    target = "no target that an audit measures"
    if plan.notion in words.NOTION_WORDS:
        single = words.single_tables(last)
        target = words.target_verdict(single, plan.notion, plan.tolerance_millionths)[0]
    return target, words.screen_verdict(last.tables, limit)[0] if limit else "switched off"


def _terms(report: ReportFile) -> dict[str, str]:
    """Return what was agreed and what came of it, in words."""
    plan, privacy, inspections = report.plan, report.privacy, report.inspections
    target, screen = verdicts(report)
    groups = {f"groups by {name}": ", ".join(plan.groups[name]) for name in sorted(plan.groups)}
    return {
        "verdict on the target, last audit": target,
        "four-fifths screen, last audit": screen,
        "notion": words.notion_name(plan.notion),
        "target, points": words.points(plan.tolerance_millionths),
        "people": f"{plan.cohort_size:,}",
        **groups,
        "strategy": plan.strategy,
        "guaranteed ε": f"{plan.epsilon_millionths / 1e6:g} at δ = {plan.delta}",
        "spent ε": at_most(privacy.spent_epsilon / 1e6),
        "answers": str(privacy.answers),
        "inspections": f"{inspections.demanded} drawn, {inspections.failed} failed",
        **plan.words.lines(),
    }


def _cautions(one: ReportFile, two: ReportFile, pairs: list[Pair]) -> list[str]:
    """Return why the numbers may not be about the same thing."""
    lines = []
    if one.plan.companies != two.plan.companies:
        lines.append("The companies' names are the same, their keys are not.")
    if one.plan.cohort_root != two.plan.cohort_root:
        lines.append("The two plans are about different people.")
    for a, b in pairs:
        if _is_same(a, b):
            lines.append(
                f"Audit “{b.name}” is the same one in both reports: one answer, shown twice. The "
                "second confirms nothing, and there is nothing to compare."
            )
        if a.whose != b.whose:
            lines.append(
                f"Audits “{a.name}” and “{b.name}” are not both about people whom the model was "
                "trained on, held out or met, or do not say: their accuracy does not compare."
            )
        if a.model_sha256 and b.model_sha256 and a.model_sha256 != b.model_sha256:
            lines.append(f"Audits “{a.name}” and “{b.name}” are of different model files.")
        if (a.selected, one.plan.words.selected) != (b.selected, two.plan.words.selected):
            lines.append(
                f"“Selected” is not the same decision in audits “{a.name}” and “{b.name}”."
            )
    if not pairs:
        lines.append("No audit of the one can be compared with an audit of the other.")
    return lines


def _pairs(one: ReportFile, two: ReportFile) -> list[Pair]:
    """Return the last audits, whatever their names are, then those of the same name."""
    first, second = ([a for a in each.audits if a.tables] for each in (one, two))
    if not (first and second):
        return []
    by_name = {audit.name: audit for audit in first}
    pairs = [(by_name[audit.name], audit) for audit in second if audit.name in by_name]
    last = (words.judged(first), words.judged(second))
    return [last, *(pair for pair in pairs if pair != last)]


def _tables(pair: Pair) -> Iterator[dict[str, Any]]:
    """Yield the tables that both audits have, by the same attribute."""
    before = {table.attribute: table for table in pair[0].tables}
    for table in pair[1].tables:
        if table.attribute in before:
            names = dict.fromkeys(audit.name for audit in pair)
            title = f"Audit {' → '.join(names)}"
            yield _table(title, before[table.attribute], table, same=_is_same(*pair))


def _is_same(one: ReportedAudit, two: ReportedAudit) -> bool:
    """Return whether both are one answer of the regulator: its query's id names the plan."""
    return (one.query_id, one.request_hash) == (two.query_id, two.request_hash)


def _table(title: str, one: ShownTable, two: ShownTable, *, same: bool) -> dict[str, Any]:
    lines = {"differences": list(_differences(one, two)), "rates": list(_rates(one, two))}
    for line in (*lines["differences"], *lines["rates"]) if same else ():
        line["change"] = SAME
    return {"title": title, "attribute": two.attribute, **lines}


def _differences(a: ShownTable, b: ShownTable) -> Iterator[dict[str, Any]]:
    for notion in words.NOTION_WORDS:
        if notion in a.differences or notion in b.differences:
            values = (a.differences.get(notion), b.differences.get(notion))
            yield {"notion": notion, "values": values, "change": _change(*values)}


def _rates(a: ShownTable, b: ShownTable) -> Iterator[dict[str, Any]]:
    """Yield a line for each rate and each group that one of the two tables shows."""
    for label in dict.fromkeys(group.label for table in (b, a) for group in table.groups):
        for rate in words.RATE_WORDS:
            if rate in a.rates or rate in b.rates:
                values = (_rate(a, label, rate), _rate(b, label, rate))
                yield {"group": label, "rate": rate, "values": values, "change": _change(*values)}


def _rate(table: ShownTable, label: str, rate: str) -> Limits | None:
    rates = zip(table.groups, table.rates.get(rate, ()), strict=False)
    return next((limits for group, limits in rates if group.label == label), None)


def _change(one: Limits | None, two: Limits | None) -> str:
    if one is None or two is None:
        return "not measured"
    return "larger" if two[1] > one[2] else "smaller" if two[2] < one[1] else "within the error"
