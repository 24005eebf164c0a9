"""Kill −9 of each process of a running federation, through Flower: the run goes on.

The data plane's own matrix of faults is in tests/common/session; here the whole chain is real:
server, nodes, daemons.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from isonomy.common.ledger.ledger import verify_ledger
from isonomy.company.demo.federation import Federation
from isonomy.company.demo.layout import DemoSettings, Layout
from isonomy.company.demo.prepare import prepare
from isonomy.company.demo.processes import Processes, Running
from isonomy.company.federation.planning import PlanFiles

pytestmark = pytest.mark.slow
QUESTIONS = 14
SCRIPT = f"""
import json, sys, time
from pathlib import Path
from isonomy.company.federation.joining import join
root = Path(sys.argv[1])
with join(root / "plan.json", home=root / "company") as oracle, open(root / "answers", "a") as out:
    for number in range({QUESTIONS}):
        answer = oracle.counts(share=0.05)
        line = [number, answer.receipt.query_id, answer.values.ravel().tolist()]
        print(json.dumps(line), file=out, flush=True)
        time.sleep(1.5)
    print("done", file=out, flush=True)
"""


class Town:
    """A federation with a slow company, whose processes can be killed."""

    def __init__(self, layout: Layout, processes: Processes) -> None:
        self.layout, self.processes = layout, processes
        self._federation = Federation(layout, processes)

    def begin(self) -> None:
        self.server = self.start_server("server")
        self.regulator, self.company = self.start_regulator(), self.start_company()
        self.nodes = {
            name: self.processes.start(f"{name}-node", command)
            for name, command in self._federation._nodes().items()
        }
        self.run = self.start_run("run")

    def start_server(self, name: str) -> Running:
        config = str(self.layout.server_config)
        server = self.processes.start(name, ["isonomy-server", "serve", "-c", config])
        self.until(lambda: server.says('"ready"'))
        return server

    def start_regulator(self) -> Running:
        config = str(self.layout.regulator_config)
        return self.processes.start("regulator", ["isonomy-regulator", "serve", "-c", config])

    def start_company(self) -> Running:
        python = Path(sys.executable).name
        return self.processes.start("company", [python, "-c", SCRIPT, str(self.layout.root)])

    def start_run(self, name: str) -> Running:
        public = str(PlanFiles.beside(self.layout.plan).public)
        command = ["isonomy-server", "run", public, "-c", str(self.layout.server_config)]
        return self.processes.start(name, command)

    def until(self, ready: Callable[[], bool]) -> None:
        self.processes.until(ready, "the next step", 180.0, idle=0.2)

    @property
    def lines(self) -> list[str]:
        path = self.layout.root / "answers"
        return path.read_text().splitlines() if path.exists() else []

    def kill(self, running: Running) -> None:
        os.killpg(running.process.pid, signal.SIGKILL)
        running.process.wait()
        self.processes._running.remove(running)


@pytest.fixture
def town(tmp_path: Path) -> Iterator[Town]:
    layout = Layout.make(tmp_path / "run")
    with Processes(layout.logs) as processes:
        prepare(layout, DemoSettings(people=1000), processes)
        town = Town(layout, processes)
        town.begin()
        yield town


def test_each_party_is_killed_in_turn_and_the_run_goes_on(town: Town) -> None:
    town.until(lambda: len(town.lines) >= 2)
    town.kill(town.company)
    before = town.lines
    town.company = town.start_company()
    town.until(lambda: len(town.lines) >= len(before) + 4)
    again = town.lines[len(before) :]
    assert again[: len(before)] == before  # the same questions get the same answers

    town.kill(town.regulator)
    seen = len(town.lines)
    town.regulator = town.start_regulator()
    town.until(lambda: len(town.lines) >= seen + 2)

    town.kill(town.nodes["company"])  # the session does not need it
    command = town._federation._nodes()["company"]
    town.nodes["company"] = town.processes.start("company-node-again", command)

    for number, end in enumerate((town.kill, town.processes.end)):  # −9, and politely
        end(town.server)
        town.until(lambda: town.run.process.poll() is not None)
        assert town.run.process.returncode == 66  # RunFailed
        town.processes._running.remove(town.run)
        town.server = town.start_server(f"server-{number}")
        seen = len(town.lines)
        town.run = town.start_run(f"run-{number}")
        town.until(lambda seen=seen: len(town.lines) > seen)
    town.until(lambda: "done" in town.lines)
    town.processes.finish(town.run, 120.0)

    answers = [json.loads(line) for line in town.lines if line != "done"]
    by_query = {query: values for _, query, values in answers}
    assert len(by_query) == QUESTIONS
    assert all(by_query[query] == values for _, query, values in answers)
    assert verify_ledger(town.layout.ledger).debits == QUESTIONS  # each paid once
