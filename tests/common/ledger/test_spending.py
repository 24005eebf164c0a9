"""Units by classes are units by person, and known people are not walked over again."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from isonomy.common.ledger.spending import Spending

PEOPLE = 12
SUBSETS = st.lists(st.sets(st.integers(0, PEOPLE - 1)), min_size=1, max_size=6)


@given(SUBSETS, st.lists(st.tuples(st.integers(0, 6), st.integers(0, 50)), max_size=30))
def test_classes_are_exact(subsets: list[set[int]], questions: list[tuple[int, int]]) -> None:
    spending, expected = Spending(PEOPLE), np.zeros(PEOPLE, np.int64)
    for number, units in questions:
        root = bytes([number % len(subsets)])
        positions = np.array(sorted(subsets[root[0]]), np.uint32)
        assert spending.most(root, positions) == expected[positions].max(initial=0)
        spending.add(root, positions, units)
        expected[positions] += units
        np.testing.assert_array_equal(spending.by_person(), expected)
        assert spending.largest == expected.max()
        assert spending.most_among(slice(None), positions) == expected[positions].max(initial=0)
    assert spending.classes <= min(PEOPLE, 2 ** len(subsets))


def test_known_people_stay_classes() -> None:
    """A second answer about the same people never looks at their positions."""
    spending = Spending(1_000)
    whole: NDArray[np.uint32] = np.arange(1_000, dtype=np.uint32)
    chunks = {bytes([number]): whole[number::5] for number in range(5)}
    for root, positions in chunks.items():
        spending.add(root, positions, 1)
    assert spending.classes == 5
    for root, positions in chunks.items():
        assert spending.most(root, positions) == 1  # learnt once more: classes were split since
    nobody: Any = None  # whoever looks at it fails
    for _ in range(3):
        for root in chunks:
            spending.add(root, nobody, 2)
    assert spending.most(bytes([0]), nobody) == 7
    np.testing.assert_array_equal(spending.by_person(), np.full(1_000, 7))
