"""An alignment as its owners do it: commands on both sides, the daemon, and then a plan on it."""

from __future__ import annotations

import io
import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from regulator_kit import fill_vault, hand_over, run_regulator
from session_kit import GROUPS, RELAY_NAME, Federation

from isonomy.common.agreements.approvals import PlanNotApproved, read_people
from isonomy.common.agreements.plan import Plan
from isonomy.common.alignment.alignment import AlignmentPlan
from isonomy.common.alignment.store import AlignmentDone
from isonomy.common.base.errors import DataError, PartyTimeout
from isonomy.common.base.exit_codes import code_of
from isonomy.common.keys.identity import Identity
from isonomy.company.cli.company import app as company_app
from isonomy.company.federation.align import align_records
from isonomy.regulator.config.config import RegulatorConfig
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
MINE = [f"person-{n}" for n in range(60)]
THEIRS = [f"person-{n}" for n in range(40, 140)]


def company(*arguments: object) -> Any:
    out = io.StringIO()
    with redirect_stdout(out), pytest.raises(SystemExit) as ended:
        company_app([*map(str, arguments), "--json"])
    return json.loads(out.getvalue().splitlines()[-1]) if not ended.value.code else ended.value.code


class Scene:
    """Both homes, with everybody's files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.federation = Federation.create(folder, size=4)
        (folder / "regulator" / "regulator.toml").write_text(HOME_FILE)
        self.config = RegulatorConfig.load(folder / "regulator")
        make_member_key(self.config)
        values = {i: "f" if n % 3 else "m" for n, i in enumerate(THEIRS)}
        self.vault = fill_vault(self.config, values, GROUPS)
        self.unlock = ("--unlock-file", self.config.vault_path.with_name("unlock.key"))
        self.home = ("--home", folder / "company")
        self.card = folder / "regulator" / "keys" / "card.json"

    def agree(self, most: int = 1000) -> AlignmentPlan:
        made = company(
            *("alignment", "--regulator", self.card, "--relay", RELAY_NAME),
            *("--company-people", most, "--regulator-people", most),
            *("-o", self.folder / "alignment.json", *self.home),
        )
        assert company("approve", made["alignment"], "--yes", *self.home)
        done = run_regulator(
            "approve", made["alignment"], "--yes", "--json", "--home", self.config.home
        )
        assert done.code == 0, done.stderr
        return AlignmentPlan.load(self.folder / "alignment.json")

    def run(self, plan: AlignmentPlan, ids: list[str]) -> Any:
        key = Identity.load(self.folder / "server" / "token.key")
        tls = self.federation.tls("server")
        relay = RelayServer("127.0.0.1:0", tls, plan.public(), key, self.folder / "relay")
        socket = self.folder / "company" / "run" / "company.sock"
        with relay, Daemon(self.config, self.vault) as daemon, ThreadPoolExecutor(2) as pool:
            ticket = relay.issue_ticket("regulator", "regulator").to_json().decode()
            served = pool.submit(daemon.node, {"type": "session", "ticket": ticket})
            mine = relay.issue_ticket("company", "company").to_json().decode()
            node = pool.submit(hand_over, socket, mine)
            try:
                return align_records(
                    plan, ids, home=self.folder / "company", wait_s=20, absence_s=3
                )
            finally:
                self.said = (served.exception(30), node.exception(30))
                self.replies = None if self.said[0] else served.result()


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_from_alignment_to_an_approved_plan(scene: Scene) -> None:
    alignment = scene.agree()
    common = scene.run(alignment, MINE)
    assert set(common.ids) == set(MINE) & set(THEIRS)
    assert scene.replies == {}  # the node next door is not told how many
    with pytest.raises(AlignmentDone, match="is done") as done:  # an approval is for one run
        scene.run(alignment, MINE[:1])
    assert code_of(done.value) == 75
    kept = scene.folder / "company" / "alignments" / f"{alignment.hash.hex()}.people"
    made = company(
        *("plan", "--regulator", scene.card, "--people", kept, "--relay", RELAY_NAME),
        *("--attribute", "sex=f,m", "--epsilon", "0.5", "-o", scene.folder / "p.json"),
        *("--record-privacy", *scene.home),
    )
    assert company("approve", made["plan"], "--yes", *scene.home)
    # No list travels: the regulator finds the people in its own home, by the plan's root.
    Path(made["people"]).unlink()
    done = run_regulator(
        "approve", made["plan"], "--yes", "--json", "--home", scene.config.home, *scene.unlock
    )
    assert done.code == 0, done.stderr
    assert done.json["people"] == 20
    plan = Plan.load(Path(made["plan"]))
    assert plan.record_privacy
    assert not plan.individual_filter
    assert "records are also protected" in plan.describe()
    theirs = scene.config.home / "alignments" / f"{alignment.hash.hex()}.people"
    assert read_people(theirs).root.hex() == plan.cohort_root
    assert theirs.stat().st_mode & 0o077 == 0


def test_people_of_nobody(scene: Scene) -> None:
    """A plan about people whom no alignment found, without a list: told so, nothing approved."""
    ids = scene.folder / "ids.txt"
    ids.write_text("\n".join(MINE))
    made = company(
        *("plan", "--regulator", scene.card, "--people", ids, "--relay", RELAY_NAME),
        *("--attribute", "sex=f,m", "--epsilon", "0.5", "-o", scene.folder / "p.json"),
        *scene.home,
    )
    Path(made["people"]).unlink()
    done = run_regulator("approve", made["plan"], "--yes", "--home", scene.config.home)
    assert done.code == 10
    assert "Align the records first" in " ".join(done.stderr.split())


def test_nobody_in_common(scene: Scene) -> None:
    alignment = scene.agree()
    with pytest.raises(DataError, match="nobody in common"):
        scene.run(alignment, ["0", "1"])
    assert not (scene.config.home / "alignments" / f"{alignment.hash.hex()}.people").exists()
    file = scene.folder / "alignment.json"
    assert run_regulator("reject", file, "--yes", "--home", scene.config.home).code == 0
    with pytest.raises(PartyTimeout):
        scene.run(alignment, MINE)
    assert isinstance(scene.said[0], PlanNotApproved)


def test_bad_ids_are_found_before_anything_is_sent(scene: Scene) -> None:
    alignment = scene.agree(50)
    home = scene.folder / "company"
    with pytest.raises(DataError, match="allows 50"):
        align_records(alignment, MINE, home=home, wait_s=0.1)
    with pytest.raises(DataError, match="lines 1 and 2"):
        align_records(alignment, ["a", "A"], home=home, wait_s=0.1)


def test_a_company_that_the_policy_does_not_name(scene: Scene) -> None:
    path = scene.config.home / "regulator.toml"
    stranger = " ".join(["0000"] * 8)
    path.write_text(path.read_text() + f'[policy]\ncompanies = ["{stranger}"]\n')
    made = company(
        *("alignment", "--regulator", scene.card, "--relay", RELAY_NAME),
        *("--company-people", 9, "--regulator-people", 900, "-o", scene.folder / "a.json"),
        *scene.home,
    )
    done = run_regulator("approve", made["alignment"], "--yes", "--home", scene.config.home)
    assert done.code == 51, done.stderr
