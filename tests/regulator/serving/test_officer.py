"""The officer's commands while the daemon holds the ledger: same results, same numbers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from regulator_kit import GROUPS, Regulator, fill_vault

from isonomy.common.ledger.ledger import verify_ledger
from isonomy.common.node.bridge_server import BridgeServer
from isonomy.regulator.serving.daemon import Daemon


@contextmanager
def running(regulator: Regulator) -> Iterator[Daemon]:
    """A daemon, as far as its owner can tell: the ledger held, the officer's socket open."""
    with (
        Daemon(regulator.config, regulator.vault) as daemon,
        BridgeServer(regulator.config.officer_socket, daemon.officer),
    ):
        yield daemon


@pytest.fixture
def regulator(tmp_path: Path) -> Regulator:
    return Regulator.create(tmp_path)


def test_approval_needs_no_secret_then(regulator: Regulator, tmp_path: Path) -> None:
    with running(regulator):
        done = regulator.run(
            "approve", regulator.plan_file(), "--yes", "--unlock-file", tmp_path / "none"
        )
        assert done.code == 0, done.stderr
        status = regulator.run("status", "--json").json
        assert status["daemon"]["sessions"] == []
        assert [own["is_open"] for own in status["plans"]] == [True]
    assert regulator.run("status", "--json").json["daemon"] is None


def test_failures_have_the_same_numbers(regulator: Regulator) -> None:
    with running(regulator):
        regulator.approve(regulator.plan_file(name="one", epsilon="1.5"))
        too_much = regulator.run("approve", regulator.plan_file(name="two", epsilon="1.9"), "--yes")
        assert too_much.code == 51
        assert "above the total of 2" in too_much.stderr
        strangers = regulator.plan_file([f"zoe-{n}" for n in range(10)], name="three")
        nobody = regulator.run("approve", strangers, "--yes")
        assert nobody.code == 12
        assert len(list(regulator.config.plans_folder.glob("*.json"))) == 1


def test_what_would_pull_the_rug_is_refused(regulator: Regulator, tmp_path: Path) -> None:
    unlock = regulator.config.unlock_file
    assert regulator.run("backup", tmp_path / "b").code == 0
    with running(regulator):
        assert regulator.run("rotate", "identity", "--yes").code == 10
        assert regulator.run("rotate", "vault", "--new-unlock-file", tmp_path / "u").code == 10
        from regulator_kit import run_regulator

        done = run_regulator("restore", tmp_path / "b", regulator.home, "--unlock-file", unlock)
        assert done.code == 10
        assert "stop it first" in done.stderr


def test_people_who_come_and_go_meanwhile(regulator: Regulator) -> None:
    with running(regulator) as daemon:
        new = Regulator.people(10, start=40)
        fill_vault(regulator.config, new, GROUPS, "late")
        regulator.approve(regulator.plan_file(list(new), name="late", epsilon="0.1"))
        done = regulator.run("forget", "late", "--yes", "--json")
        assert done.code == 0, done.stderr
        assert daemon.plans._table is None
        assert daemon.plans._halves == {}
    (plan,) = verify_ledger(regulator.config.ledger_path).plans()
    assert not plan.is_open


def test_the_officers_socket_is_no_door_for_the_node(regulator: Regulator) -> None:
    """What arrives on the node's socket is tickets; the rest is refused there."""
    from isonomy.common.base.errors import ProtocolError

    with Daemon(regulator.config, regulator.vault) as daemon:
        for kind in ("status", "close", "reserve", "note", "clock"):
            with pytest.raises(ProtocolError, match="no known type"):
                daemon.node({"type": kind, "plan": "00" * 32})
        with pytest.raises(ProtocolError, match="no known type"):
            daemon.officer({"type": "session", "ticket": "{}", "officer": "J. Doe"})


def test_a_note_is_no_approval(regulator: Regulator) -> None:
    """Approvals are noted from checked signatures only; a note has the fields of its kind."""
    from isonomy.common.base.errors import ProtocolError

    plan = regulator.plan_file()
    regulator.approve(plan)
    plan_hash = regulator.plan()[0].hash
    forged = {"plan": plan_hash.hex(), "key": "00" * 32, "second_officer": "Ada"}
    with Daemon(regulator.config, regulator.vault, least="error") as daemon:
        ledger = daemon._office.ledger
        before = ledger.head, ledger.approval(plan_hash)
        for kind, event in (
            ("approval", forged),
            ("clock", {"last": 0}),
            ("vault-secret", {"kind": "approval", **forged}),  # `ledger` would show this kind
            ("rejection", {"plan": plan_hash.hex()}),
        ):
            with pytest.raises(ProtocolError, match="no known type"):
                daemon.officer({"type": "note", "kind": kind, "event": event, "officer": "Bert"})
        assert (ledger.head, ledger.approval(plan_hash)) == before
