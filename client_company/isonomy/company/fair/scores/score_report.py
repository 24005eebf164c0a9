"""What a fit of a fair score did, in numbers and in words."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from isonomy.common.privacy.accounting import epsilon_of
from isonomy.common.sums.oracle import Budget
from isonomy.company.fair.scores.levels import Levels
from isonomy.company.fair.tilt.fit_report import (
    AttributeReport,
    GroupRate,
    Seconds,
    by_attribute_of,
    measure,
    points,
    rates_of,
    unmeasured_of,
)
from isonomy.company.fair.tilt.rule import Tilt
from isonomy.company.fair.tilt.strategy import Outcome
from isonomy.company.fair.tilt.verdict import UNCHANGED, Reason, Verdict, warn_of_gap


@dataclass(frozen=True)
class ScoreReport:
    """The account of one fit. Distances are estimates from noised releases, never exact.

    Squared errors are the company's own, out of fold. A distance is the largest difference of two
    groups' shares of people above any level (Kolmogorov–Smirnov), to expect of new people. With
    several attributes it is that of the worst one; `by_attribute` has them all.
    """

    notion: str
    tolerance: float
    attributes: tuple[str, ...]
    groups: tuple[str, ...]
    levels: int
    returned: Literal["base", "tilt", "shrunk"]
    base_violation: float | None
    base_interval: tuple[float, float] | None  # 95 %
    violation: float | None
    interval: tuple[float, float] | None  # 95 %
    by_attribute: tuple[AttributeReport, ...]
    variance: float  # of the target
    raw_loss: float  # mean squared error of the base model's own score
    base_loss: float  # the same in levels
    loss: float  # of the fair score
    epsilon_spent: float
    epsilon_cap: float
    delta: float
    seconds_base: float
    seconds_out_of_fold: float
    seconds_fairness: float
    rates: tuple[GroupRate, ...]  # share above each level, by group
    unmeasured: tuple[str, ...]
    notes: tuple[str, ...] = ()
    missed: bool = False  # some gap is larger than its tolerance, whatever the noise was
    reason: Reason = ""  # why the base model's score is returned (verdict.py)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        lines = [
            *(str(each) for each in self.by_attribute),
            self._what_was_done(),
            f"The score has {self.levels} levels. Mean squared error, out of fold, as a part of "
            f"the target's variance: {self.raw_loss / self.variance:.3f} of the base model, "
            f"{self.base_loss / self.variance:.3f} in levels, "
            f"{self.loss / self.variance:.3f} of the fair score.",
            f"Privacy: ε = {self.epsilon_spent:.3g} spent on this model at δ = {self.delta:g}; "
            f"the plan certifies ε = {self.epsilon_cap:.3g}.",
            f"Time: {self.seconds_base:.2f} s for one fit of the base model, "
            f"{self.seconds_out_of_fold:.2f} s out of fold, {self.seconds_fairness:.2f} s for "
            "fairness.",
        ]
        return "\n".join([*lines, *self.notes])

    def warn(self) -> None:
        """Warn if the tolerance is missed."""
        if self.missed and self.violation is not None:
            left = f"{points(self.violation)}, {points(self.tolerance)} tolerated"
            warn_of_gap(self.notion.replace("_", " "), left, self._what_was_done())

    def _what_was_done(self) -> str:
        """One sentence: the base model's score in levels, or a tilt of it."""
        if self.violation is None:
            return "What the score brings cannot be measured: too few people in some group."
        if self.returned == "base":
            reason = "No tilt was worth its error"
            if self.reason != "price":  # its exchange rate is of decisions
                reason = UNCHANGED.get(self.reason, "")
            why = f"{reason}: t" if reason else "T"
            return f"{why}he base model's score is returned, in levels."
        part = "A part of the tilt, because all of it cost too much error" * (
            self.returned == "shrunk"
        )
        return f"{part or 'A tilt'}: the distance is an estimated {points(self.violation)}."


def score_report(
    outcome: Outcome,
    levels: Levels,
    losses: tuple[float, float, float],
    tolerance: float,
    budget: Budget,
    seconds: Seconds,
) -> ScoreReport:
    """The account of an outcome; `losses` are of the raw score, in levels, and the fair score."""
    view, releases = outcome.view, outcome.releases
    none = Tilt.none(*view.land.shape)
    before, after = measure(view, none), measure(view, outcome.tilt)
    decided = [view.land.decide(tilt)[0] for tilt in (none, outcome.tilt)]
    unmeasured = [unmeasured_of(outcome, block) for block in view.land.blocks]
    notes = []
    if view.people.repeated:
        notes.append("Several rows belong to one person: rates are rates among persons.")
    if len(np.unique(levels.values)) < len(levels.values):
        notes.append("Some neighbouring levels are worth the same: people there get one score.")
    return ScoreReport(
        notion="score_parity",
        tolerance=tolerance,
        attributes=releases.attributes,
        groups=releases.groups,
        levels=len(levels.places),
        returned=outcome.returned,
        base_violation=before.violation,
        base_interval=before.interval,
        violation=after.violation,
        interval=after.interval,
        by_attribute=by_attribute_of(
            releases.attributes, view.land.tolerance, before, after, unmeasured
        ),
        variance=levels.variance,
        raw_loss=losses[0],
        base_loss=losses[1],
        loss=losses[2],
        epsilon_spent=epsilon_of(releases.most_units, budget.delta),
        epsilon_cap=budget.cap_epsilon,
        delta=budget.delta,
        seconds_base=seconds.base,
        seconds_out_of_fold=seconds.out_of_fold,
        seconds_fairness=seconds.fairness,
        rates=rates_of(outcome, *map(view.limits, decided)),
        unmeasured=unmeasured_of(outcome),
        notes=tuple(notes),
        **asdict(Verdict.of(outcome)),
    )
