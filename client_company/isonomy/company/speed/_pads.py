"""What a blind group sum by pads costs, through the carriers of both parties.

Frames, hashes, the commitment to the rows and the checks of the query are in it; quantising the
rows, noise and ledger are not, because they are the same for every carrier.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from isonomy.common.base.canonical import hash_bytes
from isonomy.common.base.malloc import reuse_freed_memory
from isonomy.common.keys.identity import Identity
from isonomy.common.ledger.ledger import Ledger
from isonomy.common.pads.company import PadRows
from isonomy.common.pads.key_store import KeyStore
from isonomy.common.pads.regulator import PadCarrier
from isonomy.common.people.cohort import AttributeTable, Cohort
from isonomy.common.privacy.accounting import units_for
from isonomy.common.sums.company_half import CompanyHalf
from isonomy.common.sums.local import scratch_folder
from isonomy.common.sums.noise_and_budget import Custodian
from isonomy.common.sums.openings import MemoryOpenings, OpeningStore
from isonomy.common.sums.question import Noise, Prepared, Question, Terms, prepare
from isonomy.common.sums.regulator_half import DirectPort, RegulatorHalf
from isonomy.common.wire.messages import encode
from isonomy.company.speed._memory import reset_peak_mb, status_mb

EPSILON, DELTA = 50.0, 1e-5
OPENED = 10_000  # millionths: one person in a hundred


@dataclass
class PadCost:
    """One blind sum over two groups by pads, the quickest of several; and its key transfer."""

    people: int
    columns: int
    company_ms: float
    regulator_ms: float
    bytes_up: int
    transfer_us_per_person: float  # both parties
    transfer_bytes_per_person: float
    peak_mb: float  # resident memory above the rows themselves

    @property
    def cells(self) -> int:
        return self.people * self.columns


class _CountingPort(DirectPort):
    """Counts what the regulator sends of its keys."""

    sent = 0

    def columns(self, query_id: str, query_frame: bytes) -> Iterator[bytes]:
        for frame in super().columns(query_id, query_frame):
            self.sent += len(frame)
            yield frame


@dataclass(frozen=True)
class PadWorld:
    """Both parties' carriers, and one blind question about everybody."""

    company: PadRows
    regulator: PadCarrier
    port: _CountingPort
    prepared: Prepared
    members: NDArray[np.bool_]


@contextmanager
def pad_world(
    people: int, columns: int, openings: OpeningStore, *, tagged: bool = False
) -> Iterator[PadWorld]:
    """Everything that there is before keys are transferred."""
    rng = np.random.default_rng(0)
    members = rng.random(people) < 0.5
    cohort = Cohort.of(f"person-{number}" for number in range(people))
    values = np.where(members, "first", "second").astype(object).tolist()
    table = AttributeTable(cohort, {"group": values}, {"group": ("first", "second")})
    del values
    units, plan = units_for(EPSILON, DELTA), hash_bytes("isonomy/bench/v1")
    terms = Terms(cohort, {"group": ("first", "second")}, plan, units, DELTA)
    with (
        tempfile.TemporaryDirectory(dir=scratch_folder()) as folder,
        Ledger.create(Path(folder) / "ledger.jsonl", cap_units=units, delta=DELTA) as ledger,
    ):
        custodian = Custodian(table, ledger, plan=plan, member_key=bytes(32))
        custodian.reserve(units)
        theirs = PadCarrier(custodian, KeyStore(people, company=False))
        port = _CountingPort(RegulatorHalf(custodian, Identity.generate(), carrier=theirs))
        half, store = CompanyHalf(terms, b"", openings), KeyStore(people, company=True)
        question = Question(
            "blind",
            rng.normal(size=(people, columns)).astype(np.float32),
            np.arange(people),
            1.0,
            ("group",),
            Noise(share=0.1),
            "bench",
        )
        prepared = prepare(question, terms, 1)
        ours = PadRows(port, half, store, tagged=tagged, millionths=OPENED if tagged else 0)
        yield PadWorld(ours, theirs, port, prepared, members)


def measure_pads(people: int, columns: int, *, repeats: int = 3, wall: bool = False) -> PadCost:
    """Transfer keys, hide rows, gather sums; checks that the sums are the true ones."""
    clock = time.perf_counter if wall else time.process_time
    reuse_freed_memory()  # as every session does
    with pad_world(people, columns, MemoryOpenings()) as world:
        ours, theirs, prepared = world.company, world.regulator, world.prepared
        frame, resident = encode(prepared.query), reset_peak_mb()
        start = clock()
        ours.keys(prepared.query)
        transfer = clock() - start
        times, size = list[tuple[float, float]](), 0
        for _ in range(repeats):
            start = clock()
            request = ours.attempt(prepared, frame)
            sent = ours.frames(prepared, request)
            between, (_, *rest) = clock(), list(sent)
            read = theirs.read(request.header, iter(rest), lambda query, shapes: None)
            times.append((between - start, clock() - between))
            size = sum(map(len, rest))
        peak = status_mb("VmHWM") - resident
        released = ours.unmask(prepared, request, read.sums)
    expected = np.asarray(prepared.rows)[world.members].sum(axis=0, dtype=np.int64)
    if not np.array_equal(released[0], expected):
        raise AssertionError("the sums by pads are not the true sums: do not trust this build")
    company, regulator = (1e3 * min(column) for column in zip(*times, strict=True))
    return PadCost(
        people,
        columns,
        company,
        regulator,
        size,
        1e6 * transfer / people,
        world.port.sent / people,
        peak,
    )
