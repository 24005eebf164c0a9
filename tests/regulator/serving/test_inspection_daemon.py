"""The regulator's daemon, a company with `join`, an outside auditor, and all their commands."""

from __future__ import annotations

import dataclasses
import io
import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from inspection_kit import unclipped_rows
from regulator_kit import fill_vault, hand_over, run_regulator, sign_for
from session_kit import GROUPS, Federation, attributes

from isonomy.common.agreements.approvals import Approvals
from isonomy.common.agreements.plan import MILLION, Plan
from isonomy.common.base.errors import ConfigError, InspectionFailed, InspectionPending
from isonomy.common.inspection.verdict import Verdict
from isonomy.common.keys.party import Card, PartyKeys
from isonomy.common.node.bridge_server import BridgeServer
from isonomy.company.cli.company import app as company_app
from isonomy.company.federation.home import Home
from isonomy.company.federation.joining import join
from isonomy.regulator.config.config import RegulatorConfig
from isonomy.regulator.plans.approval import fingerprints
from isonomy.regulator.serving.daemon import Daemon
from isonomy.regulator.vault.member_key import make_member_key
from isonomy.server.relay.relay import RelayServer

HOME_FILE = """
name = "regulator"
[groups]
sex = ["f", "m"]
[ledger]
epsilon = "3"
delta = "1e-6"
"""


@dataclasses.dataclass
class Scene:
    """Everybody's folders, and the relay between them."""

    federation: Federation
    config: RegulatorConfig
    relay: RelayServer
    daemon: Daemon

    @property
    def plan_file(self) -> Path:
        return self.federation.folder / "plan.json"

    @property
    def company_home(self) -> Path:
        return self.federation.folder / "company"

    def regulator(self, *arguments: object) -> Any:
        return run_regulator(*arguments, "--home", self.config.home)

    def inspect(self, opening: object, *more: object) -> Any:
        """As the auditor: the plan, its own keys, nothing else."""
        keys = self.federation.folder / "auditor"
        return run_regulator("inspect", opening, "--plan", self.plan_file, "--keys", keys, *more)

    def run(self) -> Any:
        """One session: the daemon and a company that asks one question."""
        theirs = self.relay.issue_ticket("regulator", "regulator").to_json().decode()
        mine = self.relay.issue_ticket("company", "company").to_json().decode()
        socket = self.company_home / "run" / "company.sock"
        with ThreadPoolExecutor(2) as pool:
            answers = pool.submit(self.daemon.node, {"type": "session", "ticket": theirs})
            node = pool.submit(hand_over, socket, mine)
            try:
                with join(self.federation.plan, home=self.company_home, wait_s=20) as oracle:
                    return oracle.blind_sum(self.federation.rows(), norm=3.0, share=0.1)
            finally:
                for job in (answers, node):
                    job.exception(30)  # whatever it says: the company's own outcome counts


@pytest.fixture(params=["homomorphic", "pads"])
def scene(tmp_path: Path, request: pytest.FixtureRequest):
    plain = Federation.create(tmp_path, carrier=request.param)
    made = run_regulator("auditor-key", tmp_path / "auditor", "--json")
    assert made.code == 0
    own = {
        "auditor": made.json["auditor"],
        "auditor_signing": made.json["auditor_signing"],
        "auditor_name": "auditor",
        "inspection_millionths": MILLION,
        "inspection_deadline": "2100-01-01",
    }
    plan = Plan.of({**plain.plan.model_dump(mode="json"), **own})
    plan.save(tmp_path / "plan.json")
    federation = Federation(tmp_path, plan, plain.cohort)
    (tmp_path / "regulator" / "regulator.toml").write_text(HOME_FILE)
    config = RegulatorConfig.load(tmp_path / "regulator")
    make_member_key(config)
    codes = attributes(plain.cohort).codes("sex")
    values = {i: GROUPS["sex"][code] for i, code in zip(plain.cohort.ids, codes, strict=True)}
    vault = fill_vault(config, values, GROUPS)
    for home, name in ((config.plans_folder, "regulator"), (tmp_path / "company/plans", "company")):
        Approvals(home).approve(plan, plain.cohort, federation.keys(name))
    sign_for(config, plan, federation.keys("company"))
    with federation.relay() as relay, Daemon(config, vault) as daemon:
        daemon.reserve_all()
        desk: Any = daemon.plans.half(plan.hash)._inspector
        desk.verdict_wait_s = 0.3
        with BridgeServer(config.officer_socket, daemon.officer):  # as `serve` has it
            yield Scene(federation, config, relay, daemon)


def company(*arguments: object) -> Any:
    out = io.StringIO()
    with redirect_stdout(out), pytest.raises(SystemExit) as ended:
        company_app([*map(str, arguments), "--json"])
    if ended.value.code:
        return ended.value.code
    return json.loads(out.getvalue().splitlines()[-1])


