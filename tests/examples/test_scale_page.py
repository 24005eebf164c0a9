"""The code of docs/scale.md runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("dask.dataframe")
PAGE = Path(__file__).parents[2] / "docs" / "scale.md"


@pytest.mark.filterwarnings("ignore")  # of Dask and of pandas below it
def test_the_pages_code_runs(tmp_path: Path) -> None:
    names: dict[str, Any] = {"folder": tmp_path}
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 3
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)  # noqa: S102
    assert len(names["ids"]) == 2_000
