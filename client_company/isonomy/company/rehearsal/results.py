"""What a rehearsal measured: one run per seed and ε, one result per ε."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from isonomy.company.rehearsal.settings import Settings

SCHEMA = 1
MEANS = ("test_error", "test_violation", "base_error", "base_violation")


@dataclass(frozen=True)
class Run:
    """One seed at one ε, measured on the test people.

    For a notion of scores an error is a loss and a violation a distance (measures.py), and nobody
    is selected.

    `seconds` holds the base model's fits for the first ε of a seed only; further ones reuse them.
    """

    seed: int
    test_error: float
    test_violation: float
    base_error: float
    base_violation: float
    epsilon_spent: float
    seconds: float
    returned: str
    epsilon_cap: float
    epsilon_as_in_papers: float  # NaN: there is no such figure for this strategy
    as_in_papers: str  # what that figure is worth
    selection_rate: float
    base_selection_rate: float
    noise_floor: float
    group_fairness: float = math.nan  # (24) and (26) of Wang et al.: two groups only
    equalized_odds_sum: float = math.nan
    attribute_at_prediction: bool = False  # were test people decided about by their attribute?
    accounting: str = ""  # what ε means, where it is not the ledger's (ε, δ)
    dropped: int | None = None  # by the individual filter: people, and the first query without them
    first_drop: int | None = None
    worst_loss: float = math.nan  # scores: of the worst-off group
    base_worst_loss: float = math.nan
    stopped: str = ""  # why training ended: "rounds", "budget" or "callback"

    def to_json(self) -> dict[str, Any]:
        """The published fields; the others by run are in results.csv."""
        names = list(vars(self))
        fields = {key: getattr(self, key) for key in names[: names.index("as_in_papers") + 1]}
        if self.dropped is not None:
            fields |= {"dropped": self.dropped, "first_drop": self.first_drop}
        if self.stopped:
            fields["stopped"] = self.stopped
        return finite(fields)


@dataclass(frozen=True)
class Result:
    """All runs at one ε."""

    dataset: str
    settings: Settings
    attribute: str
    epsilon: float
    runs: tuple[Run, ...]

    @property
    def mean(self) -> dict[str, float]:
        return {name: self.average(name) for name in MEANS}

    @property
    def noise_floor(self) -> float:
        """Violation expected from sampling alone at the result's rates, mean over test sets."""
        return self.average("noise_floor")

    @property
    def attribute_at_prediction(self) -> bool:
        """Whether decisions depend on the attribute of the person decided about."""
        return any(run.attribute_at_prediction for run in self.runs)

    @property
    def accounting(self) -> str:
        """What ε means here, if it is not the ledger's (ε, δ)."""
        return self.runs[0].accounting if self.runs else ""

    @property
    def as_in_papers(self) -> str:
        """What the figure as in the papers is worth here."""
        return self.runs[0].as_in_papers if self.runs else ""

    def average(self, field: str) -> float:
        return float(np.mean([getattr(run, field) for run in self.runs]))

    def to_json(self) -> dict[str, Any]:
        settings = self.settings
        fields = {
            "schema": SCHEMA,
            "dataset": self.dataset,
            "attribute": self.attribute,
            "strategy": settings.strategy,
            "notion": settings.notion,
            "epsilon": self.epsilon,
            "delta": settings.delta,
            "base": settings.base,
            "tolerance": settings.aim,
            "first_seed": settings.first_seed,
            "runs": [run.to_json() for run in self.runs],
            "mean": self.mean,
            "noise_floor": self.noise_floor,
        }
        if self.attribute_at_prediction:
            fields["attribute_at_prediction"] = True
        if self.accounting:
            fields["accounting"] = self.accounting
        if settings.record_epsilon is not None:
            fields["record_epsilon"] = settings.record_epsilon
        if settings.stretch is not None:
            fields["stretch"] = settings.stretch
        return fields


@dataclass(frozen=True)
class Simulation:
    """One result per ε, in the order given."""

    results: tuple[Result, ...]

    def to_json(self) -> dict[str, Any]:
        if len(self.results) == 1:
            return self.results[0].to_json()
        return {"schema": SCHEMA, "results": [result.to_json() for result in self.results]}


def finite(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields with None for NaN and infinity, which JSON does not have."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in fields.items()
    }
