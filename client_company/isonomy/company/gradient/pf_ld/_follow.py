"""λ + ρ·v while the model moves: the augmented Lagrangian between two dual steps.

PF-LD measures the violation v once a round and applies ν = λ + ρ·v from there to the next dual step
(common/privacy/dual.py). With many chunks a round the model then overshoots and v swings from sign
to sign (docs/lab/gradient.md, "Why the violation swung"). So the quadratic term follows v:

    ν(θ) = λ + ρ·v(θ),    v(θ) ≈ v₀ + ν₀·Δ/|ν₀|²,    Δ = Σ_c ⟨½(G_{c−1} + G_c), θ_c − θ_{c−1}⟩

G_c = ∇Σ_a ν₀_a v_a is what chunk c's answer holds anyway, so nothing more is asked: this is
post-processing, and the weights of the queries stay those that the regulator recomputes. An answer
about ν₀'s direction knows the change of v in that direction only; for two groups that is all there
is. So the answer is applied times

    τ = 1 + ρ·Δ/|ν₀|²,        cut to |τ·ν₀| <= λ^max.

Noise. That of G_c is independent of the step to θ_c. That of G_{c−1} is not: the step went where it
pointed, so v is thought lower than it is by about half of step size × |noise|². The next release
starts anew from the truth, and λ takes up what is left. G_c alone would be without that error, but
of first order in the step only: it loses v where the model saturates (measured: swings of twice the
size on coloured digits).

Looking takes one more product per layer. With many chunks a round it is done at every few of them
only, POINTS times a round or somewhat more, and τ stays as it is in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from isonomy.company.gradient.run.strategy import Run, trainable

Query = tuple[int, int]  # attribute, event
POINTS = 32


@dataclass
class Follower:
    """τ for each query of a round; starts anew with every round and run."""

    damping: float  # ρ
    bound: float  # λ^max
    _run: Run | None = field(default=None, init=False)
    _round: int = field(default=-1, init=False)
    _chunks: int = field(default=0, init=False)  # of this round, so far
    _here: list[Tensor] = field(default_factory=list, init=False)  # θ_c
    _factor: dict[Query, float] = field(default_factory=dict, init=False)  # τ
    _last: dict[Query, tuple[list[Tensor], list[Tensor]]] = field(default_factory=dict, init=False)
    _change: dict[Query, float] = field(default_factory=dict, init=False)  # Δ

    def arrive(self, run: Run) -> bool:
        """At a chunk, before its queries: is the violation looked at here?"""
        if run is not self._run or run.round != self._round:
            self._run, self._round, self._chunks = run, run.round, 0
            self._last, self._change, self._factor = {}, {}, {}
        due = self._chunks % max(1, len(run.chunks) // POINTS) == 0
        self._chunks += 1
        if due:
            self._here = [parameter.detach().clone() for parameter in trainable(run.model)]
        return due

    def factor(self, query: Query) -> float:
        """The newest τ; 1 before the first."""
        return self._factor.get(query, 1.0)

    def look(self, query: Query, applied: Sequence[float], gradient: Sequence[Tensor]) -> None:
        """Bring τ up to date from an answer, `gradient` for everybody; `applied`: ν₀ by group.

        τ stays 1 where a query is first asked in a round, and where nothing is applied.
        """
        square = sum(nu * nu for nu in applied)
        now, last = list(gradient), self._last.get(query)
        self._last[query] = (self._here, now)
        if last is None or square == 0.0:
            return
        self._change[query] = change = self._change.get(query, 0.0) + self._step(*last, now)
        most = self.bound / max(abs(nu) for nu in applied)
        self._factor[query] = max(-most, min(most, 1.0 + self.damping * change / square))

    def _step(self, there: list[Tensor], before: list[Tensor], now: list[Tensor]) -> float:
        """⟨½(G_{c−1} + G_c), θ_c − θ_{c−1}⟩."""
        total = 0.0
        for old, new, first, second in zip(there, self._here, before, now, strict=True):
            shift = (new - old).flatten()
            total += 0.5 * float(torch.dot((first + second).flatten().to(shift), shift))
        return total
