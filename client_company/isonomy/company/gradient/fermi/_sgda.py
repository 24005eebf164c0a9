"""DP-SGDA: noisy descent in θ and noisy projected ascent in w, over blind group sums.

    min_θ max_{w ∈ 𝒲}  F(θ, w) = 1/n Σ_i f(θ, w; z_i)                    Lowy et al. 2023, (7)

    θ ← θ − η_θ (1/m Σ_{i∈B} ∇_θ f(θ, w; z_i) + u)                       their Algorithm 2
    w ← Π_𝒲[w + η_w (1/m Σ_{i∈B} ∇_w f(θ, w; z_i) + v)]

Only what depends on the attribute needs a release. A problem therefore says how f splits:

    f(θ, w; z_i) = g(θ, w; x_i, y_i) + ⟨U(w)_{A_i}, h(θ; x_i)⟩           `MinMax`

g and all of its gradients are the company's own, free and exact. Of the coupling,

    ∇_θ:  Σ_i Σ_c U(w)_{A_i c} ∇h_ic      one weighted blind sum per column c    `private_descent`
    ∇_w:  Σ_{i: A_i = a} h_i              one open sum                           `private_moments`

Guarantees (tests/company/gradient/fermi/test_fermi_traps.py)
  one_budget             both updates of all steps together stay within the oracle's cap
  noise_has_every_factor the noise in ∇_θ grows with range(U), so with w and λ
  columns_share          c weighted sums cost one share, not c of them
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isonomy.common.base.errors import ConfigError
from isonomy.common.sums.oracle import GroupOracle, Release
from isonomy.company.gradient.per_sample.ghost import ChunkGradients
from isonomy.company.gradient.run.strategy import Chunk, Run, logits_of, trainable
from isonomy.company.gradient.sums.primal import CentredGradients, private_sum

Floats = NDArray[np.float64]


class MinMax(Protocol):
    """A min–max problem whose private part is the coupling ⟨U(w)_{A_i}, h_i⟩.

    `outputs` are logits (b, classes). Everything but `moments` and `public` sees released numbers
    only, so w never depends on an attribute beyond what was paid for.
    """

    @property
    def columns(self) -> int:
        """How many numbers h has."""

    def moments(self, outputs: Tensor) -> Tensor:
        """(b, columns) h: differentiable, each row a function of that row's output alone."""

    def public(self, outputs: Tensor, w: Floats) -> Tensor:
        """(b,) g: what the company computes alone."""

    def coupling(self, w: Floats) -> Floats:
        """(groups, columns) U(w)."""

    def ascent(self, w: Floats, sums: Floats, outputs: Tensor, mass: float) -> Floats:
        """(like w) the direction of ascent from `sums`, (groups, columns) released Σ h by group.

        `mass` is the number of people that `sums` and `outputs` are about.
        """

    def project(self, w: Floats) -> Floats:
        """Π_𝒲(w)."""


def project_ball(w: Floats, centre: Floats, radius: float) -> Floats:
    """The nearest point of {v : ‖v − centre‖ ≤ radius}, Frobenius norm."""
    away = w - centre
    length = float(np.linalg.norm(away))
    return w if length <= radius else centre + away * (radius / length)


# --- The two releases ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Batch:
    """Some rows with their people; `weight` is 1 / number of rows of the same person."""

    rows: Tensor  # (b,) row numbers
    people: NDArray[np.int64]  # (b,)
    weight: Tensor  # (b,) float64

    @classmethod
    def of(cls, run: Run, chunk: Chunk, keep: NDArray[np.bool_] | None = None) -> Batch:
        """A chunk, or its rows where `keep` holds."""
        rows, people = chunk.rows, chunk.people
        if keep is not None:
            rows, people = rows[torch.from_numpy(keep)], people[keep]
        return cls(rows, people, run.weight[rows])

    @property
    def mass(self) -> float:
        """People, a person with part of their rows counting as that part."""
        return float(self.weight.sum())

    def __len__(self) -> int:
        return len(self.rows)


