"""Whether a fit kept its tolerance, and why a base model is returned unchanged."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Literal

from isonomy.company.fair.tilt.rule import Tilt
from isonomy.company.fair.tilt.strategy import DEVIATIONS, PRICE, Outcome, base_is_fair

PAID = f"more than {PRICE:g} points of error per point of violation"


class GapWarning(UserWarning):
    """The trained model's gap between groups is larger than the tolerance."""


Reason = Literal["within", "price", "unproven", ""]

UNCHANGED: dict[Reason, str] = {
    "within": "That is within what the budget can tell from the tolerance",
    "price": f"No tilt was worth its error (at most {PRICE:g} per point of violation)",
    "unproven": "No tilt brings the violation's upper bound nearer to the tolerance",
}


@dataclass(frozen=True)
class Verdict:
    """What became of the tolerance."""

    missed: bool  # some gap is larger than its tolerance, whatever the noise was
    reason: Reason  # why the base model is returned; empty if it is not

    @classmethod
    def of(cls, outcome: Outcome) -> Verdict:
        """The same rule as for the base model: each gap by its own deviation and tolerance."""
        view = outcome.base_view if outcome.returned == "base" else outcome.view
        decided, _ = view.land.decide(outcome.tilt)
        return cls(not view.fair(decided, DEVIATIONS), _reason(outcome))


def _reason(outcome: Outcome) -> Reason:
    view = outcome.base_view
    if outcome.returned != "base":
        return ""
    if base_is_fair(view):
        return "within"
    if view.confidence is not None:
        return "unproven"
    land = view.land
    base, _ = land.decide(Tilt.none(*land.shape))
    return "within" if land.excess(land.rates(base)).max() <= 0 else "price"


def warn_of_gap(notion: str, violation: str, what_was_done: str) -> None:
    """Say it where nobody reads the report: the model does not keep the tolerance."""
    warnings.warn(
        f"The {notion} violation that is left is larger than the tolerance: an estimated "
        f"{violation}. {what_was_done} More people, a larger budget or a larger tolerance help.",
        GapWarning,
        stacklevel=5,
    )
