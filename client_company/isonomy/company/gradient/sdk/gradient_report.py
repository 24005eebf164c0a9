"""What a gradient run left behind, in numbers and in words; a warning where the gap is too large.

The violation is the last one that the run released: noised, about the training people, as the
strategy measures it (PF-LD: decisions; DP-FERMI: probabilities). It costs nothing more. An audit of
the decisions (isonomy.company.audit) says more, from the part of the plan that is kept for it.
"""

from __future__ import annotations

import warnings
from dataclasses import asdict, dataclass
from typing import Any

from isonomy.company.fair.tilt.verdict import GapWarning
from isonomy.company.gradient.training.trainer import ENDS

DEVIATIONS = 2.0  # a gap is larger than the tolerance if that much noise does not explain it


@dataclass(frozen=True)
class GradientReport:
    """The account of one fit. `error` and `selection_rate` are the company's own numbers, on the
    training people; None under record privacy, where they would tell about records.
    """

    strategy: str
    notion: str
    pos_label: str  # the favourable decision: what "selected" means
    tolerance: float
    attributes: tuple[str, ...]
    rounds: int  # that were finished
    stopped: str  # "rounds", "budget" or "callback"
    violation: float | None  # None: the run released none
    deviation: float | None  # of the noise in it
    error: float | None
    selection_rate: float | None
    private: bool  # False: the strategy reads the true attributes
    epsilon_spent: float
    epsilon_cap: float  # approved for the plan: what is certified
    delta: float

    @property
    def too_large(self) -> bool:
        """Is the gap larger than the tolerance, whatever the noise was?"""
        if self.violation is None or self.deviation is None:
            return False
        return self.violation - DEVIATIONS * self.deviation > self.tolerance

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def warn(self) -> None:
        """Say it where nobody reads the report: the model does not keep the tolerance."""
        if self.too_large:
            warnings.warn(f"{self._gap()} {self._verdict()}", GapWarning, stacklevel=3)

    def __str__(self) -> str:
        lines = [
            f"{self.strategy} ended after {self.rounds} rounds: {ENDS[self.stopped]}.",
            f"{self._gap()} {self._verdict()}",
        ]
        if self.error is not None and self.selection_rate is not None:
            lines.append(
                f"Selected means decision = {self.pos_label}: {self.selection_rate:.1%} of the "
                f"training people; the error on them is {self.error:.2%}."
            )
        lines.append(
            f"Privacy: ε = {self.epsilon_spent:.3g} spent at δ = {self.delta:g}; the plan "
            f"certifies ε = {self.epsilon_cap:.3g}."
            if self.private
            else "Privacy: none; this strategy reads the true attributes."
        )
        return "\n".join(lines)

    def _gap(self) -> str:
        subject = f"{self.notion.replace('_', ' ')} violation on {' and '.join(self.attributes)}"
        if self.violation is None or self.deviation is None:
            return f"The run released no {subject}."
        return (
            f"The last {subject} that was released is {self.violation:.4f} (deviation of its noise "
            f"{self.deviation:.4f}); {self.tolerance:g} is tolerated."
        )

    def _verdict(self) -> str:
        if self.violation is None or self.deviation is None:
            return "Audit the decisions to know it."
        if self.too_large:
            return (
                "The gap that is left is larger than the tolerance. More rounds or people, a "
                "larger budget, or a larger step help; or take FairClassifier."
            )
        if self.violation + DEVIATIONS * self.deviation <= self.tolerance:
            return "The gap that is left is within the tolerance."
        return "The noise is too large to tell whether the gap that is left is within it."
