"""Rows of very many people: made anew for each use, some thousand people at a time.

A million people with 230 columns have integers of 920 MB. Hashes, sums, pads and products read them
in order, once or a few times. So a caller may give a `RowSource` instead of an array.

    RowSource       reads float rows of some people
    StreamedRows    their integers, as `quantise` makes them, read the same way

The integers of one query must be the same at each reading: the company commits to them, sends them
under pads or products, and shows them to an auditor. So the hash of every piece is kept from the
first reading. A piece that comes out otherwise later is an error, and nothing more of it leaves.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isonomy.common.base.errors import DataError
from isonomy.common.privacy.quantise import Order, quantise

_COMPARED = 4_096  # people at a time


@dataclass(frozen=True, repr=False)  # no repr: rows must not reach logs
class RowSource:
    """(n, m) float rows that are read in pieces of `step` people, always the same pieces."""

    shape: tuple[int, int]
    step: int
    read: Callable[[slice], NDArray[np.floating]]

    def without(self, dropped: NDArray[np.bool_]) -> RowSource:
        """The same rows, with zeros for the people who are dropped."""
        return RowSource(
            self.shape,
            self.step,
            lambda part: np.where(dropped[part, None], 0.0, self.read(part)),
        )


class StreamedRows:
    """(n, m) integers of a source. `rows[a:b]` and `rows[ascending numbers]` give arrays."""

    ndim = 2

    def __init__(self, source: RowSource, norm: float, bound: int, order: Order) -> None:
        self.shape = source.shape
        self.clipped, self.total = 0, np.zeros(source.shape[1], np.int64)
        self._source, self._terms = source, (norm, bound, order)
        self._hashes: list[bytes] = []
        self._piece: tuple[int, NDArray[np.int32]] | None = None  # the one that was read last
        for index in range(-(-len(self) // source.step)):
            integers, clipped = self._made(index)
            self._hashes.append(_hash(integers))
            self.total += integers.sum(axis=0, dtype=np.int64)
            self.clipped += clipped

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, people: slice | NDArray[np.int64]) -> NDArray[np.int32]:
        step = self._source.step
        if isinstance(people, slice):
            start, stop, _ = people.indices(len(self))
            pieces = [
                self._read(index)[max(start - index * step, 0) : stop - index * step]
                for index in range(start // step, -(-stop // step))
            ]
        else:
            of_piece = people // step
            pieces = [
                self._read(int(index))[people[of_piece == index] - index * step]
                for index in np.unique(of_piece)
            ]
        if len(pieces) == 1:
            return pieces[0]
        return np.concatenate([np.empty((0, self.shape[1]), np.int32), *pieces])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """All of them at once, for a whole opening."""
        return self[:].astype(dtype or np.int32)

    def pieces(self) -> Iterator[NDArray[np.int32]]:
        """All rows in order."""
        return map(self._read, range(len(self._hashes)))

    def _read(self, index: int) -> NDArray[np.int32]:
        if self._piece is None or self._piece[0] != index:
            integers, _ = self._made(index)
            if _hash(integers) != self._hashes[index]:
                raise DataError(
                    "the rows of a query came out differently when they were read again. Nothing "
                    "more was sent. Do not change the table while the regulator is asked."
                )
            self._piece = index, integers
        return self._piece[1]

    def _made(self, index: int) -> tuple[NDArray[np.int32], int]:
        start, step = index * self._source.step, self._source.step
        rows = self._source.read(slice(start, min(start + step, len(self))))
        if not np.isfinite(rows).all():
            raise DataError("rows hold NaN or infinity; clean them and ask again")
        quantised = quantise(rows, *self._terms)
        return quantised.rows, quantised.clipped


IntegerRows = NDArray[np.int32] | StreamedRows


def rows_of(rows: IntegerRows, people: NDArray[np.int64] | slice) -> NDArray[np.int32]:
    """The rows of some people; those of a weighted sum are (groups − 1, people, columns)."""
    return rows[people] if isinstance(rows, StreamedRows) else rows[..., people, :]


def same_rows(one: IntegerRows, other: IntegerRows) -> bool:
    """Are two queries' integers the same?"""
    if one.shape != other.shape:
        return False
    parts = (slice(at, at + _COMPARED) for at in range(0, one.shape[-2], _COMPARED))
    return all(np.array_equal(rows_of(one, part), rows_of(other, part)) for part in parts)


def _hash(integers: NDArray[np.int32]) -> bytes:
    return hashlib.sha256(integers.reshape(-1).view(np.uint8).data).digest()
