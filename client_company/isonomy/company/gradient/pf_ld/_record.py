"""PF-LD under record privacy: the same queries, with nothing in them that records did not pay for.

counts   N_ae from the oracle; T̃_e (people with a label) from the company, with noise
dual     rows h_i − c̃_e, c̃_e = Σ̃ h/T̃_e from the company, with noise. Such rows add up to nothing
         but that noise, so the last group is minus the others, as in privacy.dual: the
         regulator computes the same λ, and no exact total is used anywhere
primal   rows clip(∇h_ie) as they are: not centred, not shaped, in all d coordinates;
         weights u − ū (record_releases.centred_sum)
own      n·ū_e·h_ie joins each member's loss: Σ_i ū_e ∇h_ie, which the primal step leaves out
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from isonomy.common.base.errors import ConfigError
from isonomy.common.privacy.dual import Multipliers
from isonomy.common.sums.oracle import Label
from isonomy.company.gradient.pf_ld._population import Population
from isonomy.company.gradient.record.privacy import Part, RecordRun
from isonomy.company.gradient.record.releases import Floats, OwnTerms, centred_sum, split
from isonomy.company.gradient.run.schedule import Schedule
from isonomy.company.gradient.run.strategy import Chunk, Run, trainable


def parts(
    run: Run, record: RecordRun, people: Population, schedule: Schedule
) -> tuple[dict[str, Part], int]:
    """What the oracle's releases cost a record (record_privacy's table), and how many totals."""
    moves = sum(1 if size == 2 else 2 for size in people.sizes)
    once = math.sqrt(moves / len(people.sizes))  # taken away instead of moved
    queries = people.overlap * len(people.sizes)
    noise = {name: own.sigma(run.oracle) for name, own in vars(schedule).items()}
    found = {
        "counts": Part(noise["counts"] * once, 1),
        "dual": Part(noise["dual"] * once, run.rounds + 1),
        "primal": Part(2 * noise["primal"] / math.sqrt(queries), record.steps, record.rate),
    }
    return found, run.rounds + 1 + any(event.label is not None for event in people.events)


def given_norm(norm: object) -> float:
    """C_p as a constant; bounds from the people's own gradients are refused."""
    if isinstance(norm, float | int):
        return float(norm)
    raise ConfigError(
        "under record privacy the clipping bound C_p must be a number that was chosen without "
        "these people's records: give PFLD(primal_norm=…). A quantile of their gradient norms, or "
        "the bound that fits them best, would tell about records without paying for it."
    )


def members(record: RecordRun, people: Population) -> Floats:
    """(events,) T̃_e."""
    mass = people.persons.fold(people.mass).numpy()
    everybody = [event.label is None for event in people.events]
    return record.count_members(mass, everybody, math.sqrt(people.width))


def with_last(counts: Floats, sizes: Sequence[int], totals: Floats) -> Floats:
    """(groups, events) from released counts: each attribute's last group is the total's rest."""
    made, start = [], 0
    for size in sizes:
        own = counts[start : start + size - 1]
        made += [own, (totals - own.sum(axis=0))[None]]
        start += size - 1
    return np.concatenate(made)


def dual_rows(record: RecordRun, people: Population, *, hard: bool, norm: float) -> Tensor:
    """(persons, events) Σ_r w_r (h_r − c̃)."""
    bounds = np.array([event.bound for event in people.events])
    plain = people.measured(hard=hard, centre=np.zeros(len(bounds)))
    mean = np.clip(record.total(plain.numpy(), norm) / record.members, -bounds, bounds)
    return people.measured(hard=hard, centre=mean)


def dual_norm(people: Population) -> float:
    """C_d: no row of h is longer."""
    return math.sqrt(people.width) * max(event.bound for event in people.events)


def gradient(
    run: Run,
    record: RecordRun,
    people: Population,
    lam: Multipliers,
    chunk: Chunk,
    *,
    norm: float,
    schedule: Schedule,
    label: Callable[[int, int], Label],  # by attribute and event
) -> list[Tensor]:
    """1/q Σ_e Σ_i (u − ū)·clip(∇h_ie) + noise, over people drawn by chance."""
    columns = sum(p.numel() for p in trainable(run.model))
    flat = np.zeros(columns)
    for number in range(len(people.events)):
        inside = people.inside(chunk.rows, number)
        rows, asked = np.zeros((0, columns)), np.zeros(0, np.int64)
        if len(inside):
            grads = people.gradients(number, inside).inner
            rows, asked = grads.rows().cpu().numpy(), np.unique(run.people[inside.numpy()])
        for index, attribute in enumerate(run.attributes):
            u = lam.weights(index, number)
            flat += centred_sum(
                run.oracle,
                rows,
                u,
                norm=norm,
                sigma=schedule.primal.sigma(run.oracle),
                nobody=record.noise_for_nobody(f"{index}/{number}"),
                attribute=attribute,
                people=asked,
                **label(index, number),
                share=schedule.primal.share,
            )
    return split(run.model, record.released("primal", flat) / record.rate)


def own_terms(run: Run, people: Population, lam: Multipliers) -> OwnTerms:
    """(b,) n·Σ_e ū_e·h_e for the members of e."""
    middles = [
        sum((max(u) + min(u)) / 2 for u in (lam.weights(a, e) for a in range(len(people.sizes))))
        for e in range(len(people.events))
    ]

    def own(logits: Tensor, rows: Tensor) -> Tensor:
        target = run.target[rows].to(logits.device)
        total = torch.zeros(len(rows), dtype=logits.dtype, device=logits.device)
        for number, event in enumerate(people.events):
            member = (people.mass[rows, number] > 0).to(logits)
            total = total + len(people.persons) * middles[number] * member * event.h(logits, target)
        return total

    return own


__all__ = [
    "dual_norm",
    "dual_rows",
    "given_norm",
    "gradient",
    "members",
    "own_terms",
    "parts",
    "with_last",
]
