"""`isonomy bench alignment`: two lists of ids through the relay, beside openmined-psi.

| number | meaning |
|---|---|
| people, common | ids on each side, and how many are on both |
| seconds | from both lists of text to both results: ids checked, points, TLS, relay, files |
| cpu_seconds | processor time of both parties and the relay |
| peak_bytes_per_person | of the party that takes more, with its list of ids |
| wire_bytes_per_person | what a party sends and receives, per id of its list |
| openmined_seconds, openmined_cpu_seconds | openmined-psi 2 on the same ids, without a network |
| ratio | openmined_seconds / seconds |
| cpu_ratio | openmined_cpu_seconds / cpu_seconds: the same for one core |

Both parties are processes of their own and use all cores at the same time. openmined-psi runs its
client and its server one after the other in one process, with exact lists (RAW); it uses one core
and tells only the client who is common. On a machine that does other work, trust `cpu_ratio`.
openmined-psi is not a dependency; without it its figures are missing, and a line says so.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
from rich.table import Table

from isonomy.common.alignment.alignment import AlignmentPlan, checked_ids
from isonomy.common.alignment.session import align
from isonomy.common.alignment.store import Alignments
from isonomy.common.crypto.params import DEFAULT_PARAMETERS
from isonomy.company.demo.layout import COMPANY, REGULATOR, DemoSettings, Layout
from isonomy.company.demo.prepare import prepare
from isonomy.company.demo.processes import Processes
from isonomy.company.speed._memory import reset_peak_mb, status_mb
from isonomy.company.speed._relay import open_session, party_keys, start_relay

MISSING = "openmined-psi is not installed: pip install --no-deps openmined-psi"
RELAY_NAME = "localhost"


def measure(announce: Callable[[str], None], people: int) -> dict[str, Any]:
    """Measure both in one run; returns the figures by name."""
    with tempfile.TemporaryDirectory(prefix="isonomy-bench-") as folder:
        announce(f"{people:,} × {people:,} ids through the relay")
        result = _through_the_relay(Layout.make(Path(folder) / "parties"), people)
    if find_spec("private_set_intersection") is None:
        return {**result, "openmined": MISSING}
    announce("the same ids with openmined-psi")
    with _processes(1) as pool:
        other = pool.submit(_openmined, people).result()
    if other.pop("common") != result["common"]:
        raise AssertionError("openmined-psi found other people")
    return {
        **result,
        **other,
        "ratio": round(other["openmined_seconds"] / result["seconds"], 2),
        "cpu_ratio": round(other["openmined_cpu_seconds"] / result["cpu_seconds"], 2),
    }


def tables(result: dict[str, Any]) -> tuple[Table]:
    """The figures by name, as a table."""
    table = Table("", "", title="An alignment, on this machine", show_header=False)
    for name, value in result.items():
        table.add_row(name, value if isinstance(value, str) else f"{value:,}")
    return (table,)


@dataclass(frozen=True)
class _Part:
    """What one party's process measured."""

    began: float
    ended: float
    cpu: float
    peak_bytes: float
    wire_bytes: int
    common: int


def _through_the_relay(layout: Layout, people: int) -> dict[str, Any]:
    with Processes(layout.logs) as processes:
        prepare(layout, DemoSettings(people=400), processes)  # keys and certificates of all three
        plan = _agree(layout, people)
        public = layout.root / "alignment.public.json"
        public.write_bytes(plan.public().to_json())
        relay = psutil.Process(start_relay(layout, public, processes).process.pid)
        with _processes(2) as pool:
            list(pool.map(time.sleep, [0.5, 0.5]))  # both have started
            before = sum(relay.cpu_times()[:2])
            jobs = [(COMPANY, 0), (REGULATOR, people // 2)]
            futures = [pool.submit(_take_part, layout.root, *job, people) for job in jobs]
            company, regulator = (future.result() for future in futures)
        passed_on = sum(relay.cpu_times()[:2]) - before
    cpu = company.cpu + regulator.cpu + passed_on
    began, ended = min(company.began, regulator.began), max(company.ended, regulator.ended)
    return {
        "people": people,
        "common": company.common,
        "cores": os.cpu_count(),
        "seconds": round(ended - began, 2),
        "cpu_seconds": round(cpu, 2),
        "peak_bytes_per_person": round(max(company.peak_bytes, regulator.peak_bytes) / people),
        "wire_bytes_per_person": round(company.wire_bytes / people),
    }


def _agree(layout: Layout, people: int) -> AlignmentPlan:
    """An alignment of so many people each, in the folder of both."""
    cards = {name: party_keys(layout, name).card() for name in (COMPANY, REGULATOR)}
    plan = AlignmentPlan.of(
        {
            "name": "bench",
            "companies": [cards[COMPANY]],
            "regulator": cards[REGULATOR],
            "relay_name": RELAY_NAME,
            "parameters": DEFAULT_PARAMETERS.name,
            "company_people": people,
            "regulator_people": people,
        }
    )
    plan.save(layout.root / "alignment.json")
    return plan


def _processes(number: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(number, mp_context=multiprocessing.get_context("spawn"))


def _ids(first: int, people: int) -> list[str]:
    return [f"Customer-{number:09d}" for number in range(first, first + people)]


def _take_part(root: Path, name: str, first: int, people: int) -> _Part:
    """One party, in a process of its own."""
    layout = Layout(root)
    plan = AlignmentPlan.load(root / "alignment.json")
    store = Alignments(root / name / "alignments")
    store.approve(plan, party_keys(layout, name))
    resident, spent = reset_peak_mb(), time.process_time()
    ids, began = _ids(first, people), time.time()
    with open_session(layout, name, plan) as session:
        common = align(session, checked_ids(ids), store)
        ended, cpu = time.time(), time.process_time() - spent
    peak = (status_mb("VmHWM") - resident) * 2**20
    people = common if isinstance(common, int) else len(common)
    return _Part(began, ended, cpu, peak, session.bytes, people)


def _openmined(people: int) -> dict[str, Any]:
    """Both of its sides, in a process of its own; the client learns who is common."""
    import private_set_intersection.python as psi

    company, regulator = _ids(0, people), _ids(people // 2, people)
    began, spent = time.perf_counter(), time.process_time()
    client, server = psi.client.CreateWithNewKey(True), psi.server.CreateWithNewKey(True)
    setup = server.CreateSetupMessage(0.0, people, regulator, psi.DataStructure.RAW)
    response = server.ProcessRequest(client.CreateRequest(company))
    common = client.GetIntersection(setup, response)
    return {
        "common": len(common),
        "openmined_seconds": round(time.perf_counter() - began, 2),
        "openmined_cpu_seconds": round(time.process_time() - spent, 2),
    }
