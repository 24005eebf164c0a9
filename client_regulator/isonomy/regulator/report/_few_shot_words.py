"""A few-shot report in plain sentences. Every one follows from the plan and the ledger's rounds."""

from __future__ import annotations

from typing import Any

from isonomy.common.agreements.few_shot_plan import REPLACED, FewShotPlan
from isonomy.common.report.few_shot import FewShotReport
from isonomy.common.report.report import rounded_epsilon
from isonomy.regulator.report._words import right_guess

_METHODS = {
    "dp_sgd": "DP-SGD: gradients clipped and noised; every sample pays as the worst one could",
    "irdp": "IRDP: gradients clipped and noised; every sample pays by the norm of its gradients",
    "l_d": "L-D: as DP-SGD, with a fairness constraint",
    "pf_ld": "PF-LD: as IRDP, with a fairness constraint",
}
_NOISES = ("inner", "query", "dual", "share")
NOT_MEASURED = (
    "Accuracy and fairness by group: not measured. No round of this run asks about either, so the "
    "ledger says nothing about them, and this report makes no statement."
)


def lines(report: FewShotReport) -> dict[str, Any]:
    """Return what the template shows: summary, terms of the training, and losses."""
    return {
        "summary": _summary(report),
        "trained": _trained(report.plan),
        "losses": _losses(report),
    }


def _summary(report: FewShotReport) -> list[str]:
    """Return the result in a few sentences."""
    plan, training, run = report.plan, report.training, report.plan.settings
    delta, whole = plan.delta, min(plan.cap_units, run.rounds * plan.round_units)
    sure = right_guess(rounded_epsilon(REPLACED * whole, delta) / 1e6)
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
        f"After all {run.rounds:,} rounds, a guess between two values of a sample's attribute, at "
        f"even odds, is right with a chance of at most {sure} instead of 50 % (except for a "
        f"failure of probability about {delta}).",
        aim,
        NOT_MEASURED,
    ]


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

    bound, each = training.lost_units, plan.round_units
    return [
        line("guaranteed (the approved cap)", plan.cap_units, plan.held_units),
        line(f"{training.rounds:,} rounds so far, at most", bound, REPLACED * bound),
        line("one round, at most", each, REPLACED * each),
    ]


def _epsilon(millionths: int) -> str:
    return f"{millionths / 1e6:.4g}"
