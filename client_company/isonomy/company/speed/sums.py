"""`isonomy bench sums`: what the blind group sum costs, beside TenSEAL's own product.

Everything is measured in one run on one machine, so that ratios mean something where seconds do
not. Both parties run in one process, one after the other, their times kept apart; frames are
encoded and parsed as on the wire. Beside TenSEAL, whose matmul uses all cores, wall time counts.
The scaling rows count processor time of the one core that they use, each in a process of its own
(for its memory), in turns over several rounds (so that a machine that slows down slows all rows).
"""

from __future__ import annotations

import multiprocessing
import time
import timeit
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import tenseal as ts
from rich.table import Table

from isonomy.common.crypto.blinding import Seeds
from isonomy.common.crypto.he import QueryKey, SumBuilder
from isonomy.common.crypto.params import DEFAULT_PARAMETERS as PARAMS
from isonomy.common.crypto.params import Layout, centre, choose_layout
from isonomy.common.privacy.quantise import quantise
from isonomy.common.sums.company_half import block_columns, part_frames
from isonomy.common.wire.messages import Column, SumPart, decode, encode
from isonomy.company.speed._memory import reset_peak_mb, status_mb
from isonomy.company.speed._pads import measure_pads

PEOPLE = (4_000, 16_000, 36_000, 64_000, 256_000)
COLUMNS = 128
REPEATS = 5
PAD_PEOPLE = 36_000
ROUNDS = 3


@dataclass
class SumCost:
    """One blind sum over two groups, both parties' costs apart."""

    people: int
    columns: int
    block: int
    company_ms: float = 0.0
    columns_ms: float = 0.0  # regulator: encrypting the columns
    decrypt_ms: float = 0.0  # regulator: decrypting the answer
    peak_mb: float = 0.0  # resident memory above the rows themselves
    bytes_down: int = 0
    bytes_up: int = 0
    company_ns_per_cell: float = 0.0

    @property
    def regulator_ms(self) -> float:
        return self.columns_ms + self.decrypt_ms


def measure_exchange(people: int, columns: int, *, wall: bool = False) -> SumCost:
    """Quantise, encrypt, multiply, blind, decrypt; checks that the sums are the true ones."""
    clock = time.perf_counter if wall else time.process_time

    @contextmanager
    def _timed(exchange: SumCost, name: str) -> Iterator[None]:
        start = clock()
        yield
        setattr(exchange, name, getattr(exchange, name) + (clock() - start) * 1e3)

    layout = choose_layout(PARAMS, people, columns)
    exchange = SumCost(people, columns, layout.block)
    rng = np.random.default_rng(0)
    rows, members = rng.normal(size=(people, columns)), rng.random(people) < 0.5
    _warm_up()
    resident = reset_peak_mb()
    key, seeds = QueryKey(PARAMS), Seeds.fresh()
    zero = key.encrypt_zero()
    with _timed(exchange, "company_ms"):
        integers = quantise(rows, 1.0, PARAMS.row_bound).rows
        builder = SumBuilder(layout, sums=1, zero=zero)
    for index in range(layout.blocks):
        people_of = layout.block_slice(index)
        with _timed(exchange, "columns_ms"):
            frame = encode(Column(index, 0, key.encrypt_column(members[people_of])))
        exchange.bytes_down += len(frame)
        with _timed(exchange, "company_ms"):
            builder.add_block(index, integers, block_columns(iter([frame]), index, 1))
    with _timed(exchange, "company_ms"):
        frames = part_frames(builder, seeds, blind=False)
    exchange.bytes_up = sum(map(len, frames))
    with _timed(exchange, "decrypt_ms"):
        parts = [key.decrypt(decode(frame, SumPart).ciphertext) for frame in frames]
        declared = [part[layout.declared(i)[1]] for i, part in enumerate(parts)]
        sums = centre(np.concatenate(declared), PARAMS.plain_modulus)
    exchange.peak_mb = status_mb("VmHWM") - resident
    exchange.company_ns_per_cell = exchange.company_ms * 1e6 / (people * columns)
    if not np.array_equal(sums, integers[members].sum(axis=0, dtype=np.int64)):
        raise AssertionError("the encrypted sums are not the true sums: do not trust this build")
    return exchange


def measure_tenseal(size: int) -> tuple[float, float]:
    """TenSEAL's CKKSVector.matmul on the same shape: milliseconds, and megabytes of its context.

    The shortest modulus chain that one product needs, so that it is as fast as it can be.
    """
    context = ts.context(ts.SCHEME_TYPE.CKKS, 8192, coeff_mod_bit_sizes=[60, 40, 60])
    context.global_scale = 2**40
    context.generate_galois_keys()
    rng = np.random.default_rng(0)
    vector = ts.ckks_vector(context, (rng.random(size) < 0.5).astype(float))
    matrix = rng.normal(size=(size, size)).tolist()
    public = len(context.serialize(save_secret_key=False)) / 2**20
    best_s = min(timeit.repeat(lambda: vector.matmul(matrix), number=1, repeat=REPEATS))
    return 1e3 * best_s, public


