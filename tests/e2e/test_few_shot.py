"""A few-shot run on scikit-learn's digits: every command of docs/few-shot-federation.md.

The relay, the regulator's daemon and the company's command are processes of their own, with TLS
between them; the slow test adds Flower's (server, nodes, ServerApp, ClientApps), which the page's
`isonomy-server run` needs: here a relay takes its place. Only the daemon's noise is a test's:
counted, so that the run with both sides in one process must end with the same θ, bit for bit.
"""

from __future__ import annotations

import hashlib
import json
import shlex
import shutil
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from few_shot_kit import save_pool
from page_kit import DOCS, Step, Walk, blocks
from round_noise import PerRound
from server_kit import certify, make_server, run, start_node

from isonomy.common.agreements.few_shot_plan import FewShotPlan
from isonomy.common.agreements.few_shot_settings import FewShotSettings
from isonomy.common.few_shot.learning.evaluate import count_decisions, evaluate
from isonomy.common.few_shot.learning.learners import CompanyLearner
from isonomy.common.few_shot.learning.memory import run_in_memory
from isonomy.common.ledger.entries import read_entries
from isonomy.common.ledger.ledger import verify_ledger
from isonomy.common.node.bridge import DaemonAbsent, call
from isonomy.common.privacy.task_counts import SCALE
from isonomy.common.report.few_shot import FewShotReport
from isonomy.company.cli.company import app as company_app
from isonomy.company.demo.few_shot import ROUNDS, SETTINGS
from isonomy.company.demo.processes import Processes, Running
from isonomy.company.few_shot.data import Pools, digits_pools
from isonomy.company.few_shot.model import FewShotModel
from isonomy.regulator.cli import app as regulator_app

PARTIES = ("company", "regulator")
STEPS = [step for block in blocks(DOCS / "few-shot-federation.md") for step in block.steps()]
TASKS, PLAN, AGREED, APPROVED, DAEMON_STEP, RUN, SERVER, *REPORT = STEPS
DAEMON = """
import sys
sys.path[:0] = sys.argv[1].split(":")
import torch
torch.set_num_threads(1)
from isonomy.regulator.serving import _few_shot as few_shot
from isonomy.regulator.cli import app
from round_noise import PerRound
few_shot.learner = lambda plan, tasks: PerRound(plan.settings, tasks.pool)
del sys.argv[1]
app()
"""
COMPANY = """
import sys
import torch
torch.set_num_threads(1)
from isonomy.company.cli.main import app
app()
"""
TESTS = str(Path(__file__).parents[1] / "kits")


