"""What a fit did, in numbers and in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from isonomy.common.privacy.accounting import epsilon_of
from isonomy.common.sums.oracle import Budget
from isonomy.company.fair.tilt.analysis import Gap, Problem, View
from isonomy.company.fair.tilt.rule import Tilt, base_margins, decide
from isonomy.company.fair.tilt.strategy import Outcome
from isonomy.company.fair.tilt.verdict import PAID, UNCHANGED, Reason, Verdict, warn_of_gap

Floats = NDArray[np.float64]

EXTREME = 0.02  # a warning is written when fewer are selected, or fewer are not
FELL = 0.8  # a note is written when the share of positives falls below this part of what it was


@dataclass(frozen=True)
class GroupRate:
    """One group's rate: estimate and 95 % interval, or None where the budget cannot measure it."""

    attribute: str
    group: str
    event: str  # what is counted: selected, wrong, …
    before: tuple[float, float, float] | None  # of the base model
    after: tuple[float, float, float] | None


@dataclass(frozen=True)
class AttributeReport:
    """Violations on one attribute; None where they cannot be measured."""

    attribute: str
    tolerance: float  # the smallest, of several notions
    before: Gap | None
    after: Gap | None
    unmeasured: tuple[str, ...]  # groups that are too small for this budget

    def __str__(self) -> str:
        tolerated = f"{points(self.tolerance)} is tolerated."
        if self.before is None or self.after is None:
            return f"{self.attribute}: cannot be measured at this budget. {tolerated}"
        return (
            f"{self.attribute}: {points(self.before.value)} before, an estimated "
            f"{points(self.after.value)} after (95 % interval {points(self.after.low)} to "
            f"{points(self.after.high)}; {self.after.where}). {tolerated}"
        )


