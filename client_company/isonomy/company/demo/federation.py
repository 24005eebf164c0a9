"""Step two of the demonstration: all processes of a federation, up to a trained model.

server, regulator's daemon, company's script, two nodes → run
"""

from __future__ import annotations

import json
import os
import sys
import tomllib
from pathlib import Path
from typing import Any

from isonomy.company.demo.display import Display
from isonomy.company.demo.layout import COMPANY, REGULATOR, Layout
from isonomy.company.demo.processes import Processes
from isonomy.company.federation.planning import PlanFiles

START_S, SESSION_S = 90.0, 900.0


def quiet_environment() -> dict[str, str]:
    """Of a process that trains: threads that spin would take the cores from the others."""
    return {**os.environ, "OMP_WAIT_POLICY": "passive"}


class Federation:
    """The processes of one session on this machine, but for the company's script.

    `start`, then `join` from any script or notebook, and `open_session` before or beside it; last
    `outcome`. `run` does all of this with the demonstration's script.
    """

    def __init__(self, layout: Layout, processes: Processes) -> None:
        self._layout, self._processes = layout, processes
        server = tomllib.loads(layout.server_config.read_text())
        self._port = int(server["door"]["port"])
        self._read = 0  # bytes of the company's progress that were shown

    def start(self) -> None:
        """Start server, regulator's daemon and both nodes; they get ready by themselves."""
        layout, processes = self._layout, self._processes
        self._server = processes.start(
            "server", ["isonomy-server", "serve", "-c", str(layout.server_config)]
        )
        self._regulator = processes.start(
            "regulator", ["isonomy-regulator", "serve", "-c", str(layout.regulator_config)]
        )
        for name, command in self._nodes().items():
            processes.start(f"{name}-node", command)

    def wait(self) -> None:
        """Wait until the server and the regulator's daemon are ready."""
        until = self._processes.until
        until(lambda: self._server.says('"ready"'), "the server", START_S)
        until(lambda: self._regulator.says('"ready"'), "the regulator's daemon", START_S)

    def open_session(self) -> None:
        """Wait until all are ready, and have the server open the plan's session."""
        self.wait()
        layout = self._layout
        public = str(PlanFiles.beside(layout.plan).public)
        self._run = self._processes.start(
            "server-run",
            ["isonomy-server", "run", public, "-c", str(layout.server_config), "--json"],
        )

    def outcome(self) -> dict[str, Any]:
        """Wait for the session's end; returns what the server says about it."""
        self._processes.finish(self._run, START_S)
        return self._run.last_json()

    def run(self, display: Display) -> dict[str, Any]:
        """Start everything, wait for the session's end; returns the server's outcome."""
        display.stage("starting the server and the parties")
        self.start()
        worker = (
            *(Path(sys.executable).name, "-m", "isonomy.company.demo.worker"),
            str(self._layout.root),
        )
        company = self._processes.start("company", worker, quiet_environment())
        self.open_session()
        display.stage("opening the session")

        def finished() -> bool:
            self._show_progress(display)
            return company.process.poll() is not None

        self._processes.until(finished, "the training", SESSION_S, idle=0.1)
        self._processes.finish(company)
        display.stage("ending the run")
        return self.outcome()

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

    def _show_progress(self, display: Display) -> None:
        """Pass on what the company's script has written since the last call."""
        path = self._layout.company.folder / "progress.jsonl"
        if path.exists():
            whole, _, _ = path.read_text()[self._read :].rpartition("\n")
            self._read += len(whole) + bool(whole)
            for line in filter(None, whole.split("\n")):
                display.event(json.loads(line))
