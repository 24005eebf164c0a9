"""`isonomy bench cores` runs the same work with one job and with two."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from joblib import parallel_config

from isonomy.company.speed import cores


def test_every_work_with_one_job_and_two(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"PEOPLE": 400, "COLUMNS": 3, "ROUNDS": 1, "SEEDS": 2}.items():
        monkeypatch.setattr(cores, name, value)

    def in_threads(work: Callable[[], object], jobs: int, *, threads: bool = False) -> None:
        with parallel_config("threading", n_jobs=jobs):  # processes take seconds to start
            work()

    monkeypatch.setattr(cores, "_spread", in_threads)
    stages: list[str] = []
    result = cores.measure(lambda name, *_: stages.append(name), jobs=2)
    assert stages == [row["work"] for row in result["rows"]]
    assert stages == ["out-of-fold fits", "rehearsals", "products", "pads"]
    for row in result["rows"]:
        assert row["ratio"] == row["one"] / row["several"] > 0
    assert next(cores.tables(result)).row_count == 4