@dataclass(frozen=True)
class Report:
    """The account of one fit. Violations are estimates from noised releases, never exact.

    Errors and selection rates are the company's own numbers, on the training people with
    out-of-fold scores. Violations are those to expect for new people like them; their deviation
    covers sampling, privacy noise and what the proxy cannot tell. They are of the groups that the
    budget can measure, and None where there are fewer than two of them. With several attributes
    they are those of the worst one, the furthest beyond its tolerance (None: one of the attributes
    cannot be measured); `by_attribute` has them all.
    """

    notion: str
    pos_label: str  # the favourable decision: what "selected" means
    threshold: float | None  # select at this probability and above; None: three or more classes
    tolerance: float  # the smallest, of several notions or attributes
    attributes: tuple[str, ...]
    groups: tuple[str, ...]
    returned: Literal["base", "tilt", "shrunk"]
    tilt: tuple[tuple[float, ...], ...]  # λ (groups, events)
    offset: float
    retrained: bool  # the in-training twin decides, not the base model
    base_violation: float | None
    base_deviation: float | None
    base_interval: tuple[float, float] | None  # 95 %
    violation: float | None
    deviation: float | None
    interval: tuple[float, float] | None  # 95 %
    unmeasured: tuple[str, ...]  # groups that are too small for this budget
    by_attribute: tuple[AttributeReport, ...]
    base_error: float
    error: float
    base_selection_rate: float  # share of people given `pos_label`
    selection_rate: float
    epsilon_spent: float  # by the releases behind this model
    reused: bool  # these releases were bought for an earlier model: this one spent nothing
    confidence: float | None  # with which the tolerance was to be shown to be kept
    beyond: float | None  # then: how far upper bounds exceed the tolerance; None: not measurable
    epsilon_cap: float  # approved for the plan: what is certified
    delta: float
    seconds_base: float  # one fit of the base model
    seconds_out_of_fold: float
    seconds_fairness: float
    rates: tuple[GroupRate, ...] = ()  # none where the base model is exactly fair
    notes: tuple[str, ...] = ()
    missed: bool = False  # some gap is larger than its tolerance, whatever the noise was
    reason: Reason = ""  # why the base model is returned (verdict.py)

    @property
    def shown(self) -> bool | None:
        """Whether the tolerance is kept with the confidence asked for; None: none was."""
        if self.confidence is None:
            return None
        return self.beyond is not None and self.beyond <= 0

    @property
    def error_cost(self) -> float:
        """What fairness cost in (public, out-of-fold) error."""
        return self.error - self.base_error

    @property
    def time_ratio(self) -> float:
        """The fairness part in fits of the base model, out-of-fold fits left out."""
        return self.seconds_fairness / max(self.seconds_base, 1e-9)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        lines = [
            self._before(),
            self._what_was_done(),
            *self._confidence(),
            *(str(each) for each in self.by_attribute if len(self.attributes) > 1),
            f"Selected means decision = {self.pos_label}{self._rule()}: "
            f"{self.base_selection_rate:.1%} of the people before, {self.selection_rate:.1%} "
            "after.",
            f"Privacy: {self._spending()} at δ = {self.delta:g}; the plan certifies "
            f"ε = {self.epsilon_cap:.3g}.",
            f"Time: {self.seconds_base:.2f} s for one fit of the base model, "
            f"{self.seconds_out_of_fold:.2f} s out of fold, {self.seconds_fairness:.2f} s for "
            f"fairness ({self.time_ratio:.1f} fits of the base model).",
        ]
        return "\n".join([*lines, *self.notes])

    def warn(self) -> None:
        """Warn if the tolerance is missed."""
        if self.missed and self.violation is not None:
            left = f"{points(self.violation)}, {points(self.tolerance)} tolerated"
            warn_of_gap(_words(self.notion), left, self._what_was_done())

    def _confidence(self) -> list[str]:
        """One sentence on whether the tolerance is kept, if that was to be shown."""
        if self.confidence is None:
            return []
        kept = f"{self.confidence:.3g} confidence that the tolerance is kept"
        if self.shown:
            return [f"The releases show with {kept}."]
        why = "some group is too small to be measured"
        if self.beyond is not None:
            why = f"the violation's upper bound is {points(self.beyond)} beyond it"
        return [f"This budget cannot show with {kept}: {why}."]

    def _spending(self) -> str:
        if self.reused:
            return f"nothing spent now; the releases cost ε = {self.epsilon_spent:.3g} when bought,"
        return f"ε = {self.epsilon_spent:.3g} spent on this model"

    def _rule(self) -> str:
        if self.threshold in (None, 0.5):
            return ""
        return f" (the base model selects at a probability of {self.threshold:.4g} and above)"

    def _before(self) -> str:
        """One sentence on the base model."""
        subject = f"The base model's {_words(self.notion)} violation"
        if self.base_violation is None or self.base_deviation is None:
            hidden = [each for each in self.by_attribute if each.before is None]
            return (
                f"{subject} on {' and '.join(each.attribute for each in hidden)} cannot be "
                f"measured at this budget: too few people of {_listed(self.unmeasured)}. "
                f"{points(self.tolerance)} is tolerated."
            )
        worst = max(self.by_attribute, key=lambda each: _beyond(each.before, each))
        largest = "is" if len(self.attributes) == 1 else "is worst:"
        return (
            f"{subject} on {worst.attribute} {largest} {points(self.base_violation)} (deviation "
            f"{points(self.base_deviation)}); {points(worst.tolerance)} is tolerated."
        )

    def _what_was_done(self) -> str:
        """One sentence: the base model unchanged, or the tilt and what it brought."""
        if self.returned == "base":
            unchanged = f"he base model is returned unchanged (error {self.error:.2%})."
            if self.interval is None:
                return f"T{unchanged} This does not say that it is fair."
            return f"{UNCHANGED[self.reason]}: t{unchanged}" if self.reason else f"T{unchanged}"
        shrunk = f" (shrunk because the full tilt cost {PAID})" if self.shrunk else ""
        largest = max(abs(value) for row in self.tilt for value in row)
        how = f"a tilt of λ = {largest:.3g}{shrunk}"
        if self.retrained:
            how = f"training with the proxy's weights and {how}"
        cost = f"{points(self.error_cost)} of error ({self.base_error:.2%} → {self.error:.2%})"
        if self.interval is None or self.violation is None:
            return f"The model has {how}, for {cost}. What it brings cannot be measured either."
        low, high = (points(limit) for limit in self.interval)
        worst = max(self.by_attribute, key=lambda each: _beyond(each.after, each))
        subject = "it" if len(self.attributes) == 1 else f"the worst is {worst.attribute}: it"
        return (
            f"With {how} {subject} is an estimated {points(self.violation)} "
            f"(95 % interval {low} to {high}), for {cost}."
        )

    @property
    def shrunk(self) -> bool:
        return self.returned == "shrunk"


def points(value: float) -> str:
    """A share in points."""
    return f"{100 * value:.2f} points"


def _beyond(gap: Gap | None, each: AttributeReport) -> float:
    """How far a gap is beyond the attribute's tolerance."""
    return -1.0 if gap is None else gap.value - each.tolerance


