"""One cell: rehearse it, measure it, say what it took. Runs in a worker process.

A worker keeps the last data set and the base models that it has fitted, because neighbouring cells
share them. `seconds` is therefore the strategy's own time, with the base model's fits in it only
where this worker had not made them before.
"""

from __future__ import annotations

import time
from functools import lru_cache
from pathlib import Path
from typing import Any

from isonomy.company.compare.benchmark.cells import Cell, version
from isonomy.company.rehearsal.base_models import Fits
from isonomy.company.rehearsal.datasets import load
from isonomy.company.rehearsal.results import finite
from isonomy.company.rehearsal.simulate import run_seed


def outcome(cell: Cell, data_dir: Path | None) -> dict[str, Any]:
    """A line for the store: measured, or failed with the reason."""
    begin = time.time()
    line: dict[str, Any] = {"key": cell.key, "version": version(), "cell": cell.to_json()}
    try:
        measured = _measured(cell, data_dir)
    except Exception as error:  # a library's too: one cell must not end the night's run
        return {**line, "status": "failed", "reason": f"{type(error).__name__}: {error}"}
    finished = {"started": round(begin, 1), "wall_seconds": round(time.time() - begin, 2)}
    return {**line, "status": "ok", **measured, **finished}


def _measured(cell: Cell, data_dir: Path | None) -> dict[str, Any]:
    data = _dataset(cell.dataset, data_dir, cell.attribute)
    fits = _fits(cell.dataset, cell.attribute, cell.base, cell.seed)
    settings = cell.settings()
    run = run_seed(data, cell.attribute, settings, settings.epsilons[0], cell.seed, fits)
    # None: nothing measured (NaN), or the ε of what is not private (infinity).
    return finite({name: value for name, value in vars(run).items() if name != "seed"})


# One each: cells come seed by seed and set by set, so older ones are done with.
_dataset = lru_cache(maxsize=1)(load)


@lru_cache(maxsize=1)
def _fits(*_place: str | int) -> Fits:
    return Fits()
