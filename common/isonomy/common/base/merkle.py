"""One hash for a list of people.

    leaf_i = H("leaf" ‖ x_i)        node = H("node" ‖ left ‖ right)        an odd node moves up
    root   = hash_bytes("isonomy/merkle", n, top)

Leaves and nodes have different prefixes, so that a node can never be shown as a leaf (the second
preimage of RFC 6962 §2.1); n is bound in, so that the shape of the tree is no choice either.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

from isonomy.common.base.canonical import hash_bytes
from isonomy.common.base.errors import DataError

_LEAF = b"isonomy/merkle/leaf\x00"
_NODE = b"isonomy/merkle/node\x00"


def merkle_root(leaves: Sequence[bytes]) -> bytes:
    """Return the 32-byte root over `leaves` in their order; DataError if there are none.

    Guarantees: lists that differ in any leaf, in order or in length have different roots (unless
    SHA-256 collides). 10^6 leaves take about two seconds.
    """
    if not leaves:
        raise DataError("a Merkle root of nobody: at least one leaf is needed")
    level = [sha256(_LEAF + leaf).digest() for leaf in leaves]
    while len(level) > 1:
        pairs = zip(level[::2], level[1::2], strict=False)  # the odd one out is added below
        above = [sha256(_NODE + left + right).digest() for left, right in pairs]
        if len(level) % 2:
            above.append(level[-1])
        level = above
    return hash_bytes("isonomy/merkle", len(leaves).to_bytes(8, "big"), level[0])
