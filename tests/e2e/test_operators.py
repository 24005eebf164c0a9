"""What an operator sees, with real processes: who is waited for and why, metrics, a killed run."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from isonomy.common.agreements.plan import Plan
from isonomy.common.base.errors import WIRE_CODES
from isonomy.common.node.node import free_port
from isonomy.common.wire.envelopes import PURPOSES
from isonomy.company.demo.federation import Federation
from isonomy.company.demo.layout import DemoSettings, Layout
from isonomy.company.demo.prepare import prepare
from isonomy.company.demo.processes import Processes, Running
from isonomy.company.federation.planning import PlanFiles
from isonomy.server.config import ServerConfig
from isonomy.server.flower.operator import running

END_S = 20.0  # a killed `run` is noticed after one sign of life (5 s); the rest is a slow machine
SCRIPT = """
import sys, time
from pathlib import Path
from isonomy.company.federation.joining import join
root = Path(sys.argv[1])
with join(root / "plan.json", home=root / "company", wait_s=120) as oracle:
    for number in range(1000):
        print("answer", oracle.counts(share=0.001).receipt.query_id, flush=True)
        time.sleep(0.2)
"""


class Town:
    """A federation whose processes are started one after the other."""

    def __init__(self, layout: Layout, processes: Processes) -> None:
        self.layout, self._processes = layout, processes
        self.ports = {"server": free_port(), "regulator": free_port()}
        self._federation = Federation(layout, processes)

    def start(self, name: str, *command: str) -> Running:
        return self._processes.start(name, list(command))

    def start_server(self) -> None:
        config = ("-c", str(self.layout.server_config))
        port = str(self.ports["server"])
        server = self.start("server", "isonomy-server", "serve", *config, "--metrics-port", port)
        self.until(lambda: server.says('"ready"'))

    def start_nodes(self) -> None:
        for name, command in self._federation._nodes().items():
            self.start(f"{name}-node", *command)

    def start_daemon(self) -> Running:
        home = ("-c", str(self.layout.regulator_config))
        port = str(self.ports["regulator"])
        return self.start("daemon", "isonomy-regulator", "serve", *home, "--metrics-port", port)

    def start_run(self) -> Running:
        public = str(PlanFiles.beside(self.layout.plan).public)
        return self.start("run", "isonomy-server", "run", public, *self.config)

    def start_script(self) -> Running:
        python = Path(sys.executable).name
        return self.start("script", python, "-c", SCRIPT, str(self.layout.root))

    @property
    def config(self) -> tuple[str, str]:
        return "-c", str(self.layout.server_config)

    def until(self, ready: Callable[[], bool], within_s: float = 120.0) -> None:
        self._processes.until(ready, "the next step", within_s, idle=0.2)

    def kill(self, running: Running) -> None:
        """No last word."""
        os.killpg(running.process.pid, signal.SIGKILL)
        running.process.wait()
        self._processes._running.remove(running)

    def ask(self, *command: str) -> dict[str, Any]:
        """What a command says with `--json`."""
        program = Path(sys.executable).with_name(command[0])
        done = subprocess.run(
            [program, *command[1:], "--json"], capture_output=True, text=True, check=True
        )
        return dict(json.loads(done.stdout))

    def parties(self) -> dict[str, Any]:
        """Where the parties of the only session stand; empty if none is on."""
        status: Any = running(ServerConfig.load(self.layout.server_config)) or {"sessions": []}
        return {party["name"]: party for row in status["sessions"] for party in row["parties"]}

    def get(self, who: str, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.ports[who]}{path}") as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, ""


@pytest.fixture
def town(tmp_path: Path) -> Iterator[Town]:
    layout = Layout.make(tmp_path / "run")
    with Processes(layout.logs) as processes:
        prepare(layout, DemoSettings(people=400), processes)
        yield Town(layout, processes)


def test_an_operator_sees_what_goes_on(town: Town) -> None:
    home = ("--home", str(town.layout.company.folder))
    assert town.ask("isonomy-server", "status", *town.config)["server"] is None
    town.start_server()
    assert town.get("server", "/ready")[0] == 200
    assert town.ask("isonomy-server", "status", *town.config)["server"]["sessions"] == []
    run = town.start_run()
    town.until(lambda: run.says("its node is not connected"))

    town.start_nodes()
    script = town.start_script()
    town.until(lambda: run.says("regulator (no daemon listens on the party's local socket"))
    town.until(lambda: script.says("Waiting for regulator (not connected to the session)"))
    assert {name: party["state"] for name, party in town.parties().items()} == {
        "company": "connected",
        "regulator": "awaited",
    }
    (mine,) = town.ask("isonomy-company", "status", *home)["runs"]
    assert (mine["state"], mine["waits_for"]) == (
        "waiting",
        "regulator (not connected to the session)",
    )

    daemon = town.start_daemon()
    town.until(lambda: script.says("answer"))
    town.until(lambda: town.parties()["regulator"]["state"] == "connected")
    check_metrics(town)

    town.kill(daemon)
    town.until(lambda: town.parties()["regulator"]["state"] == "awaited")
    assert town.parties()["regulator"]["why"]

    town.kill(run)
    town.until(lambda: not town.parties(), END_S)
    (session,) = town.ask("isonomy-server", "list", *town.config)["sessions"]
    assert session["state"] == "broken off"
    assert "command is gone" in session["reason"]
    town.until(lambda: script.process.poll() is not None, 30.0)
    town._processes._running.remove(script)
    (mine,) = town.ask("isonomy-company", "runs", *home)["runs"]
    assert (mine["state"], mine["code"]) == ("failed", 65)  # SessionClosed
    assert "command is gone" in mine["reason"]
    assert mine["exchanges"] > 0
    check_stop(town)


def check_stop(town: Town) -> None:
    """A session that nobody joins is stopped by the beginning of its plan's hash."""
    plan = Plan.load(town.layout.plan).hash.hex()
    run = town.start_run()
    town.until(lambda: bool(town.parties()))
    stopped = town.ask("isonomy-server", "stop", plan[:8], *town.config)
    assert stopped == {"schema": "isonomy-server/stop/v1", "stopped": plan}
    town.until(lambda: run.process.poll() is not None, END_S)
    assert run.process.returncode != 0
    assert run.says("stopped")
    town._processes._running.remove(run)
    (session,) = town.ask("isonomy-server", "list", *town.config)["sessions"]
    assert session["state"] == "broken off"
    assert "stopped" in session["reason"]


