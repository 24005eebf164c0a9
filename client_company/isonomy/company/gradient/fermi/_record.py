"""DP-FERMI under record privacy: Theorem 3.3's second guarantee, with exact accounting.

P̂_y      counts from the oracle over T̃_y from the company, with noise
F̄_y      Σ̃ h/T̃_y from the company, with noise; the centre of the rows of the W step
W step   S_a = Σ_{A_i = a} Bᵀ(F_i − F̄) from the oracle, the last group minus the others;
         W* and ∇_W from S, P̂, F̄, T̃ alone
θ step   Σ_i (u − ū)_{A_i} ∇h_i from the oracle, in all d coordinates
free     λ(−Σ_j ‖W_·j‖² F_ij + ⟨ū, h_i⟩) joins the person's loss: what Algorithm 1 gets exactly
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from isonomy.common.sums.oracle import Release
from isonomy.company.gradient.fermi._ermi import Ermi
from isonomy.company.gradient.fermi._sgda import Batch, column_name, moment_gradients, shares_of
from isonomy.company.gradient.record.privacy import RecordRun
from isonomy.company.gradient.record.releases import Floats, FreeTerms, Question, with_last
from isonomy.company.gradient.run.strategy import Run, trainable


def times_of(run: Run, labels: Sequence[int | None]) -> int:
    """The most strata that one person can have rows in, from public numbers."""
    return 1 if run.persons == len(run.people) else len(labels)


def centre(
    run: Run,
    record: RecordRun,
    strata: Sequence[tuple[Ermi, Batch]],
    outputs: Sequence[Tensor],
) -> None:
    """Set each stratum's F̄, from one noised total of all people's h about the constant 1/l."""
    people, person = np.unique(run.people, return_inverse=True)
    classes, columns = strata[0][0].basis.shape
    rows = np.zeros((len(people), len(strata), columns))  # 0 outside a person's strata
    for number, (problem, batch) in enumerate(strata):
        problem.mean = np.full(classes, 1.0 / classes)
        h = problem.moments(outputs[number]).numpy() * batch.weight.numpy()[:, None]
        np.add.at(rows[:, number], person[batch.rows.numpy()], h)
    total = record.total(rows.reshape(len(people), -1), math.sqrt(1 - 1 / classes))
    means = zip(strata, total.reshape(-1, columns), record.members, strict=True)
    for (problem, _), sums, mass in means:
        problem.mean = np.clip(1 / classes + problem.basis @ sums / mass, 0.0, 1.0)


def released_sums(record: RecordRun, answers: Sequence[Release]) -> list[Floats]:
    """(groups, columns) of each stratum; the last group is minus the others."""
    released = record.released("dual", np.stack([answer.values[:-1] for answer in answers]))
    return [with_last(values, (len(values) + 1,), 0.0) for values in released]


def questions(run: Run, strata: Sequence[tuple[Ermi, Batch]], share: float) -> Iterator[Question]:
    """Σ_i u_{A_i} ∇h_i of every stratum and column, over people drawn by chance."""
    size = sum(p.numel() for p in trainable(run.model))
    for problem, batch in strata:
        u = problem.coupling(problem.w)
        shares = shares_of(u.max(axis=0) - u.min(axis=0), share)
        for column in map(int, np.flatnonzero(shares)):
            rows = np.zeros((0, size))
            if len(batch):
                rows = moment_gradients(problem, run, batch, column).rows().cpu().numpy()
            yield Question(
                rows,
                np.unique(batch.people),
                u[:, column].tolist(),
                run.attribute,
                float(shares[column]),
                {"purpose": column_name(problem, column)},
            )


def free_terms(run: Run, problems: Sequence[Ermi], strength: float) -> FreeTerms:
    """(b,) λ(g_i + ⟨ū, h_i⟩) of the row's stratum."""

    def terms(logits: Tensor, rows: Tensor) -> Tensor:
        total = torch.zeros(len(rows), dtype=logits.dtype, device=logits.device)
        for problem in problems:
            u = problem.coupling(problem.w)
            middle = torch.as_tensor((u.max(axis=0) + u.min(axis=0)) / 2).to(logits)
            value = problem.public(logits, problem.w) + problem.moments(logits) @ middle
            if problem.label is not None:
                value = value * (run.target[rows] == problem.label).to(value)
            total = total + strength * value
        return total

    return terms
