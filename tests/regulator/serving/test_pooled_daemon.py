"""Two companies with `join` and the regulator's daemon: a real federation but for Flower."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from federation import CountedNoise, custodian_with_noise
from pooled_kit import ROWS, SHARE, SIZE, Table, alone, table
from regulator_kit import fill_vault, sign_for
from session_kit import GROUPS, attributes

from isonomy.common.agreements.approvals import Approvals
from isonomy.common.ledger.ledger import verify_ledger
from isonomy.common.node.bridge import DaemonAbsent, Message, call
from isonomy.common.pooled.half import PooledHalf
from isonomy.common.pooled.people import share_slices
from isonomy.common.sums.noise_and_budget import Custodian
from isonomy.common.sums.oracle import GroupOracle, Release
from isonomy.company.federation.joining import join
from isonomy.regulator.config.config import RegulatorConfig
from isonomy.regulator.serving import _plan_desks as plan_desks
from isonomy.regulator.serving.daemon import Daemon
from isonomy.regulator.vault.member_key import make_member_key
from isonomy.regulator.vault.vault import Vault


def script(oracle: GroupOracle, own: slice) -> list[Release]:
    return [
        oracle.counts(share=SHARE),
        oracle.blind_sum(ROWS[own], norm=2.3, share=SHARE),
        oracle.open_sum(ROWS[own] / 7, norm=0.7, share=SHARE),
    ]


HOME_FILE = """
name = "regulator"
[groups]
sex = ["f", "m"]
[ledger]
epsilon = "3"
delta = "1e-6"
"""


def regulator_home(joint: Table) -> tuple[RegulatorConfig, Vault]:
    """The regulator's home: attributes in the vault, member key, approved plan."""
    federation = joint.federation
    home = federation.folder / "regulator"
    values = attributes(federation.cohort).codes("sex")
    (home / "regulator.toml").write_text(HOME_FILE)
    config = RegulatorConfig.load(home)
    make_member_key(config)
    people = zip(federation.cohort.ids, values, strict=True)
    vault = fill_vault(config, {person: GROUPS["sex"][code] for person, code in people}, GROUPS)
    keys = federation.keys("regulator")
    Approvals(config.plans_folder).approve(federation.plan, federation.cohort, keys)
    sign_for(config, federation.plan, *map(federation.keys, joint.names))
    return config, vault


def hand_over(joint: Table, name: str) -> Message:
    """What a company's Flower node does: hand the ticket over, wait for the end."""
    ticket = joint.relay.issue_ticket("company", name).to_json().decode()
    socket = joint.federation.folder / name / "run" / "company.sock"
    for _ in range(200):
        try:
            return call(socket, {"type": "session", "ticket": ticket})
        except DaemonAbsent:
            time.sleep(0.05)
    raise AssertionError(f"{name} never listened")


def company(joint: Table, name: str) -> list[Release]:
    federation, home = joint.federation, joint.federation.folder / name
    cohort = joint.cohorts()[name]
    Approvals(home / "plans").approve(federation.plan, cohort, federation.keys(name))
    place = share_slices(federation.plan)[joint.names.index(name)]
    exchanges: list[Any] = []
    with join(federation.plan, home=home, wait_s=20, on_exchange=exchanges.append) as oracle:
        assert oracle.capabilities.pooled
        releases = script(oracle, place)
    assert [exchange.number for exchange in exchanges] == [1, 2, 3]
    return releases


def test_same_group_sums_as_one_company(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def custodian(*args: Any, **options: Any) -> Custodian:
        return custodian_with_noise(*args, **options, source=CountedNoise(1))

    monkeypatch.setattr(plan_desks, "Custodian", custodian)
    with table(tmp_path, "first", "second") as joint:
        config, vault = regulator_home(joint)
        ticket = joint.relay.issue_ticket("regulator", "regulator").to_json().decode()
        with Daemon(config, vault) as daemon, ThreadPoolExecutor(5) as pool:
            daemon.reserve_all()
            assert isinstance(daemon.plans.half(joint.federation.plan.hash), PooledHalf)
            answers = pool.submit(daemon.node, {"type": "session", "ticket": ticket})
            nodes = [pool.submit(hand_over, joint, name) for name in joint.names]
            companies = [pool.submit(company, joint, name) for name in joint.names]
            results = [job.result(60) for job in companies]
            assert [node.result(20)["exchanges"] for node in nodes] == [3, 3]
            assert answers.result(20)["answered"] == 3
        expected = alone(tmp_path, joint.federation, script)
    for releases in results:
        for got, wanted in zip(releases, expected, strict=True):
            assert np.array_equal(got.values, wanted.values)
    assert len(joint.federation.cohort) == SIZE
    assert verify_ledger(config.ledger_path).debits == 3
