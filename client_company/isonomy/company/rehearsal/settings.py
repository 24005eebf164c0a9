"""What is rehearsed: the settings of `isonomy simulate`, checked before any data are read."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from isonomy.common.agreements.notions import NOTIONS, SCORE_NOTIONS
from isonomy.common.base.errors import ConfigError
from isonomy.company.rehearsal.base_models import BASES, REGRESSORS
from isonomy.company.rehearsal.strategies import (
    FILTERED,
    GRADIENT,
    RECORD_PRIVATE,
    SCORE_TOLERANCE,
    STRATEGIES,
    TOLERANCE,
    check_notion,
)

_SCORED = tuple(dict.fromkeys((*BASES, *REGRESSORS)))
LAST_SEED = 2**32 - 1  # scikit-learn takes no larger one


@dataclass(frozen=True)
class Settings:
    """What is rehearsed. Checked on construction, before any data are read."""

    attribute: str | None = None
    strategy: str = "tilt"
    notion: str = "demographic_parity"
    epsilons: tuple[float, ...] = (1.0,)
    delta: float = 1e-5
    base: str = "gbdt"
    tolerance: float | None = None  # None: `default_tolerance`; gradient strategies run to the end
    seeds: int = 3
    first_seed: int = 0  # seeds first_seed … first_seed + seeds − 1
    encrypted: bool = False
    keep_selection_rate: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)  # of the strategy, by name
    record_epsilon: float | None = None  # protect whole records from who sees the model
    stretch: float | None = None  # under an individual filter: how much it stretches the cap

    def __post_init__(self) -> None:
        _one_of("strategy", self.strategy, STRATEGIES)
        _one_of("notion", self.notion, (*NOTIONS, *SCORE_NOTIONS))
        _one_of("base model", self.base, _SCORED if self.scores else BASES)
        check_notion(self.strategy, self.notion)
        if not self.epsilons:
            raise ConfigError("give at least one epsilon")
        for epsilon in self.epsilons:
            if not (math.isfinite(epsilon) and epsilon > 0):
                raise ConfigError(f"epsilon must be a number above 0; got {epsilon}")
        if len(set(self.epsilons)) != len(self.epsilons):
            raise ConfigError("an epsilon is given twice")
        if not 0 < self.delta < 1:
            raise ConfigError(f"delta must lie between 0 and 1; got {self.delta}")
        if self.tolerance is not None and not 0 <= self.tolerance < 1:
            raise ConfigError(
                f"tolerance must be at least 0 (as small as the audits can tell) and below 1; "
                f"got {self.tolerance}"
            )
        if self.seeds < 1:
            raise ConfigError(f"seeds must be at least 1; got {self.seeds}")
        if not 0 <= self.first_seed <= LAST_SEED - self.seeds + 1:
            raise ConfigError(
                f"the first seed must be at least 0 and the last at most {LAST_SEED}; "
                f"got {self.first_seed} and {self.seeds} seeds"
            )
        if self.scores and self.keep_selection_rate:
            raise ConfigError(f"{self.notion} is about scores, which select nobody")
        self._check_gradient_only()

    def _check_gradient_only(self) -> None:
        """What only private gradient strategies can do."""
        for what, value, able in (
            ("record privacy", self.record_epsilon, RECORD_PRIVATE),
            ("the individual filter", self.stretch, FILTERED),
        ):
            if value is not None and self.strategy not in able:
                raise ConfigError(f"{what} is for {', '.join(able)}")
        if self.record_epsilon is not None and self.stretch is not None:
            raise ConfigError("record privacy and the individual filter do not go together")
        if self.record_epsilon is not None and not 0 < self.record_epsilon < math.inf:
            raise ConfigError(f"the records' epsilon must be above 0; got {self.record_epsilon}")
        if self.stretch is not None and not 1 <= self.stretch < math.inf:
            raise ConfigError(f"stretch must be a number of at least 1; got {self.stretch}")

    @property
    def seed_range(self) -> range:
        """The seeds to run, in order."""
        return range(self.first_seed, self.first_seed + self.seeds)

    @property
    def scores(self) -> bool:
        """Whether the model gives a score, not a decision."""
        return self.notion in SCORE_NOTIONS

    @property
    def default_tolerance(self) -> float:
        return SCORE_TOLERANCE if self.scores else TOLERANCE

    @property
    def aim(self) -> float | None:
        """The violation aimed at; None: the strategy does not look at one."""
        if self.tolerance is None and self.strategy not in GRADIENT:
            return self.default_tolerance
        return self.tolerance


def _one_of(what: str, name: str, names: Iterable[str]) -> None:
    if name not in names:
        raise ConfigError(f"unknown {what} {name!r}; there are {', '.join(names)}")
