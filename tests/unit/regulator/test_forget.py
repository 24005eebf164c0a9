"""Forgetting: people go, their spent budget stays, and the record of it is signed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from regulator_kit import GROUPS, Regulator, fill_vault

from isonomy.common.canonical import canonical_json
from isonomy.common.errors import BudgetExceeded
from isonomy.common.identity import verify_signature
from isonomy.common.ledger import verify_ledger
from isonomy.common.ledger_entries import read_entries
from isonomy.common.party import Card
from isonomy.regulator.daemon import Daemon
from isonomy.regulator.forget import DOMAIN


@pytest.fixture
def regulator(tmp_path: Path) -> Regulator:
    return Regulator.create(tmp_path)


def spend_everything(regulator: Regulator) -> None:
    """Debit the whole reservation of the one approved plan."""
    with Daemon(regulator.config, regulator.vault) as daemon:
        (plan,) = daemon._ledger.plans()
        daemon._ledger.debit(
            plan=plan.plan,
            query_id="q",
            request_hash=bytes(32),
            root=plan.root,
            units=plan.units,
            event={"purpose": "test", "mechanism": "gaussian", "noise": 1},
            answer=b"answer",
        )


def test_a_run(regulator: Regulator) -> None:
    regulator.approve(regulator.plan_file())
    plan = regulator.plan()[0].hash.hex()
    state = regulator.config.state_folder / plan
    (state / "joint").mkdir(parents=True)
    (state / "joint" / "key").write_bytes(b"secret")
    done = regulator.run("forget", plan[:12], "--yes", "--json")
    assert done.code == 0, done.stderr
    assert not state.exists()
    assert not list(regulator.config.plans_folder.glob("*.people"))
    assert not list(regulator.config.plans_folder.glob("*.json"))
    assert (regulator.config.closed_folder / f"{plan}.json").exists()  # the terms, for reports
    assert len(regulator.vault.read()) == 40  # people may be in other runs
    (closed,) = verify_ledger(regulator.config.ledger.path).plans
    assert not closed.is_open


def test_a_cohort_and_every_run_with_one_of_its_people(regulator: Regulator) -> None:
    fill_vault(
        regulator.config, {"northerner-1": "male", "northerner-2": "female"}, GROUPS, "north"
    )
    ids = list(Regulator.people(40))
    regulator.approve(regulator.plan_file(ids, name="south", epsilon="0.1"))
    regulator.approve(regulator.plan_file([*ids, "northerner-1"], name="both", epsilon="0.1"))
    done = regulator.run("forget", "north", "--yes", "--json")
    assert done.code == 0, done.stderr
    assert (done.json["people"], len(done.json["plans_closed"])) == (2, 1)
    table = regulator.vault.read()
    assert (len(table), table.cohort_names) == (40, ("everybody",))
    assert sorted(own.is_open for own in verify_ledger(regulator.config.ledger.path).plans) == [
        False,
        True,
    ]
    for path in regulator.home.rglob("*"):
        if path.is_file():
            assert b"northerner-1" not in path.read_bytes(), path


def test_enrolling_again_does_not_reset_the_budget(regulator: Regulator) -> None:
    plan = regulator.plan_file(epsilon="2")
    regulator.approve(plan)
    spend_everything(regulator)
    assert regulator.run("forget", "everybody", "--yes").code == 0
    assert len(regulator.vault.read()) == 0
    fill_vault(regulator.config, Regulator.people(40), GROUPS, "again")
    done = regulator.run("approve", regulator.plan_file(name="next", epsilon="0.1"), "--yes")
    assert done.code == 51
    assert "above the total" in done.stderr
    # and where no policy stands before it, the ledger itself refuses
    regulator.change('epsilon = "2"\ndelta', 'epsilon = "9"\ndelta')
    done = regulator.run("approve", regulator.plan_file(name="next", epsilon="0.1"), "--yes")
    assert done.code == 50
    fill_vault(regulator.config, {"new": "male"}, GROUPS, "again")
    regulator.approve(regulator.plan_file(["new"], name="new", epsilon="0.1"))


def test_the_record_is_signed_and_noted(regulator: Regulator) -> None:
    regulator.approve(regulator.plan_file())
    done = regulator.run("forget", "everybody", "--yes", "--json")
    raw = json.loads(Path(done.json["record"]).read_text())
    signature, signer = bytes.fromhex(raw.pop("signature")), raw.pop("signer")
    card = Card.load(regulator.config.keys_folder / "card.json")
    assert signer == card.ed25519
    verify_signature(card.signing_key, DOMAIN, canonical_json(raw), signature)
    assert (raw["target"], raw["people"]) == ("cohort everybody", 40)
    assert "keyed hashes" in raw["kept"]
    (note,) = [own for own in read_entries(regulator.config.ledger.path) if own.kind == "note"]
    assert (note.event["kind"], note.event["target"]) == ("deletion", "cohort everybody")


def test_backups_that_still_hold_them_are_named(regulator: Regulator) -> None:
    path = regulator.folder / "one.backup"
    assert regulator.run("backup", path).code == 0
    done = regulator.run("forget", "everybody", "--yes", "--json")
    assert done.json["backups"] == [str(path)]
    assert str(path) in done.stderr.replace("\n", "")


def test_a_running_daemon_stops_answering(regulator: Regulator) -> None:
    """The daemon holds tables in memory: what it closes gets no more debits."""
    regulator.approve(regulator.plan_file())
    plan = regulator.plan()[0].hash
    with Daemon(regulator.config, regulator.vault) as daemon:
        half = daemon._half(plan)
        daemon.officer({"type": "close", "plan": plan.hex()})
        with pytest.raises(BudgetExceeded, match="closed"):
            daemon._ledger.check(plan, half._custodian.root, 1)
        assert plan not in daemon._halves


def test_what_is_neither(regulator: Regulator) -> None:
    done = regulator.run("forget", "nobody", "--yes")
    assert done.code == 10
    assert "no cohort 'nobody'" in done.stderr
    assert not regulator.config.deletions_folder.exists()
