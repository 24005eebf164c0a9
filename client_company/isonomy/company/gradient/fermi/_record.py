"""DP-FERMI under record privacy: Theorem 3.3's second guarantee, with exact accounting.

P̂_y      counts from the oracle over T̃_y from the company, with noise
F̄_y      Σ̃ h/T̃_y from the company, with noise; the centre of the rows of the W step
W step   S_a = Σ_{A_i = a} Bᵀ(F_i − F̄) from the oracle, the last group minus the others;
         W* and ∇_W from S, P̂, F̄, T̃ alone
θ step   Σ_i (u − ū)_{A_i} ∇h_i from the oracle, in all d coordinates
own      λ(−Σ_j ‖W_·j‖² F_ij + ⟨ū, h_i⟩) joins the person's loss: what Algorithm 1 gets exactly
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isonomy.common.base.errors import ConfigError
from isonomy.common.privacy.accounting import UNITS_PER_MU2
from isonomy.company.gradient.fermi._ermi import Ermi
from isonomy.company.gradient.fermi._sgda import Batch, shares_of
from isonomy.company.gradient.per_sample.ghost import ChunkGradients
from isonomy.company.gradient.record.privacy import Part, RecordRun
from isonomy.company.gradient.record.releases import Floats, Own, centred_sum, split
from isonomy.company.gradient.run.schedule import Schedule
from isonomy.company.gradient.run.strategy import Run, logits_of, trainable

_RAREST = 0.01  # a class predicted more rarely is taken as this rare where one divides by it


def given_clip(clip: float | None) -> float:
    """The bound on ∇h as a constant; the default, a quantile of own norms, is refused."""
    if clip is not None:
        return clip
    raise ConfigError(
        "under record privacy the bound on ∇h must be a number that was chosen without these "
        "people's records: give DpFermi(clip=…). A quantile of their gradient norms would tell "
        "about records without paying for it."
    )


def parts(
    run: Run, record: RecordRun, schedule: Schedule, labels: Sequence[int | None]
) -> tuple[dict[str, Part], int]:
    """What the oracle's releases cost a record (record_privacy's table), and how many totals.

    Labels share one W step and one θ step, so a person of several labels pays no more.
    """
    moves = 1 if len(run.oracle.labels(run.attribute)) == 2 else 2
    noise = {name: own.sigma(run.oracle) for name, own in vars(schedule).items()}
    found = {
        "counts": Part(noise["counts"] * math.sqrt(moves), 1),
        "dual": Part(noise["dual"] * math.sqrt(moves), run.rounds + 1),
        "primal": Part(
            2 * noise["primal"] / math.sqrt(times_of(run, labels)), record.steps, record.rate
        ),
    }
    return found, run.rounds + 1 + any(label is not None for label in labels)


def times_of(run: Run, labels: Sequence[int | None]) -> int:
    """The most strata that one person can have rows in, from public numbers."""
    return 1 if run.persons == len(run.people) else len(labels)


def means(record: RecordRun, problems: Sequence[Ermi], rows: Floats, basis: Floats) -> list[Floats]:
    """(l,) F̄ of each stratum, from one noised total of all people's h about the constant 1/l.

    `rows` (people, strata · columns) are those h, 0 outside a person's strata.
    """
    classes, columns = basis.shape
    total = record.total(rows, math.sqrt(1 - 1 / classes)).reshape(len(problems), columns)
    return [
        np.clip(1 / classes + basis @ own / mass, 0.0, 1.0)
        for own, mass in zip(total, record.members, strict=True)
    ]


def direction(problem: Ermi, sums: Floats, mass: float, *, newton: bool) -> Floats:
    """W* − W, or ∇_W: as in `Ermi`, with the released mean in place of the exact one."""
    joint = problem.joint(sums, mass) / np.sqrt(problem.shares)[:, None]
    if newton:
        mean = np.maximum(problem.mean, _RAREST)
        return np.asarray((joint - problem.w * problem.mean) / mean)
    return np.asarray(2.0 * (joint - problem.w * problem.mean))


def descent(
    run: Run,
    record: RecordRun,
    problems: Sequence[Ermi],
    batches: Sequence[Batch],
    *,
    norm: float,
    share: float,
    strength: float,
) -> list[Tensor]:
    """λ/(q n) Σ_i (u − ū)_{A_i} ∇h_i + noise, over people drawn by chance."""
    columns = sum(p.numel() for p in trainable(run.model))
    flat = np.zeros(columns)
    cap = run.oracle.budget.cap_units / UNITS_PER_MU2
    for problem, batch in zip(problems, batches, strict=True):
        u = problem.coupling(problem.w)
        shares = shares_of(u.max(axis=0) - u.min(axis=0), share)
        for column in np.flatnonzero(shares):
            rows = np.zeros((0, columns))
            if len(batch):
                rows = _gradients(run, problem, batch, int(column)).rows().cpu().numpy()
            flat += centred_sum(
                run.oracle,
                rows,
                u[:, column].tolist(),
                norm=norm,
                sigma=1 / math.sqrt(cap * shares[column]),
                nobody=record.noise_for_nobody(f"{problem.suffix}/{column}"),
                attribute=run.attribute,
                people=np.unique(batch.people),
                purpose=f"fermi θ{problem.suffix}"
                + (f", column {column}" if problem.columns > 1 else ""),
                share=float(shares[column]),
            )
    scale = strength / (record.rate * len(record.people))
    return split(run.model, scale * record.released("primal", flat))


def own_terms(run: Run, problems: Sequence[Ermi], strength: float) -> Own:
    """(b,) λ(g_i + ⟨ū, h_i⟩) of the row's stratum."""

    def own(logits: Tensor, rows: Tensor) -> Tensor:
        total = torch.zeros(len(rows), dtype=logits.dtype, device=logits.device)
        for problem in problems:
            u = problem.coupling(problem.w)
            middle = torch.as_tensor((u.max(axis=0) + u.min(axis=0)) / 2).to(logits)
            value = problem.public(logits, problem.w) + problem.moments(logits) @ middle
            if problem.label is not None:
                value = value * (run.target[rows] == problem.label).to(value)
            total = total + strength * value
        return total

    return own


def _gradients(run: Run, problem: Ermi, batch: Batch, column: int) -> ChunkGradients:
    scale = batch.weight.to(run.device)

    def scalar(outputs: Tensor) -> Tensor:
        h = problem.moments(logits_of(outputs, run.classes))[:, column]
        return h * scale.to(h.dtype)

    inputs = run.inputs[batch.rows].to(run.device)
    return ChunkGradients.of(run.model, scalar, inputs, people_of_row=batch.people)


def folded(run: Run, values: Sequence[tuple[NDArray[np.int64], Floats]], columns: int) -> Floats:
    """(people, strata · columns): each stratum's (row numbers, weighted h), added up by person."""
    people, person = np.unique(run.people, return_inverse=True)
    made = np.zeros((len(people), len(values) * columns))
    for number, (rows, h) in enumerate(values):
        part = made[:, number * columns : (number + 1) * columns]
        np.add.at(part, person[rows], h)
    return made


__all__ = [
    "descent",
    "direction",
    "folded",
    "given_clip",
    "means",
    "own_terms",
    "parts",
    "times_of",
]
