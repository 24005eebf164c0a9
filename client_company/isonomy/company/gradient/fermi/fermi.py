"""DP-FERMI: private training under an exponential Rényi mutual information penalty.

    min_θ  L̂(θ) + λ·D_R(Ŷ_θ; S),   D_R = Σ_{j,a} p(j, a)²/(p(j) p(a)) − 1        (FERMI obj.)

for l classes, k groups, F_ij = P(ŷ_i = j), is the min–max problem (Lowy et al. 2023, Theorem C.1)

    min_θ max_W  L̂(θ) + λ/n Σ_i ψ_i,   ψ_i = −Σ_j ‖W_·j‖² F_ij + 2 Σ_j W_{A_i j}/√P_{A_i} F_ij − 1

    ∇_θ ψ_i = −Σ_j ‖W_·j‖² ∇F_ij  +  Σ_j u_{A_i j} ∇F_ij,      u_aj = 2 W_aj/√P_a     Theorem D.1
    ∇_W ψ_i = −2 W diag(F_i)      +  2 P^{-1/2} s_i F_iᵀ,      s_i the one-hot group of i

The first terms do not depend on A: the company computes them exactly and for nothing. The second
ones are a *weighted blind sum* of ∇F and an *open sum* of F. Since Σ_j F_ij = 1, both lie in the
l − 1 dimensions orthogonal to (1, …, 1): with an orthonormal basis B of them and the chunk's own
mean F̄ (known to the company) as centre,

    h_i = Bᵀ(F_i − F̄),   U = 2 P^{-1/2} W B,   Σ_i s_i F_iᵀ = (Σ_i s_i h_iᵀ) Bᵀ + m P F̄ᵀ

so two classes take one scalar per person, and an error in the released P only scales a difference
instead of inventing one. P is released once, with noise, and used everywhere.

Equalized odds (App. B, F.2.4): D_R(Ŷ; S | Y) = Σ_y p(y) D_R(Ŷ; S | Y = y), one W and one P per
label. Labels are the company's, so there are separate queries about each label's people, and a
person pays for their own label's queries only.

Where this differs from Algorithm 1, and why
- Both updates share one budget; in the authors' code each spends the whole ε.
- W is projected to a ball around √P·1ᵀ, where it stands under independence (weights u are then all
  equal and the θ step is free), not around 0, where no classifier's W ever is.
- The W step is preconditioned by default: W ← W + η(W* − W), W*_aj = √P_a + S_aj/(m √P_a F̄_j) is
  the exact maximiser. `ascent="gradient"` takes the plain step of Algorithm 1.
- The W step follows once a round over everybody (`w_update="round"`): one noise draw instead of
  one per chunk. `"chunk"` is Algorithm 1's; W moves first and θ uses the new W.
- Chunks are fixed, not sampled: the company knows whom it asks about (docs/design.md §2).

DP-SGDA (Algorithm 2, `DpSgda`) has the same objective, with both updates taken at the same point, W
by plain gradient steps and θ by plain SGD.

Noise. By default it is solved exactly from one budget. `noise="theorem"` adds the noise of Theorem
3.3 instead, u ~ N(0, σ_θ²) and V ~ N(0, σ_w²) on the mean of ∇ψ (times λ, which the theorem leaves
out), for comparison. The oracle charges what that noise costs: see `_theorem_noise`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from isonomy.common.base.errors import ConfigError
from isonomy.common.sums.oracle import NoiseLevel
from isonomy.company.gradient.fermi import _record as record_fermi
from isonomy.company.gradient.fermi._ermi import Ermi, strata_of, sum_zero_basis
from isonomy.company.gradient.fermi._sgda import (
    Batch,
    Shape,
    descent,
    has_label,
    moment_gradients,
    private_moments,
)
from isonomy.company.gradient.record.privacy import Part, constant_bound, oracle_parts
from isonomy.company.gradient.record.releases import FreeTerms, with_last
from isonomy.company.gradient.run.paper_epsilon import theorem_3_3
from isonomy.company.gradient.run.schedule import Schedule, Weights, solve
from isonomy.company.gradient.run.strategy import (
    Chunk,
    Persons,
    RoundRecord,
    Run,
    State,
    trainable,
)

_CONSTANT = ("the bound on ∇h", "DpFermi(clip=…)")
_LEAST_CLIP = 1e-6
_OUTPUT_ROWS = 8192  # rows per forward pass where no gradient is needed
_CHOICES = {
    "ascent": ("newton", "gradient"),
    "w_update": ("round", "chunk"),
    "noise": ("exact", "theorem"),
}


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
    | noise | σ_w, σ_θ | "exact": solved from the budget; "theorem": Theorem 3.3's |
    | weights | – | how the budget is split over counts, W (`dual`) and θ (`primal`) |
    | sharpness | – | β: F = softmax(β·logits), nearer to a decision |
    | epsilon | ε | part of the plan to use; None: all but a tenth, for audits |
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
    noise: Literal["exact", "theorem"] = "exact"
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
        for name, (first, second) in _CHOICES.items():
            if getattr(self, name) not in (first, second):
                raise ConfigError(f'{name} is "{first}" or "{second}", got {getattr(self, name)!r}')
        if self.clip is not None and not self.clip >= _LEAST_CLIP:
            raise ConfigError(f"clip must be at least {_LEAST_CLIP}, got {self.clip!r}")
        if not 0 < self.clip_quantile <= 1:
            raise ConfigError(f"clip_quantile lies in (0, 1], got {self.clip_quantile!r}")
        if self.noise_shape is not None and not 0 < self.noise_shape < math.inf:
            raise ConfigError(f"noise_shape is a positive number or None, got {self.noise_shape!r}")
        if self.noise == "theorem" and self.noise_shape is not None:
            raise ConfigError('noise="theorem" has no shape: leave noise_shape out')
        self.problems: list[Ermi] = []  # one per stratum
        self._gap = (float("nan"), float("nan"))

    # --- Before the first round ----------------------------------------------------------------

    def prepare(self, run: Run) -> None:
        """Checks, noise levels over the whole cap, then P̂ once and the first W."""
        if len(run.attributes) != 1:
            raise ConfigError(
                "DP-FERMI takes one attribute; write several as their intersection, 'sex*race'"
            )
        quantile = self._clip_from_rows(run)  # always: a model without gradients shows here
        if run.record is not None:
            self._norm = constant_bound(self.clip, *_CONSTANT)
        else:
            self._norm = quantile if self.clip is None else self.clip
        self._set_shares(run)
        self.problems = self.problems_of(run)
        if self.w_update == "round":
            self._ascend(run, run.chunks)

    def problems_of(self, run: Run) -> list[Ermi]:
        """The min–max problems, one per stratum, from counts that are released here."""
        labels, persons = strata_of(self.notion, run.classes), Persons.of(run.people)
        has = np.stack([has_label(run, label) for label in labels], axis=1)
        rows = persons.fold(run.weight[:, None] * torch.from_numpy(has)).numpy()  # (people, labels)
        inside = rows.any(axis=1)  # chosen by label, never by attribute
        mass = rows.sum(axis=0)
        if run.record is not None:
            mass = run.record.count_members(rows, [label is None for label in labels], 1.0)
        counts = run.oracle.open_sum(
            rows[inside],
            norm=1.0,
            attribute=run.attribute,
            people=persons.people[inside],
            purpose="fermi counts",
            **self._counts,
        )
        values = counts.values
        if run.record is not None:
            values = with_last(run.record.released("counts", values[:-1]), (len(values),), mass)
        return [
            Ermi.of(
                values[:, column],
                counts.deviation,
                float(mass[column]),
                classes=run.classes,
                radius=self.radius,
                sharpness=self.sharpness,
                newton=self.ascent == "newton",
                label=label,
            )
            for column, label in enumerate(labels)
        ]

    def record_parts(self, run: Run) -> tuple[dict[str, Part], int]:
        """What the planned queries cost records (fermi/record); nothing is asked."""
        constant_bound(self.clip, *_CONSTANT)
        if self.w_update == "chunk":
            raise ConfigError('under record privacy W moves once per round: take w_update="round"')
        if self.noise != "exact":
            raise ConfigError('under record privacy the noise follows from ε: take noise="exact"')
        self.problems = []
        labels = strata_of(self.notion, run.classes)
        return oracle_parts(
            run,
            self._set_shares(run),
            (len(run.oracle.labels(run.attribute)),),
            queries=record_fermi.times_of(run, labels),  # labels share a W step and a θ step
            labelled=labels != (None,),
        )

    def free_terms(self, run: Run) -> FreeTerms | None:
        """The penalty without its coupling to groups, by row; nothing before the first W step."""
        if not self.problems:
            return None
        return record_fermi.free_terms(run, self.problems, self.strength)

    def _set_shares(self, run: Run) -> Schedule:
        """One budget for both updates. A person with rows of several labels is in several queries
        of a kind, so each of these gets that part of the kind's share."""
        labels, record = strata_of(self.notion, run.classes), run.record
        if record is None:
            _, person = np.unique(run.people, return_inverse=True)
            inside = [np.bincount(person, weights=has_label(run, label)) > 0 for label in labels]
            times = int(np.sum(inside, axis=0).max())  # the most strata that one person is in
        else:
            times = record_fermi.times_of(run, labels)
        schedule = solve(
            run.oracle,
            rounds=run.rounds,
            primal_per_round=times,
            primal_queries=None if record is None else record.most * times,
            weights=self.weights,
            epsilon=self.epsilon if self.noise == "exact" else None,
        )
        self._counts = schedule.counts.arguments(1.0)
        self._share_theta = schedule.primal.arguments(1.0)["share"]
        self._share_w = schedule.dual.arguments(1.0)["share"] / times
        return schedule

    def _noise_of(self, run: Run, problem: Ermi, mass: float) -> tuple[NoiseLevel, NoiseLevel]:
        """Arguments of the oracle for a θ step and a W step about `mass` people of a stratum."""
        if self.noise == "exact":
            return {"share": self._share_theta}, {"share": self._share_w}
        return self._theorem_noise(run, problem, mass)

    def _theorem_noise(self, run: Run, problem: Ermi, mass: float) -> tuple[NoiseLevel, NoiseLevel]:
        """Theorem 3.3's σ_θ and σ_w, as deviations of the sums that are released.

            Σ_i u_{A_i} ∇h_i        m·σ_θ             since the mean of ∇_θ ψ is that sum over m
            Σ_{A_i = a} h_i         m·σ_w·√ρ/2        since ∇_W has it times 2/(m √P_a), P_a ≥ ρ

        for batches of m people; L is the clipping bound, D the largest entry that W can have, T
        counts the first W step as well. Larger groups get less noise in ∇_W than σ_w: the noise is
        in the sums, and the sensitivity of ∇_W is smaller by the same factor. ε is `epsilon`, or
        the plan's. A run that costs more than the plan ends when the plan is spent.
        """
        budget, rho = run.oracle.budget, float(problem.shares.min())
        sigma_w, sigma_theta = theorem_3_3(
            epsilon=self.epsilon or budget.cap_epsilon,
            delta=budget.delta,
            steps=run.rounds * len(run.chunks) + 1,
            people=float(run.weight[torch.from_numpy(has_label(run, problem.label))].sum()),
            rho=rho,
            diameter=math.sqrt(float(problem.shares.max())) + self.radius,
            lipschitz=self._norm,
        )
        return {"sigma": mass * sigma_theta}, {"sigma": mass * sigma_w * math.sqrt(rho) / 2}

    def _norm_for(self, problem: Ermi) -> float | Shape:
        """A given bound is about plain rows; otherwise each query has its own (sgda.Shape)."""
        if self.clip is not None or self.noise_shape is None:
            return self._norm
        return Shape(problem.shares, self.noise_shape, self.clip_quantile)

    def _clip_from_rows(self, run: Run) -> float:
        """The quantile of |∇h| on some rows, to two digits; no attribute is involved."""
        rows = run.chunks[0].rows[:2048]
        each = torch.ones(len(rows), dtype=torch.float64)
        batch = Batch(rows, np.arange(len(rows)), each)  # every row by itself
        problem = Ermi(np.ones(1), sum_zero_basis(run.classes), self.radius, self.sharpness)
        try:
            lengths = [
                moment_gradients(problem, run, batch, column).lengths
                for column in range(problem.columns)
            ]
        except (RuntimeError, IndexError, TypeError, ValueError) as error:
            raise ConfigError(
                f"the gradients of this model cannot be taken row by row: {error}"
            ) from error
        bound = np.quantile(np.concatenate(lengths), self.clip_quantile)
        return max(float(f"{bound:.1e}"), _LEAST_CLIP)

    # --- During a round ------------------------------------------------------------------------

    def constraint_gradient(self, run: Run, chunk: Chunk) -> list[Tensor] | None:
        """λ/m Σ_{i in chunk} ∇_θ ψ_i plus noise."""
        if self.w_update == "chunk":
            self._ascend(run, [chunk])
        return self._descend(run, chunk)

    def _descend(self, run: Run, chunk: Chunk) -> list[Tensor]:
        """The θ step's gradient, from one weighted sum per label and free coordinate."""
        strata = [(problem, Batch.of(run, chunk, problem.label)) for problem in self.problems]
        if run.record is not None:
            questions = record_fermi.questions(run, strata, self._share_theta)
            total = run.record.constraint_gradient(run, questions, norm=self._norm)
            people = float(run.persons)
        else:
            total = [torch.zeros_like(p) for p in trainable(run.model)]
            people = float(run.weight[chunk.rows].sum())
            for problem, batch in strata:
                if len(batch):
                    noise, _ = self._noise_of(run, problem, batch.mass)
                    norm = self._norm_for(problem)
                    gradient = descent(problem, run, batch, norm=norm, noise=noise)
                    total = [t + g for t, g in zip(total, gradient, strict=True)]
        return [self.strength / people * t for t in total]

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
        record, rows = run.record, torch.cat([chunk.rows for chunk in chunks])
        whole = Chunk(-1, rows, np.concatenate([chunk.people for chunk in chunks]))
        # In a chunk there may be nobody with a label that the notion looks at.
        steps = [(p, batch) for p in self.problems if len(batch := Batch.of(run, whole, p.label))]
        outputs = [_outputs(run, batch.rows) for _, batch in steps]
        if record is not None:
            record_fermi.centre(run, record, steps, outputs)
        answers = []
        for (problem, batch), logits in zip(steps, outputs, strict=True):
            if record is None:
                problem.centre_on(logits, batch.weight)
            answers.append(
                private_moments(
                    run,
                    batch,
                    problem.moments(logits),
                    norm=problem.bound,
                    noise=self._noise_of(run, problem, batch.mass)[1],
                    purpose=f"fermi W{problem.suffix}",
                )
            )
        sums = [answer.values for answer in answers]
        masses = [batch.mass for _, batch in steps]
        if record is not None:  # no exact total and no exact number of people
            sums = record_fermi.released_sums(record, answers)
            masses = [float(members) for members in record.members]
        gaps = []
        for (problem, _), answer, values, mass in zip(steps, answers, sums, masses, strict=True):
            scale = self.ascent_step * (1.0 if self.ascent == "newton" else self.strength)
            step = problem.ascent(problem.w, values, mass)
            problem.w = problem.project(problem.w + scale * step)
            gaps.append(problem.gap(values, float(answer.deviation[0]), mass))
        self._gap = max(gaps, default=self._gap)

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
        return {
            "norm": self._norm,
            "share_theta": self._share_theta,
            "share_w": self._share_w,
            "gap": list(self._gap),
            "problems": [
                {"label": p.label, "shares": p.shares.tolist(), "w": p.w.tolist()}
                for p in self.problems
            ],
        }

    def load_state_dict(self, state: State) -> None:
        self._norm = float(state["norm"])
        self._share_theta, self._share_w = float(state["share_theta"]), float(state["share_w"])
        self._gap = (float(state["gap"][0]), float(state["gap"][1]))
        self.problems = []
        for saved in state["problems"]:
            w, shares = np.array(saved["w"]), np.array(saved["shares"])
            basis = sum_zero_basis(w.shape[1])
            newton = self.ascent == "newton"
            problem = Ermi(shares, basis, self.radius, self.sharpness, saved["label"], newton)
            problem.w = w
            self.problems.append(problem)


