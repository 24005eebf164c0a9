"""DP-FERMI: private training under an exponential Rényi mutual information penalty.

    min_θ  L̂(θ) + λ·D_R(Ŷ_θ; S),   D_R = Σ_{j,a} p(j, a)²/(p(j) p(a)) − 1        (FERMI obj.)

for l classes, k groups, F_ij = P(ŷ_i = j), is the min–max problem (Lowy et al. 2023, Theorem C.1)

    min_θ max_W  L̂(θ) + λ/n Σ_i ψ_i,   ψ_i = −Σ_j ‖W_·j‖² F_ij + 2 Σ_j W_{A_i j}/√P_{A_i} F_ij − 1

    ∇_θ ψ_i = −Σ_j ‖W_·j‖² ∇F_ij  +  Σ_j u_{A_i j} ∇F_ij,      u_aj = 2 W_aj/√P_a     Theorem D.1
    ∇_W ψ_i = −2 W diag(F_i)      +  2 P^{-1/2} s_i F_iᵀ,      s_i the one-hot group of i

The first terms do not depend on A: the company computes them exactly and for nothing. The second
ones are a *weighted blind sum* of ∇F and an *open sum* of F. Since Σ_j F_ij = 1, both live in the
l − 1 dimensions orthogonal to (1, …, 1): with an orthonormal basis B of them and the chunk's own
mean F̄ (known to the company) as centre,

    h_i = Bᵀ(F_i − F̄),   U = 2 P^{-1/2} W B,   Σ_i s_i F_iᵀ = (Σ_i s_i h_iᵀ) Bᵀ + m P F̄ᵀ

so two classes take one scalar per person, and an error in the released P only scales a difference
instead of making one up. P is released once, with noise, and used everywhere.

Equalized odds (App. B, F.2.4): D_R(Ŷ; S | Y) = Σ_y p(y) D_R(Ŷ; S | Y = y), one W and one P per
label. Labels are the company's, so each label's people are asked about apart and a person pays for
their own label's queries only.

Where this differs from Algorithm 1, and why
- Both updates share one budget; in the authors' code each spends the whole ε.
- W is projected to a ball around √P·1ᵀ, where it stands under independence (weights u are then all
  equal and the θ step is free), not around 0, where no classifier's W ever is.
- The W step is preconditioned by default: W ← W + η(W* − W), W*_aj = √P_a + S_aj/(m √P_a F̄_j) is
  the exact maximiser. `ascent="gradient"` takes the plain step of Algorithm 1.
- The W step follows once a round over everybody (`w_update="round"`): one noise draw instead of
  one per chunk. `"chunk"` is Algorithm 1's; W moves first and θ uses the new W.
- Chunks are fixed, not sampled: the company knows whom it asks about (DESIGN.md §2).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isonomy.common.base.errors import ConfigError
from isonomy.company.gradient.fermi import _record as record_fermi
from isonomy.company.gradient.fermi._ermi import Ermi, strata_of, sum_zero_basis
from isonomy.company.gradient.fermi._sgda import Batch, Shape, private_descent, private_moments
from isonomy.company.gradient.per_sample.ghost import ChunkGradients
from isonomy.company.gradient.record.privacy import Part, RecordRun
from isonomy.company.gradient.record.releases import Own
from isonomy.company.gradient.run.schedule import Schedule, Weights, solve
from isonomy.company.gradient.run.strategy import (
    Chunk,
    RoundRecord,
    Run,
    State,
    logits_of,
    trainable,
)

_LEAST_CLIP = 1e-6
_OUTPUT_ROWS = 8192  # rows per forward pass where no gradient is needed


@dataclass
class DpFermi:
    """DP-FERMI as a strategy of the trainer.

    | parameter | the paper's | meaning |
    |---|---|---|
    | notion | – | demographic_parity, equalized_odds, equal_opportunity or equal_fpr |
    | strength | λ | weight of the penalty |
    | clip | L_θ | bound on a person's ∇h, plain; None: `clip_quantile` of the company's own |
    | clip_quantile | – | part of the rows that stay unclipped |
    | noise_shape | – | κ of primal.py: centred rows, noise that follows them; None: round noise |
    | radius | D | of the ball that W is projected to |
    | ascent, ascent_step | η_w | "newton" (1: W* itself) or "gradient"; its step |
    | w_update | – | "round" (everybody at once) or "chunk" (Algorithm 1) |
    | weights | – | how the budget is split over counts, W (`dual`) and θ (`primal`) |
    | sharpness | – | β: F = softmax(β·logits), nearer to a decision |
    | epsilon | ε | part of the plan to use; None: all that is left |
    """

    notion: str = "demographic_parity"
    strength: float = 10.0
    clip: float | None = None
    clip_quantile: float = 0.9
    noise_shape: float | None = None
    radius: float = 2.0
    ascent: Literal["newton", "gradient"] = "newton"
    ascent_step: float = 1.0
    w_update: Literal["round", "chunk"] = "round"
    weights: Weights = field(default_factory=Weights)
    sharpness: float = 1.0
    epsilon: float | None = None
    name: str = field(default="dp_fermi", init=False)
    symbol: str = field(default="W", init=False)  # in tables and plots, less its value at the start

    def __post_init__(self) -> None:
        for name in ("strength", "radius", "ascent_step", "sharpness"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ConfigError(f"{name} must be a positive number, got {value!r}")
        if self.ascent not in ("newton", "gradient"):
            raise ConfigError(f'ascent is "newton" or "gradient", got {self.ascent!r}')
        if self.w_update not in ("round", "chunk"):
            raise ConfigError(f'w_update is "round" or "chunk", got {self.w_update!r}')
        if self.clip is not None and not self.clip >= _LEAST_CLIP:
            raise ConfigError(f"clip must be at least {_LEAST_CLIP}, got {self.clip!r}")
        if not 0 < self.clip_quantile <= 1:
            raise ConfigError(f"clip_quantile lies in (0, 1], got {self.clip_quantile!r}")
        if self.noise_shape is not None and not 0 < self.noise_shape < math.inf:
            raise ConfigError(f"noise_shape is a positive number or None, got {self.noise_shape!r}")
        self.problems: list[Ermi] = []
        self._gap = (float("nan"), float("nan"))

    # --- Before the first round ----------------------------------------------------------------

    def prepare(self, run: Run) -> None:
        """Checks, noise levels over the whole cap, then P̂ once and the first W."""
        if len(run.attributes) != 1:
            raise ConfigError(
                "DP-FERMI takes one attribute; write several as their intersection, 'sex*race'"
            )
        labels = strata_of(self.notion, run.classes)
        own = self._own_clip(run)  # also where it is given: a model without gradients shows here
        if run.record is not None:
            self._norm = record_fermi.given_clip(self.clip)
        else:
            self._norm = own if self.clip is None else self.clip
        self._set_shares(run, labels)
        self.problems = self._release_counts(run, labels)
        if self.w_update == "round":
            self._ascend(run, run.chunks)

    def record_parts(self, run: Run) -> tuple[dict[str, Part], int]:
        """What the planned queries cost records (record_fermi); nothing is asked."""
        record_fermi.given_clip(self.clip)
        if self.w_update == "chunk" or run.record is None:
            raise ConfigError('under record privacy W steps are about everybody: w_update="round"')
        self.problems = []
        labels = strata_of(self.notion, run.classes)
        return record_fermi.parts(run, run.record, self._set_shares(run, labels), labels)

    def own_terms(self, run: Run) -> Own | None:
        """The penalty without its coupling to groups, by row; nothing before the first W step."""
        if not self.problems:
            return None
        return record_fermi.own_terms(run, self.problems, self.strength)

    def _set_shares(self, run: Run, labels: tuple[int | None, ...]) -> Schedule:
        """One budget for both updates. A person with rows of several labels is in several queries
        of a kind, so each of these gets that part of the kind's share."""
        record = run.record
        times = _labels_per_person(run, labels)
        if record is not None:
            times = record_fermi.times_of(run, labels)
        schedule = solve(
            run.oracle,
            rounds=run.rounds,
            primal_per_round=times,
            primal_queries=None if record is None else record.most * times,
            weights=self.weights,
            epsilon=self.epsilon,
        )
        self._counts = schedule.counts.arguments(1.0)
        self._share_theta = schedule.primal.arguments(1.0)["share"]
        self._share_w = schedule.dual.arguments(1.0)["share"] / times
        return schedule

    def _release_counts(self, run: Run, labels: tuple[int | None, ...]) -> list[Ermi]:
        """P̂_S, or P̂_{S|y} for each label: one open sum of who has which label."""
        people, person = np.unique(run.people, return_inverse=True)
        rows = np.zeros((len(people), len(labels)))
        for column, label in enumerate(labels):
            own = run.weight.numpy() * _has(run, label)
            np.add.at(rows[:, column], person, own)
        asked = rows.any(axis=1)  # chosen by label, never by attribute
        mass = rows.sum(axis=0)
        if run.record is not None:
            mass = run.record.count_members(rows, [label is None for label in labels], 1.0)
        counts = run.oracle.open_sum(
            rows[asked],
            norm=1.0,
            attribute=run.attribute,
            people=people[asked],
            purpose="fermi counts",
            **self._counts,
        )
        values = counts.values
        if run.record is not None:
            values = run.record.released("counts", values[:-1])
            values = np.concatenate([values, [mass - values.sum(axis=0)]])
        return [
            Ermi.of(
                values[:, column],
                counts.deviation,
                float(mass[column]),
                classes=run.classes,
                radius=self.radius,
                sharpness=self.sharpness,
                label=label,
            )
            for column, label in enumerate(labels)
        ]

    def _norm_for(self, problem: Ermi) -> float | Shape:
        """A given bound is about plain rows; otherwise each query has its own (sgda.Shape)."""
        if self.clip is not None or self.noise_shape is None:
            return self._norm
        return Shape(problem.shares, self.noise_shape, self.clip_quantile)

    def _own_clip(self, run: Run) -> float:
        """The quantile of own |∇h| on some rows, to two digits; no attribute is involved."""
        rows = run.chunks[0].rows[:2048]
        own = Ermi(np.ones(1), sum_zero_basis(run.classes), self.radius, self.sharpness)
        lengths = []
        for column in range(own.columns):

            def scalar(outputs: Tensor, c: int = column) -> Tensor:
                return own.moments(logits_of(outputs, run.classes))[:, c]

            try:
                gradients = ChunkGradients.of(run.model, scalar, run.inputs[rows].to(run.device))
                lengths.append(gradients.lengths)
            except (RuntimeError, IndexError, TypeError, ValueError) as error:
                raise ConfigError(
                    f"the gradients of this model cannot be taken row by row: {error}"
                ) from error
        bound = np.quantile(np.concatenate(lengths), self.clip_quantile)
        return max(float(f"{bound:.1e}"), _LEAST_CLIP)

    # --- During a round ------------------------------------------------------------------------

    def constraint_gradient(self, run: Run, chunk: Chunk) -> list[Tensor] | None:
        """λ/m Σ_{i in chunk} ∇_θ ψ_i plus noise."""
        if run.record is not None:
            return record_fermi.descent(
                run,
                run.record,
                self.problems,
                [
                    Batch.of(run, chunk, _has(run, problem.label)[chunk.rows.numpy()])
                    for problem in self.problems
                ],
                norm=self._norm,
                share=self._share_theta,
                strength=self.strength,
            )
        if self.w_update == "chunk":
            self._ascend(run, [chunk])
        parameters = trainable(run.model)
        total = [torch.zeros_like(p) for p in parameters]
        for problem in self.problems:
            batch = Batch.of(run, chunk, _has(run, problem.label)[chunk.rows.numpy()])
            if not len(batch):
                continue
            outputs = run.outputs(batch.rows)
            own = (problem.public(outputs, problem.w) * batch.weight.to(outputs)).sum()
            public = torch.autograd.grad(own, parameters, materialize_grads=True)
            private = private_descent(
                problem,
                run,
                batch,
                problem.coupling(problem.w),
                norm=self._norm_for(problem),
                share=self._share_theta,
                purpose=f"fermi θ{problem.suffix}",
            )
            total = [t + p + q for t, p, q in zip(total, public, private, strict=True)]
        scale = self.strength / float(run.weight[chunk.rows].sum())
        return [scale * t for t in total]

    def end_round(self, run: Run) -> RoundRecord:
        """The W step of the round, and the violation that it released."""
        if self.w_update == "round":
            self._ascend(run, run.chunks)
        return RoundRecord(
            violation=self._gap[0],
            deviation=self._gap[1],
            multipliers=np.concatenate([p.w - p.centre for p in self.problems], axis=1),
        )

    def _ascend(self, run: Run, chunks: Sequence[Chunk]) -> None:
        """One step of every W, from one open sum per label."""
        rows = torch.cat([chunk.rows for chunk in chunks])
        whole = Chunk(-1, rows, np.concatenate([chunk.people for chunk in chunks]))
        if run.record is not None:
            self._ascend_privately(run, whole, run.record)
            return
        gaps = []  # none where nobody in the chunk has a label that the notion looks at
        for problem in self.problems:
            batch = Batch.of(run, whole, _has(run, problem.label)[rows.numpy()])
            if not len(batch):
                continue
            outputs = _outputs(run, batch.rows)
            problem.centre_on(outputs, batch.weight)
            sums = private_moments(
                run.oracle,
                problem.moments(outputs).numpy(),
                batch,
                attribute=run.attribute,
                norm=problem.bound,
                share=self._share_w,
                purpose=f"fermi W{problem.suffix}",
            )
            known = (problem.w, sums.values, outputs, batch.mass, batch.weight)
            step = (
                problem.newton(*known)
                if self.ascent == "newton"
                else self.strength * problem.ascent(*known)
            )
            problem.w = problem.project(problem.w + self.ascent_step * step)
            gaps.append(problem.gap(sums.values, float(sums.deviation[0]), batch.mass))
        self._gap = max(gaps, default=self._gap)

    def _ascend_privately(self, run: Run, whole: Chunk, record: RecordRun) -> None:
        """The same under record privacy: no exact mean, total or number of people."""
        outputs = _outputs(run, whole.rows)
        own, weight = self.problems, run.weight[whole.rows].numpy()[:, None]
        inside = [_has(run, problem.label)[whole.rows.numpy()] for problem in own]
        about, columns = [], own[0].columns
        for problem, here in zip(own, inside, strict=True):
            problem.mean = np.full(run.classes, 1.0 / run.classes)
            h = problem.moments(outputs).numpy() * weight
            about.append((whole.rows.numpy()[here], h[here]))
        found = record_fermi.means(
            record, own, record_fermi.folded(run, about, columns), own[0].basis
        )
        batches = [Batch.of(run, whole, here) for here in inside]
        answers = []
        for problem, mean, here, batch in zip(own, found, inside, batches, strict=True):
            problem.mean = mean
            sums = private_moments(
                run.oracle,
                problem.moments(outputs).numpy()[here],
                batch,
                attribute=run.attribute,
                norm=problem.bound,
                share=self._share_w,
                purpose=f"fermi W{problem.suffix}",
            )
            answers.append((sums.values[:-1], float(sums.deviation[0])))
        released = record.released("dual", np.stack([values for values, _ in answers]))
        gaps = []
        for number, problem in enumerate(own):
            values, mass = released[number], float(record.members[number])
            sums_by_group = np.concatenate([values, [-values.sum(axis=0)]])
            step = record_fermi.direction(
                problem, sums_by_group, mass, newton=self.ascent == "newton"
            )
            if self.ascent == "gradient":
                step = self.strength * step
            problem.w = problem.project(problem.w + self.ascent_step * step)
            gaps.append(problem.gap(sums_by_group, answers[number][1], mass))
        self._gap = max(gaps)

    # --- A break in between --------------------------------------------------------------------

    def describe(self, run: Run) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Names of W's rows and columns, for tables and plots."""
        columns = tuple(
            f"class {c} chosen" + ("" if label is None else f" | y = {label}")
            for label in strata_of(self.notion, run.classes)
            for c in range(run.classes)
        )
        return run.oracle.labels(run.attribute), columns

    def state_dict(self) -> State:
        state: State = {
            "norm": self._norm,
            "share_theta": self._share_theta,
            "share_w": self._share_w,
            "gap": self._gap[0],
            "gap_deviation": self._gap[1],
            "problems": len(self.problems),
        }
        for number, problem in enumerate(self.problems):
            state[f"w{number}"] = torch.from_numpy(problem.w.copy())
            state[f"shares{number}"] = torch.from_numpy(problem.shares.copy())
            state[f"label{number}"] = -1 if problem.label is None else problem.label
        return state

    def load_state_dict(self, state: State) -> None:
        self._norm = float(state["norm"])
        self._share_theta, self._share_w = float(state["share_theta"]), float(state["share_w"])
        self._gap = float(state["gap"]), float(state["gap_deviation"])
        self.problems = []
        for number in range(int(state["problems"])):
            w, shares = state[f"w{number}"], state[f"shares{number}"]
            label = int(state[f"label{number}"])
            if not isinstance(w, Tensor) or not isinstance(shares, Tensor):
                raise ConfigError("the checkpoint is not one of DP-FERMI: W is missing")
            problem = Ermi(
                shares.double().numpy().copy(),
                sum_zero_basis(w.shape[1]),
                self.radius,
                self.sharpness,
                None if label < 0 else label,
            )
            problem.w = w.double().numpy().copy()
            self.problems.append(problem)


def _has(run: Run, label: int | None) -> NDArray[np.bool_]:
    """(n,) which rows are in the stratum of this label."""
    if label is None:
        return np.ones(len(run.target), dtype=np.bool_)
    return np.asarray((run.target == label).cpu().numpy())


def _labels_per_person(run: Run, labels: tuple[int | None, ...]) -> int:
    """The most strata that one person has rows in: 1 without repeated people."""
    _, person = np.unique(run.people, return_inverse=True)
    inside = [np.bincount(person, weights=_has(run, label)) > 0 for label in labels]
    return int(np.sum(inside, axis=0).max())


def _outputs(run: Run, rows: Tensor) -> Tensor:
    """(b, classes) float64 logits without gradients, in parts."""
    with torch.no_grad():
        parts = [run.outputs(part).double().cpu() for part in torch.split(rows, _OUTPUT_ROWS)]
    return torch.cat(parts)


__all__ = ["DpFermi"]