class Town:
    """The folders of the three parties below one root, which is the current folder."""

    def __init__(
        self, walk: Walk, processes: Processes, pools: Pools, rounds: int = ROUNDS
    ) -> None:
        self.walk, self.rounds, root = walk, rounds, walk.folder
        self.root, self.processes, self.pools = root, processes, pools
        self.config = str(root / "server" / "server.toml")
        self.home, self.company = str(root / "regulator"), str(root / "company")

    def prepare(self) -> None:
        """Keys, certificates, tasks, plan, approvals: each by its own command."""
        root = self.root
        make_server(root)
        run(
            regulator_app,
            *("init", self.home, "--epsilon", "20", "--delta", "1e-5"),
            *("--unlock-file", str(root / "unlock.key")),
        )
        run(company_app, "keys", "--name", "company", "--home", self.company)
        run(company_app, "tls-request", "--home", self.company)
        certify(root, PARTIES)
        self.agree()

    def agree(self) -> None:
        root, pool = self.root, self.pools.regulator
        ids = np.array([f"image-{number}" for number in range(len(pool))])
        arrays = {"inputs": pool.inputs, "labels": pool.labels, "groups": pool.groups}
        np.savez(root / "tasks.npz", **arrays, positive=pool.positive, ids=ids)
        save_pool(self.pools.company, root / "company.npz")
        (root / "settings.json").write_text(json.dumps({**SETTINGS, "rounds": self.rounds}))
        for step in (TASKS, PLAN, AGREED, APPROVED):
            self.walk.enter(step)

    def through_flower(self) -> dict[str, Any]:
        """Server, nodes, ServerApp and ClientApps; what the company prints at its end."""
        processes = self.processes
        server = processes.start("server", ["isonomy-server", "serve", "-c", self.config])
        daemon, script = self.start_parties()
        for name in PARTIES:
            start_node(processes, self.root, name)
        processes.until(lambda: server.says('"ready"'), "the server", 90.0)
        processes.until(lambda: daemon.says('"ready"'), "the regulator", 90.0)
        session = processes.start("run", shlex.split(SERVER.command))
        printed = self.end_of(script)
        processes.finish(session, 90.0)
        return printed

    def through_relay(self) -> dict[str, Any]:
        """A relay started by hand; its tickets are handed over as a node would do it."""
        processes, tickets = self.processes, self.root / "tickets"
        relay = self.start_relay("relay")
        daemon, script = self.start_parties()
        processes.until(lambda: relay.says('"ready"'), "the relay", 90.0)
        processes.until(lambda: daemon.says('"ready"'), "the regulator", 90.0)
        with ThreadPoolExecutor(len(PARTIES)) as pool:
            jobs = [pool.submit(self.hand_over, tickets, name) for name in PARTIES]
            printed = self.end_of(script)
            assert [job.result(30)["reconnects"] for job in jobs] == [0, 0]
        return printed

    def start_relay(self, name: str) -> Running:
        tickets = ("--tickets", str(self.root / "tickets"))
        command = ["isonomy-server", "relay", self.public, *tickets, "-c", self.config]
        return self.processes.start(name, command)

    def hand_over(self, tickets: Path, name: str) -> dict[str, Any]:
        text = (tickets / f"{name}.ticket").read_text()
        for _ in range(300):
            try:
                return call(self.socket(name), {"type": "session", "ticket": text})
            except DaemonAbsent:
                time.sleep(0.2)
        raise AssertionError(f"{name} never listened")

    def start_parties(self) -> tuple[Running, Running]:
        return self.start_daemon("daemon"), self.start_company("company")

    def start_daemon(self, name: str) -> Running:
        _, *words = arguments(DAEMON_STEP)
        return self.python(name, DAEMON, TESTS, *words)

    def start_company(self, name: str) -> Running:
        _, *words = arguments(RUN)
        return self.python(name, COMPANY, *words, "--json")

    def kill(self, running: Running) -> None:
        """No last word: kill −9."""
        running.process.kill()
        running.process.wait()
        self.processes._running.remove(running)

    def end_of(self, script: Running) -> dict[str, Any]:
        self.processes.finish(script, 180.0)
        lines = [line for line in script.log.read_text().splitlines() if line.startswith("{")]
        return dict(json.loads(lines[-1]))

    @property
    def public(self) -> str:
        return str(self.root / "few-shot.public.json")

    def socket(self, name: str) -> Path:
        file_name = "daemon.sock" if name == "regulator" else "company.sock"
        return self.root / name / "run" / file_name

    def python(self, name: str, text: str, *arguments: str) -> Running:
        return self.processes.start(name, [Path(sys.executable).name, "-c", text, *arguments])


def arguments(step: Step) -> list[str]:
    """The words of a command that the page runs in the background."""
    return shlex.split(step.command.removesuffix("&"))


@pytest.fixture
def town(tmp_path: Path) -> Iterator[Town]:
    with Processes(tmp_path / "logs") as processes, Walk(tmp_path) as walk:
        prepared = Town(walk, processes, digits_pools(0))
        prepared.prepare()
        yield prepared


