"""A rehearsal in a folder of its own: opened again after a break, never mixed up with another."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from isonomy.common.base.errors import BudgetExceeded, ConfigError, ReplayRefused
from isonomy.common.sums.local import LocalOracle
from isonomy.common.sums.oracle import GroupOracle

PEOPLE = [f"Zoë {n}" for n in range(12)]
SEX = ["F", "M"] * 6


def oracle(folder: Path, **other: Any) -> GroupOracle:
    settings = {"ids": PEOPLE, "attributes": {"sex": SEX}, "epsilon": 1.0, "delta": 1e-5, **other}
    return LocalOracle.rehearse(**settings, folder=folder)


def test_what_was_answered_stays_answered(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "rehearsal"
    first = oracle(folder)
    rows = np.arange(24.0).reshape(12, 2)
    asked = {"norm": 30.0, "share": 0.4}
    before = first.blind_sum(rows, **asked)
    start = (0, np.zeros(12, np.int64))
    del first  # closes its ledger, as the end of a process does

    second = oracle(folder)
    second.go_on_from(*start)
    again = second.blind_sum(rows, **asked)
    assert (again.values == before.values).all()
    assert again.receipt == before.receipt
    second.blind_sum(rows, **asked)
    with pytest.raises(BudgetExceeded):  # 0.8 of the cap is spent, over both processes
        second.blind_sum(rows, **asked)
    second.go_on_from(*start)
    with pytest.raises(ReplayRefused):  # the same id, another question
        second.blind_sum(rows + 1.0, **asked)


def test_a_cell_changed_anywhere_is_another_question(tmp_path: Path) -> None:
    """Rows of all shapes, with and without a corner of zeros: one id never gets two answers."""
    home = oracle(tmp_path, epsilon=50.0)
    asked, spent = home.position
    for rows in (np.tril(np.ones((12, 12))), np.ones((12, 3)), np.zeros((12, 1)), np.eye(12)):
        for call in (home.blind_sum, lambda r, **more: home.weighted_sum(r, [1.0, -1.0], **more)):
            asked, spent = home.position
            answer = call(rows, norm=4.0, share=0.01)
            home.go_on_from(asked, spent)
            assert (call(rows, norm=4.0, share=0.01).values == answer.values).all()
            for cell in ((0, 0), (0, -1), (5, -1), (-1, 0), (-1, -1), (6, rows.shape[1] // 2)):
                other = rows.copy()
                other[cell] += 0.5
                home.go_on_from(asked, spent)
                with pytest.raises(ReplayRefused):
                    call(other, norm=4.0, share=0.01)
            home.go_on_from(asked, spent)
            call(rows, norm=4.0, share=0.01)


def test_another_rehearsal_is_refused(tmp_path: Path) -> None:
    del_me = oracle(tmp_path)
    del del_me
    for other in (
        {"epsilon": 2.0},
        {"delta": 1e-6},
        {"ids": PEOPLE[::-1]},
        {"ids": PEOPLE[:6], "attributes": {"sex": SEX[:6]}},
        {"individual": True},
    ):
        with pytest.raises(ConfigError, match="holds a rehearsal"):
            oracle(tmp_path, **other)
    oracle(tmp_path)  # and nothing was lost


def test_its_files_are_its_owners(tmp_path: Path) -> None:
    held = oracle(tmp_path / "own")
    for path in (tmp_path / "own").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(ConfigError, match="held by another process"):
        oracle(tmp_path / "own")
    del held
    (tmp_path / "own" / "rehearsal.key").write_bytes(b"short")
    with pytest.raises(ConfigError, match="not the key"):
        oracle(tmp_path / "own")