def test_the_auditors_word_decides_and_the_officer_sees_the_count(scene: Scene) -> None:
    run = scene.federation.plan.hash.hex()[:12]
    with pytest.raises(InspectionPending, match="with the auditor"):
        scene.run()
    shown = scene.regulator("inspect", run, "--json").json
    assert (shown["inspected"], shown["opened"], shown["passed"]) == (1, 1, 0)
    (opening,) = shown["waiting"]
    verdict = scene.federation.folder / "verdict.json"
    looked = scene.inspect(opening, "--verdict", verdict, "--json")
    assert looked.code == 0, looked.stderr
    by_rows = scene.federation.plan.carrier == "pads"
    assert len(looked.json["checks"]) == (8 if by_rows else 10)
    assert scene.regulator("verdict", verdict).code == 0
    assert scene.run().receipt is not None
    shown = scene.regulator("inspect", run)
    assert "1 inspected: 1 passed, 0 failed" in shown.stdout

    # Later, from the company's own file.
    later = scene.federation.folder / "later.opening"
    home = ("--home", scene.company_home)
    told = company("open-query", scene.plan_file, "--query", 0, "--out", later, *home)
    assert told["query"].endswith("-000000")
    assert scene.inspect(later).code == 0
    late_verdict(scene)
    changed = bytearray(later.read_bytes())
    changed[-1] ^= 1
    later.write_bytes(changed)
    assert scene.inspect(later).code == 40  # nobody's evidence
    assert run_regulator("inspect", later, "--plan", scene.plan_file).code == 10  # whose keys?
    assert company("open-query", scene.plan_file, "--query", 7, "--out", later, *home) == 10


def late_verdict(scene: Scene) -> None:
    """A verdict against an answered query is in the ledger when the command returns."""
    plan, answered = scene.federation.plan, f"{scene.federation.plan.hash.hex()[:16]}-000000"
    record = scene.daemon._office.ledger.find(answered)
    assert record is not None
    auditor = PartyKeys.load(scene.federation.folder / "auditor")
    file = scene.federation.folder / "late.json"
    for request, code in ((bytes(32), 40), (record.request_hash, 0)):
        found = Verdict(
            plan=plan.hash, query_id=answered, request_hash=request, passed=False, reason="(5)"
        ).sign(auditor.identity)
        file.write_bytes(found.to_json())
        assert scene.regulator("verdict", file).code == code
    shown = scene.regulator("inspect", plan.hash.hex()[:12], "--json").json
    assert (shown["passed"], shown["failed"]) == (0, 1)


def test_a_cheat_is_found_by_the_auditor_and_the_plan_ends(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        unclipped_rows(patch)
        with pytest.raises(InspectionPending):
            scene.run()
    (opening,) = scene.regulator("inspect", scene.federation.plan.hash.hex(), "--json").json[
        "waiting"
    ]
    verdict = scene.federation.folder / "verdict.json"
    looked = scene.inspect(opening, "--verdict", verdict)
    assert looked.code == 42
    assert "(5)" in looked.stderr
    assert scene.regulator("verdict", verdict).code == 0
    for path in (scene.company_home / "openings").rglob("*.*"):
        path.unlink()  # a company that begins anew, honestly: too late
    with pytest.raises(InspectionFailed):
        scene.run()
    shown = scene.regulator("inspect", scene.federation.plan.hash.hex())
    assert "1 inspected: 0 passed, 1 failed" in shown.stdout


def test_what_is_not_an_opening_verdict_or_run_is_named(scene: Scene, tmp_path: Path) -> None:
    for arguments in (
        ("inspect", scene.plan_file, "--plan", scene.plan_file, "--keys", tmp_path / "auditor"),
        ("verdict", scene.plan_file, "--home", scene.config.home),
        ("verdict", tmp_path / "nothing", "--home", scene.config.home),
        ("inspect", "ffff", "--home", scene.config.home),
        ("auditor-key", tmp_path / "auditor"),
    ):
        assert run_regulator(*arguments).code == 10


def test_openings_go_after_the_deadline(scene: Scene) -> None:
    with pytest.raises(InspectionPending):
        scene.run()
    home, plan = Home(scene.company_home), scene.federation.plan
    assert list((scene.company_home / "openings").rglob("*.opening"))
    assert home.delete_openings(date(2100, 1, 1)) == []
    assert home.delete_openings(date(2100, 1, 2), keep=plan.hash) == []
    kept = {path.suffix for path in (scene.company_home / "openings").rglob("*.*")}
    by_rows = scene.federation.plan.carrier == "pads"
    assert kept == {".opening", ".keys" if by_rows else ".columns"}
    assert home.delete_openings(date(2100, 1, 2)) == [plan.hash.hex()]
    assert not list((scene.company_home / "openings").rglob("*.*"))
    assert company("tidy", "--home", scene.company_home)["deleted"] == []


def test_plans_name_their_auditor_by_card(tmp_path: Path) -> None:
    from isonomy.company.cli.inspection import auditor_fields

    made = run_regulator("auditor-key", tmp_path / "auditor", "--name", "watch", "--json").json
    card = Card.load(tmp_path / "auditor" / "card.json")
    plan = Federation.create(tmp_path / "f").plan
    regulator = plan.regulator
    fields = auditor_fields(str(tmp_path / "auditor/card.json"), regulator)
    inspected = Plan.of({**plan.model_dump(mode="json"), **fields})
    assert inspected.auditor_card == card
    assert fingerprints(inspected)["the auditor watch"] == made["fingerprint"]  # as it was printed
    assert made["fingerprint"] in inspected.describe()
    own = {"auditor": regulator.x25519, "auditor_signing": regulator.ed25519}
    assert auditor_fields("regulator", regulator) == own
    assert auditor_fields("", regulator) == {}
    for missing in ("auditor_name", "auditor_signing"):
        with pytest.raises(ConfigError, match="needs a name and a signing key"):
            Plan.of({**inspected.model_dump(mode="json"), missing: ""})
    with pytest.raises(ConfigError, match="card of a regulator"):
        auditor_fields(str(tmp_path / "f/regulator/keys/card.json"), regulator)
