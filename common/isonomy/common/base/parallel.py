"""Independent pieces of work over cores or machines, through joblib.

Who calls decides where the work runs, for everything inside the block:

    with joblib.parallel_config(n_jobs=-1):              # processes of this machine (loky)
    with joblib.parallel_config("dask"):                 # the workers of a dask.distributed.Client
    with joblib.parallel_config("ray"):                  # after ray.util.joblib.register_ray()

Without such a block the work is done here, one piece after the other. The results are the same
wherever it runs, because a piece knows nothing but its job.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures.process import BrokenProcessPool
from functools import cache
from typing import Any, TypeVar

from isonomy.common.base.errors import TransportError

Job = TypeVar("Job")
Result = TypeVar("Result")

LOOK_S = 1.0


def processes() -> int:
    """How many processes or machines `each` spreads work over: 1 unless joblib was told otherwise.

    Threads are one process.
    """
    if "joblib" not in sys.modules:  # nobody can have told it anything
        return 1
    from joblib.parallel import get_active_backend

    backend, jobs = get_active_backend()
    if getattr(backend, "supports_sharedmem", False):
        return 1
    return int(backend.effective_n_jobs(backend.default_n_jobs if jobs is None else jobs))


def each(
    function: Callable[[Job], Result],
    jobs: Iterable[Job],
    *,
    threads: bool = False,
    ordered: bool = True,
) -> Iterator[Result]:
    """Return `function(job)` of every job, as they come; in the jobs' order unless told otherwise.

    A job is taken from `jobs` only when a worker is free for it. Function, jobs and results travel
    by pickle. `threads`: the function leaves the interpreter's lock, so threads do as well.
    """
    from joblib import Parallel, delayed  # here: a server works without
    from joblib.parallel import get_active_backend

    streams = get_active_backend()[0].supports_return_generator
    return_as = ("generator" if ordered else "generator_unordered") if streams else "list"
    parallel = Parallel(
        return_as=return_as,
        prefer="threads" if threads else None,
        pre_dispatch="n_jobs",
        batch_size=1,
    )
    here = os.getpid()
    return _told_apart(parallel(delayed(_piece)(function, job, here) for job in jobs))


def _piece(function: Callable[[Job], Result], job: Job, parent: int) -> Result:
    if os.getppid() == parent:
        _leave_with(parent)
    return function(job)


@cache
def _leave_with(parent: int) -> None:
    """In a worker process: end when the one that started it is gone, even by kill −9."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(LOOK_S)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _told_apart(results: Iterable[Any]) -> Iterator[Any]:
    """The results; a worker that died is told apart from work that failed."""
    try:
        yield from results
    except Exception as error:
        if isinstance(error, BrokenProcessPool) or type(error).__name__ == "KilledWorker":  # Dask's
            raise TransportError("a worker process died (out of memory?)") from None
        raise
