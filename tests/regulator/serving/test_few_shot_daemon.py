"""A few-shot plan as its owners do it: tasks, approval, the daemon, and what is refused."""

from __future__ import annotations

import json
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from regulator_kit import hand_over, run_regulator
from report_kit import OFFICER
from round_kit import FINGERPRINT, ROUNDS, SAMPLES, SIZE, Company, make_plan
from round_kit import Regulator as Learner
from session_kit import Federation
from typer.testing import CliRunner

from isonomy.common.agreements.approvals import PlanNotApproved, sign_agreement
from isonomy.common.agreements.few_shot_plan import FewShotPlan
from isonomy.common.base.errors import ConfigError, ModelsDiffer, PartyTimeout
from isonomy.common.keys.identity import Identity
from isonomy.common.ledger.ledger import verify_ledger
from isonomy.company.cli.company import app as company_app
from isonomy.company.federation.home import Home
from isonomy.company.few_shot.federated import federated
from isonomy.regulator.config.config import RegulatorConfig
from isonomy.regulator.plans.plan_files import few_shot_approvals
from isonomy.regulator.serving import _few_shot as few_shot
from isonomy.regulator.serving.daemon import Daemon
from isonomy.regulator.vault.member_key import make_member_key
from isonomy.regulator.vault.task_pools import list_pools, open_pool
from isonomy.regulator.vault.unlock import new_secret
from isonomy.regulator.vault.vault import Vault
from isonomy.server.relay.relay import RelayServer

HOME_FILE = """
name = "regulator"
[ledger]
epsilon = "20"
delta = "1e-5"
[vault]
unlock_file = "unlock.key"
"""


def arrays(count: int = SAMPLES, prefix: str = "image") -> dict[str, Any]:
    rng = np.random.default_rng(1)
    return {
        "inputs": rng.random((count, 4), np.float32),
        "labels": np.arange(count) % 5,
        "groups": np.arange(count) % 2,
        "positive": np.arange(5) < 2,
        "ids": np.array([f"{prefix}-{number}" for number in range(count)]),
    }


