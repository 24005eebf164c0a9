"""Whoever waits for a long ledger sees how far it is; nobody else is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from isonomy.common.base import progress
from isonomy.common.ledger import reading
from isonomy.common.ledger.ledger import read_ledger
from isonomy.company import LocalOracle


def test_a_long_ledger_shows_how_far_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    people = {"sex": ["f", "m"] * 2}
    oracle = LocalOracle.rehearse(list("abcd"), people, epsilon=1.0, delta=1e-5, folder=tmp_path)
    for _ in range(5):
        oracle.counts(share=0.01)
    (path,) = tmp_path.rglob("*.jsonl")
    seen: list[tuple[str, int, int | None]] = []
    monkeypatch.setattr(reading, "EVERY_RECORDS", 2)
    monkeypatch.setattr(progress.Stages, "show", lambda _, *words: seen.append(words))
    read_ledger(path)
    assert not seen
    with reading.ledger_bar():
        read_ledger(path)
    size = path.stat().st_size // 1000
    assert len(seen) >= 3
    assert {name for name, _, _ in seen} == {"Reading the ledger (kB)"}
    done = [kilobytes for _, kilobytes, _ in seen]
    assert done == sorted(done)
    assert {whole for _, _, whole in seen} == {size}
    read_ledger(path)
    assert len(seen) == len(done)
