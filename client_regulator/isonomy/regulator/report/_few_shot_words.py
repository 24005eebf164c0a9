"""A few-shot report in plain sentences. Every one follows from the plan and the ledger's rounds."""

from __future__ import annotations

from typing import Any

from markupsafe import Markup

from isonomy.common.agreements.few_shot_plan import REPLACED, FewShotPlan
from isonomy.common.privacy.shown import at_most, right_guess
from isonomy.common.report.build import rounded_epsilon
from isonomy.common.report.few_shot import FewShotReport, exchanged_units
from isonomy.common.report.schema import Limits
from isonomy.regulator.report import _svg as svg
from isonomy.regulator.report._words import (
    RATE_WORDS,
    UNMEASURED,
    gap_words,
)

_METHODS = {
    "dp_sgd": "DP-SGD: gradients clipped and noised; every sample pays as the worst one could",
    "irdp": "IRDP: gradients clipped and noised; every sample pays by the norm of its gradients",
    "l_d": "L-D: as DP-SGD, with a fairness constraint",
    "pf_ld": "PF-LD: as IRDP, with a fairness constraint",
}
_NOISES = ("inner", "query", "dual", "share")
NOT_MEASURED = (
    "Accuracy and fairness by group: not measured. The plan measures no tasks, so the ledger says "
    "nothing about them, and this report makes no statement."
)
NOT_YET = (
    "Accuracy and fairness by group: not measured yet. The plan measures them once, after the last "
    "round, when the company asks for it; until then this report makes no statement."
)
_DIFFERENCES = {  # of the summary, in order
    "accuracy_parity": "shares of right predictions",
    "equalized_odds": "shares of positive predictions among queries of the same half of classes",
    "demographic_parity": "shares of positive predictions",
}


def lines(report: FewShotReport) -> dict[str, Any]:
    """Return what the template shows: summary, terms of the training, losses and rates."""
    return {
        "summary": _summary(report),
        "trained": _trained(report.plan),
        "losses": _losses(report),
        "figures": _figures(report),
        "rate_words": RATE_WORDS,
    }


def _summary(report: FewShotReport) -> list[str]:
    """Return the result in a few sentences."""
    plan, training, run = report.plan, report.training, report.plan.settings
    delta, measures = plan.delta, run.measured_tasks > 0
    whole = exchanged_units(plan, run.rounds, measured=measures)
    sure = right_guess(rounded_epsilon(whole, delta) / 1e6)
    aim = (
        "The rounds carried a fairness constraint (equalized odds between two groups). That is an "
        "aim of the training, and no finding about its result."
        if run.fair
        else "The rounds carried no fairness constraint."
    )
    return [
        f"{training.rounds:,} of {run.rounds:,} rounds were answered: "
        f"{training.rounds * run.regulator_tasks:,} tasks of {plan.regulator.name}'s samples, "
        f"{run.regulator_tasks} a round.",
        f"Each of the {plan.samples:,} samples can have lost at most ε = "
        f"{_epsilon(training.lost_epsilon)} at δ = {delta} about whether it was there at all, and "
        f"at most ε = {_epsilon(training.replaced_epsilon)} about whether it was this one or "
        "another, its attribute included.",
        f"After all {run.rounds:,} rounds{' and the measurement' * measures}, a guess between two "
        "values of a sample's attribute, at even odds, is right with a chance of at most "
        f"{sure} instead of 50 % (except for a failure of probability about {delta}).",
        aim,
        *_findings(report),
    ]


def _findings(report: FewShotReport) -> list[str]:
    """Return what was measured in sentences, or that nothing was."""
    measured = report.measured
    if measured is None:
        return [NOT_YET if report.plan.settings.measured_tasks else NOT_MEASURED]
    table = measured.table
    rates = zip(table.groups, table.rates["accuracy"], strict=True)
    accuracy = ", ".join(f"{group.label} {_share(limits)}" for group, limits in rates)
    return [
        f"Measured after {measured.rounds:,} rounds on {measured.tasks:,} tasks of samples that no "
        f"round used. Accuracy, with 95 % intervals: {accuracy}.",
        *(
            f"Difference between the groups in the {words}: {gap_words(table.differences[notion])}."
            for notion, words in _DIFFERENCES.items()
        ),
    ]


def _share(limits: Limits | None) -> str:
    if limits is None:
        return UNMEASURED
    value, low, high = (f"{limit / 10_000:.1f}" for limit in limits)
    return f"{value} % ({low} to {high})"


def _figures(report: FewShotReport) -> list[tuple[str, Markup]]:
    """Return a plot of each measured rate that could be told of some group."""
    if report.measured is None:
        return []
    table, figures = report.measured.table, []
    labels = [group.label for group in table.groups]
    for name, words in RATE_WORDS.items():
        marks = [
            None if limits is None else svg.Mark(*(part / 1e6 for part in limits))
            for limits in table.rates[name]
        ]
        plot = svg.intervals(labels, [svg.IntervalSeries(words, marks)])
        figures.append((words, Markup(plot)))  # noqa: S704  (svg escapes)
    return [(words, plot) for words, plot in figures if plot]


def _trained(plan: FewShotPlan) -> list[tuple[str, str]]:
    """Return what was agreed about the training, with a name for each line."""
    run = plan.settings
    noises = [name for name in _NOISES if getattr(run, f"{name}_noise")]
    return [
        ("model", f"{run.model}, {plan.size:,} parameters"),
        ("the regulator's tasks", f"{plan.pool}: {plan.samples:,} samples"),
        (
            "a task",
            f"{run.ways} classes, {run.shots} examples and {run.queries} queries of each",
        ),
        ("rounds agreed on", f"{run.rounds:,}"),
        (
            "tasks to measure on",
            f"{run.measured_tasks:,}, of {plan.measured_samples:,} samples that no round uses"
            if run.measured_tasks
            else "none",
        ),
        (
            "tasks a round",
            f"{run.regulator_tasks} of the regulator, {run.company_tasks} of the company",
        ),
        ("learner", f"{run.learner}; {run.company_learner} on the company's tasks"),
        ("method", _METHODS[run.method]),
        (
            "noise, in clipping norms",
            ", ".join(f"{run.real(f'{name}_noise'):g} ({name})" for name in noises),
        ),
        ("weight of the regulator's share", f"{run.real('regulator_weight'):g}"),
    ]


def _losses(report: FewShotReport) -> list[tuple[str, str, str]]:
    """Return lines of: what, ε if the sample is left out, ε if it is exchanged for another."""
    plan, training = report.plan, report.training

    def line(what: str, left_out: int, exchanged: int) -> tuple[str, str, str]:
        epsilons = (rounded_epsilon(units, plan.delta) for units in (left_out, exchanged))
        return what, _epsilon(next(epsilons)), _epsilon(next(epsilons))

    each = plan.round_units
    bound = min(plan.cap_units, training.rounds * each)
    lines = [
        line("guaranteed (the approved cap)", plan.cap_units, plan.held_units),
        line(f"{training.rounds:,} rounds so far, at most", bound, REPLACED * bound),
        line("one round, at most", each, REPLACED * each),
    ]
    if report.measured is not None:
        price = plan.measure_units
        lines.append(line("a measured sample, which is in no round", price, price))
    return lines


def _epsilon(millionths: int) -> str:
    return at_most(millionths / 1e6)
