"""PF-LD under record privacy: the same queries, with nothing in them that records did not pay for.

counts   N_ae from the oracle; T̃_e (people with a label) from the company, with noise
dual     rows h_i − c̃_e, c̃_e = Σ̃ h/T̃_e from the company, with noise. Such rows add up to nothing
         but that noise, so the last group is minus the others, as in privacy.dual: the
         regulator computes the same λ, and no exact total is used anywhere
primal   rows clip(∇h_ie) as they are: not centred, not shaped, in all d coordinates;
         weights u − ū (releases.centred_sum)
free     n·ū_e·h_ie joins each member's loss: Σ_i ū_e ∇h_ie, which the primal step leaves out
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from isonomy.common.privacy.dual import Multipliers
from isonomy.common.sums.oracle import Label
from isonomy.company.gradient.pf_ld._population import Population
from isonomy.company.gradient.record.privacy import RecordRun
from isonomy.company.gradient.record.releases import Floats, FreeTerms, Question
from isonomy.company.gradient.run.strategy import Chunk, Run, trainable


def members(record: RecordRun, people: Population) -> Floats:
    """(events,) T̃_e."""
    mass = people.persons.fold(people.mass).numpy()
    everybody = [event.label is None for event in people.events]
    return record.count_members(mass, everybody, math.sqrt(people.width))


def dual_rows(record: RecordRun, people: Population, *, hard: bool, norm: float) -> Tensor:
    """(persons, events) Σ_r w_r (h_r − c̃)."""
    bounds = np.array([event.bound for event in people.events])
    plain = people.measured(hard=hard, centre=np.zeros(len(bounds)))
    mean = np.clip(record.total(plain.numpy(), norm) / record.members, -bounds, bounds)
    return people.measured(hard=hard, centre=mean)


def dual_norm(people: Population) -> float:
    """C_d: no row of h is longer."""
    return math.sqrt(people.width) * max(event.bound for event in people.events)


def questions(
    run: Run,
    people: Population,
    lam: Multipliers,
    chunk: Chunk,
    share: float,
    label: Callable[[int, int], Label],  # by attribute and event
) -> Iterator[Question]:
    """Σ_i u_{A_i}·∇h_ie of every event and attribute, over people drawn by chance."""
    for number in range(len(people.events)):
        inside = people.inside(chunk.rows, number)
        rows = np.zeros((0, sum(p.numel() for p in trainable(run.model))))
        if len(inside):
            rows = people.gradients(number, inside).inner.rows().cpu().numpy()
        drawn_people = np.unique(run.people[inside.numpy()])
        for index, attribute in enumerate(run.attributes):
            u = lam.weights(index, number)
            yield Question(rows, drawn_people, u, attribute, share, label(index, number))


def free_terms(run: Run, people: Population, lam: Multipliers) -> FreeTerms:
    """(b,) n·Σ_e ū_e·h_e for the members of e."""
    middles = [
        sum((max(u) + min(u)) / 2 for u in (lam.weights(a, e) for a in range(len(people.sizes))))
        for e in range(len(people.events))
    ]

    def terms(logits: Tensor, rows: Tensor) -> Tensor:
        target = run.target[rows].to(logits.device)
        total = torch.zeros(len(rows), dtype=logits.dtype, device=logits.device)
        for number, event in enumerate(people.events):
            member = (people.mass[rows, number] > 0).to(logits)
            total = total + len(people.persons) * middles[number] * member * event.h(logits, target)
        return total

    return terms
