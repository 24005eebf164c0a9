"""The rehearsals on the pages about lenders who pool run as they stand, with fewer people."""

from __future__ import annotations

from pathlib import Path

import pytest
from page_kit import Walk


def test_the_guides_rehearsal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fewer = {"3_000": "600", "1000": "200", "2000": "400", "3000": "600"}
    with Walk(tmp_path, fewer) as walk:
        walk.page("pooling.md", "Rehearse it")
    assert len(walk.names["models"]) == 3
    assert capsys.readouterr().out.count("'") == 6  # what each of them returned


def test_the_laboratorys_measurement(tmp_path: Path) -> None:
    """One split of small lenders: error and violation of three lenders, each way."""
    small = {
        "2_000": "200",
        "8_000": "300",
        "range(100, 124)": "[]",
        '"epsilon": 0.5': '"epsilon": 4',
    }
    with Walk(tmp_path, small) as walk:
        walk.page("lab/pooling.md")
    results = walk.names["split"](0, tolerances=(0.01,))
    assert set(results) == {"without fairness", "alone, tolerance 0.01", "pooled, tolerance 0.01"}
    for lenders in results.values():
        assert lenders.shape == (3, 2)
        assert ((lenders >= 0) & (lenders <= 1)).all()
