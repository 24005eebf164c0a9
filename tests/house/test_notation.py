"""docs/notation.md is true: every name of its table is in the file beside it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from rooms_picture import SOURCES

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "notation.md").read_text()
ROWS = re.findall(r"^\| (`[^|]+`) \|[^|]*\|[^|]*\| `([\w/]+\.py)` \|$", PAGE, re.MULTILINE)


@pytest.mark.parametrize(("names", "path"), ROWS)
def test_a_name_is_in_its_file(names: str, path: str) -> None:
    file = ROOT / SOURCES[path.split("/")[0]] / "isonomy" / path
    source = file.read_text()
    for name in re.findall(r"`(\w+)`", names):
        assert re.search(rf"\b{name}\b", source), f"{name} is not in {path}"


def test_the_table_was_read() -> None:
    names, words = PAGE.split("## Words")
    assert len(ROWS) == names.count("\n| `")
    rows = re.findall(r"^\| ([a-z, ]+) \|", words, re.MULTILINE)
    listed = [word for row in rows for word in row.split(", ")]
    assert len(listed) == len(set(listed)), "a word is explained twice"
