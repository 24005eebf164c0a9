"""Cells wherever joblib puts them, every finished one on disk at once.

A worker keeps the data sets and the base models that it has fitted: every notion, tolerance, budget
and strategy on one split shares them. `seconds` is therefore the strategy's own time, with the base
model's fits in it only where this worker had not made them before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from isonomy.common.base.errors import TransportError
from isonomy.common.base.parallel import each
from isonomy.company.compare.benchmark.cells import Cell, version
from isonomy.company.compare.benchmark.store import Store
from isonomy.company.rehearsal.base_models import Fits
from isonomy.company.rehearsal.datasets import load
from isonomy.company.rehearsal.results import finite
from isonomy.company.rehearsal.simulate import run_seed

Work = Callable[[Cell, Path | None], dict[str, Any]]


@dataclass(frozen=True)
class Tally:
    """What a run did: cells that were finished before, that ran now, and that failed."""

    finished: int
    ran: int
    failed: tuple[tuple[str, str], ...]  # (cell, reason)


def pending(cells: Sequence[Cell], store: Store) -> list[Cell]:
    """What is left to do, in order."""
    return [cell for cell in cells if not store.finished(cell.key)]


def check_data(cells: Sequence[Cell], data_dir: Path | None) -> None:
    """Read every set once before anything runs; raises DataError naming a missing file."""
    for name, attribute in dict.fromkeys((cell.dataset, cell.attribute) for cell in cells):
        load(name, data_dir, attribute)


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


# A list comes back to a place in every experiment of a seed, so one seed's places are kept.
_PLACES = 32  # of (set, attribute, base, seed); the longest list has 15 at a seed
_dataset = lru_cache(maxsize=_PLACES)(load)


@lru_cache(maxsize=_PLACES)
def _fits(*_place: str | int) -> Fits:
    return Fits()


def run(
    cells: Sequence[Cell],
    store: Store,
    *,
    data_dir: Path | None,
    on_cell: Callable[[Cell, dict[str, Any]], None] = lambda _cell, _line: None,
    work: Work = outcome,
) -> Tally:
    """Run what is not finished. Interrupted at any point, a second call goes on from there."""
    todo = pending(cells, store)
    failed: list[tuple[str, str]] = []
    for cell, line in _finished(todo, data_dir, work):
        store.add(line)
        if line["status"] != "ok":
            failed.append((str(cell), str(line.get("reason", ""))))
        on_cell(cell, line)
    return Tally(len(cells) - len(todo), len(todo) - len(failed), tuple(failed))


def _finished(
    todo: Sequence[Cell], data_dir: Path | None, work: Work
) -> Iterator[tuple[Cell, dict[str, Any]]]:
    """Cells as they end. A break loses no more than those that are under way."""
    under_way: dict[str, Cell] = {}

    def jobs() -> Iterator[Cell]:
        for cell in todo:
            under_way[cell.key] = cell
            yield cell

    try:
        for line in each(partial(_line, work, data_dir), jobs(), ordered=False):
            yield under_way.pop(line["key"]), line
    except TransportError as error:
        cells = "; ".join(str(cell) for cell in under_way.values())
        raise TransportError(
            f"{error} with {cells or 'a cell'} under way; finished cells are kept: run the same "
            "command again, perhaps with --jobs 1"
        ) from None


def _line(work: Work, data_dir: Path | None, cell: Cell) -> dict[str, Any]:
    return work(cell, data_dir)
