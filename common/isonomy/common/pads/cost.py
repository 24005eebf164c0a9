"""Which carrier a plan should have: bytes and seconds of its widest usual query, both ways.

    seconds = both parties' work + bytes / bandwidth

A plan is made before its session. So the bandwidth is what the caller says, what the company's last
session showed (`Session.megabits`), or a stated assumption. The work is timed on this machine, both
parties' parts of it, by a small query of each carrier (`time_work`); nobody has timed the
regulator's machine, so it is taken to be like this one. The message says all of that.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

from isonomy.common.crypto.blinding import Seeds
from isonomy.common.crypto.he import QueryKey, SumBuilder
from isonomy.common.crypto.params import DEFAULT_PARAMETERS, Layout, choose_layout, exchange_ms
from isonomy.common.pads.stream import CELL_BYTES, NARROW, NARROW_BYTES, Pads
from isonomy.common.wire.messages import frame_hash

ASSUMED_MEGABITS = 100.0  # an ordinary line between two offices
LOOPBACK_MEGABITS = 10_000.0  # parties on one machine
CHUNK_PEOPLE, CHUNK_COLUMNS = 256, 256  # of a gradient
WIDE_COLUMNS = 219  # of a tilt's moments, about everybody
_FIXED_MS = 1.0  # of both parties, for a query by pads of any size
_REPEATS = 3


@dataclass(frozen=True)
class Work:
    """What both parties' work takes: ns per cell by pads, and homomorphic in reference machines."""

    cell_ns: float = 20.0
    homomorphic: float = 1.0  # times as long as on the reference machine (params.exchange_ms)


REFERENCE = Work()  # docs/performance.md


@dataclass(frozen=True)
class Cost:
    """One query by one carrier."""

    carrier: str
    bytes: int
    seconds: float

    def __str__(self) -> str:
        return f"{self.carrier}: {self.bytes / 1e6:.3g} MB, {self.seconds:.2g} s"


@dataclass(frozen=True)
class Comparison:
    """Both carriers for one query."""

    people: int
    columns: int
    megabits: float
    source: str  # where that number is from
    pads: Cost
    homomorphic: Cost
    timed: bool  # was the work timed on this machine?

    @property
    def best(self) -> Cost:
        return min(self.pads, self.homomorphic, key=lambda cost: cost.seconds)

    def __str__(self) -> str:
        work = "with both parties' work as on our reference machine"
        if self.timed:
            work = "with both parties' work as timed on this machine just now: the regulator's is "
            work += "taken to be as fast"
        return (
            f"A query of {self.columns} columns about {self.people:,} people takes about: "
            f"{self.pads}; {self.homomorphic} (at {self.megabits:g} Mbit/s, {self.source}; {work})."
        )


def compare(
    people: int,
    released_groups: int,
    strategy: str,
    megabits: float | None = None,
    source: str = "as you say",
    *,
    work: Work = REFERENCE,
) -> Comparison:
    """Both carriers for the widest query that a strategy usually asks.

    `released_groups`: all groups but the last of the largest attribute.
    """
    columns = WIDE_COLUMNS
    if strategy != "tilt":  # training asks about one chunk at a time
        people, columns = min(people, CHUNK_PEOPLE), CHUNK_COLUMNS
    rate = ASSUMED_MEGABITS if megabits is None else megabits
    source = source if megabits else "assumed, because no session of this company showed it yet"
    params, groups = DEFAULT_PARAMETERS, released_groups
    layout = choose_layout(params, people, columns, indicators=groups, answers=groups)
    down = layout.blocks * groups * params.column_bytes
    size = down + layout.parts * groups * params.answer_bytes
    work_ms = work.homomorphic * exchange_ms(layout.blocks, layout.parts, groups, groups)
    homomorphic = Cost("homomorphic", size, work_ms / 1e3 + 8e-6 * size / rate)
    cells = people * columns * groups
    narrow = people * params.row_bound <= NARROW // 4  # but for uncommonly much noise
    size = cells * (NARROW_BYTES if narrow else CELL_BYTES)
    work_ms = _FIXED_MS + work.cell_ns * 1e-6 * cells
    pads = Cost("pads", size, work_ms / 1e3 + 8e-6 * size / rate)
    return Comparison(people, columns, rate, source, pads, homomorphic, work is not REFERENCE)


@cache
def time_work() -> Work:
    """Time a small query of each carrier on this machine, the quickest of three; 0.1 s in all."""
    people = columns = CHUNK_COLUMNS
    members, rows = np.arange(people) % 2 == 0, np.ones((people, columns), np.int32)
    keys = np.arange(2 * people, dtype=np.uint64).reshape(people, 2)  # how long it takes is alike

    def by_pads() -> None:
        pads = Pads(bytes(16), columns)
        frame_hash(rows.tobytes())  # the commitment
        body = b"".join(pads.hide(keys, keys, rows)[0])
        frame_hash(body)
        frame_hash(body)
        pads.gather(keys, members, body)

    def homomorphic() -> None:
        layout, key = Layout(DEFAULT_PARAMETERS, people, 1, people), QueryKey(DEFAULT_PARAMETERS)
        builder = SumBuilder(layout, sums=1, zero=key.encrypt_zero())
        builder.add_block(0, rows[:, :1], iter([key.encrypt_column(members)]))
        for part in builder.finish(Seeds.derive(b"timing"), blind=True):
            key.decrypt(part)
        key.destroy()

    cell_ns = 1e9 * _quickest(by_pads) / rows.size
    return Work(cell_ns, 1e3 * _quickest(homomorphic) / float(exchange_ms(1, 1, 1, 1)))


def _quickest(work: Callable[[], None]) -> float:
    times = []
    for _ in range(_REPEATS):
        began = time.process_time()  # of the processor: others may want it just now
        work()
        times.append(time.process_time() - began)
    return min(times)
