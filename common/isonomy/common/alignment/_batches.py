"""Work in batches over all cores, of which nothing is lost: results are on disk as they come.

    file    record, record, …       record    SHA-256 ‖ length ‖ result

A record's hash binds what the batches were made from and which of them it is. A later run reads
the records that are whole and belong to its own work, and goes on behind them; so a file that a
crash cut, or that was begun with another list, does no harm.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from isonomy.common.base.errors import StorageError
from isonomy.common.base.parallel import each
from isonomy.common.base.private_files import open_file

Job = TypeVar("Job")
_HASH_BYTES, _LENGTH_BYTES = 32, 4


def results(
    function: Callable[[Job], bytes], jobs: Iterable[Job], path: Path | None, origin: bytes
) -> Iterator[bytes]:
    """Return `function(job)` of every job in order; those in the file are not computed again.

    `origin` names function and jobs. Without a path nothing is kept.
    """
    try:
        with _open(path) as file:
            done = 0
            for result in _whole_records(file, origin):
                done += 1
                yield result
            with _all_cores():
                others = each(function, islice(jobs, done, None), threads=True)
            for number, result in enumerate(others, done):
                length = len(result).to_bytes(_LENGTH_BYTES, "little")
                file.write(_hash(origin, number, result) + length + result)
                file.flush()
                yield result
    except OSError as error:
        raise StorageError(f"cannot keep the work in {path}: {error.strerror}") from None


def _open(path: Path | None) -> BinaryIO:
    if path is None:
        return io.BytesIO()
    return os.fdopen(open_file(path, os.O_RDWR | os.O_CREAT), "r+b")


def _whole_records(file: BinaryIO, origin: bytes) -> Iterator[bytes]:
    """The results that an earlier run left; then the file ends behind them."""
    number = end = 0
    while head := file.read(_HASH_BYTES + _LENGTH_BYTES):
        result = file.read(int.from_bytes(head[_HASH_BYTES:], "little"))
        if head[:_HASH_BYTES] != _hash(origin, number, result):
            break
        number, end = number + 1, file.tell()
        yield result
    file.seek(end)
    file.truncate()


def _hash(origin: bytes, number: int, result: bytes) -> bytes:
    return sha256(sha256(origin).digest() + number.to_bytes(8, "little") + result).digest()


def _all_cores() -> AbstractContextManager[Any]:
    """Threads on all cores, unless the caller's joblib.parallel_config says something else."""
    from joblib import parallel_config
    from joblib.parallel import get_active_backend

    backend, jobs = get_active_backend()
    undecided = jobs is None and backend.default_n_jobs == 1
    return parallel_config("threading", n_jobs=-1) if undecided else nullcontext()
