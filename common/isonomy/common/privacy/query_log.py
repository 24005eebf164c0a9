"""What an oracle was asked, as far as accounting needs it: events, not answers.

Queries with one purpose form a *stage* (a strategy's counts, its θ steps, its W steps…). Of a stage
we keep whom it was ever about (its pool), and how many queries cost how much about how many people.
From that one can work out what other accountants would say (company.gradient.paper_epsilon). The
guarantee itself does not use this: it is the regulator's ledger.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isonomy.common.base.errors import ConfigError


@dataclass
class Stage:
    """All queries of one purpose: the pool of people, and (units, people) ↦ how many queries."""

    pool: NDArray[np.bool_]
    queries: Counter[tuple[int, int]] = field(default_factory=Counter)

    @property
    def pool_size(self) -> int:
        return int(self.pool.sum())


class QueryLog:
    """Stages by purpose, in the order of their first query."""

    def __init__(self, people: int) -> None:
        self.people = people
        self.stages: dict[str, Stage] = {}

    def add(self, purpose: str, units: int, positions: NDArray[np.int64]) -> None:
        """Note one answered query about the people at `positions`."""
        if purpose not in self.stages:
            self.stages[purpose] = Stage(np.zeros(self.people, np.bool_))
        stage = self.stages[purpose]
        stage.pool[positions] = True
        stage.queries[(units, len(positions))] += 1

    def to_json(self) -> list[dict[str, Any]]:
        """Stages without their pools, for checkpoints; `pools` holds these."""
        return [
            {"purpose": purpose, "queries": [[*key, n] for key, n in stage.queries.items()]}
            for purpose, stage in self.stages.items()
        ]

    @property
    def pools(self) -> NDArray[np.bool_]:
        """(stages, people)."""
        pools = [stage.pool for stage in self.stages.values()]
        return np.stack(pools) if pools else np.zeros((0, self.people), np.bool_)

    def restore(self, stages: list[dict[str, Any]], pools: NDArray[np.bool_]) -> None:
        """Go on from what `to_json` and `pools` gave."""
        if pools.shape != (len(stages), self.people):
            raise ConfigError("this log belongs to another cohort")
        self.stages = {
            str(stage["purpose"]): Stage(
                pool.copy(), Counter({(int(u), int(p)): int(n) for u, p, n in stage["queries"]})
            )
            for stage, pool in zip(stages, pools, strict=True)
        }


__all__ = ["QueryLog", "Stage"]