def _listed(labels: Sequence[str]) -> str:
    more = f" and {len(labels) - 5} more groups" if len(labels) > 6 else ""
    return ", ".join(labels[:5] if more else labels) + more


def _words(notion: str) -> str:
    return notion.replace("_", " ")


@dataclass(frozen=True)
class Measures:
    """What one tilt does: error, share of positives, estimated violation with its interval."""

    error: float
    selection_rate: float
    violation: float | None
    deviation: float | None
    interval: tuple[float, float] | None
    gaps: tuple[Gap | None, ...]  # of each attribute; the others are of the worst


@dataclass(frozen=True)
class Point(Measures):
    """One model of the frontier: what a tolerance costs."""

    tolerance: float
    returned: str

    def __repr__(self) -> str:  # a list of them is read in a session
        violation = "not measured" if self.violation is None else f"{self.violation:.4f}"
        return (
            f"Point(tolerance={self.tolerance:g}, error={self.error:.4f}, violation={violation}, "
            f"returned={self.returned!r})"
        )


def measure(view: View, tilt: Tilt) -> Measures:
    """The measures of one tilt."""
    land = view.land
    decided, _ = land.decide(tilt)
    favourable = land.proba.shape[1] - 1
    rate = float(land.weight @ (decided == favourable) / land.weight.sum())
    gaps = view.gaps(decided)
    measured = [gap for gap in gaps if gap is not None]
    if len(measured) < len(gaps):
        return Measures(land.error(decided), rate, None, None, None, gaps)
    beyond = [gap.value for gap in measured] - land.tolerance.min(axis=1)
    gap = measured[int(beyond.argmax())]
    interval = (gap.low, gap.high)
    return Measures(land.error(decided), rate, gap.value, gap.deviation, interval, gaps)


# --- From an outcome to its report ---------------------------------------------------------------


@dataclass(frozen=True)
class Seconds:
    """How long one fit of the base model, the out-of-fold fits and the fairness part took."""

    base: float
    out_of_fold: float
    fairness: float = 0.0


@dataclass(frozen=True)
class Terms:
    """What was asked for, in words."""

    notion: str
    pos_label: str
    threshold: float | None
    reused: bool
    confidence: float | None = None


def report_of(outcome: Outcome, terms: Terms, budget: Budget, seconds: Seconds) -> Report:
    """The account of an outcome."""
    before = measure(outcome.base_view, Tilt.none(*outcome.view.land.shape))
    final = outcome.base_view if outcome.returned == "base" else outcome.view
    after = measure(final, outcome.tilt)
    none = Tilt.none(*outcome.view.land.shape)
    return Report(
        **asdict(terms),
        attributes=outcome.releases.attributes,
        groups=outcome.releases.groups,
        returned=outcome.returned,
        retrained=outcome.retrained,
        epsilon_spent=epsilon_of(outcome.releases.most_units, budget.delta),
        beyond=outcome.beyond if np.isfinite(outcome.beyond) else None,
        unmeasured=unmeasured_of(outcome),
        rates=rates_of(
            outcome,
            outcome.base_view.limits(outcome.base_view.land.decide(none)[0]),
            final.limits(final.land.decide(outcome.tilt)[0]),
        ),
        by_attribute=by_attribute_of(
            outcome.releases.attributes,
            outcome.view.land.tolerance,
            before,
            after,
            [unmeasured_of(outcome, block) for block in outcome.view.land.blocks],
        ),
        notes=_notes(outcome, before, after),
        **asdict(Verdict.of(outcome)),
        **_shared_fields(outcome.view.land.tolerance, outcome.tilt, before, after, budget, seconds),
    )


def rates_of(
    outcome: Outcome, before: NDArray[np.float64], after: NDArray[np.float64]
) -> tuple[GroupRate, ...]:
    """Every group's rate of every event; before, after: (3, groups, events)."""
    releases = outcome.releases

    def measured(limits: NDArray[np.float64]) -> tuple[float, float, float] | None:
        value, low, high = (float(limit) for limit in limits)
        return None if np.isnan(value) else (value, low, high)

    return tuple(
        GroupRate(
            attribute,
            releases.groups[group],
            event.name,
            measured(before[:, group, number]),
            measured(after[:, group, number]),
        )
        for attribute, block in zip(releases.attributes, releases.blocks, strict=True)
        for number, event in enumerate(outcome.view.land.events)
        for group in range(block.start, block.stop)
    )