class Scene:
    """Both homes on one machine; the learners are the kit's."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.federation = folder, Federation.create(folder, size=4)
        (folder / "regulator" / "regulator.toml").write_text(HOME_FILE)
        self.config = RegulatorConfig.load(folder / "regulator")
        make_member_key(self.config)
        secret = new_secret(self.config.unlock_file)
        self.vault = Vault.create(self.config.vault_path, secret)
        self.npz = folder / "tasks.npz"

    def run(self, *arguments: object) -> Any:
        return run_regulator(*arguments, "--home", self.config.home)

    def add(self, name: str = "digits", **changes: Any) -> Any:
        np.savez(self.npz, **{**arrays(), **changes})
        return self.run("tasks", "add", name, self.npz, "--json")

    def plan(self, **changes: Any) -> Path:
        path = self.folder / "few-shot.json"
        plan = make_plan(self.federation, **changes)
        plan.save(path)
        sign_agreement(plan, path, self.federation.keys("company"))
        return path

    def approve(self, path: Path) -> Any:
        return self.run("approve", path, "--yes", "--json")

    def train(self, path: Path, company: Any, *, absence_s: float = 30.0) -> Any:
        plan = FewShotPlan.load(path)
        home = Home(self.folder / "company")
        if not home.few_shot.approved(plan.hash):
            home.few_shot.approve(plan, home.keys())
        key = Identity.load(self.folder / "server" / "token.key")
        tls = self.federation.tls("server")
        relay = RelayServer("127.0.0.1:0", tls, plan.public(), key, self.folder / "relay")
        with relay, Daemon(self.config, self.vault) as daemon, ThreadPoolExecutor(2) as pool:
            ticket = relay.issue_ticket("regulator", "regulator").to_json().decode()
            served = pool.submit(daemon.node, {"type": "session", "ticket": ticket})
            mine = relay.issue_ticket("company", "company").to_json().decode()
            node = pool.submit(hand_over, home.socket, mine)
            try:
                return federated(plan, company, home=home.folder, wait_s=60, absence_s=absence_s)
            finally:
                node.exception(30)
                self.failed = served.exception(30)
                self.reply = None if self.failed else served.result()


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.setattr(few_shot, "learner", lambda plan, tasks: Learner(samples=len(tasks)))
    return Scene(tmp_path)


def test_from_tasks_to_a_trained_model(scene: Scene) -> None:
    assert scene.add().json["samples"] == SAMPLES
    path = scene.plan()
    done = scene.approve(path)
    assert done.code == 0, done.stderr
    assert done.json["samples"] == SAMPLES
    assert "Of a sample's whole budget (ε = 20) this plan takes" in done.stderr
    assert "; 0 % are set aside or spent already" in done.stderr
    assert " % instead of 50 %" in done.stderr
    result, home = scene.train(path, Company()), Home(scene.folder / "company")
    assert (result.rounds, result.complete) == (ROUNDS, True)
    assert scene.reply == {"rounds": ROUNDS, "reconnects": 0}  # counts, and nothing else
    ledger = scene.config.ledger_path
    assert verify_ledger(ledger).head.hex() == result.ledger_head
    shown = CliRunner().invoke(
        company_app, ["head", str(path), "--json", "--home", str(home.folder)]
    )
    assert json.loads(shown.stdout)["head"] == result.ledger_head
    status = scene.run("status", "--json").json
    assert [own["companies"] for own in status["plans"]] == [["company"]]
    told = scene.run("ledger", "--json")
    assert told.code == 0, told.stderr
    rounds = [line for line in scene.run("ledger").stdout.splitlines() if " debit " in line]
    assert len(rounds) == ROUNDS
    assert all("None" not in line and "in all rounds" in line for line in rounds)
    check_report(scene, path, status["plans"][0]["hash"][:12])
    again = scene.train(path, Company())  # nothing is left to do, and nothing is asked
    assert (again.rounds, verify_ledger(ledger).debits) == (ROUNDS, ROUNDS)


def check_report(scene: Scene, plan: Path, prefix: str) -> None:
    """Written from the ledger, countersigned by the company, verified by anybody."""
    out = scene.folder / "report"
    refused = scene.run("report", prefix, "-o", out, "--unknowns", "0.1")
    assert refused.code == 10
    assert not out.exists()
    texts = [word for name, text in OFFICER for word in (f"--{name}", text)]
    written = scene.run("report", prefix, "-o", out, "--json", *texts)
    assert written.code == 0, written.stderr
    assert written.json["rounds"] == ROUNDS
    assert 0 < written.json["epsilon_lost"] <= written.json["epsilon_cap"]
    signing = ["countersign", str(out), "--home", str(scene.folder / "company"), "--yes"]
    shown = CliRunner().invoke(company_app, signing)
    assert shown.exit_code == 0, shown.output
    keys = scene.config.keys_folder / "card.json"
    files = ("--card", keys, "--plan", plan, "--ledger", scene.config.ledger_path)
    verified = run_regulator("verify", out, *files, "--json")
    states = {check["number"]: check["state"] for check in verified.json["checks"]}
    assert states == {n: "not given" if n == 5 else "ok" for n in range(1, 10)}


def test_a_plan_that_was_not_approved_is_not_joined(scene: Scene) -> None:
    scene.add()
    with pytest.raises(PartyTimeout):
        scene.train(scene.plan(), Company(), absence_s=1.5)
    assert isinstance(scene.failed, PlanNotApproved)
    with pytest.raises(PlanNotApproved):
        federated(scene.plan(name="other"), Company(), home=scene.folder / "company")


def test_a_model_that_differs_sets_no_budget_aside(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.add()
    other = Learner(fingerprint=b"x" * 32)
    monkeypatch.setattr(few_shot, "learner", lambda plan, tasks: other)
    path = scene.plan()
    assert scene.approve(path).code == 45
    assert not verify_ledger(scene.config.ledger_path).plans()
    assert not few_shot_approvals(scene.config).hashes()
    plan, home = FewShotPlan.load(path), Home(scene.folder / "company")
    home.few_shot.approve(plan, home.keys())
    with pytest.raises(ModelsDiffer):
        federated(plan, Company(fingerprint=b"y" * 32), home=home.folder)


def test_torch_is_asked_for_by_name(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "isonomy.common.few_shot.learning.learners", raising=False)
    for name in [own for own in sys.modules if own.startswith("isonomy.common.few_shot.")]:
        if name.rsplit(".", 1)[1] in ("adapt", "models", "private", "private_round"):
            monkeypatch.delitem(sys.modules, name)
    scene.add()
    done = scene.approve(scene.plan())
    assert done.code == 10
    assert "isonomy[regulator,few-shot]" in done.stderr.replace("\n", "")


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ('strategies = ["tilt"]', "few_shot"),
        ('epsilon_per_run = "1"', "of one run"),
        ("queries_per_run = 3", "rounds"),
        ("smallest_group = 31", "samples"),
        ('inspection_rate = "0.1"', "inspected"),
        (f'companies = ["{" ".join(["0000"] * 8)}"]', "may not ask"),
    ],
)
def test_the_policy_holds_for_few_shot_plans(scene: Scene, policy: str, words: str) -> None:
    scene.add()
    path = scene.config.home / "regulator.toml"
    path.write_text(path.read_text() + f"[policy]\n{policy}\n")
    done = scene.approve(scene.plan())
    assert done.code == 51
    assert words in " ".join(done.stderr.split())
    assert not scene.config.ledger_path.exists()


def test_a_sample_has_one_budget_over_all_pools(scene: Scene) -> None:
    scene.add("digits")
    scene.add("again")  # the same ids under another name
    scene.add("others", ids=np.array([f"other-{n}" for n in range(SAMPLES)]))
    assert scene.approve(scene.plan()).code == 0
    second = scene.approve(scene.plan(name="second", pool="again"))  # 19.1 twice: above 20
    assert second.code == 51
    assert "on top of the 19.2" in " ".join(second.stderr.split())
    assert scene.approve(scene.plan(name="third", pool="others")).code == 0


def test_a_rejected_plan_gets_no_more_rounds(scene: Scene) -> None:
    scene.add()
    path = scene.plan()
    scene.approve(path)
    assert scene.run("tasks", "remove", "digits", "--yes").code == 10  # a plan uses them
    plan = FewShotPlan.load(path)
    assert scene.run("reject", plan.hash.hex()[:12], "--yes").code == 0
    with pytest.raises(PartyTimeout):
        scene.train(path, Company(), absence_s=1.5)
    assert isinstance(scene.failed, PlanNotApproved)
    assert scene.run("tasks", "remove", "digits", "--yes").code == 0
    assert list_pools(scene.config) == []


# --- Tasks ----------------------------------------------------------------------------------------


def test_tasks_are_sealed_and_come_back_as_they_were(scene: Scene) -> None:
    scene.add()
    raw = (scene.config.home / "tasks" / "digits.bin").read_bytes()
    assert b"image-3" not in raw
    assert arrays()["inputs"][0].tobytes() not in raw
    found = open_pool(scene.config, scene.vault, "digits")
    assert (found.pool.inputs == arrays()["inputs"]).all()
    assert found.ids.ids == tuple(arrays()["ids"])
    (entry,) = scene.run("tasks", "list", "--json").json["tasks"]
    assert (entry["name"], entry["samples"], entry["classes"]) == ("digits", SAMPLES, 5)
    assert scene.add().code == 10  # a name is used once


def test_tasks_follow_the_vault_to_its_next_secret(scene: Scene, tmp_path: Path) -> None:
    scene.add()
    new = tmp_path / "next.key"
    assert scene.run("rotate", "vault", "--new-unlock-file", new).code == 0
    vault = Vault(scene.config.vault_path, new_secret(new))
    assert len(open_pool(scene.config, vault, "digits")) == SAMPLES
    assert [own.name for own in (scene.config.home / "tasks").iterdir()] == ["digits.bin"]


@pytest.mark.parametrize("killed", ["before", "after"])
def test_a_rotation_that_was_killed_loses_no_tasks(
    scene: Scene, tmp_path: Path, killed: str
) -> None:
    from isonomy.regulator.vault.task_pools import seal_pools_anew

    scene.add()
    secret = new_secret(tmp_path / "next.key")
    seal_pools_anew(scene.config, scene.vault, secret)
    if killed == "after":
        scene.vault.reseal(secret)
    vault = Vault(scene.config.vault_path, scene.vault.secret)
    assert len(open_pool(scene.config, vault, "digits")) == SAMPLES
    assert [own.name for own in (scene.config.home / "tasks").iterdir()] == ["digits.bin"]


@pytest.mark.parametrize("left", ["both", "the new one"])
def test_tasks_that_were_destroyed_do_not_come_back(
    scene: Scene, tmp_path: Path, left: str
) -> None:
    """A rotation that was killed leaves a second copy, which would be put in place later."""
    from isonomy.regulator.vault.task_pools import seal_pools_anew

    scene.add()
    seal_pools_anew(scene.config, scene.vault, scene.vault.secret)
    folder = scene.config.home / "tasks"
    if left == "the new one":
        (folder / "digits.bin").unlink()
    assert scene.run("tasks", "remove", "digits", "--yes").code == 0
    assert list(folder.iterdir()) == []
    with pytest.raises(ConfigError, match="no tasks"):
        open_pool(scene.config, scene.vault, "digits")


def test_tasks_are_not_taken_in_while_the_vault_is_changed(scene: Scene) -> None:
    with scene.vault.locked():  # as a rotation does
        assert scene.add().code == 10
    assert list_pools(scene.config) == []


def test_a_file_that_would_fill_the_memory_is_refused(scene: Scene) -> None:
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1099511627776, 64), }\n"
    bomb = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
    np.savez(scene.npz, **{name: own for name, own in arrays().items() if name != "inputs"})
    with zipfile.ZipFile(scene.npz, "a") as archive:
        archive.writestr("inputs.npy", bomb)
    done = scene.run("tasks", "add", "digits", scene.npz)
    assert done.code == 12
    assert "memory" in " ".join(done.stderr.split())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"labels": np.full(SAMPLES, 2**60)}, "largest"),
        ({"ids": np.array(["a"] * SAMPLES)}, f"{SAMPLES} samples have 1 ids"),
        ({"ids": np.arange(SAMPLES)}, "texts"),
        ({"ids": np.array(["a"])}, "same number"),
        ({"labels": np.zeros(SAMPLES)}, "whole numbers"),
        ({"labels": np.full(SAMPLES, -1)}, "negative"),
        ({"inputs": np.full((SAMPLES, 4), np.nan)}, "finite"),
        ({"inputs": np.array([["x"]] * SAMPLES)}, "numbers"),
        ({"groups": np.full(SAMPLES, 2)}, "missing"),
        ({"groups": np.zeros(3, np.int64)}, "per sample"),
        ({"positive": np.ones(4, np.bool_)}, "5 classes"),
        ({"more": np.zeros(3)}, "unknown: more"),
    ],
)
def test_tasks_that_cannot_be_used_are_refused(scene: Scene, change: Any, words: str) -> None:
    done = scene.add(**change)
    assert done.code == 12
    assert words in " ".join(done.stderr.split())
    assert list_pools(scene.config) == []


def test_nothing_in_a_file_is_executed(scene: Scene) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return (Path.touch, (scene.folder / "executed",))

    np.savez(scene.npz, **{**arrays(), "ids": np.array([Evil()] * SAMPLES, object)})
    assert scene.run("tasks", "add", "digits", scene.npz).code == 12
    assert not (scene.folder / "executed").exists()
    scene.npz.write_bytes(b"no archive")
    assert scene.run("tasks", "add", "digits", scene.npz).code == 12
    assert scene.run("tasks", "add", "digits", scene.folder / "absent.npz").code == 12


def test_a_plan_about_tasks_that_are_not_there(scene: Scene) -> None:
    done = scene.approve(scene.plan())
    assert done.code == 10
    assert "tasks add" in " ".join(done.stderr.split())
    scene.add()
    assert scene.approve(scene.plan(samples=SAMPLES - 1)).code == 12
    assert not verify_ledger(scene.config.ledger_path).plans()


def test_the_kit_s_model_is_the_plan_s(scene: Scene) -> None:
    plan = FewShotPlan.load(scene.plan())
    assert (plan.fingerprint, plan.size) == (FINGERPRINT.hex(), SIZE)
    assert json.loads(plan.public().to_json())["round_parts"] == 3
    with pytest.raises(ConfigError):
        plan.card("nobody")
