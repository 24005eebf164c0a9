"""From an outcome to its report: every number of `Report` is filled in here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from isonomy.common.privacy.accounting import epsilon_of
from isonomy.common.sums.oracle import Budget
from isonomy.company.fair.tilt.analysis import Problem
from isonomy.company.fair.tilt.notions import Event
from isonomy.company.fair.tilt.report import Measures, Report, interval, measure
from isonomy.company.fair.tilt.rule import Tilt, decide
from isonomy.company.fair.tilt.strategy import Outcome

FELL = 0.8  # a note is written when the share of positives falls below this part of what it was


@dataclass(frozen=True)
class Seconds:
    """How long one fit of the base model, the out-of-fold fits and the fairness part took."""

    base: float
    out_of_fold: float
    fairness: float = 0.0


def report_of(outcome: Outcome, notion: str, budget: Budget, seconds: Seconds) -> Report:
    """The account of an outcome."""
    before = measure(outcome.base_view, Tilt.none(*outcome.view.land.shape))
    final = outcome.base_view if outcome.returned == "base" else outcome.view
    after = measure(final, outcome.tilt)
    return Report(
        notion=notion,
        attributes=outcome.releases.attributes,
        groups=outcome.releases.groups,
        returned=outcome.returned,
        retrained=outcome.retrained,
        epsilon_spent=epsilon_of(outcome.releases.units, budget.delta),
        notes=_notes(outcome, before, after),
        **_shared_fields(outcome.view.land.events, outcome.tilt, before, after, budget, seconds),
    )


def report_of_exactly_fair(
    problem: Problem,
    notion: str,
    attributes: tuple[str, ...],
    groups: tuple[str, ...],
    budget: Budget,
    seconds: Seconds,
) -> Report:
    """Decisions that never differ within an event are fair whatever the groups are."""
    decided = decide(problem.proba[:, 1:] - problem.proba[:, :1])
    error, rate = float(np.mean(decided != problem.y)), float(np.mean(decided != 0))
    fair = Measures(error=error, selection_rate=rate, violation=0.0, deviation=0.0)
    none = Tilt.none(len(groups), len(problem.events))
    return Report(
        notion=notion,
        attributes=attributes,
        groups=groups,
        returned="base",
        retrained=False,
        epsilon_spent=0.0,
        notes=(
            "The base model decides the same for everybody in question (constant, or always "
            "right): it is fair by this notion whatever the groups are, so nothing was spent.",
        ),
        **_shared_fields(problem.events, none, fair, fair, budget, seconds),
    )


def _shared_fields(
    events: Sequence[Event],
    tilt: Tilt,
    before: Measures,
    after: Measures,
    budget: Budget,
    seconds: Seconds,
) -> dict[str, Any]:
    """The fields of `Report` that are computed the same way for every outcome."""
    return {
        "tolerance": min(event.tolerance for event in events),
        "tilt": tuple(map(tuple, tilt.lam.tolist())),
        "offset": tilt.offset,
        "base_violation": before.violation,
        "base_deviation": before.deviation,
        "violation": after.violation,
        "deviation": after.deviation,
        "interval": interval(after.violation, after.deviation),
        "base_error": before.error,
        "error": after.error,
        "base_selection_rate": before.selection_rate,
        "selection_rate": after.selection_rate,
        "epsilon_cap": budget.cap_epsilon,
        "delta": budget.delta,
        "seconds_base": seconds.base,
        "seconds_out_of_fold": seconds.out_of_fold,
        "seconds_fairness": seconds.fairness,
    }


def _notes(outcome: Outcome, before: Measures, after: Measures) -> tuple[str, ...]:
    """What a reader should know beside the numbers."""
    notes = []
    slack = outcome.view.land.slack
    if after.selection_rate < FELL * before.selection_rate:
        notes.append(
            "The share of positives fell by more than a fifth; keep_selection_rate=True keeps it."
        )
    if slack.any():
        loose = [outcome.releases.groups[g] for g in np.flatnonzero(slack.max(axis=1) > 0)]
        notes.append(
            "The budget cannot measure the rates of these groups to a point, so they were given "
            f"slack: {', '.join(loose)}."
        )
    if outcome.view.people.repeated:
        notes.append("Several rows belong to one person: rates are rates among persons.")
    return tuple(notes)
