"""Step two of the demonstration: all processes of a federation, up to a trained model.

server, regulator's daemon, company's script, two nodes → run
"""

from __future__ import annotations

import json
import os
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from isonomy.company.demo.display import Display
from isonomy.company.demo.layout import COMPANY, REGULATOR, Layout
from isonomy.company.demo.processes import Processes
from isonomy.company.federation.planning import PlanFiles

START_S, SESSION_S = 90.0, 900.0


class Federation:
    """The processes of one session on this machine."""

    def __init__(self, layout: Layout, processes: Processes, display: Display) -> None:
        self._layout, self._processes, self._display = layout, processes, display
        server = tomllib.loads(layout.server_config.read_text())
        self._port = int(server["door"]["port"])
        self._read = 0  # bytes of the company's progress that were shown

    def run(self) -> dict[str, Any]:
        """Start everything, wait for the session's end; returns the server's outcome."""
        layout, processes = self._layout, self._processes
        self._display.stage("starting the server and the parties")
        config = str(layout.server_config)
        server = processes.start("server", ["isonomy-server", "serve", "-c", config])
        regulator = processes.start(
            "regulator", ["isonomy-regulator", "serve", "-c", str(layout.regulator_config)]
        )
        # Threads that spin while they wait would take the cores from the other processes.
        worker = (Path(sys.executable).name, "-m", "isonomy.company.demo.worker", str(layout.root))
        company = processes.start("company", worker, {**os.environ, "OMP_WAIT_POLICY": "passive"})
        for name, command in self._nodes().items():
            processes.start(f"{name}-node", command)
        self._until(lambda: server.says('"ready"'), "the server", START_S)
        self._until(lambda: regulator.says('"ready"'), "the regulator's daemon", START_S)
        self._display.stage("opening the session")
        public = str(PlanFiles.beside(layout.plan).public)
        run = processes.start("server-run", ["isonomy-server", "run", public, "-c", config])
        self._until(lambda: company.process.poll() is not None, "the training", SESSION_S)
        processes.finish(company)
        self._display.stage("ending the run")
        processes.finish(run, START_S)
        return run.last_json()

    def _nodes(self) -> dict[str, list[str]]:
        """The command of each party's Flower node."""
        sockets = {COMPANY: self._layout.company.socket, REGULATOR: self._layout.regulator_socket}
        return {
            name: [
                *(f"isonomy-{name}", "node", "--server", f"127.0.0.1:{self._port}"),
                *("--folder", str(self._layout.node(name)), "--socket", str(socket)),
            ]
            for name, socket in sockets.items()
        }

    def _until(self, ready: Callable[[], bool], what: str, timeout_s: float) -> None:
        def ready_or_shown() -> bool:
            self._show_progress()
            return ready()

        self._processes.until(ready_or_shown, what, timeout_s, idle=0.1)

    def _show_progress(self) -> None:
        """Pass on what the company's script has written since the last call."""
        path = self._layout.company.folder / "progress.jsonl"
        if path.exists():
            whole, _, _ = path.read_text()[self._read :].rpartition("\n")
            self._read += len(whole) + bool(whole)
            for line in filter(None, whole.split("\n")):
                self._display.event(json.loads(line))
