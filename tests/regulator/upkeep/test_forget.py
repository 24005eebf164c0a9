"""Forgetting: people go, their spent budget stays, and the record of it is signed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from regulator_kit import GROUPS, Regulator, fill_vault

from isonomy.common.base.canonical import canonical_json
from isonomy.common.base.errors import BudgetExceeded
from isonomy.common.keys.identity import verify_signature
from isonomy.common.keys.party import Card
from isonomy.common.ledger.entries import read_entries
from isonomy.common.ledger.ledger import verify_ledger
from isonomy.common.people.cohort import Cohort
from isonomy.regulator.serving.aligning import alignments
from isonomy.regulator.serving.daemon import Daemon
from isonomy.regulator.upkeep import forget
from isonomy.regulator.upkeep.doctor import examine
from isonomy.regulator.upkeep.forget import DOMAIN
from isonomy.regulator.vault.vault import Vault


@pytest.fixture
def regulator(tmp_path: Path) -> Regulator:
    return Regulator.create(tmp_path)


def spend_everything(regulator: Regulator) -> None:
    """Debit the whole reservation of the one approved plan."""
    with Daemon(regulator.config, regulator.vault) as daemon:
        (plan,) = daemon._office.ledger.plans()
        daemon._office.ledger.debit(
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
    (closed,) = verify_ledger(regulator.config.ledger_path).plans()
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
    assert sorted(own.is_open for own in verify_ledger(regulator.config.ledger_path).plans()) == [
        False,
        True,
    ]
    for path in regulator.home.rglob("*"):
        if path.is_file():
            assert b"northerner-1" not in path.read_bytes(), path


def test_samples_in_tasks_are_not_left_behind(regulator: Regulator, tmp_path: Path) -> None:
    """The signed record says what is kept: no sample with their attribute."""
    ids = [*list(Regulator.people(40))[:1], "stranger"]
    arrays = {"inputs": np.ones((2, 3)), "labels": np.arange(2), "groups": np.arange(2)}
    np.savez(tmp_path / "faces.npz", ids=np.array(ids), **arrays)
    assert regulator.run("tasks", "add", "faces", tmp_path / "faces.npz").code == 0
    (cohort,) = regulator.vault.read().cohort_names
    done = regulator.run("forget", cohort, "--yes")
    assert done.code == 10
    assert "tasks remove faces" in " ".join(done.stderr.split())
    assert len(regulator.vault.read()) == 40
    assert not list(regulator.config.deletions_folder.glob("*"))
    assert regulator.run("tasks", "remove", "faces", "--yes").code == 0
    assert regulator.run("forget", cohort, "--yes").code == 0


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
    new = Regulator.people(10, start=40)
    fill_vault(regulator.config, new, GROUPS, "again")
    regulator.approve(regulator.plan_file(list(new), name="new", epsilon="0.1"))


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
    note = read_entries(regulator.config.ledger_path)[-1]
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
        half = daemon.plans.half(plan)
        daemon.officer({"type": "close", "plan": plan.hex(), "officer": "J. Doe"})
        with pytest.raises(BudgetExceeded, match="closed"):
            daemon._office.ledger.check(plan, half._custodian.root, 1)
        assert plan not in daemon.plans._halves


def test_what_is_neither(regulator: Regulator) -> None:
    done = regulator.run("forget", "nobody", "--yes")
    assert done.code == 10
    assert "no cohort 'nobody'" in done.stderr
    assert not regulator.config.deletions_folder.exists()


NORTH = {"northerner-1": "male", "northerner-2": "female"}
SOUTH = list(Regulator.people(40))


def enrol_north(regulator: Regulator) -> None:
    fill_vault(regulator.config, NORTH, GROUPS, "north")


def aligned(regulator: Regulator, number: int, ids: list[str]) -> Path:
    """A list as an alignment leaves it, with its approval."""
    (regulator.home / "alignments").mkdir(exist_ok=True)
    store, plan_hash = alignments(regulator.config), bytes([number] * 32)
    store.save(plan_hash, Cohort.of(ids))
    path = store.people(plan_hash)
    path.with_suffix(".json").write_text("approved")
    return path


def rejected(regulator: Regulator, ids: list[str], name: str) -> Path:
    """A plan that was approved, inspected and then rejected; returns its state."""
    file = regulator.plan_file(ids, name=name, epsilon="0.1")
    regulator.approve(file)
    state = left_state(regulator, regulator.plan(ids, name=name, epsilon="0.1")[0].hash.hex())
    assert regulator.run("reject", file, "--yes").code == 0
    return state


def left_state(regulator: Regulator, plan: str) -> Path:
    state = regulator.config.state_folder / plan
    (state / "inspections").mkdir(parents=True)
    for name in ("a.norms", "a.opening", "a.verdict"):
        (state / "inspections" / name).write_bytes(b"rows of somebody")
    return state


def files_in(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file()}


class TestNothingIsLeft:
    def test_lists_of_alignments_with_one_of_them_go(self, regulator: Regulator) -> None:
        enrol_north(regulator)
        mixed, other = aligned(regulator, 1, [*SOUTH, "northerner-2"]), aligned(regulator, 2, SOUTH)
        broken = regulator.home / "alignments" / f"{'ab' * 32}.people"
        broken.write_bytes(b"northerner-1\n\xff\xfe")  # cannot be told: goes
        assert regulator.run("forget", "north", "--yes").code == 0
        assert not mixed.exists()
        assert not broken.exists()
        assert not mixed.with_suffix(".json").exists()  # else the company could have it done again
        assert files_in(other.parent) == {other, other.with_suffix(".json")}
        assert not [path for path in files_in(regulator.home) if b"norther" in path.read_bytes()]

    def test_state_of_plans_that_ended_before_goes(self, regulator: Regulator) -> None:
        enrol_north(regulator)
        mixed = rejected(regulator, [*SOUTH, "northerner-1"], "mixed")
        other = rejected(regulator, SOUTH, "other")
        regulator.approve(regulator.plan_file(SOUTH, name="open", epsilon="0.1"))
        plan = regulator.plan(SOUTH, name="open", epsilon="0.1")[0].hash.hex()
        running, unknown = left_state(regulator, plan), left_state(regulator, "ff" * 32)
        assert regulator.run("forget", "north", "--yes").code == 0
        assert not mixed.exists()
        assert not unknown.exists()  # nobody can tell whom it is about
        assert len(files_in(other)) == len(files_in(running)) == 3  # none of them is in there

    def test_what_a_crash_left_goes(self, regulator: Regulator) -> None:
        enrol_north(regulator)
        aligned(regulator, 1, SOUTH)
        regulator.approve(regulator.plan_file(SOUTH, epsilon="0.1"))
        halves = [
            regulator.home / "alignments" / "aa.people.partial",
            regulator.config.plans_folder / "aa.people.partial",
            regulator.home / ".vault.bin.0123456789abcdef",
        ]
        for path in halves:
            path.write_bytes(b"northerner-1")
        assert regulator.run("forget", "north", "--yes").code == 0
        assert not any(path.exists() for path in halves)
        assert len(regulator.vault.read()) == 40

    def test_a_run_takes_nothing_of_others_along_and_says_so(self, regulator: Regulator) -> None:
        found, other = aligned(regulator, 1, SOUTH), rejected(regulator, SOUTH, "other")
        regulator.approve(regulator.plan_file(SOUTH, name="this", epsilon="0.1"))
        plan = regulator.plan(SOUTH, name="this", epsilon="0.1")[0].hash.hex()
        own = left_state(regulator, plan)
        done = regulator.run("forget", plan, "--yes", "--json")
        assert done.code == 0, done.stderr
        assert not own.exists()
        assert found.exists()
        assert len(files_in(other)) == 3
        raw = json.loads(Path(done.json["record"]).read_text())
        assert "vault entries" not in raw["destroyed"]
        assert "lists that alignments found" in raw["kept"]


class TestCutShort:
    """The process dies in the middle: the same command finishes, and a record is written."""

    @pytest.fixture
    def ready(self, regulator: Regulator) -> Regulator:
        enrol_north(regulator)
        regulator.approve(regulator.plan_file([*SOUTH, "northerner-1"], epsilon="0.1"))
        return regulator

    def check_finished(self, regulator: Regulator) -> None:
        (begun,) = forget.unfinished(regulator.config)
        assert (begun.target, begun.people, len(begun.plans_closed)) == ("cohort north", 2, 1)
        for path in regulator.config.deletions_folder.iterdir():
            assert b"northerner" not in path.read_bytes()
        told = [own for own in examine(regulator.config) if own.check == "deletions"]
        assert [own.level for own in told] == ["fail"]
        assert told[0].fix == "isonomy-regulator forget north"
        done = regulator.run("forget", "north", "--yes", "--json")
        assert done.code == 0, done.stderr
        assert (done.json["people"], len(done.json["plans_closed"])) == (2, 1)
        assert Path(done.json["record"]).exists()
        assert len(regulator.vault.read()) == 40
        assert forget.unfinished(regulator.config) == []
        events = [entry.event for entry in read_entries(regulator.config.ledger_path)]
        targets = [event["target"] for event in events if event.get("kind") == "deletion"]
        assert targets == ["cohort north"]
        assert regulator.run("forget", "north", "--yes").code == 10  # and now there is none

    def test_before_the_vault_is_written(
        self, ready: Regulator, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def die(self: Vault, table: object) -> int:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(Vault, "write", die)
            with pytest.raises(KeyboardInterrupt):
                forget.forget_cohort(ready.config, "north", ready.vault)
        assert len(ready.vault.read()) == 42
        self.check_finished(ready)

    def test_before_the_record_is_written(
        self, ready: Regulator, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def die(*args: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(forget, "_record", die)
            with pytest.raises(KeyboardInterrupt):
                forget.forget_cohort(ready.config, "north", ready.vault)
        assert len(ready.vault.read()) == 40
        self.check_finished(ready)
