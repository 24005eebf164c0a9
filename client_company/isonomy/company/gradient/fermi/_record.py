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
from torch import Tensor

from isonomy.common.base.errors import ConfigError
from isonomy.common.privacy.accounting import UNITS_PER_MU2
from isonomy.common.sums.oracle import Release
from isonomy.company.gradient.fermi._ermi import Ermi
from isonomy.company.gradient.fermi._sgda import Batch, moment_gradients, shares_of
from isonomy.company.gradient.record.privacy import Part, RecordRun
from isonomy.company.gradient.record.releases import Floats, OwnTerms, centred_sum, split
from isonomy.company.gradient.run.schedule import Schedule
from isonomy.company.gradient.run.strategy import Run, trainable


def required_clip(clip: float | None) -> float:
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
    """What the oracle's releases cost a record (record/privacy's table), and how many totals.

    Labels share one W step and one θ step, so a person of several labels pays no more.
    """
    moves = 1 if len(run.oracle.labels(run.attribute)) == 2 else 2
    noise = {name: level.sigma(run.oracle) for name, level in vars(schedule).items()}
    planned = {
        "counts": Part(noise["counts"] * math.sqrt(moves), 1),
        "dual": Part(noise["dual"] * math.sqrt(moves), run.rounds + 1),
        "primal": Part(
            2 * noise["primal"] / math.sqrt(times_of(run, labels)), record.steps, record.rate
        ),
    }
    return planned, run.rounds + 1 + any(label is not None for label in labels)


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
    return [np.concatenate([values, [-values.sum(axis=0)]]) for values in released]


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
    size = sum(p.numel() for p in trainable(run.model))
    flat = np.zeros(size)
    cap = run.oracle.budget.cap_units / UNITS_PER_MU2
    for problem, batch in zip(problems, batches, strict=True):
        u = problem.coupling(problem.w)
        shares = shares_of(u.max(axis=0) - u.min(axis=0), share)
        for column in np.flatnonzero(shares):
            rows = np.zeros((0, size))
            if len(batch):
                rows = moment_gradients(problem, run, batch, int(column)).rows().cpu().numpy()
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


def own_terms(run: Run, problems: Sequence[Ermi], strength: float) -> OwnTerms:
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


__all__ = [
    "centre",
    "descent",
    "own_terms",
    "parts",
    "released_sums",
    "required_clip",
    "times_of",
]
