"""Cells over processes, one thread each, every finished one on disk at once.

Processes and not threads: the strategies hold the interpreter's lock. One numeric thread per
process: two processes with two threads each on two cores are slower than two with one.

A worker keeps the last data set and the base models that it has fitted, because neighbouring cells
share them. `seconds` is therefore the strategy's own time, with the base model's fits in it only
where this worker had not made them before.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import Any

from isonomy.common.base.errors import TransportError
from isonomy.company.compare.benchmark.cells import Cell, version
from isonomy.company.compare.benchmark.store import Store
from isonomy.company.rehearsal.base_models import Fits
from isonomy.company.rehearsal.datasets import load
from isonomy.company.rehearsal.results import finite
from isonomy.company.rehearsal.simulate import run_seed

Work = Callable[[Cell, Path | None], dict[str, Any]]
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


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


# One each: cells come seed by seed and set by set, so older ones are done with.
_dataset = lru_cache(maxsize=1)(load)


@lru_cache(maxsize=1)
def _fits(*_place: str | int) -> Fits:
    return Fits()


def run(
    cells: Sequence[Cell],
    store: Store,
    *,
    data_dir: Path | None,
    jobs: int,
    on_cell: Callable[[Cell, dict[str, Any]], None] = lambda _cell, _line: None,
    work: Work = outcome,
) -> Tally:
    """Run what is not finished. Interrupted at any point, a second call goes on from there."""
    todo = pending(cells, store)
    failed: list[tuple[str, str]] = []
    with _single_threaded(), _pool(min(jobs, max(len(todo), 1))) as pool:
        for cell, line in _finished(pool, todo, data_dir, jobs, work):
            store.add(line)
            if line["status"] != "ok":
                failed.append((str(cell), str(line.get("reason", ""))))
            on_cell(cell, line)
    return Tally(len(cells) - len(todo), len(todo) - len(failed), tuple(failed))


def _finished(
    pool: ProcessPoolExecutor, todo: Sequence[Cell], data_dir: Path | None, jobs: int, work: Work
) -> Iterator[tuple[Cell, dict[str, Any]]]:
    """Cells as they end. At most `jobs` are under way, so that a break loses no more than those."""
    waiting = iter(todo)
    under_way: dict[Future[dict[str, Any]], Cell] = {}
    try:
        while True:
            while len(under_way) < jobs and (cell := next(waiting, None)) is not None:
                under_way[pool.submit(work, cell, data_dir)] = cell
            if not under_way:
                return
            done, _ = wait(under_way, return_when=FIRST_COMPLETED)
            for future in done:
                line = future.result()
                yield under_way.pop(future), line
    except BrokenProcessPool:
        cells = "; ".join(str(cell) for cell in under_way.values())
        raise TransportError(
            f"a worker process died (out of memory?) with {cells or 'a cell'} under way; finished "
            "cells are kept: run the same command again, perhaps with --jobs 1"
        ) from None


@contextmanager
def _pool(jobs: int) -> Iterator[ProcessPoolExecutor]:
    """Ends its processes when left, an interruption included."""
    pool = ProcessPoolExecutor(
        jobs, mp_context=get_context("spawn"), initializer=_leave_with_parent
    )
    try:
        yield pool
    finally:
        # A running cell may take an hour: its worker is ended, not waited for.
        workers = list((pool._processes or {}).values())
        pool.shutdown(wait=False, cancel_futures=True)
        for worker in workers:
            worker.terminate()
            worker.join()


def _leave_with_parent() -> None:
    """In a worker: Ctrl-C is the command's business; end when the command is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def _single_threaded() -> Iterator[None]:
    """Children read these when they start."""
    before = {name: os.environ.get(name) for name in _THREADS}
    os.environ.update(dict.fromkeys(_THREADS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