def shares_of(ranges: Floats, share: float) -> Floats:
    """How columns share one budget: in proportion to the ranges r_c of their weights.

    The noise of column c has variance ∝ r_c²/s_c; Σ r_c²/s_c at fixed Σ s_c is least for s_c ∝ r_c.
    The ranges come from released numbers, so the split does not depend on an attribute otherwise.
    No column that is asked for gets less than a hundredth of the largest one's part.
    """
    wanted = np.where(ranges > 0, np.maximum(ranges, ranges.max() / 100), 0.0)
    total = float(wanted.sum())
    return wanted if total == 0.0 else share * wanted / total


@dataclass(frozen=True)
class Shape:
    """Rows without what people have in common, and noise that follows them (primal.py).

        Σ_p u_{A_p} g_p = Σ_p u_{A_p}(g_p − m_p ḡ)  +  (Σ_a P_a u_a)·Σ_p g_p

    The first sum is asked for, in coordinates M of the centred rows' own second moment and clipped
    at a quantile of their lengths there; the second needs the released P only. In a chunk P stands
    for the chunk's own groups: what that misses has no direction over a pass.
    """

    groups: Floats  # (k,) P, the released shares of the groups
    kappa: float  # κ of primal.py
    quantile: float  # of the rows' lengths: the clipping bound


def private_descent(
    problem: MinMax,
    run: Run,
    batch: Batch,
    weights: Floats,
    *,
    norm: float | Shape,
    share: float,
    purpose: str,
) -> list[Tensor]:
    """Σ_i Σ_c U_{A_i c} ∇h_ic plus noise, one tensor per parameter.

    Each column is one weighted blind sum with sensitivity range(U_c)·norm; the columns share
    `share`. A column whose weights are all equal needs no attribute and costs nothing. `norm`: the
    clipping bound of plain rows under round noise, or a `Shape`.
    """
    ranges = weights.max(axis=0) - weights.min(axis=0)
    parts = shares_of(ranges, share)
    total = [torch.zeros_like(p) for p in trainable(run.model)]
    scale = batch.weight.to(run.device)
    for column in range(problem.columns):

        def scalar(outputs: Tensor, c: int = column) -> Tensor:
            h = problem.moments(logits_of(outputs, run.classes))[:, c]
            return h * scale.to(h.dtype)

        if parts[column] == 0.0:
            value = float(weights[0, column])
            if value != 0.0:
                rows = run.outputs(batch.rows)
                gradients = torch.autograd.grad(
                    value * (problem.moments(rows)[:, column] * scale.to(rows.dtype)).sum(),
                    trainable(run.model),
                    materialize_grads=True,
                )
                total = [t + g for t, g in zip(total, gradients, strict=True)]
            continue
        gradients_of = ChunkGradients.of(
            run.model, scalar, run.inputs[batch.rows].to(run.device), people_of_row=batch.people
        )
        asked = purpose if problem.columns == 1 else f"{purpose}, column {column}"
        if isinstance(norm, Shape):
            own = _shaped_sum(
                run, gradients_of, batch, weights[:, column], norm, float(parts[column]), asked
            )
        else:
            own = private_sum(
                run.oracle,
                CentredGradients(gradients_of, None),
                weights[:, column].tolist(),
                norm=norm,
                attribute=run.attribute,
                noise={"share": float(parts[column])},
                label={"purpose": asked},
            ).tensors()
        total = [t + g.to(t) for t, g in zip(total, own, strict=True)]
    return total


def _shaped_sum(
    run: Run,
    gradients: ChunkGradients,
    batch: Batch,
    weights: Floats,
    shape: Shape,
    share: float,
    purpose: str,
) -> list[Tensor]:
    """One column of `private_descent` by `Shape`."""
    centred = CentredGradients(gradients, gradients.fold(batch.weight), shape.kappa)
    answer = private_sum(
        run.oracle,
        centred,
        weights.tolist(),
        norm=None,
        part=shape.quantile,
        attribute=run.attribute,
        noise={"share": share},
        label={"purpose": purpose},
    )
    common = gradients.combine(torch.full((len(gradients),), float(shape.groups @ weights)))
    return [a + c.to(a) for a, c in zip(answer.tensors(), common, strict=True)]


