"""The mechanisms under record privacy: seeded noise, Poisson samples, clipped sums in integers.

Each is one Gaussian mechanism whose sensitivity to a blanked record is stated and tested
(tests/company/gradient/record). What they cost together is in `privacy`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import binom
from torch import Tensor, nn

from isonomy.common.privacy.noise import NoiseSource, rounded_gaussian
from isonomy.common.privacy.quantise import clip_rows, quantise
from isonomy.common.sums.oracle import GroupOracle, Label
from isonomy.company.gradient.per_sample.ghost import ChunkGradients
from isonomy.company.gradient.run.strategy import Loss, Run, logits_of, trainable

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
FreeTerms = Callable[[Tensor, Tensor], Tensor]  # (logits (b, classes), row numbers (b,)) -> (b,)
BOUND = 1 << 20  # integer steps of a clipping bound
SPARE_DELTA = 1e-3  # of δ: for people who would be drawn more than M times
BLOCK_CELLS = 1 << 24  # of per-person gradients held at once: 128 MB


class Expanded:
    """Bytes from a secret seed: SHAKE-256(seed, name, number), for one release."""

    def __init__(self, seed: bytes, name: str, number: int) -> None:
        self._stem, self._calls = seed + f"/{name}/{number}/".encode(), 0

    def random_bytes(self, n: int) -> bytes:
        self._calls += 1
        return hashlib.shake_256(self._stem + str(self._calls).encode()).digest(n)


@dataclass(frozen=True)
class Question:
    """One weighted sum of a constraint gradient, in all d coordinates of the model."""

    rows: Floats  # (people, d); nobody: (0, d)
    people: Ints
    weights: Sequence[float]  # u, by group
    attribute: str
    share: float
    label: Label


def most_often(steps: int, rate: float, epsilon: float, delta: float) -> int:
    """M: the least number with (1 + e^ε)·P[Bin(T, q) > M] ≤ δ/1000.

    Accounted for is sampling without the limit M. The run differs from it only if the person is
    drawn more often, with chance P in either of two worlds that differ in this person. So

        P[run ∈ S] ≤ P[unlimited ∈ S] + P ≤ e^ε·P[unlimited' ∈ S] + δ' + P
                   ≤ e^ε·P[run' ∈ S] + δ' + (1 + e^ε)·P
    """
    tail = delta * SPARE_DELTA / (1.0 + math.exp(min(epsilon, 500.0)))
    # Not `isf`, which is inexact below 1e-16. P[Bin > T] is 0, so there is always one.
    return int(np.argmax(binom.sf(np.arange(steps + 1), steps, rate) <= tail))


def poisson(people: int, rate: float, source: NoiseSource) -> NDArray[np.bool_]:
    """Who is drawn: independent coins of 64 bits each."""
    if rate >= 1:
        return np.ones(people, np.bool_)
    coins = np.frombuffer(source.random_bytes(8 * people), np.uint64)
    return np.asarray(coins < np.uint64(int(rate * 2**64)))


def private_total(
    rows: Iterable[Floats],
    columns: int,
    norm: float,
    multiplier: float,
    source: NoiseSource,
) -> Floats:
    """Σ of clipped rows + N(0, (z·norm)²): quantised, added and noised in exact integers.

    Rows come in blocks. They are clipped after quantisation, so that one person changes the integer
    sum by at most 2^20, and the noise is a rounded Gaussian. A row with NaN or infinity has no norm
    to clip, and counts as 0.
    """
    total = np.zeros(columns, np.int64)
    for block in rows:
        block = np.where(np.isfinite(block).all(axis=1, keepdims=True), block, 0.0)
        total += quantise(block, norm, BOUND).rows.sum(axis=0, dtype=np.int64)
    noise = rounded_gaussian(math.ceil(multiplier * BOUND), columns, source)
    return np.asarray((total + noise) * (norm / BOUND))


def centred_sum(
    oracle: GroupOracle,
    rows: Floats,
    weights: Sequence[float],
    *,
    norm: float,
    sigma: float,
    nobody: NoiseSource,
    **question: Any,
) -> Floats:
    """(d,) Σ_i (u_{A_i} − ū) clip(v_i) + noise, of which a record changes range(u)/2·norm.

    The oracle's answer holds ū Σ clip(v_i) as well, exact: taken off here. What remains is the
    oracle's integers, so it is put back on their grid: no low-order bits are left to read. A sample
    without people gives the noise alone, from `nobody`; `sigma` is its size per range(u)·norm.
    Equal weights ask nothing and give 0.
    """
    low, high = float(min(weights)), float(max(weights))
    if high == low:
        return np.zeros(rows.shape[1])
    unit = (high - low) * norm / BOUND
    if not len(rows):
        noise = rounded_gaussian(math.ceil(sigma * BOUND), rows.shape[1], nobody)
        return np.asarray(noise * unit, np.float64)
    release = oracle.weighted_sum(rows, weights, norm=norm, **question)
    clipped, _ = clip_rows(rows, norm, 2)
    middle = (low + (high - low) / 2) * norm * clipped.sum(axis=0)
    return np.asarray(np.rint((release.values - middle) / unit) * unit)


def with_last(released: Floats, sizes: Sequence[int], totals: Floats | float) -> Floats:
    """(groups, columns) from a release: each attribute's last group is the rest of its total."""
    parts, start = [], 0
    for size in sizes:
        groups = released[start : start + size - 1]
        parts += [groups, (totals - groups.sum(axis=0))[None]]
        start += size - 1
    return np.concatenate(parts)


def blocks_of_people(rows: Tensor, person: Ints, columns: int) -> Iterator[Tensor]:
    """Row numbers in blocks of whole people; `person` runs along `rows`, ascending."""
    if not len(rows):
        return iter(())
    size = max(1, BLOCK_CELLS // columns)
    first = np.flatnonzero(np.append(True, np.diff(person) != 0))  # where a person begins
    ends = np.arange(size, len(rows), size)
    cuts = np.unique(first[np.searchsorted(first, ends, "right") - 1])
    return iter(torch.tensor_split(rows, torch.from_numpy(cuts[cuts > 0])))


def split(model: nn.Module, flat: Floats) -> list[Tensor]:
    """A vector of d numbers, one tensor per trainable parameter."""
    parameters = trainable(model)
    parts = torch.split(torch.from_numpy(flat), [p.numel() for p in parameters])
    pairs = zip(parts, parameters, strict=True)
    return [part.reshape(p.shape).to(p.device, p.dtype) for part, p in pairs]


def person_gradients(run: Run, rows: Tensor, loss: Loss, terms: FreeTerms | None) -> ChunkGradients:
    """Per-person gradients of the mean of their rows' ℓ + free terms."""
    target, weight = run.target[rows].to(run.device), run.weight[rows]

    def scalar(outputs: Tensor) -> Tensor:
        logits = logits_of(outputs, run.classes)
        values = _per_row(loss, logits, target)
        if terms is not None:
            values = values + terms(logits, rows)
        return values * weight.to(values)

    inputs = run.inputs[rows].to(run.device)
    return ChunkGradients.of(run.model, scalar, inputs, people_of_row=run.people[rows.numpy()])


def _per_row(loss: Loss, logits: Tensor, target: Tensor) -> Tensor:
    """(b,) the loss of each row by itself, whatever the loss makes of a batch."""
    if loss is nn.functional.cross_entropy:
        return nn.functional.cross_entropy(logits, target, reduction="none")
    each: Tensor = torch.func.vmap(lambda z, y: loss(z[None], y[None]))(logits, target)
    return each
