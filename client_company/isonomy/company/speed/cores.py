"""`isonomy bench cores`: what a second core gains, in one run.

| work | how it is spread |
|---|---|
| out-of-fold fits | a base model's own fit and five folds, by processes |
| rehearsals | eight seeds of `isonomy simulate`, by processes |
| products | the company's homomorphic products and answer ciphertexts, by processes |
| pads | the company's rows of a sum hidden under pads, by threads |

A process has one numeric thread, so that nothing else uses the cores. Processes are started before
the clock. The program does not spread pads; this measures what threads would gain.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from joblib import parallel_config
from numpy.typing import NDArray
from rich.table import Table
from sklearn.ensemble import GradientBoostingClassifier
from threadpoolctl import threadpool_limits

from isonomy.common.base.parallel import each
from isonomy.common.crypto.blinding import Seeds
from isonomy.common.crypto.he import QueryKey
from isonomy.common.crypto.params import DEFAULT_PARAMETERS
from isonomy.common.pads.stream import Pads, part_slices
from isonomy.common.privacy.queries import Query, shapes_of
from isonomy.common.sums.company_half import part_frames
from isonomy.common.sums.spread_products import sum_builder
from isonomy.company.fair.inputs.base import fit_base
from isonomy.company.fair.inputs.people import People
from isonomy.company.rehearsal.datasets import lending
from isonomy.company.rehearsal.settings import Settings
from isonomy.company.rehearsal.simulate import simulate

PEOPLE, COLUMNS, ROUNDS, SEEDS = 20_000, 230, 2, 8
Work = Callable[[int], object]


def measure(on_stage: Callable[[str, int, int], None], jobs: int = 2) -> dict[str, Any]:
    """Return the quickest of several rounds of each work, with one job and with `jobs`."""
    rows = []
    with threadpool_limits(1):
        _spread(lambda: list(each(_nothing, range(4 * jobs))), jobs)  # starts the processes
        for done, (name, work) in enumerate(_works()):
            on_stage(name, done, 4)
            seconds = {}
            for number in (1, jobs):
                seconds[number] = min(_timed(work, number) for _ in range(ROUNDS))
            ratio = seconds[1] / seconds[jobs]
            rows.append({"work": name, "one": seconds[1], "several": seconds[jobs], "ratio": ratio})
    return {"jobs": jobs, "rows": rows}


def tables(result: dict[str, Any]) -> Iterator[Table]:
    """One row per kind of work."""
    table = Table("work", "seconds, 1 job", f"{result['jobs']} jobs", "times faster")
    for row in result["rows"]:
        figures = (f"{row[name]:.2f}" for name in ("one", "several", "ratio"))
        table.add_row(row["work"], *figures)
    yield table


def _works() -> Iterator[tuple[str, Work]]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(PEOPLE, 12))
    y = (X[:, 0] + rng.normal(size=PEOPLE) > 0).astype(np.int64)
    people, model = People.of(np.arange(PEOPLE), y), GradientBoostingClassifier(n_estimators=30)
    yield (
        "out-of-fold fits",
        lambda jobs: _spread(lambda: fit_base(model, X, y, y, people, 5, 0), jobs),
    )
    data, settings = lending(people=4_000, seed=0), Settings(base="logistic", seeds=SEEDS)
    yield "rehearsals", lambda jobs: _spread(lambda: simulate(data, settings), jobs)
    rows = rng.integers(-1_000, 1_000, (4 * PEOPLE, COLUMNS)).astype(np.int32)
    yield "products", _products(rows)
    yield "pads", partial(_pads, rows)


def _pads(rows: NDArray[np.int32], jobs: int) -> None:
    zeros, ones = np.random.default_rng(0).integers(0, 2**63, (2, len(rows), 2), dtype=np.uint64)
    slices = part_slices(len(rows), COLUMNS)

    def hide(some: list[slice]) -> None:
        pads = Pads(bytes(16), COLUMNS)
        for part in some:
            row_keys = pads.row_keys(zeros[part]), pads.row_keys(ones[part])
            pads.hide(*row_keys, rows[part])

    shares = [slices[number::jobs] for number in range(jobs)]
    _spread(lambda: list(each(hide, shares, threads=True)), jobs, threads=True)


def _products(rows: NDArray[np.int32]) -> Work:
    query = Query("", b"", "", "blind", "groups", ("a",), COLUMNS, "gaussian", 1 << 20, 1.0)
    shapes, key = shapes_of(query, (2,), len(rows)), QueryKey(DEFAULT_PARAMETERS)
    zero, everybody = key.encrypt_zero(), np.ones(shapes.layout.block, np.bool_)
    columns = [key.encrypt_column(everybody) for _ in range(shapes.layout.blocks)]

    def multiply() -> None:
        builder = sum_builder(shapes, zero)
        for index, column in enumerate(columns):
            builder.add_block(index, rows, [column])
        part_frames(builder, Seeds.fresh(), blind=True)

    return partial(_spread, multiply)


def _spread(work: Callable[[], object], jobs: int, *, threads: bool = False) -> None:
    if threads:
        with parallel_config("threading", n_jobs=jobs):
            work()
    else:
        with parallel_config("loky", n_jobs=jobs, inner_max_num_threads=1):
            work()


def _timed(work: Work, jobs: int) -> float:
    begin = time.perf_counter()
    work(jobs)
    return time.perf_counter() - begin


def _nothing(_: int) -> None:
    time.sleep(0.1)