def private_moments(
    oracle: GroupOracle,
    moments: Floats,
    batch: Batch,
    *,
    attribute: str,
    norm: float,
    share: float,
    purpose: str,
) -> Release:
    """(groups, columns) Σ h by group plus noise, open: the regulator may see group rates."""
    people, person = np.unique(batch.people, return_inverse=True)
    rows = np.zeros((len(people), moments.shape[1]))
    np.add.at(rows, person, moments * batch.weight.numpy()[:, None])
    return oracle.open_sum(
        rows, norm=norm, attribute=attribute, people=people, share=share, purpose=purpose
    )


# --- Algorithm 2 --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Steps:
    """Step sizes and bounds of Algorithm 2; `share_theta`, `share_w` are per step."""

    eta_theta: float
    eta_w: float
    norm_theta: float
    norm_w: float
    share_theta: float
    share_w: float

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value > 0:
                raise ConfigError(f"{name} must be above 0, got {value!r}")


def dp_sgda(
    problem: MinMax,
    run: Run,
    w: Floats,
    steps: Steps,
    *,
    on_step: Callable[[int, Floats], None] | None = None,
) -> Floats:
    """Algorithm 2 on `run.model` (changed in place): `run.rounds` passes over the chunks.

    Returns the last w; the last θ is in the model (the authors advise the last iterate as well).
    Every step costs each person of its chunk share_theta + share_w of the plan's μ². Batches are
    the run's fixed chunks in shuffled order, not fresh samples: the company knows whom it asks
    about, so sampling would not amplify anything in its view (DESIGN.md §2).
    """
    worst = run.rounds * (steps.share_theta + steps.share_w)
    if worst > run.oracle.budget.remaining_share * (1 + 1e-9):
        raise ConfigError(
            f"{run.rounds} rounds of both updates cost {worst:.4g} of the plan's budget, "
            f"{run.oracle.budget.remaining_share:.4g} is left: both share one budget"
        )
    number = 0
    for _ in range(run.rounds):
        for chunk in _shuffled(run):
            batch = Batch.of(run, chunk)
            gradient = descent_direction(
                problem, run, batch, w, norm=steps.norm_theta, share=steps.share_theta
            )
            with torch.no_grad():
                outputs = run.outputs(batch.rows)
                h = problem.moments(outputs).double().cpu().numpy()
            sums = private_moments(
                run.oracle,
                h,
                batch,
                attribute=run.attribute,
                norm=steps.norm_w,
                share=steps.share_w,
                purpose="sgda w",
            )
            direction = problem.ascent(w, sums.values, outputs, batch.mass)
            _descend(run, gradient, steps.eta_theta)  # both updates are taken at (θ_t, w_t)
            w = problem.project(w + steps.eta_w * direction)
            if on_step is not None:
                on_step(number, w)
            number += 1
    return w


def descent_direction(
    problem: MinMax, run: Run, batch: Batch, w: Floats, *, norm: float, share: float
) -> list[Tensor]:
    """1/m Σ ∇_θ f + noise: the company's part exactly, the coupling through the oracle."""
    scale = batch.weight.to(run.device)
    outputs = run.outputs(batch.rows)
    own = (problem.public(outputs, w) * scale.to(outputs.dtype)).sum()
    public = torch.autograd.grad(own, trainable(run.model), allow_unused=True)
    coupled = private_descent(
        problem, run, batch, problem.coupling(w), norm=norm, share=share, purpose="sgda θ"
    )
    return [(c if p is None else p + c) / batch.mass for p, c in zip(public, coupled, strict=True)]


def _descend(run: Run, gradient: Iterable[Tensor], step: float) -> None:
    with torch.no_grad():
        for parameter, own in zip(trainable(run.model), gradient, strict=True):
            parameter.sub_(step * own)


def _shuffled(run: Run) -> list[Chunk]:
    order = torch.randperm(len(run.chunks), generator=run.generator).tolist()
    return [run.chunks[index] for index in order]


__all__ = [
    "Batch",
    "MinMax",
    "Shape",
    "Steps",
    "descent_direction",
    "dp_sgda",
    "private_descent",
    "private_moments",
    "project_ball",
    "shares_of",
]
