"""Noisy descent in θ and noisy projected ascent in w, over blind group sums (DP-SGDA).

    min_θ max_{w ∈ 𝒲}  F(θ, w) = 1/n Σ_i f(θ, w; z_i)                    Lowy et al. 2023, (7)

    θ ← θ − η_θ (1/m Σ_{i∈B} ∇_θ f(θ, w; z_i) + u)                       their Algorithm 2
    w ← Π_𝒲[w + η_w (1/m Σ_{i∈B} ∇_w f(θ, w; z_i) + v)]

Only what depends on the attribute needs a release. So the problem (`_ermi.Ermi`) says how f splits:

    f(θ, w; z_i) = g(θ, w; x_i, y_i) + ⟨U(w)_{A_i}, h(θ; x_i)⟩

g and all of its gradients need no attribute: they are exact and free. Of the coupling,

    ∇_θ:  Σ_i Σ_c U(w)_{A_i c} ∇h_ic      one weighted blind sum per column c    `descent`
    ∇_w:  Σ_{i: A_i = a} h_i              one open sum                           `private_moments`

`fermi` makes training strategies of them: DP-FERMI (Algorithm 1) and DP-SGDA (Algorithm 2).

Guarantees (tests/company/gradient/fermi/test_fermi_traps.py)
  one_budget             both updates of all steps together stay within the oracle's cap
  noise_has_every_factor the noise in ∇_θ grows with range(U), so with w and λ
  columns_share          c weighted sums cost one share, not c of them
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isonomy.common.sums.oracle import NoiseLevel, Release
from isonomy.company.gradient.fermi._ermi import Ermi
from isonomy.company.gradient.per_sample.ghost import ChunkGradients
from isonomy.company.gradient.run.strategy import Chunk, Persons, Run, logits_of, trainable
from isonomy.company.gradient.sums.primal import CentredGradients, private_sum

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Batch:
    """Some rows with their people; `weight` is 1 / number of rows of the same person."""

    rows: Tensor  # (b,) row numbers
    people: NDArray[np.int64]  # (b,)
    weight: Tensor  # (b,) float64

    @classmethod
    def of(cls, run: Run, chunk: Chunk, label: int | None = None) -> Batch:
        """A chunk, or its rows with this label."""
        inside = has_label(run, label)[chunk.rows.numpy()]
        rows = chunk.rows[torch.from_numpy(inside)]
        return cls(rows, chunk.people[inside], run.weight[rows])

    @property
    def mass(self) -> float:
        """People, a person with part of their rows counting as that part."""
        return float(self.weight.sum())

    def __len__(self) -> int:
        return len(self.rows)


def has_label(run: Run, label: int | None) -> NDArray[np.bool_]:
    """(n,) which rows are in the stratum of this label; None: all of them."""
    if label is None:
        return np.ones(len(run.target), dtype=np.bool_)
    return np.asarray((run.target == label).cpu().numpy())


def shares_of(ranges: Floats, share: float) -> Floats:
    """How columns share one budget: in proportion to the ranges r_c of their weights.

    The noise of column c has variance ∝ r_c²/s_c; Σ r_c²/s_c at fixed Σ s_c is least for s_c ∝ r_c.
    The ranges come from released numbers, so the split does not depend on an attribute otherwise.
    No column that is asked for gets less than a hundredth of the largest one's part.
    """
    parts = np.where(ranges > 0, np.maximum(ranges, ranges.max() / 100), 0.0)
    total = float(parts.sum())
    return parts if total == 0.0 else share * parts / total


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


def descent(
    problem: Ermi, run: Run, batch: Batch, *, norm: float | Shape, noise: NoiseLevel
) -> list[Tensor]:
    """Σ_i ∇_θ f(θ, w; z_i) plus noise, one tensor per parameter.

    Each column of the coupling is one weighted blind sum with sensitivity range(U_c)·norm. A column
    whose weights are all equal needs no attribute and costs nothing. `norm`: the clipping bound of
    plain rows under round noise, or a `Shape`. `noise`: share=… for all columns together, or
    sigma=…, the deviation of the whole sum (plain rows only).
    """
    weights = problem.coupling(problem.w)
    parts = shares_of(weights.max(axis=0) - weights.min(axis=0), noise.get("share", 1.0))
    outputs = run.outputs(batch.rows)
    free = torch.from_numpy(np.where(parts == 0.0, weights[0], 0.0)).to(outputs)
    public = problem.public(outputs, problem.w) + problem.moments(outputs) @ free
    total = torch.autograd.grad(
        (public * batch.weight.to(outputs)).sum(), trainable(run.model), materialize_grads=True
    )
    private = np.flatnonzero(parts)
    for column in private:
        if "share" in noise:
            column_noise: NoiseLevel = {"share": float(parts[column])}
        else:
            column_noise = {"sigma": noise["sigma"] / math.sqrt(len(private))}
        sums = _column(problem, run, batch, int(column), weights, norm, column_noise)
        total = tuple(t + s.to(t) for t, s in zip(total, sums, strict=True))
    return list(total)


def _column(
    problem: Ermi,
    run: Run,
    batch: Batch,
    column: int,
    weights: Floats,
    norm: float | Shape,
    noise: NoiseLevel,
) -> list[Tensor]:
    """Σ_i U_{A_i c} ∇h_ic plus noise, one tensor per parameter."""
    grads, u = moment_gradients(problem, run, batch, column), weights[:, column]
    if isinstance(norm, Shape):
        centred = CentredGradients(grads, grads.fold(batch.weight), norm.kappa)
        bound, part = None, norm.quantile
    else:
        centred = CentredGradients(grads, None)
        bound, part = norm, 1.0
        if "sigma" in noise:
            noise = {"sigma": noise["sigma"] / norm}  # for rows of length 1
    answer = private_sum(
        run.oracle,
        centred,
        u.tolist(),
        norm=bound,
        part=part,
        attribute=run.attribute,
        noise=noise,
        label={"purpose": column_name(problem, column)},
    ).tensors()
    if not isinstance(norm, Shape):
        return answer
    common = grads.combine(torch.full((len(grads),), float(norm.groups @ u)))
    return [a + c.to(a) for a, c in zip(answer, common, strict=True)]


def moment_gradients(problem: Ermi, run: Run, batch: Batch, column: int) -> ChunkGradients:
    """Per-person gradients of one column of h."""
    scale = batch.weight.to(run.device)

    def scalar(outputs: Tensor) -> Tensor:
        h = problem.moments(logits_of(outputs, run.classes))[:, column]
        return h * scale.to(h.dtype)

    inputs = run.inputs[batch.rows].to(run.device)
    return ChunkGradients.of(run.model, scalar, inputs, people_of_row=batch.people)


def private_moments(
    run: Run, batch: Batch, moments: Tensor, *, norm: float, noise: NoiseLevel, purpose: str
) -> Release:
    """(groups, columns) Σ h by group plus noise, open: the regulator may see group rates."""
    persons = Persons.of(batch.people)
    return run.oracle.open_sum(
        persons.fold(moments * batch.weight[:, None]).numpy(),
        norm=norm,
        attribute=run.attribute,
        people=persons.people,
        purpose=purpose,
        **noise,
    )


def column_name(problem: Ermi, column: int) -> str:
    """What the θ step of one column is called in the ledger."""
    more = f", column {column}" if problem.columns > 1 else ""
    return f"fermi θ{problem.suffix}{more}"