@dataclass
class DpSgda(DpFermi):
    """DP-SGDA (Algorithm 2) on the same objective: θ and W step from the same point (θ_t, W_t).

    Train θ by plain SGD with one step per release (`local_steps=1`); `ascent_step` is η_w. Other
    parameters are those of `DpFermi`.
    """

    radius: float = 0.5
    ascent: Literal["newton", "gradient"] = field(default="gradient", init=False)
    ascent_step: float = 0.02
    w_update: Literal["round", "chunk"] = field(default="chunk", init=False)
    name: str = field(default="dp_sgda", init=False)

    def record_parts(self, run: Run) -> tuple[dict[str, Part], int]:
        raise ConfigError("dp_sgda cannot run under record privacy; dp_fermi and pf_ld can")

    def constraint_gradient(self, run: Run, chunk: Chunk) -> list[Tensor] | None:
        """λ/m Σ_{i in chunk} ∇_θ ψ_i plus noise, at W_t; W_{t+1} follows from θ_t as well."""
        gradient = self._descend(run, chunk)
        self._ascend(run, [chunk])
        return gradient


def _outputs(run: Run, rows: Tensor) -> Tensor:
    """(b, classes) float64 logits without gradients, in parts."""
    with torch.no_grad():
        parts = [run.outputs(part).double().cpu() for part in torch.split(rows, _OUTPUT_ROWS)]
    return torch.cat(parts)
