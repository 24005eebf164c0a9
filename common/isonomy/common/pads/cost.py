"""Which carrier a plan should have: bytes and seconds of its widest usual query, both ways.

    seconds = both parties' work + bytes / bandwidth

A plan is made before its session, so nothing of it can be measured then: the work is that of our
reference machine, and the bandwidth is what the caller says, what the company's last session showed
(`Session.megabits`), or a stated assumption. Their ratio decides, and a factor of two in either
moves the answer only near the crossover.
"""

from __future__ import annotations

from dataclasses import dataclass

from isonomy.common.crypto.params import DEFAULT_PARAMETERS, choose_layout, exchange_ms
from isonomy.common.pads.stream import CELL_BYTES

ASSUMED_MEGABITS = 100.0  # an ordinary line between two offices
LOOPBACK_MEGABITS = 10_000.0  # parties on one machine
CHUNK_PEOPLE, CHUNK_COLUMNS = 256, 256  # of a gradient
WIDE_COLUMNS = 219  # of a tilt's moments, about everybody
_CELL_NS, _FIXED_MS = 20.0, 1.0  # of both parties, by pads (docs/performance.md)


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

    @property
    def best(self) -> Cost:
        return min(self.pads, self.homomorphic, key=lambda cost: cost.seconds)

    def __str__(self) -> str:
        return (
            f"A query of {self.columns} columns about {self.people:,} people takes: {self.pads}; "
            f"{self.homomorphic} (at {self.megabits:g} Mbit/s, {self.source}, on machines like "
            "our reference)."
        )


def compare(
    people: int,
    released_groups: int,
    strategy: str,
    megabits: float | None = None,
    source: str = "as you say",
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
    work_s = exchange_ms(layout.blocks, layout.parts, groups, groups) / 1e3
    homomorphic = Cost("homomorphic", size, work_s + 8e-6 * size / rate)
    cells = people * columns * groups
    work_s = _FIXED_MS / 1e3 + _CELL_NS * 1e-9 * cells
    pads = Cost("pads", cells * CELL_BYTES, work_s + 8e-6 * cells * CELL_BYTES / rate)
    return Comparison(people, columns, rate, source, pads, homomorphic)
