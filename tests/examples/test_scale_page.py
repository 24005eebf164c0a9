"""The code of docs/scale.md runs as it stands there."""

from __future__ import annotations

from pathlib import Path

import pytest
from page_kit import DOCS, Walk, blocks

pytest.importorskip("dask.dataframe")


@pytest.mark.filterwarnings("ignore")  # of Dask and of pandas below it
def test_the_pages_code_runs(tmp_path: Path) -> None:
    scripts = [block for block in blocks(DOCS / "scale.md") if block.kind == "python"]
    assert len(scripts) == 3
    with Walk(tmp_path) as walk:
        for script in scripts:
            walk.run(script)
    assert len(walk.names["ids"]) == 2_000
