"""A plan by pads at a real daemon: keys outlive processes, and end with the plan."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from regulator_kit import fill_vault, hand_over, run_regulator, sign_for
from session_kit import GROUPS, Federation, attributes

from isonomy.common.agreements.approvals import Approvals
from isonomy.common.base.errors import StorageError
from isonomy.common.node.bridge_server import BridgeServer
from isonomy.company.federation.home import Home
from isonomy.company.federation.joining import join
from isonomy.regulator.config.config import RegulatorConfig
from isonomy.regulator.plans.plan_files import keys_folder
from isonomy.regulator.serving.daemon import Daemon
from isonomy.regulator.vault.member_key import make_member_key

HOME_FILE = """
name = "regulator"
[groups]
sex = ["f", "m"]
[ledger]
epsilon = "3"
delta = "1e-6"
"""


def test_keys_outlive_both_processes_and_end_with_the_plan(tmp_path: Path) -> None:
    federation = Federation.create(tmp_path, carrier="pads")
    plan, cohort = federation.plan, federation.cohort
    (tmp_path / "regulator" / "regulator.toml").write_text(HOME_FILE)
    config = RegulatorConfig.load(tmp_path / "regulator")
    make_member_key(config)
    codes = attributes(cohort).codes("sex")
    values = {i: GROUPS["sex"][code] for i, code in zip(cohort.ids, codes, strict=True)}
    vault = fill_vault(config, values, GROUPS)
    for home, name in ((config.plans_folder, "regulator"), (tmp_path / "company/plans", "company")):
        Approvals(home).approve(plan, cohort, federation.keys(name))
    sign_for(config, plan, federation.keys("company"))
    elsewhere = tmp_path / "other" / "witness.json"
    silent = config.model_copy(update={"witness_copies": (elsewhere,)})
    silent._home = config.home
    with federation.relay() as relay, Daemon(silent, vault) as daemon:
        ticket = relay.issue_ticket("regulator", "regulator").to_json().decode()
        with pytest.raises(StorageError, match=str(elsewhere)):  # nothing is answered
            daemon.node({"type": "session", "ticket": ticket})
    answers = [_run(federation, config, vault) for _ in range(2)]
    np.testing.assert_array_equal(answers[0], answers[1])
    (kept,) = keys_folder(config, plan).iterdir()
    mine = list((tmp_path / "company" / "openings" / plan.hash.hex()).glob("*.keys"))
    assert len(mine) == 1
    assert kept.stat().st_mode & 0o077 == mine[0].stat().st_mode & 0o077 == 0
    done = run_regulator("forget", plan.hash.hex()[:12], "--yes", "--home", config.home)
    assert done.code == 0, done.stderr
    assert not kept.exists()
    Home(tmp_path / "company").delete_openings(_after(plan.inspection_deadline))
    assert not mine[0].exists()


def _run(federation: Federation, config: RegulatorConfig, vault: Any) -> np.ndarray:
    """One session: a daemon and a company, both new, that ask the same question."""
    home = federation.folder / "company"
    with federation.relay() as relay, Daemon(config, vault) as daemon:
        daemon.reserve_all()
        theirs, mine = (
            relay.issue_ticket(name, name).to_json().decode() for name in ("regulator", "company")
        )
        with BridgeServer(config.officer_socket, daemon.officer), ThreadPoolExecutor(2) as pool:
            jobs = [pool.submit(daemon.node, {"type": "session", "ticket": theirs})]
            jobs.append(pool.submit(hand_over, home / "run" / "company.sock", mine))
            with join(federation.plan, home=home, wait_s=20) as oracle:
                values = oracle.blind_sum(federation.rows(), norm=3.0, share=0.1).values
            for job in jobs:
                job.exception(30)
        timed = daemon._metrics.registry.get_sample_value("isonomy_regulator_answer_seconds_count")
        assert timed == 1
    return values


def _after(day: str) -> date:
    return date.fromisoformat(day) + timedelta(days=1)
