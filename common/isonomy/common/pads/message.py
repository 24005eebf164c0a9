"""The parts of one request by pads: a function of rows, commitment and row keys, nothing else.

The company makes a whole request of it, and for an inspection the cells of the people drawn; the
auditor makes those again from what it is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import count

import numpy as np
from numpy.typing import NDArray

from isonomy.common.base.canonical import hash_bytes
from isonomy.common.pads.key_store import KeyColumn
from isonomy.common.pads.stream import NARROW, Pads, Words, message_key, sum_modulus
from isonomy.common.pads.transfer import Keys
from isonomy.common.privacy.queries import Query, Shapes
from isonomy.common.privacy.row_sources import IntegerRows, rows_of
from isonomy.common.wire.messages import SumPart, encode, encode_part

Sides = Callable[[Pads, int, slice], tuple[Keys, Keys]]
"""Row keys k0 and k1 of some people for one released group."""
Pieces = tuple[memoryview, ...]


class PadMessage:
    """Rows under pads, of all people of a request or of those drawn.

    `slices` say whose rows each part has: numbers of rows. `tagged`: with both tags of each person.
    """

    def __init__(
        self,
        query: Query,
        shapes: Shapes,
        rows: IntegerRows,
        commitment: bytes,
        sides: Sides,
        slices: list[slice],
        *,
        tagged: bool,
    ) -> None:
        self._query, self._indicators, self._rows = query, shapes.indicators, rows
        self._sides, self._slices, self._tagged = sides, slices, tagged
        self._pads = message_pads(query, shapes, commitment, tagged=tagged)
        self.commitment = commitment
        self.mask = np.zeros((shapes.sums, query.columns), np.uint64)  # filled while parts are read

    def pieces(self) -> Iterator[Pieces]:
        """The bodies of all parts with rows, group by group: cells, then tags."""
        weighted = self._query.shape == "weighted"
        self.mask[:] = 0
        for number in range(self._indicators):
            for some in self._slices:
                zeros, ones = self._sides(self._pads, number, some)
                rows = rows_of(self._rows, some)
                rows = rows[number] if weighted else rows
                cells, mask = self._pads.hide(zeros, ones, rows, some.start)
                self.mask[0 if weighted else number] += mask
                yield (*cells, *map(self._tags, (zeros, ones))) if self._tagged else cells

    def _tags(self, row_keys: Keys) -> memoryview:
        return self._pads.tags(row_keys).astype("<u8").reshape(-1).view(np.uint8).data

    def frames(self) -> Iterator[bytes]:
        """Every part. The last one of an open query is the mask."""
        index = count()
        for pieces in self.pieces():
            yield encode_part(next(index), *pieces)
        if self._query.kind == "open":
            yield encode(SumPart(next(index), self.mask.astype("<u8").tobytes()))

    def cells_hash(self) -> bytes:
        """What a demand says about the cells of the people drawn, if these are their rows."""
        return cells_hash(map(part_hash, self.pieces()))

    def blind_mask(self) -> Words:
        """(sums, m) the mask alone, for an answer that came before a restart."""
        self.mask[:] = 0
        for number in range(self._indicators):
            place = 0 if self._query.shape == "weighted" else number
            for some in self._slices:
                zeros, _ = self._sides(self._pads, number, some)
                self.mask[place] += self._pads.column_sums(zeros, some.start)
        return self.mask


def message_pads(query: Query, shapes: Shapes, commitment: bytes, *, tagged: bool) -> Pads:
    """The pads of a request. Where an auditor may look at rows, whole rows are sent."""
    narrow = sum_modulus(shapes) == NARROW
    triangular = query.triangular and narrow and not tagged
    return Pads(message_key(commitment), query.columns, narrow=narrow, triangular=triangular)


def sides_of(
    columns: list[KeyColumn], people: NDArray[np.int64] | slice, drawn: NDArray[np.int64] | slice
) -> Sides:
    """Row keys of the people asked about, or of those drawn among them."""
    keys = [(each.zeros[people][drawn], each.ones[people][drawn]) for each in columns]

    def sides(pads: Pads, number: int, some: slice) -> tuple[Keys, Keys]:
        zeros, ones = keys[number]
        return pads.row_keys(zeros[some]), pads.row_keys(ones[some])

    return sides


def part_hash(pieces: Iterable[bytes | memoryview]) -> bytes:
    """Of the cells and tags of the people drawn in one part."""
    return hash_bytes("isonomy/drawn-part/v1", b"".join(pieces))


def cells_hash(parts: Iterable[bytes]) -> bytes:
    """Of all parts, by their hashes."""
    return hash_bytes("isonomy/drawn-cells/v1", *parts)
