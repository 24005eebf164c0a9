"""What a list of ids looks like, before any exchange: counts and patterns, and never an id."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isonomy.common.agreements.approvals import read_lines
from isonomy.common.alignment.alignment import checked_ids
from isonomy.common.base.errors import DataError
from isonomy.common.people import id_summary
from isonomy.common.people.cohort import id_key
from isonomy.common.people.id_summary import IdSummary, Lines, pattern

BOM = b"\xef\xbb\xbf"


@pytest.mark.parametrize(
    ("person", "expected"),
    [
        ("12345678", "99999999"),
        ("1234-5678", "9999-9999"),
        ("Ünal Öz", "aaaa aa"),
        ("DE-0042", "aa-9999"),
        ("DE0042", "xxxxxx"),
        ("4711/B7", "9999/xx"),
        ("ｋ７", "xx"),
        ("٤٢", "99"),
        ("हिन्दी", "aaaaaa"),  # marks belong to letters
        ("a.b@c.org", "a.a@a.aaa"),
    ],
)
def test_the_pattern_of_an_id(person: str, expected: str) -> None:
    assert pattern(id_key(person)) == expected


def test_counts_and_the_first_lines() -> None:
    ids = ["A-001", "a-1", "  ", "x\u200b", "12345678", "1234-5678", "0012345678", "", "ｋ７", "K7"]
    summary = IdSummary.of(ids)
    assert (summary.lines, summary.people) == (10, 6)
    assert summary.empty == Lines(2, (3, 8))
    assert summary.unprintable == Lines(1, (4,))
    assert summary.repeated == Lines(1, (10,))
    assert summary.alike == Lines(3, (2, 6, 7))
    assert summary.patterns["xx"] == 2
    assert "(line 2, 6, 7)" in summary.describe()


def test_ids_that_a_spreadsheet_damaged_are_counted_by_line() -> None:
    summary = IdSummary.of(["100000", "1.0E+05", "#N/A", "Null", "nano", "1E5"])
    assert summary.damaged == Lines(3, (2, 3, 4))
    assert "damaged" in summary.describe()
    assert "damaged" not in IdSummary.of(["100000"]).describe()


def test_only_a_few_lines_and_patterns_are_named() -> None:
    summary = IdSummary.of(["one", *["one"] * 50, *("9" * n for n in range(1, 21))])
    assert summary.repeated == Lines(50, (2, 3, 4))
    assert len(summary.patterns) == id_summary.SHOWN_PATTERNS
    assert summary.other_patterns == 20 - (id_summary.SHOWN_PATTERNS - 1)
    assert f"{summary.other_patterns}  (others)" in summary.describe()
    assert len(IdSummary.of(["x" * 500]).describe()) < 250


@given(st.lists(st.text("aAeé1０-. 0", max_size=6), max_size=30))
def test_a_list_without_faults_is_one_that_can_be_aligned(ids: list[str]) -> None:
    summary = IdSummary.of(ids)
    fine = not (summary.empty.count or summary.unprintable.count or summary.repeated.count)
    if fine and ids:
        assert len(checked_ids(ids)) == summary.people == summary.lines
    else:
        with pytest.raises(DataError):
            checked_ids(ids)


@pytest.mark.parametrize(
    ("content", "people"),
    [
        (b"anna\nbert\n", 2),
        (b"anna\r\nbert\r\n", 2),
        (BOM + b"anna\r\nbert", 2),
        ("Ärger\n".encode(), 1),
        (b"", 0),
    ],
)
def test_files_as_programs_write_them(tmp_path: Path, content: bytes, people: int) -> None:
    path = tmp_path / "ids.txt"
    path.write_bytes(content)
    summary = IdSummary.of(read_lines(path))
    assert (summary.lines, summary.people) == (people, people)
    assert BOM.decode() not in "".join(read_lines(path))
    if people:
        assert len(checked_ids(read_lines(path))) == people


class Person:
    """An id that knows how many of its kind are in memory."""

    alive = most = 0

    def __init__(self, number: int) -> None:
        self.number = number
        Person.alive += 1
        Person.most = max(Person.most, Person.alive)

    def __str__(self) -> str:
        return f"Customer-{self.number:07d}"

    def __del__(self) -> None:
        Person.alive -= 1


def test_a_long_list_is_read_as_it_comes() -> None:
    def people() -> Iterator[Person]:
        yield from map(Person, range(80_000))
        yield Person(7)

    summary = IdSummary.of(people())
    assert summary.people == 80_000
    assert summary.repeated == Lines(1, (80_001,))
    assert summary.patterns == {"aaaaaaaa-9999999": 80_001}
    assert Person.most < 40_000
