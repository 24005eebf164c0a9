"""Rows in fixed point, clipped in integers, so that the sensitivity bound is exact.

Formal guarantees (one test of the same name each, tests/common/privacy/test_quantise.py)
- `norm_never_exceeds_bound`: every quantised row's integer norm is at most `bound`, exactly.
- `pairwise_differences_never_exceed_bound`: so is every pairwise difference of weighted rows.
- `rows_within_the_norm_are_only_truncated`: a row with norm ≤ C moves by less than one unit a
  coordinate (towards zero), and is not counted as clipped.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from isonomy.common.base.errors import DataError

Order = Literal[1, 2]  # L1 for Laplace noise, L2 for Gaussian noise
SMALLEST, LARGEST = 1e-200, 1e200  # of norms and weights: products stay finite and normal
_SHRINK = 1.0 - 2.0**-40
_SINGLE_NORM = 1e-25  # what single precision can be divided by and stay normal
_FAST_NORM = 1e-100  # squares that underflow are then too small to matter
_WELL_INSIDE = 1.0 - 2.0**-31  # rounding of a norm over 2^16 columns is below 2^-36
_CHUNK_CELLS = 1 << 16  # work on slices of 512 KB: they stay in the cache, and memory constant


@dataclass(frozen=True)
class Quantised:
    """Integer rows, and how many had to be clipped."""

    rows: NDArray[np.int32]  # (n, m), or (k − 1, n, m) differences of weighted rows
    clipped: int


@dataclass(frozen=True)
class QuantisedWeighted(Quantised):
    """Weighted rows relative to the last group, with the totals that only the company needs."""

    last_total: NDArray[np.int64]  # (m,): Σ_i q_ki, which the differences leave out
    clipped_total: NDArray[np.float64]  # (m,): Σ_i of the clipped rows, in units of the norm


def checked_rows(rows: object, people: int | None = None) -> NDArray[np.floating]:
    """(n, m) finite float rows, or a DataError that says what is wrong.

    Rows in single precision stay so: they are worked on in double precision, slice by slice.
    """
    try:
        array = np.asarray(rows)
        if array.dtype != np.float32:
            array = np.asarray(rows, dtype=np.float64)
    except (TypeError, ValueError):
        raise DataError("rows must be numbers: a person × column array") from None
    if array.ndim == 1:
        array = array[:, None]
    if array.ndim != 2 or array.shape[0] == 0 or array.shape[1] == 0:
        raise DataError(f"rows must be people × columns, both at least 1; got shape {array.shape}")
    if people is not None and array.shape[0] != people:
        raise DataError(f"{people} people were named, but {array.shape[0]} rows given")
    flat = array.ravel()
    with np.errstate(over="ignore", invalid="ignore"):
        sound = math.isfinite(flat @ flat)  # finite squares: neither NaN nor infinity
    if not sound:
        finite = np.concatenate([np.isfinite(array[part]).all(axis=1) for part in _slices(array)])
        if finite.all():  # only their squares are infinite
            return array
        first = int(np.argmin(finite))
        raise DataError(
            f"{int((~finite).sum())} rows hold NaN or infinity, the first is row {first}. "
            "Nothing was asked; clean the rows and ask again."
        )
    return array


def checked_norm(norm: float) -> float:
    """A positive bound with which one can still divide and multiply, or a DataError."""
    try:
        bound = float(norm)
    except (TypeError, ValueError):
        bound = float("nan")
    if not SMALLEST <= bound <= LARGEST:
        raise DataError(f"the norm bound must be a positive number; got {norm!r}")
    return bound


def sum_by_person(
    rows: NDArray[np.floating], people: NDArray[np.int64]
) -> tuple[NDArray[np.floating], NDArray[np.int64]]:
    """Ascending distinct people, and for each the sum of their rows (person-level clipping)."""
    if (people[1:] > people[:-1]).all():
        return rows, people
    distinct, inverse = np.unique(people, return_inverse=True)
    if len(distinct) == len(people):
        return rows[np.argsort(people)], distinct
    totals = np.zeros((len(distinct), rows.shape[1]))
    np.add.at(totals, inverse, rows)
    return totals, distinct


def clip_rows(
    raw: NDArray[np.floating], norm: float, order: Order, to: float = 1.0
) -> tuple[NDArray[np.float64], int]:
    """Rows scaled by to/norm and shortened to norm `to`; how many were longer. Never overflows.

    `to` is a power of two, up to 2^32, and either sign: scaling by it loses nothing.
    """
    rows: NDArray[np.float64] = raw.astype(np.float64, copy=False)
    with np.errstate(over="ignore"):  # an infinite norm is over the bound
        inside = norm >= _FAST_NORM and (_norms(rows, order) <= norm * _WELL_INSIDE).all()
    if inside:
        return rows / (norm / to), 0  # what the lines below would give, in fewer passes
    peak = np.abs(rows).max(axis=1, keepdims=True)
    unit = rows / np.where(peak > 0, peak, 1.0)  # entries within ±1: no overflow for any float
    length = _norms(unit, order)[:, None]  # ≥ 1 unless the row is zero
    length = np.where(length > 0, length, 1.0)
    with np.errstate(over="ignore", under="ignore"):  # an infinite quotient is over the bound too
        over = peak / norm > (1.0 + 1e-12) / length
        scaled = np.where(over, unit / length, rows / norm)
    return scaled if to == 1.0 else scaled * to, int(over.sum())


def quantise(rows: NDArray[np.floating], norm: float, bound: int, order: Order = 2) -> Quantised:
    """q_i = trunc(v_i·bound/norm), clipped so that ‖q_i‖ ≤ bound in exact integers."""
    integers, clipped = np.empty(rows.shape, dtype=np.int32), 0
    limit = bound if order == 1 else bound * bound
    for part in _slices(rows):
        scaled, over = clip_rows(rows[part], norm, order)
        wide = np.trunc(scaled * bound).astype(np.int64)
        while (long := integer_norms(wide, order) > limit).any():
            # Only rounding can bring a clipped row here, by a hair; truncation makes it shorter.
            wide[long] = np.trunc(wide[long] * _SHRINK).astype(np.int64)
        integers[part] = wide
        clipped += over
    return Quantised(integers, clipped)


def quantise_weighted(
    rows: NDArray[np.floating], weights: NDArray[np.float64], norm: float, bound: int
) -> QuantisedWeighted:
    """q_ai = trunc((u_a − ū)·v_i·bound/(range(u)·norm)), ū the middle of the weights' range.

    Returned are the differences q_a − q_k to the last group. For each person, every
    ‖q_a − q_b‖ ≤ bound in exact integers: with ū in the middle, the two extreme weights have
    opposite signs and equal size, so truncation towards zero shortens their difference, and any
    other pair differs by no more than the extreme pair, coordinate by coordinate. So checking the
    extreme pair checks all.
    """
    if len(weights) == 2:
        return _quantise_two(rows, 0.5 if weights[0] > weights[1] else -0.5, norm, bound)
    low, high = float(weights.min()), float(weights.max())
    relative = (weights - (low + (high - low) / 2)) / (high - low)
    relative = np.clip(relative, -0.5, 0.5)  # rounding may have left the range
    extremes = int(weights.argmax()), int(weights.argmin())
    relative[list(extremes)] = 0.5, -0.5  # or not reached its ends
    differences = np.empty((len(weights) - 1, *rows.shape), dtype=np.int32)
    last_total = np.zeros(rows.shape[1], dtype=np.int64)
    clipped_total, clipped = np.zeros(rows.shape[1]), 0
    for part in _slices(rows):
        scaled, over = clip_rows(rows[part], norm, 2)
        clipped_total += np.ones(len(scaled)) @ scaled
        integers = _weigh(scaled, relative, extremes, bound)  # k of (b, m)
        for index, group_rows in enumerate(integers[:-1]):
            np.subtract(group_rows, integers[-1], out=differences[index, part], casting="unsafe")
        last_total += integers[-1].sum(axis=0).astype(np.int64)
        clipped += over
    return QuantisedWeighted(differences, clipped, last_total, clipped_total)


def _quantise_two(
    rows: NDArray[np.floating], first: float, norm: float, bound: int
) -> QuantisedWeighted:
    """For two groups, whose integers are q and −q: q says it all. `first`: u_1 − ū, ±½ exactly.

    A second implementation, kept because every step of PF-LD comes through here: 0.05 ms instead of
    0.56 for 256 rows of 130 single-precision columns, 1.5 instead of 6.3 for 30,000 rows of 16.
    """
    unit = first * bound  # a power of two
    differences = np.empty((1, *rows.shape), dtype=np.int32)
    last_total = np.zeros(rows.shape[1], dtype=np.int64)
    clipped_total, clipped = np.zeros(rows.shape[1]), 0
    for part in _slices(rows):
        integers, rest, over = _mirrored(rows[part], norm, unit)
        whole = differences[0, part]
        whole[...] = integers
        narrow = len(whole) * abs(unit) < 2**31
        total = whole.sum(axis=0, dtype=np.int32 if narrow else np.int64)
        whole *= 2
        last_total -= total
        clipped_total += (total + rest) / unit
        clipped += over
    return QuantisedWeighted(differences, clipped, last_total, clipped_total)


def _mirrored(
    rows: NDArray[np.floating], norm: float, unit: float
) -> tuple[NDArray[np.floating], NDArray[np.floating], int]:
    """The first of two groups' integers, as floats; Σ_i of what truncation took; how many clipped.

    A row whose integers are within the bound as they are needs no look at its norm. In single
    precision integers up to 2^24 are exact, and m squares add up to within m·2^-23: such a row
    passes if it is within the bound by that much, and is looked at in double precision otherwise.

    Each row is judged by itself: its integers do not depend on who else is in the query, so that
    the individual filter charges for what is sent, also where somebody's row was taken out.
    """
    exact = rows.dtype == np.float64
    limit = unit * unit * (1.0 if exact else 1.0 - (rows.shape[1] + 4) * 2.0**-23)
    if exact or (abs(unit) < 2**23 and limit > 0 and norm >= _SINGLE_NORM):
        with np.errstate(over="ignore"):  # an infinite row is over the bound
            # in double precision the quotient that `clip_rows` takes, to the last bit
            scaled = rows / (norm / unit) if exact else rows * rows.dtype.type(unit / norm)
            integers = np.trunc(scaled)
            long = np.flatnonzero(~(np.vecdot(integers, integers) <= limit))
        if not len(long):
            scaled -= integers
            return integers, np.ones(len(rows), rows.dtype) @ scaled, 0
    else:
        scaled = integers = np.empty(rows.shape)
        long = np.arange(len(rows))
    clipped, over = clip_rows(rows[long], norm, 2, unit)
    shorter = np.trunc(clipped)
    while (still := np.vecdot(shorter, shorter) > unit * unit).any():
        clipped[still] *= _SHRINK
        shorter = np.trunc(clipped)
    scaled, integers = scaled.astype(np.float64), integers.astype(np.float64)
    scaled[long], integers[long] = clipped, shorter
    return integers, np.ones(len(rows)) @ (scaled - integers), over


def _weigh(
    scaled: NDArray[np.float64],
    relative: NDArray[np.float64],
    extremes: tuple[int, int],
    bound: int,
) -> list[NDArray[np.float64]]:
    """Integers as floats: exact, since they stay far below 2^53, and quicker to multiply."""
    top, bottom = extremes
    steps = relative * bound  # a power of two: the product below is the same number in any order
    while True:
        integers = [np.trunc(step * scaled) for step in steps]
        difference = integers[top] - integers[bottom]
        over = np.vecdot(difference, difference) > bound * bound
        if not over.any():
            return integers
        scaled[over] *= _SHRINK


def integer_norms(rows: NDArray[np.int64], order: Order = 2) -> NDArray[np.int64]:
    """Exact L1 norms, or exact squared L2 norms.

    Entries up to 2^21 and 2^16 columns stay below 2^58.
    """
    norms: NDArray[np.int64] = (
        np.abs(rows).sum(axis=1) if order == 1 else np.einsum("ij,ij->i", rows, rows)
    )
    return norms


def _norms(rows: NDArray[np.float64], order: Order) -> NDArray[np.float64]:
    norms: NDArray[np.float64] = (
        np.abs(rows).sum(axis=1) if order == 1 else np.sqrt(np.vecdot(rows, rows))
    )
    return norms


def _slices(rows: NDArray[np.floating]) -> Iterator[slice]:
    step = max(1, _CHUNK_CELLS // rows.shape[1])
    for start in range(0, len(rows), step):
        yield slice(start, start + step)
