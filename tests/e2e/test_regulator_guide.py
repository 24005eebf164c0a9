"""docs/regulator-guide.md, executed line by line: what it shows is what comes."""

from __future__ import annotations

from pathlib import Path

import pytest
from page_kit import DOCS, Step, Walk, blocks


def test_the_walk_through(tmp_path: Path) -> None:
    with Walk(tmp_path) as walk:
        for block in blocks(DOCS / "regulator-guide.md"):
            if block.kind == "python":
                (tmp_path / "ask.py").write_text(block.text)
            else:
                walk.run(block)
    assert walk.count > 40
    assert '"ready"' in (tmp_path / "regulator" / "log" / "daemon.jsonl").read_text()


@pytest.mark.parametrize(
    ("output", "text", "fits"),
    [
        (["a … c"], "a b c\n", True),
        (["a … c"], "a b d\n", False),
        (["…", "end"], "one\ntwo\nend\n", True),
        (["…", "end"], "one\ntwo\n", False),
        ([], "", True),
        ([], "unexpected\n", False),
    ],
)
def test_the_comparison_can_fail(output: list[str], text: str, fits: bool) -> None:
    assert Step("", output).matches(text) is fits
