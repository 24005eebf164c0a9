"""Work over threads and processes (Dask's workers: tests/company/rehearsal/test_spread.py)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import joblib
import pytest

from isonomy.common.base.errors import DataError, TransportError
from isonomy.common.base.parallel import each


def _square(number: int) -> tuple[int, int]:
    return number * number, os.getpid()


def _refuse(number: int) -> int:
    raise DataError(f"{number} is refused")


def _die(number: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return number


def test_without_a_block_the_work_is_done_here_when_it_is_wanted() -> None:
    taken: list[int] = []

    def jobs() -> Iterator[int]:
        for number in range(5):
            taken.append(number)
            yield number

    results = each(_square, jobs())
    assert next(results) == (0, os.getpid())
    assert len(taken) <= 2
    assert [square for square, _ in results] == [1, 4, 9, 16]


@pytest.mark.parametrize("backend", ["loky", "multiprocessing", "threading"])
def test_joblib_says_where_and_the_order_stays(backend: str) -> None:
    with joblib.parallel_config(backend, n_jobs=2):
        results = list(each(_square, range(6)))
    assert [square for square, _ in results] == [0, 1, 4, 9, 16, 25]
    assert ({pid for _, pid in results} == {os.getpid()}) == (backend == "threading")


def test_threads_where_the_work_leaves_the_interpreters_lock() -> None:
    with joblib.parallel_config(n_jobs=2):
        assert {pid for _, pid in each(_square, range(4), threads=True)} == {os.getpid()}


def test_errors_keep_their_names_and_a_dead_worker_has_one() -> None:
    with joblib.parallel_config(n_jobs=2):
        with pytest.raises(DataError, match="0 is refused"):
            list(each(_refuse, [0]))
        with pytest.raises(TransportError, match="worker process died"):
            list(each(_die, range(2)))
        assert sorted(square for square, _ in each(_square, [2, 3], ordered=False)) == [4, 9]


_PARENT = """
import os, sys, time, joblib
from isonomy.common.base.parallel import each
def long(path):
    with open(path, "w") as file:
        file.write(str(os.getpid()))
    time.sleep(60)
if __name__ == "__main__":
    with joblib.parallel_config(n_jobs=2):
        list(each(long, sys.argv[1:]))
"""


def test_workers_leave_when_their_parent_is_killed(tmp_path: Path) -> None:
    files = [tmp_path / "first", tmp_path / "second"]
    script = tmp_path / "parent.py"
    script.write_text(_PARENT)
    parent = subprocess.Popen([sys.executable, script, *files])
    _until(lambda: all(file.exists() and file.read_text() for file in files))
    parent.kill()
    parent.wait()
    _until(lambda: not any(Path("/proc", file.read_text()).exists() for file in files))


def _until(condition: object) -> None:
    assert callable(condition)
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)