def by_attribute_of(
    attributes: Sequence[str],
    tolerance: Floats,
    before: Measures,
    after: Measures,
    unmeasured: Sequence[tuple[str, ...]],
) -> tuple[AttributeReport, ...]:
    """The violations attribute by attribute."""
    smallest = tolerance.min(axis=1).tolist()
    return tuple(
        AttributeReport(*each)
        for each in zip(attributes, smallest, before.gaps, after.gaps, unmeasured, strict=True)
    )


def report_of_exactly_fair(
    problem: Problem,
    terms: Terms,
    attributes: tuple[str, ...],
    groups: tuple[str, ...],
    budget: Budget,
    seconds: Seconds,
) -> Report:
    """Decisions that never differ within an event are fair whatever the groups are."""
    decided = decide(base_margins(problem.proba, problem.cut))
    favourable = problem.proba.shape[1] - 1
    error = float(np.mean(decided != problem.y))
    rate = float(np.mean(decided == favourable))
    gaps = (Gap(0.0, 0.0, 0.0, 0.0, "no rate differs"),) * len(attributes)
    fair = Measures(error, rate, violation=0.0, deviation=0.0, interval=(0.0, 0.0), gaps=gaps)
    none = Tilt.none(len(groups), len(problem.events))
    return Report(
        **asdict(terms),
        attributes=attributes,
        groups=groups,
        returned="base",
        retrained=False,
        epsilon_spent=0.0,
        beyond=None if terms.confidence is None else -float(problem.tolerance.min()),
        unmeasured=(),
        by_attribute=by_attribute_of(
            attributes, problem.tolerance, fair, fair, [()] * len(attributes)
        ),
        notes=(
            "The base model decides the same for everybody in question (constant, or always "
            "right): it is fair by this notion whatever the groups are, so nothing was spent.",
        ),
        reason="within",
        **_shared_fields(problem.tolerance, none, fair, fair, budget, seconds),
    )


def _shared_fields(
    tolerance: Floats,
    tilt: Tilt,
    before: Measures,
    after: Measures,
    budget: Budget,
    seconds: Seconds,
) -> dict[str, Any]:
    """The fields of `Report` that are computed the same way for every outcome."""
    return {
        "tolerance": float(tolerance.min()),
        "tilt": tuple(map(tuple, tilt.lam.tolist())),
        "offset": tilt.offset,
        "base_violation": before.violation,
        "base_deviation": before.deviation,
        "base_interval": before.interval,
        "violation": after.violation,
        "deviation": after.deviation,
        "interval": after.interval,
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


def extreme_selection(rate: float, *, keeps_rate: bool) -> str:
    """What to say where nearly everybody or nobody is selected; nothing otherwise."""
    if EXTREME <= rate <= 1 - EXTREME:
        return ""
    who = "nobody" if rate < EXTREME else "everybody"
    text = (
        f"After the tilt nearly {who} is selected ({rate:.1%}): equal rates, but hardly a decision."
    )
    return text if keeps_rate else f"{text} keep_selection_rate=True keeps the base model's rate."


def unmeasured_of(outcome: Outcome, block: slice = slice(None)) -> tuple[str, ...]:
    """Labels of the groups whose rates the budget cannot measure, in at least one event."""
    measured = np.all(outcome.releases.measured(outcome.view.land.events), axis=1).tolist()
    labels = zip(outcome.releases.groups[block], measured[block], strict=True)
    return tuple(label for label, shown in labels if not shown)


def _notes(outcome: Outcome, before: Measures, after: Measures) -> tuple[str, ...]:
    """What a reader should know beside the numbers."""
    notes = []
    if (small := unmeasured_of(outcome)) and after.interval is not None:
        notes.append(
            f"The violations say nothing about {_listed(small)}: too few people for this budget."
        )
    keeps_rate = outcome.view.land.keep_rate is not None
    extreme = extreme_selection(after.selection_rate, keeps_rate=keeps_rate)
    if extreme and outcome.returned != "base":
        notes.append(extreme)
    if after.selection_rate < FELL * before.selection_rate:
        notes.append(
            "The share of positives fell by more than a fifth; keep_selection_rate=True keeps it."
        )
    if outcome.releases.earlier:
        notes.append(
            f"Releases about the people of {outcome.releases.earlier:,} earlier rows were used "
            "again, under their own plan's promise; only the others spent from this plan. The ε "
            "spent is the most that any person did."
        )
    if outcome.view.people.repeated:
        notes.append("Several rows belong to one person: rates are rates among persons.")
    return tuple(notes)
