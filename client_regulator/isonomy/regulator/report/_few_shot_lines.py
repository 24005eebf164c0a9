"""What `diff` and `history` show of a few-shot report: the same shapes as of a report of audits."""

from __future__ import annotations

from typing import Any

from isonomy.common.privacy.shown import at_most
from isonomy.common.report.few_shot import FewShotReport
from isonomy.common.report.schema import ShownTable
from isonomy.regulator.report import _words as words

NOTION = "equalized_odds"  # what a constraint of the rounds is about, and the summary's difference
BY = "few-shot group"
NO_TARGET = "few-shot: no target"


def table_of(report: FewShotReport) -> ShownTable | None:
    """Return the measured rates, under a name that no attribute of a plan has."""
    if report.measured is None:
        return None
    return report.measured.table.model_copy(update={"attribute": BY})


def terms(report: FewShotReport) -> dict[str, str]:
    """Return what was agreed and what came of it, in words."""
    plan, training, run = report.plan, report.training, report.plan.settings
    epsilon = plan.epsilon_millionths / 1e6
    return {
        "rounds": f"{training.rounds:,} of {run.rounds:,}",
        "measured": f"on {run.measured_tasks:,} tasks" if report.measured else "not measured",
        "method": run.method,
        "learner": run.learner,
        "model": f"{run.model}, {plan.size:,} parameters",
        "the regulator's tasks": f"{plan.pool}: {plan.samples:,} samples",
        "a task": f"{run.ways} classes, {run.shots} examples and {run.queries} queries of each",
        "guaranteed ε, left out": f"{epsilon:g} at δ = {plan.delta}",
        "lost ε at most, left out": at_most(training.lost_epsilon / 1e6),
        "lost ε at most, exchanged": at_most(training.replaced_epsilon / 1e6),
        **plan.words.lines(),
    }


def cautions(one: FewShotReport, two: FewShotReport) -> list[str]:
    """Return why the numbers of two few-shot reports may not be about the same thing."""
    lines = []
    if one.plan.companies != two.plan.companies:
        lines.append("The companies' names are the same, their keys are not.")
    if (one.plan.pool, one.plan.samples) != (two.plan.pool, two.plan.samples):
        lines.append("The two plans are about different tasks of the regulator.")
    forms = [(s.ways, s.shots, s.queries) for s in (one.plan.settings, two.plan.settings)]
    if forms[0] != forms[1]:
        lines.append("The tasks do not have the same form: their accuracy does not compare.")
    if one.measured is not None and (one.plan.hash, one.measured) == (two.plan.hash, two.measured):
        lines.append(
            "Both reports show the same measurement. It confirms nothing, and there is nothing to "
            "compare."
        )
    if one.measured is None or two.measured is None:
        lines.append("Not both runs were measured: no rate can be compared.")
    return lines


def history_line(report: FewShotReport) -> dict[str, Any]:
    """Return a few-shot report as a line of the history; what does not apply is None or empty."""
    table = table_of(report)
    value = None if table is None else table.differences[NOTION]
    return {
        "kind": "few-shot",
        "audit": "",
        "people": report.plan.samples,
        "notion": NOTION,
        "target": None,
        "target_verdict": NO_TARGET,
        "screen_verdict": "not screened",
        "differences": [{"attribute": BY, "value": value}] if table else [],
        "epsilon": report.plan.epsilon_millionths,
        "spent_epsilon": report.training.lost_epsilon,
        "delta": report.plan.delta,
        "inspections_failed": None,
        "summary": (
            f"{report.training.rounds:,} few-shot rounds, "
            + (
                f"difference in equalized odds: {words.gap_words(value)}"
                if table
                else "not measured"
            )
        ),
    }
