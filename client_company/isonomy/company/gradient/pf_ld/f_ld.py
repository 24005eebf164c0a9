"""F-LD: the fair Lagrangian dual without privacy (Tran et al., Algorithm 1). For comparison only.

    θ ← θ − α∇[J(θ) + Σ_e Σ_a λ_ae·(μ_e(B_P) − μ_e(B_G_a))]      line 4, full or mini-batches
    λ ← Π(λ + s·(μ_e(D_P) − μ_e(D_G_a)))                          lines 5 and 6

It reads every person's true group, so it runs on a `LocalOracle` only, in a rehearsal where both
sides are known; any other oracle is refused before anything happens. Multipliers are signed unless
`signed=False`; group means use the exact counts of the whole data, so that no batch is special.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from isonomy.common.base.errors import ConfigError, DataError
from isonomy.common.sums.local import true_groups
from isonomy.company.gradient.pf_ld._population import Population
from isonomy.company.gradient.run.notions import Notion, notion_of
from isonomy.company.gradient.run.strategy import Chunk, RoundRecord, Run, State, trainable


@dataclass
class FLD:
    """F-LD as a strategy for `Trainer`; parameters as in `PFLD`, without noise and clipping."""

    notion: str | Notion = "demographic_parity"
    step: float = 0.1
    bound: float = 5.0
    damping: float = 1.0
    signed: bool = True
    measure: Literal["hard", "soft"] = "hard"
    name: str = field(default="f_ld", init=False)
    reads_attributes: ClassVar[bool] = True  # not private: for rehearsals only

    def __post_init__(self) -> None:
        self._notion = notion_of(self.notion)
        if not (0 < self.step < float("inf") and 0 < self.bound < float("inf")):
            raise ConfigError("the dual step size and the multipliers' bound must be positive")
        if not 0 <= self.damping < float("inf"):
            raise ConfigError(f"damping is a number of at least 0, got {self.damping}")
        if self.measure not in ("hard", "soft"):
            raise ConfigError('measure is "hard" or "soft"')
        self._people: Population | None = None
        self._member = torch.zeros(0)  # (groups, rows) 0/1
        self._lam = torch.zeros(0)  # (groups, events)
        self._violation = torch.zeros(0)

    def prepare(self, run: Run) -> None:
        people = self._bind(run)
        counts = self._member @ people.mass  # (groups, events)
        if (counts <= 0).any():
            raise DataError(
                "a group has nobody with a label that the notion compares; merge groups"
            )
        self._lam = torch.zeros_like(counts)
        self._violation = torch.zeros_like(counts)
        self._dual_step(people)

    def constraint_gradient(self, run: Run, chunk: Chunk) -> list[Tensor] | None:
        people = self._bind(run)
        rows, device = chunk.rows, run.device
        weights = self._weights(people)[rows].to(device)  # (b, events)
        logits, target = run.outputs(rows), run.target[rows].to(device)
        h = torch.stack([event.h(logits, target) for event in people.events], dim=1)
        scale = len(people.persons) / len(np.unique(chunk.people))
        penalty = scale * (weights.to(h) * h).sum()
        return list(torch.autograd.grad(penalty, trainable(run.model), materialize_grads=True))

    def end_round(self, run: Run) -> RoundRecord:
        return self._dual_step(self._bind(run))

    def describe(self, run: Run) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Names of groups and events, for tables and plots."""
        return self._bind(run).labels()

    def state_dict(self) -> State:
        return {"lam": self._lam, "violation": self._violation}

    def load_state_dict(self, state: State) -> None:
        lam, violation = state["lam"], state["violation"]
        if not isinstance(lam, Tensor) or not isinstance(violation, Tensor):
            raise DataError("the checkpoint holds no state of f_ld")
        self._lam, self._violation = lam, violation

    def _weights(self, people: Population) -> Tensor:
        """(rows, events) mass·u: u_ae = Σ_b λ_be/n_e − λ_ae/n_ae, added over attributes."""
        applied = self._applied()
        counts = self._member @ people.mass
        per_row = self._member.T @ (applied.sum(dim=0) / people.mass.sum(dim=0) - applied / counts)
        # every attribute has its own population term; the sum above took that of all attributes
        surplus = (len(people.sizes) - 1) * applied.sum(dim=0) / people.mass.sum(dim=0)
        return people.mass * (per_row - surplus)

    def _dual_step(self, people: Population) -> RoundRecord:
        values = people.measured(hard=self.measure == "hard")[people.persons.index]
        times = torch.bincount(people.persons.index)[people.persons.index, None]
        means = (self._member @ (values / times)) / (self._member @ people.mass)
        self._violation = -means
        moved = self._violation if self.signed else self._violation.abs()
        self._lam = (self._lam + self.step * moved).clamp(
            -self.bound if self.signed else 0.0, self.bound
        )
        worst, start = 0.0, 0
        for size in people.sizes:
            groups = self._violation[start : start + size]
            worst = max(worst, float((groups.max(dim=0).values - groups.min(dim=0).values).max()))
            start += size
        return RoundRecord(worst, 0.0, self._applied().numpy().copy())

    def _applied(self) -> Tensor:
        """(groups, events) λ with its sign, plus the damping term; as in privacy.dual."""
        lam = self._lam if self.signed else self._lam * self._violation.sign()
        return (lam + self.damping * self._violation).clamp(-self.bound, self.bound)

    def _bind(self, run: Run) -> Population:
        if self._people is None or self._people.run is not run:
            self._people = Population.of(run, self._notion)
            parts = []
            for name, size in zip(run.attributes, self._people.sizes, strict=True):
                codes = true_groups(run.oracle, self.name, name)[run.people]
                parts.append(np.eye(size)[codes].T)  # (groups, rows)
            self._member = torch.from_numpy(np.concatenate(parts))
        return self._people
