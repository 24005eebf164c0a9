"""The Merkle root: every leaf, their order and their number are bound."""

from __future__ import annotations

from hashlib import sha256

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isonomy.common.base.canonical import hash_bytes
from isonomy.common.base.errors import DataError
from isonomy.common.base.merkle import Places, merkle_root

leaves_of_people = st.lists(st.binary(min_size=16, max_size=16), min_size=1, max_size=20)


def plain_root(leaves: list[bytes]) -> bytes:
    """The slow oracle: RFC 6962's recursion, split at the largest power of two below n."""

    def top(part: list[bytes]) -> bytes:
        if len(part) == 1:
            return sha256(b"isonomy/merkle/leaf\x00" + part[0]).digest()
        split = 1 << (len(part) - 1).bit_length() - 1
        return sha256(b"isonomy/merkle/node\x00" + top(part[:split]) + top(part[split:])).digest()

    return hash_bytes("isonomy/merkle", len(leaves).to_bytes(8, "big"), top(leaves))


@given(leaves_of_people)
def test_root_is_that_of_the_recursive_definition(leaves):
    assert merkle_root(leaves) == plain_root(leaves)


@given(leaves_of_people, st.data())
def test_any_changed_bit_changes_the_root(leaves, data):
    at = data.draw(st.integers(0, len(leaves) - 1))
    bit = data.draw(st.integers(0, 127))
    changed = list(leaves)
    changed[at] = (int.from_bytes(leaves[at], "big") ^ 1 << bit).to_bytes(16, "big")
    assert merkle_root(changed) != merkle_root(leaves)


def test_order_number_and_repetition_are_bound():
    a, b, c = (bytes([each]) * 16 for each in b"abc")
    lists = [[a], [a, a], [a, b], [b, a], [a, b, c], [a, b, c, c], [a, b, a, b], [c, a, b]]
    assert len({merkle_root(each) for each in lists}) == len(lists)


def test_a_node_cannot_be_shown_as_a_leaf():
    a, b, c, d = (bytes([each]) * 16 for each in b"abcd")
    nodes = [
        b"".join(sha256(b"isonomy/merkle/leaf\x00" + each).digest() for each in pair)
        for pair in ((a, b), (c, d))
    ]
    assert merkle_root(nodes) != merkle_root([a, b, c, d])


def test_nobody_has_no_root():
    with pytest.raises(DataError):
        merkle_root([])


def test_places_are_those_of_a_dictionary() -> None:
    rng = np.random.default_rng(0)
    listed = rng.integers(0, 6, (500, 2)).astype(np.uint64)  # halves agree often, and wholes too
    wanted = rng.integers(0, 7, (500, 2)).astype(np.uint64)
    first: dict[tuple[int, int], int] = {}
    for number, (high, low) in enumerate(listed.tolist()):
        first.setdefault((high, low), number)
    places = Places(listed)
    expected = [first.get((high, low), -1) for high, low in wanted.tolist()]
    assert places.find(wanted).tolist() == expected
    assert set(places.repeats.tolist()) == set(range(500)) - set(first.values())
    assert Places(listed[:0]).find(wanted).tolist() == [-1] * 500


def test_a_root_in_batches_is_the_plain_one() -> None:
    for number in (4096, 4097, 12_289):
        leaves = [number.to_bytes(16, "big") for number in range(number)]
        assert merkle_root(iter(leaves)) == plain_root(leaves)
