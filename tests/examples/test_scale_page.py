"""The code of docs/scale.md runs as it stands there.

Dask is among the packages for development. Ray and Spark are not: their blocks run where they are
installed (pip install ray pyspark, and Java).
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest
from page_kit import DOCS, Block, Walk, blocks

pytest.importorskip("dask.dataframe")


def installed(script: Block) -> bool:
    """Is the package here with whose import the block begins?"""
    package = re.split(r"[ .\n]", script.text)[1]
    return package not in ("ray", "pyspark") or find_spec(package) is not None


@pytest.mark.filterwarnings("ignore")  # of Dask, Ray and Spark, and of pandas below them
def test_the_pages_code_runs(tmp_path: Path) -> None:
    scripts = [block for block in blocks(DOCS / "scale.md") if block.kind == "python"]
    assert len(scripts) == 5
    with Walk(tmp_path) as walk:
        for script in scripts:
            if installed(script):
                walk.run(script)
    names = walk.names
    assert len(names["ids"]) == 2_000
    if "X_spark" in names:
        assert names["X"].equals(names["X_spark"])
        assert names["ids_spark"].to_pylist() == names["ids"].to_pylist()