def measure(announce: Callable[[str], Any]) -> dict[str, Any]:
    """The whole benchmark as the JSON that `--json` prints."""
    announce("TenSEAL's matmul, 256 × 256")
    tenseal_ms, context_mb = measure_tenseal(256)
    announce("blind group sum, 256 × 256")
    exchanges = [measure_exchange(256, 256, wall=True) for _ in range(REPEATS)]
    company_ms = min(exchange.company_ms for exchange in exchanges)
    announce("the same by pads")
    pads = measure_pads(256, 256, repeats=8 * REPEATS, wall=True)
    announce(f"pads, {PAD_PEOPLE:,} people × {COLUMNS} columns")
    wide = measure_pads(PAD_PEOPLE, COLUMNS, repeats=4 * REPEATS)
    rows = [asdict(exchange) for exchange in _scaling(announce)]
    cells, large = [row["company_ns_per_cell"] for row in rows], rows[-1]
    return {
        "matmul_256": {
            "tenseal_ms": tenseal_ms,
            "tenseal_context_mb": context_mb,
            "company_ms": company_ms,
            "regulator_ms": min(exchange.regulator_ms for exchange in exchanges),
            "ratio": tenseal_ms / company_ms,
            "pads_ms": pads.company_ms,
            "pads_ratio": tenseal_ms / pads.company_ms,
        },
        "pads": {
            "people": wide.people,
            "company_ns_per_cell": wide.company_ms * 1e6 / wide.cells,
            "regulator_ns_per_cell": wide.regulator_ms * 1e6 / wide.cells,
            "bytes_up": wide.bytes_up,
            "peak_mb": wide.peak_mb,
            "transfer_us_per_person": wide.transfer_us_per_person,
            "transfer_bytes_per_person": wide.transfer_bytes_per_person,
        },
        "scaling": rows,
        "scaling_spread": max(cells) / min(cells),
        "regulator": {
            "columns_per_s": 1e3 * -(-large["people"] // large["block"]) / large["columns_ms"],
            "decrypt_ms_per_answer": large["decrypt_ms"]
            / -(-large["columns"] * large["block"] // PARAMS.poly_degree),
            "bytes_per_person": large["bytes_down"] / large["people"],
        },
    }


def tables(result: dict[str, Any]) -> tuple[str | Table, ...]:
    """The result as a sentence, a table and two more sentences."""
    matmul, regulator, pads = result["matmul_256"], result["regulator"], result["pads"]
    names = ("people", "block", "company ms", "ns/cell", "regulator ms")
    table = Table(title=f"{COLUMNS} columns", title_justify="left")
    for heading in (*names, "peak MB", "MB down", "MB up"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in result["scaling"]:
        table.add_row(
            f"{row['people']:,}",
            str(row["block"]),
            f"{row['company_ms']:.0f}",
            f"{row['company_ns_per_cell']:.0f}",
            f"{row['columns_ms'] + row['decrypt_ms']:.0f}",
            f"{row['peak_mb']:.0f}",
            f"{row['bytes_down'] / 2**20:.1f}",
            f"{row['bytes_up'] / 2**20:.2f}",
        )
    return (
        f"256 × 256: TenSEAL matmul {matmul['tenseal_ms']:.0f} ms (public context "
        f"{matmul['tenseal_context_mb']:.1f} MB); blind group sum {matmul['company_ms']:.1f} ms "
        f"at the company, {matmul['regulator_ms']:.1f} ms at the regulator: "
        f"[bold]{matmul['ratio']:.0f} times faster[/bold]; by pads {matmul['pads_ms']:.2f} ms at "
        f"the company: [bold]{matmul['pads_ratio']:.0f} times faster[/bold]",
        table,
        f"By pads, {pads['people']:,} people: {pads['company_ns_per_cell']:.1f} ns per cell at the "
        f"company, {pads['regulator_ns_per_cell']:.1f} at the regulator, "
        f"{pads['bytes_up'] / 2**20:.1f} MB up; key transfer, once, "
        f"{pads['transfer_us_per_person']:.1f} µs and "
        f"{pads['transfer_bytes_per_person']:.0f} bytes per person, both parties together.",
        f"Cost per cell varies by a factor of {result['scaling_spread']:.2f}. "
        f"Regulator: {regulator['columns_per_s']:.0f} columns/s, "
        f"{regulator['decrypt_ms_per_answer']:.2f} ms per answer ciphertext, "
        f"{regulator['bytes_per_person']:.0f} bytes per person.",
    )


def _scaling(announce: Callable[[str], Any]) -> list[SumCost]:
    """One row per number of people: the quickest of several rounds, the peak of the first."""
    context = multiprocessing.get_context("spawn")
    with ExitStack() as stack:
        pools = [stack.enter_context(ProcessPoolExecutor(1, mp_context=context)) for _ in PEOPLE]
        rounds: list[list[SumCost]] = []
        for number in range(ROUNDS):
            rounds.append([])
            for people, pool in zip(PEOPLE, pools, strict=True):
                announce(f"{people:,} people × {COLUMNS} columns, round {number + 1} of {ROUNDS}")
                rounds[-1].append(pool.submit(measure_exchange, people, COLUMNS).result())
    return [
        replace(min(row, key=lambda exchange: exchange.company_ms), peak_mb=row[0].peak_mb)
        for row in zip(*rounds, strict=True)
    ]


def _warm_up() -> None:
    """Contexts, tables and memory pools are there before the clock starts."""
    key = QueryKey(PARAMS)
    builder = SumBuilder(Layout(PARAMS, 1, 1, 16), sums=1, zero=key.encrypt_zero())
    builder.add_block(0, np.ones((1, 1), np.int32), [key.encrypt_column(np.ones(1, np.bool_))])
    list(builder.finish(Seeds.fresh(), blind=True))