def in_memory(pools: Pools, settings: FewShotSettings) -> Any:
    """The same run with both sides in this process, the vectors added and nothing else."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        company = CompanyLearner(settings, pools.company)
        regulator = PerRound(settings, pools.regulator)
        return run_in_memory(company, regulator, settings.rounds)
    finally:
        torch.set_num_threads(threads)


def test_the_same_model_as_with_both_sides_in_one_process(town: Town) -> None:
    check(town, town.through_relay())


@pytest.mark.slow
def test_the_same_although_everybody_is_killed(tmp_path: Path) -> None:
    """kill −9 of company, regulator and relay in turn, each in the middle of the rounds."""
    with Processes(tmp_path / "logs") as processes, Walk(tmp_path) as walk:
        town = Town(walk, processes, digits_pools(0), rounds=60)
        town.prepare()
        tickets, before = tmp_path / "tickets", tmp_path / "before"
        relay = town.start_relay("relay")
        daemon, script = town.start_parties()
        processes.until(lambda: relay.says('"ready"'), "the relay", 90.0)
        shutil.copytree(tickets, before)  # a relay that is started again makes new ones
        processes.until(lambda: daemon.says('"ready"'), "the regulator", 90.0)
        with ThreadPoolExecutor(8) as pool:
            for name in PARTIES:
                pool.submit(town.hand_over, before, name)
            processes.until(lambda: rounds_of(tmp_path) >= 10, "ten rounds", 90.0)
            town.kill(script)
            script = town.start_company("company-again")
            pool.submit(town.hand_over, before, "company")
            processes.until(lambda: rounds_of(tmp_path) >= 25, "25 rounds", 90.0)
            town.kill(daemon)
            daemon = town.start_daemon("daemon-again")
            pool.submit(town.hand_over, before, "regulator")
            processes.until(lambda: rounds_of(tmp_path) >= 40, "40 rounds", 90.0)
            town.kill(relay)
            town.start_relay("relay-again")
            printed = town.end_of(script)
    check(town, printed)


def rounds_of(root: Path) -> int:
    return (root / "regulator" / "ledger.jsonl").read_text().count('"type":"debit"')


@pytest.mark.slow
def test_the_same_through_flower(town: Town) -> None:
    check(town, town.through_flower())


def check(town: Town, printed: dict[str, Any]) -> None:
    plan = FewShotPlan.load(town.root / "few-shot.json")
    saved = FewShotModel.load(town.root / "model")
    theta = saved.theta
    assert saved.notes["rounds"] == town.rounds
    assert theta.tobytes() == in_memory(town.pools, plan.settings).tobytes()
    fresh = CompanyLearner(plan.settings, town.pools.company).theta()
    accuracy = [
        evaluate(initial, plan.settings, town.pools.test, tasks=20).natural.accuracy
        for initial in (fresh, theta)
    ]
    assert accuracy[1] > accuracy[0] + 0.15, "nothing was learned"
    assert (printed["rounds"], printed["complete"], printed["epsilon_cap"]) == (
        town.rounds,
        True,
        8.0,
    )
    assert printed["bytes_per_round"] >= plan.round_bytes
    ledger = town.root / "regulator" / "ledger.jsonl"
    assert verify_ledger(ledger).debits == town.rounds + 1
    rounds = [entry.event["round"] for entry in read_entries(ledger) if entry.kind == "debit"]
    assert rounds == list(range(town.rounds + 1)), "the last one is the measurement"
    check_report(town)
    files = [file for file in (town.root / "regulator").rglob("*") if file.is_file()]
    assert not [file for file in files if b"image-1" in file.read_bytes()], "an id in the clear"


def check_report(town: Town) -> None:
    """Report, countersignature and verification, as the page has them."""
    root = town.root
    for step in REPORT:
        town.walk.enter(step)
    ledger = str(root / "regulator" / "ledger.jsonl")
    keys = ("--card", str(root / "regulator" / "keys" / "card.json"), "--plan", "few-shot.json")
    run(regulator_app, "verify", "report", *keys, "--ledger", ledger)
    report = FewShotReport.load(root / "report" / "report.json")
    assert report.training.rounds == town.rounds
    assert report.company is not None
    weights = (root / "model" / "model.safetensors").read_bytes()
    assert report.company.model_sha256 == hashlib.sha256(weights).hexdigest()
    check_measured(town, report)


def check_measured(town: Town, report: FewShotReport) -> None:
    """The intervals in the signed report hold what the model does on the very same tasks."""
    measured, saved = report.measured, FewShotModel.load(town.root / "model")
    assert measured is not None
    assert (measured.tasks, measured.rounds) == (8, town.rounds)
    assert saved.notes["measured_parameters"] == measured.theta
    learner = PerRound(saved.settings, town.pools.regulator)
    assert learner._measured is not None
    exact = count_decisions(saved.theta, saved.settings, learner.pool, learner._measured)
    sigma = report.plan.measure_noise
    assert (np.abs(np.array(measured.values) - SCALE * exact) < 6 * sigma).all()
    right, people = exact[4:8], exact[8:] / report.plan.counts.weight
    page = (town.root / "report" / "report.html").read_text()
    for group, limits in enumerate(measured.table.rates["accuracy"]):
        cells = [2 * group, 2 * group + 1]
        accuracy = 1e6 * right[cells].sum() / people[cells].sum()
        if limits is None:  # eight tasks: the groups of a draw are near the least that is shown
            assert people[cells].sum() < 5 * sum(report.plan.counts.halves)
        else:
            assert limits[1] < accuracy < limits[2]
    assert "How accurate and how fair" in page
    assert "Measured after" in page