def check_metrics(town: Town) -> None:
    """They count what happened, and hold nothing about anybody."""
    time.sleep(1.0)
    texts = {who: town.get(who, "/metrics")[1] for who in town.ports}
    assert number(texts["server"], "isonomy_server_sessions") == 1
    assert number(texts["server"], "isonomy_server_nodes_connected") == 2
    assert number(texts["server"], "isonomy_relay_parties_connected") == 2
    assert number(texts["regulator"], "isonomy_regulator_sessions") == 1
    assert number(texts["regulator"], "isonomy_regulator_answers_total") >= 1
    assert 0 < number(texts["regulator"], "isonomy_regulator_budget_left_ratio") < 1
    plan = Plan.load(town.layout.plan)
    people = PlanFiles.beside(town.layout.plan).people.read_text().split()
    words = [plan.hash.hex()[:12], plan.name, plan.regulator.name + '"', "company"]
    words += [label for labels in plan.groups.values() for label in labels]
    words += [*plan.groups, *people]
    allowed = {*WIRE_CODES, "InternalError", "link", *PURPOSES, "done", "broken off"}
    for text in texts.values():
        samples = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
        assert samples
        assert [word for word in words if word and word in samples] == []
        values = re.findall(r'(?<!le)="([^"]*)"', samples)
        assert set(values) <= allowed


def number(text: str, name: str) -> float:
    (value,) = re.findall(rf"^{name} (\S+)$", text, re.M)
    return float(value)
