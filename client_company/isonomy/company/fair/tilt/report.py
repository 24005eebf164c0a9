"""What a fit did, in numbers and in words."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from isonomy.company.fair.tilt.analysis import View
from isonomy.company.fair.tilt.rule import Tilt

INTERVAL = 1.96  # deviations: 95 %


@dataclass(frozen=True)
class Report:
    """The account of one fit. Violations are estimates from noised releases, never exact.

    Errors and selection rates are the company's own numbers, on the training people with
    out-of-fold scores. Violations are those to expect for new people like them; their deviation
    covers sampling, privacy noise and what the proxy cannot tell.
    """

    notion: str
    tolerance: float
    attributes: tuple[str, ...]
    groups: tuple[str, ...]
    returned: Literal["base", "tilt", "shrunk"]
    tilt: tuple[tuple[float, ...], ...]  # λ (groups, events)
    offset: float
    retrained: bool  # the in-training twin decides, not the base model
    base_violation: float
    base_deviation: float
    violation: float
    deviation: float
    interval: tuple[float, float]  # 95 %
    base_error: float
    error: float
    base_selection_rate: float  # share of people given a class other than the first
    selection_rate: float
    epsilon_spent: float  # by the releases behind this model
    epsilon_cap: float  # approved for the plan: what is certified
    delta: float
    seconds_base: float  # one fit of the base model
    seconds_out_of_fold: float
    seconds_fairness: float
    notes: tuple[str, ...] = ()

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
            f"The base model's {_words(self.notion)} violation on {' and '.join(self.attributes)} "
            f"is {_points(self.base_violation)} (deviation {_points(self.base_deviation)}); "
            f"{_points(self.tolerance)} is tolerated.",
            self._what_was_done(),
            f"Selection rate {self.base_selection_rate:.1%} before, {self.selection_rate:.1%} "
            "after.",
            f"Privacy: ε = {self.epsilon_spent:.3g} spent on this model at δ = {self.delta:g}; "
            f"the plan certifies ε = {self.epsilon_cap:.3g}.",
            f"Time: {self.seconds_base:.2f} s for one fit of the base model, "
            f"{self.seconds_out_of_fold:.2f} s out of fold, {self.seconds_fairness:.2f} s for "
            f"fairness ({self.time_ratio:.1f} fits of the base model).",
        ]
        return "\n".join([*lines, *self.notes])

    def _what_was_done(self) -> str:
        """One sentence: the base model unchanged, or the tilt and what it brought."""
        if self.returned == "base":
            return (
                "That is within what the budget can tell from the tolerance, or no tilt was worth "
                f"its error: the base model is returned unchanged (error {self.error:.2%})."
            )
        low, high = self.interval
        shrunk = ", shrunk because the full tilt cost too much error" if self.shrunk else ""
        largest = max(abs(value) for row in self.tilt for value in row)
        how = f"A tilt of λ = {largest:.3g}{shrunk}"
        if self.retrained:
            how = f"Training with the proxy's weights and a tilt of λ = {largest:.3g}{shrunk}"
        return (
            f"{how} {'bring' if self.retrained else 'brings'} it to an estimated "
            f"{_points(self.violation)} (95 % interval {_points(low)} to {_points(high)}), "
            f"for {_points(self.error_cost)} of error ({self.base_error:.2%} → {self.error:.2%})."
        )

    @property
    def shrunk(self) -> bool:
        return self.returned == "shrunk"


def _points(value: float) -> str:
    return f"{100 * value:.2f} points"


def _words(notion: str) -> str:
    return notion.replace("_", " ")


@dataclass(frozen=True)
class Measures:
    """What one tilt does: error, share of positives, estimated violation and its deviation."""

    error: float
    selection_rate: float
    violation: float
    deviation: float


@dataclass(frozen=True)
class Point(Measures):
    """One model of the frontier: what a tolerance costs."""

    tolerance: float
    returned: str


def measure(view: View, tilt: Tilt) -> Measures:
    """The measures of one tilt."""
    land = view.land
    decided, _ = land.decide(tilt)
    violation, deviation = view.violation(decided)
    rate = float(land.weight @ (decided != 0) / land.weight.sum())
    return Measures(land.error(decided), rate, violation, deviation)


def interval(violation: float, deviation: float) -> tuple[float, float]:
    """95 %, cut to what a violation can be."""
    return (
        max(0.0, violation - INTERVAL * deviation),
        min(1.0, violation + INTERVAL * deviation),
    )
