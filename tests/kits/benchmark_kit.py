"""Work for benchmark workers that takes no time. A module of its own: workers import it by name."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from isonomy.company.compare.benchmark.cells import Cell, version
from isonomy.company.compare.benchmark.store import FILE

MEASURED: dict[str, Any] = {
    "test_error": 0.2, "test_violation": 0.05, "base_error": 0.18, "base_violation": 0.2,
    "noise_floor": 0.01, "epsilon_spent": 1.0, "selection_rate": 0.3, "base_selection_rate": 0.3,
    "group_fairness": 0.9, "equalized_odds_sum": -0.05, "seconds": 1.5, "returned": "tilt",
    "attribute_at_prediction": False, "accounting": "", "wall_seconds": 2.0,
}  # fmt: skip


def cell(**settings: Any) -> Cell:
    usual: dict[str, Any] = {
        "dataset": "lending", "attribute": "sex", "notion": "demographic_parity",
        "strategy": "tilt", "base": "logistic", "epsilon": 1.0, "delta": 1e-5, "tolerance": 0.01,
        "seed": 0,
    }  # fmt: skip
    return Cell(**{**usual, **settings})


def line(own: Cell, **measured: Any) -> dict[str, Any]:
    head = {"key": own.key, "status": "ok", "version": version(), "cell": own.to_json()}
    return {**head, **MEASURED, **measured}


def quick_work(own: Cell, folder: Path | None) -> dict[str, Any]:
    """Leaves a trace in `folder`, so that a test sees what was run, and in which environment."""
    assert folder is not None
    with (folder / "trace").open("a") as trace:
        trace.write(f"{own.seed} {os.environ.get('OMP_NUM_THREADS')}\n")
    if own.strategy == "zafar":
        return {"key": own.key, "status": "failed", "reason": "no", "cell": own.to_json()}
    return line(own)


def deadly_work(own: Cell, folder: Path | None) -> dict[str, Any]:
    """Dies at seed 1, as a worker does that the kernel kills for its memory, after all others."""
    if own.seed == 1:
        assert folder is not None
        while (folder / FILE).read_bytes().count(b"\n") < 3:
            time.sleep(0.02)
        os._exit(9)
    return quick_work(own, folder)
