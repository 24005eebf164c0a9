"""Lists of people by their digests: one hash for a list, and who stands where in it.

    leaf_i = H("leaf" ‖ x_i)        node = H("node" ‖ left ‖ right)        an odd node moves up
    root   = hash_bytes("isonomy/merkle", n, top)

Leaves and nodes have different prefixes, so that a node can never be shown as a leaf (the second
preimage of RFC 6962 §2.1); n is bound in, so that the shape of the tree is no choice either.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from isonomy.common.base.canonical import hash_bytes
from isonomy.common.base.errors import DataError

_LEAF = b"isonomy/merkle/leaf\x00"
_NODE = b"isonomy/merkle/node\x00"
_BATCH = 1 << 12  # a power of two: whole subtrees

Digests = NDArray[np.uint64]  # (people, 2): 16 bytes each


def merkle_root(leaves: Iterable[bytes]) -> bytes:
    """Return the 32-byte root over `leaves` in their order; DataError if there are none.

    Guarantees: lists that differ in any leaf, in order or in length have different roots (unless
    SHA-256 collides). 10^6 leaves take about two seconds; only a batch of them is in memory.
    """
    source, number, tops = iter(leaves), 0, list[bytes]()
    while batch := [sha256(_LEAF + leaf).digest() for leaf in islice(source, _BATCH)]:
        number += len(batch)
        tops.append(_top(batch))
    if not number:
        raise DataError("a Merkle root needs at least one leaf; there is none")
    return hash_bytes("isonomy/merkle", number.to_bytes(8, "big"), _top(tops))


def _top(level: list[bytes]) -> bytes:
    while len(level) > 1:
        pairs = zip(level[::2], level[1::2], strict=False)  # the odd one out is added below
        above = [sha256(_NODE + left + right).digest() for left, right in pairs]
        if len(level) % 2:
            above.append(level[-1])
        level = above
    return level[0]


def digests_of(data: bytes) -> Digests:
    """Digests of 16 bytes each, one after the other, as numbers."""
    return np.frombuffer(data, "<u8").reshape(-1, 2)


class Places:
    """Where digests stand in a list. Sorted arrays take 36 bytes a person, a dict takes 200."""

    def __init__(self, digests: Digests) -> None:
        order = np.lexsort(
            (digests[:, 1], digests[:, 0])
        )  # stable: of equals the first comes first
        self._order = order.astype(np.uint32)
        self._high, self._low = digests[order, 0], digests[order, 1]

    def __len__(self) -> int:
        return len(self._order)

    def find(self, digests: Digests) -> NDArray[np.int64]:
        """(n,) the first place of each digest; −1 for one that is not in the list."""
        places = np.full(len(digests), -1, np.int64)
        at = np.searchsorted(self._high, digests[:, 0])
        open_ = np.arange(len(digests))
        while len(open_):  # once, but for digests that agree in their first half
            open_ = open_[at[open_] < len(self)]
            open_ = open_[self._high[at[open_]] == digests[open_, 0]]
            same = self._low[at[open_]] == digests[open_, 1]
            places[open_[same]] = self._order[at[open_[same]]]
            open_ = open_[~same]
            at[open_] += 1
        return places

    @property
    def repeats(self) -> NDArray[np.uint32]:
        """Ascending places of those that stood in the list before."""
        same = (self._high[1:] == self._high[:-1]) & (self._low[1:] == self._low[:-1])
        return np.sort(self._order[1:][same])
