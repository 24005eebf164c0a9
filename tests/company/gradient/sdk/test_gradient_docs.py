"""The examples of docs/gradient.md and docs/fermi.md, run as they are printed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from gradient_kit import toy
from page_kit import DOCS, Walk, blocks
from torch import nn

from isonomy.common.sums.oracle import GroupOracle
from isonomy.company import LocalOracle

PAGES = ("gradient.md", "fermi.md")
BLOCKS = [each.text for page in PAGES for each in blocks(DOCS / page) if each.kind == "python"]


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: " ".join(block.split()[3:6]))
def test_examples_run_as_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: str
) -> None:
    monkeypatch.chdir(tmp_path)
    data = toy(1500)
    ids = [f"person-{i}" for i in range(1500)]
    sexes = {"sex": ["f" if code else "m" for code in data.group]}
    table = pd.DataFrame(data.x, columns=list("abcd"))
    torch.manual_seed(0)
    names = {
        "torch": torch,
        "oracle": LocalOracle.rehearse(ids, sexes, epsilon=4.0, delta=1e-5),
        "model": nn.Linear(4, 2),
        "X": table,
        "y": np.where(data.y, "yes", "no"),
        "X_new": table[:5],
        "inputs": data.x,
        "target": data.y,
        "ids": ids,
    }
    exec(block, names)  # noqa: S102  (our own page)
    if "history.plot" in block:
        page = (tmp_path / "run.html").read_text()
        assert "not a guarantee" in page
    if "ScoreParity" in block:
        oracle = names["oracle"]
        assert isinstance(oracle, GroupOracle)
        budget = oracle.budget
        assert budget.spent_units == pytest.approx(0.9 * budget.cap_units, rel=1e-3)
    if "own_lengths" in block:
        assert 0 < names["primal"].best < names["lengths"].gradients.max()  # type: ignore[attr-defined]


def test_the_rehearsals_of_dp_fermi_run(tmp_path: Path) -> None:
    """The commands of fermi.md, on made-up people and for two rounds."""
    small = {"--dataset adult --data-dir DATA": "--dataset lending"}
    small |= {f"--seeds {count}": "--seeds 1 --option rounds=2" for count in (4, 8)}
    with Walk(tmp_path, small) as walk:
        for block in blocks(DOCS / "fermi.md"):
            if block.kind == "console":
                walk.run(block)
    assert walk.count == 2


def test_there_are_examples() -> None:
    assert len(BLOCKS) >= 7


def test_own_lengths_are_those_of_autograd() -> None:
    """|∇h| and |h| by hand, row by row."""
    from isonomy.company import own_lengths

    data = toy(40)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1)).double()
    made = own_lengths(model, "equal_opportunity", data.x, data.y)["selected | y = 1"]
    rows = torch.from_numpy(data.x[data.y == 1]).double()
    for row, length, value in zip(rows, made.gradients, made.values, strict=True):
        h = torch.sigmoid(model(row[None]))[0, 0]
        grads = torch.autograd.grad(h, list(model.parameters()))
        assert value == pytest.approx(float(h.detach()))
        assert length == pytest.approx(float(torch.cat([g.flatten() for g in grads]).norm()))
