"""`isonomy bench session`: the relay beside Flower's own messages, the demonstration beside local.

| number | meaning |
|---|---|
| leg_2mb_ms | 2 MB from regulator to company through the relay: TLS, sealing, opening; median |
| flower_leg_2mb_ms | the same bytes in a Flower message: half of a round trip; median |
| demo_s | a whole demonstration, from keys to the last process taken down; median |
| startup_s | the part of it that is not training: keys, processes, waiting, taking down |
| startup_seconds | the stages before the first query, in seconds each |
| local_s | its training on the local oracle, in a process alone, in turns with them; median |
| demo_over_local | seconds of a demonstration's training, median, over local_s |
| bytes_per_exchange | what passed the relay in the demonstration, per exchange |

All files are in memory where there is room, as those of rehearsals: what a disk takes for its
fsyncs, with whatever else it has to do, is not in the figures.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console

from isonomy.common.agreements.plan import Plan
from isonomy.common.session.sealed_links import Parcel
from isonomy.common.sums.local import scratch_folder
from isonomy.company.demo.display import Display
from isonomy.company.demo.federation import START_S, quiet_environment
from isonomy.company.demo.layout import COMPANY, REGULATOR, DemoSettings, Layout
from isonomy.company.demo.prepare import prepare
from isonomy.company.demo.processes import Processes
from isonomy.company.demo.run import run_demo
from isonomy.company.federation.planning import PlanFiles
from isonomy.company.speed._relay import figures, open_session, start_relay

LEG_BYTES = 2_000_000
LEGS, WARM_UP = 41, 5
FLOWER_LEGS = 4
DEMOS = 3
STARTUP_STAGES = 3  # keys and plan, processes, the session's opening; then training begins

tables = partial(figures, title="Session, on this machine")


def measure(announce: Callable[[str], None], people: int) -> dict[str, Any]:
    """Measure everything in one run."""
    with tempfile.TemporaryDirectory(prefix="isonomy-bench-", dir=scratch_folder()) as folder:
        summaries, local = _demonstrations(announce, Path(folder), DemoSettings(people=people))
        legs = Layout.make(Path(folder) / "legs")
        with Processes(legs.logs) as processes:
            prepare(legs, DemoSettings(people=400), processes)
            announce("legs of 2 MB through the relay")
            leg = _relay_leg(legs, processes)
            announce("legs of 2 MB as Flower messages")
            flower = _flower_leg(legs, processes)
    local_s, summary = median(local), summaries[-1]
    return {
        "leg_2mb_ms": round(leg, 3),
        "flower_leg_2mb_ms": round(flower, 1),
        "ratio": round(flower / leg, 1),
        "demo_s": round(median(each["seconds"] for each in summaries), 2),
        "local_s": round(local_s, 2),
        "startup_s": round(median(each["startup_seconds"] for each in summaries), 2),
        "startup_seconds": dict(list(summary["stages"].items())[:STARTUP_STAGES]),
        "demo_over_local": round(
            median(each["training_seconds"] for each in summaries) / local_s, 3
        ),
        "bytes_per_exchange": round(summary["bytes"] / summary["exchanges"]),
    }


def _demonstrations(
    announce: Callable[[str], None], folder: Path, settings: DemoSettings
) -> tuple[list[dict[str, Any]], list[float]]:
    """Summaries of demonstrations, and seconds of the same training alone, in turns.

    So a machine that slows down slows both.
    """
    summaries, local = list[dict[str, Any]](), list[float]()
    for number in range(1, DEMOS + 1):
        announce(f"demonstration {number} of {DEMOS}")
        layout = Layout.make(folder / f"demo-{number}")
        quiet = Display(Console(quiet=True), settings.epsilon)
        summaries.append(run_demo(layout, settings, quiet).summary)
        announce("the same training on the local oracle")
        with Processes(layout.logs) as processes:
            local.append(_local_seconds(layout, processes))
    return summaries, local


def _local_seconds(layout: Layout, processes: Processes) -> float:
    """Seconds of the demonstration's training with the regulator's side in its process."""
    fresh = layout.root.with_name(f"{layout.root.name}-local")
    module = "isonomy.company.speed._local_training"
    command = [Path(sys.executable).name, "-m", module, str(layout.root), str(fresh)]
    running = processes.start("local", command, quiet_environment())
    processes.finish(running, START_S)
    return float(running.last_json()["seconds"])


def _relay_leg(layout: Layout, processes: Processes) -> float:
    """Median milliseconds of a leg, regulator → company, through a relay process."""
    relay = start_relay(layout, PlanFiles.beside(layout.plan).public, processes)
    plan = Plan.load(layout.plan)
    company, regulator = (open_session(layout, name, plan) for name in (COMPANY, REGULATOR))
    payload, started, times = os.urandom(LEG_BYTES), [0.0], []
    turn = threading.Semaphore(0)

    def send() -> None:
        generation = regulator.generation(COMPANY)
        for exchange in range(1, LEGS + 1):
            turn.acquire()
            started[0] = time.perf_counter()
            frame = Parcel(COMPANY, "columns", "leg", exchange, 0, True, payload)
            regulator.send(COMPANY, frame, generation=generation)

    with company, regulator:
        company.generation(REGULATOR)
        sender = threading.Thread(target=send, daemon=True)
        sender.start()
        for _ in range(LEGS):
            turn.release()
            company.receive(REGULATOR)
            times.append(time.perf_counter() - started[0])
        sender.join()
    processes.end(relay)
    return 1000 * median(times[WARM_UP:])


def _flower_leg(layout: Layout, processes: Processes) -> float:
    """Milliseconds of a leg as a Flower message to one node."""
    config = str(layout.server_config)
    port = int(tomllib.loads(layout.server_config.read_text())["door"]["port"])
    server = processes.start("server", ["isonomy-server", "serve", "-c", config])
    processes.until(lambda: server.says('"ready"'), "the server", START_S)
    processes.start(
        "node",
        [
            *("isonomy-company", "node", "--server", f"127.0.0.1:{port}"),
            *("--folder", str(layout.node(COMPANY)), "--socket", str(layout.company.socket)),
        ],
    )
    legs = ["--legs", str(FLOWER_LEGS), "--size", str(LEG_BYTES)]
    run = processes.run(
        "measure", ["isonomy-server", "measure", "--json", "-c", config, *legs], 300.0
    )
    return float(run.last_json()["leg_ms"])
