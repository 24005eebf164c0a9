"""Ids in one text instead of a string each, and where people stand."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isonomy.common.base.errors import DataError
from isonomy.common.people.cohort import Cohort, Ids

texts = st.lists(st.text(st.characters(exclude_characters="\n", codec="utf-8")), max_size=30)


@given(texts, st.integers(-40, 40), st.integers(-40, 40))
def test_ids_are_a_sequence_like_any_other(ids: list[str], start: int, stop: int) -> None:
    compact = Ids(ids)
    assert list(compact) == ids
    assert compact == tuple(ids)
    assert compact == Ids(iter(ids))
    assert compact[start:stop] == tuple(ids[start:stop])
    assert [compact[place] for place in range(-len(ids), len(ids))] == [*ids, *ids]
    with pytest.raises(IndexError):
        compact[len(ids)]


def test_more_people_than_a_batch() -> None:
    ids = [f"Zoë-{number}" for number in range(5_000)]
    cohort = pickle.loads(pickle.dumps(Cohort.of(ids)))  # noqa: S301
    assert list(cohort.ids) == ids
    assert cohort.positions(["ZOË-4999", "zoë-0"]).tolist() == [4999, 0]
    assert cohort.find(["Zoë-7", "nobody"]).tolist() == [7, -1]


def test_a_line_break_is_no_part_of_an_id() -> None:
    with pytest.raises(DataError, match="line break"):
        Cohort(["ann\nbo"])


def test_two_spellings_are_named_by_their_lines() -> None:
    with pytest.raises(DataError, match=r"1 ids occur more than once .lines 1 and 3 name"):
        Cohort.of(["Ann", "bo", "ANN"])
