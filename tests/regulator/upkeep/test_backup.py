"""Backup and restore: everything comes back, and no budget is rolled back."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from regulator_kit import Outcome, Regulator, run_regulator

from isonomy.common.base.errors import ConfigError
from isonomy.common.ledger.ledger import verify_ledger
from isonomy.regulator.config.config import RegulatorConfig
from isonomy.regulator.serving.officer import ask
from isonomy.regulator.upkeep.backup import unpack
from isonomy.regulator.upkeep.doctor import examine
from isonomy.regulator.vault.unlock import new_secret
from isonomy.regulator.vault.vault import Vault


@pytest.fixture
def regulator(tmp_path: Path) -> Regulator:
    made = Regulator.create(tmp_path)
    made.approve(made.plan_file(name="first", epsilon="0.3"))
    return made


def back_up(regulator: Regulator, name: str = "one") -> Path:
    path = regulator.folder / f"{name}.backup"
    done = regulator.run("backup", path, "--json")
    assert done.code == 0, done.stderr
    return path


def restore(regulator: Regulator, file: Path, *options: object) -> Outcome:
    unlock = regulator.config.unlock_file
    return run_regulator(
        "restore", file, regulator.home, "--unlock-file", unlock, "--json", *options
    )


def head_of(regulator: Regulator) -> str:
    return verify_ledger(regulator.config.ledger_path).head.hex()


def lose(regulator: Regulator) -> None:
    shutil.rmtree(regulator.home)


def test_a_backup_shows_nothing(regulator: Regulator) -> None:
    raw = back_up(regulator).read_bytes()
    assert (regulator.config.keys_folder / "identity.key").read_bytes() not in raw
    assert b"person-" not in raw
    assert regulator.config.unlock_file is not None
    assert regulator.config.unlock_file.read_bytes().strip() not in raw


def test_a_lost_home_comes_back_against_its_witness(regulator: Regulator) -> None:
    file, head = back_up(regulator), head_of(regulator)
    witness = shutil.copy(regulator.config.witness, regulator.folder / "witness.json")
    before = {
        path.relative_to(regulator.home): path.read_bytes()
        for path in regulator.home.rglob("*")
        if path.is_file() and path.suffix != ".lock" and path.name != "backups.jsonl"
    }
    lose(regulator)
    done = restore(regulator, file, "--head", head, "--witness", witness)
    assert done.code == 0, done.stderr
    assert (done.json["ledger_from"], done.json["plans_spent"]) == ("backup", 0)
    for name, content in before.items():
        found = (regulator.home / name).read_bytes()
        if name.name not in ("ledger.jsonl", "witness.json"):  # these note the restore
            assert found == content, name
    assert len(regulator.vault.read()) == 40
    assert verify_ledger(regulator.config.ledger_path, known_head=bytes.fromhex(head)).records
    assert oct((regulator.home / "keys" / "identity.key").stat().st_mode)[-3:] == "600"
    regulator.approve(regulator.plan_file(name="second", epsilon="0.3"))


def test_without_any_word_from_elsewhere_nothing_is_restored(regulator: Regulator) -> None:
    file = back_up(regulator)
    lose(regulator)
    done = restore(regulator, file)
    assert done.code == 43
    assert "--assume-spent" in done.json["error"]["text"]
    assert not regulator.home.exists()


def spent(regulator: Regulator) -> list[tuple[bool, bool]]:
    """Of each plan: is it open, and did somebody spend all of it?"""
    plans = verify_ledger(regulator.config.ledger_path).plans()
    return [(plan.is_open, plan.spent_units == plan.units) for plan in plans]


def test_a_company_cannot_vouch_for_an_old_backup(regulator: Regulator) -> None:
    """It gains from a rollback, and an old head of it is as well signed as the newest."""
    stale = head_of(regulator)
    file = back_up(regulator)
    regulator.approve(regulator.plan_file(name="second", epsilon="0.3"))
    lose(regulator)
    assert restore(regulator, file, "--head", stale).code == 43
    assert not regulator.home.exists()


def test_without_a_witness_open_plans_end_and_count_as_spent(regulator: Regulator) -> None:
    ask(regulator.config, {"type": "note", "kind": "vault-secret", "event": {}})
    file = back_up(regulator)
    lose(regulator)
    done = restore(regulator, file, "--assume-spent")
    assert (done.code, done.json["plans_spent"]) == (0, 1), done.stderr
    assert spent(regulator) == [(False, True)]
    state = verify_ledger(regulator.config.ledger_path)
    assert state.max_held_units == state.max_person_units == state.plans()[0].units
    assert not list(regulator.config.plans_folder.glob("*.people"))
    assert "all of its budget counts as spent (plan closed)" in regulator.run("ledger").stdout
    again = regulator.run("approve", regulator.folder / "first.json", "--yes")
    assert again.code == 51  # it was closed, and does not come back
    notes = [found.text for found in examine(regulator.config) if found.level == "warn"]
    assert any("nothing showed to be the newest" in text for text in notes)
    regulator.approve(regulator.plan_file(name="second", epsilon="0.3"))  # what is left can be used


def test_a_witness_that_ends_before_the_backup_proves_nothing(regulator: Regulator) -> None:
    witness = shutil.copy(regulator.config.witness, regulator.folder / "witness.json")
    regulator.approve(regulator.plan_file(name="second", epsilon="0.3"))
    file = back_up(regulator)
    lose(regulator)
    assert restore(regulator, file, "--witness", witness).code == 43


def test_a_newer_head_is_heeded_even_so(regulator: Regulator) -> None:
    file = back_up(regulator)
    regulator.approve(regulator.plan_file(name="second", epsilon="0.3"))
    newest = head_of(regulator)
    lose(regulator)
    assert restore(regulator, file, "--assume-spent", "--head", newest).code == 43


def test_a_backup_older_than_what_was_signed_is_refused(regulator: Regulator) -> None:
    file = back_up(regulator)
    regulator.approve(regulator.plan_file(name="second", epsilon="0.3"))
    newest = head_of(regulator)
    lose(regulator)
    done = restore(regulator, file, "--head", newest)
    assert done.code == 43
    assert "spent twice" in done.json["error"]["text"]
    assert not regulator.home.exists()
    assert not list(regulator.folder.glob(".home.restoring*"))


def test_a_witness_from_elsewhere_counts_like_a_head(regulator: Regulator) -> None:
    old = back_up(regulator, "old")
    regulator.approve(regulator.plan_file(name="second", epsilon="0.3"))
    new = back_up(regulator, "new")
    witness = shutil.copy(regulator.config.witness, regulator.folder / "witness.json")
    lose(regulator)
    assert restore(regulator, old, "--witness", witness).code == 43
    assert restore(regulator, new, "--witness", witness).code == 0
    changed = Path(witness)
    changed.write_bytes(changed.read_bytes().replace(b'"records":', b'"records":1'))
    assert restore(regulator, new, "--witness", witness).code == 40


def test_over_a_home_the_newer_ledger_and_vault_stay(regulator: Regulator) -> None:
    file = back_up(regulator)
    regulator.approve(regulator.plan_file(name="second", epsilon="0.3"))
    head = head_of(regulator)
    assert regulator.run("forget", "everybody", "--yes").code == 0
    (regulator.config.keys_folder / "member.key").unlink()  # what the backup is wanted for
    done = restore(regulator, file)
    assert done.code == 0, done.stderr
    assert (done.json["ledger_from"], done.json["vault_from"]) == ("home", "home")
    assert verify_ledger(regulator.config.ledger_path, known_head=bytes.fromhex(head)).records
    assert (regulator.config.keys_folder / "member.key").exists()
    assert len(regulator.vault.read()) == 0  # forgotten people stay forgotten
    assert not list(regulator.config.plans_folder.glob("*.people"))
    assert Path(done.json["before"]).exists()


def test_an_old_backup_brings_no_old_officers_back(
    regulator: Regulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One officer, or a revoked one, would otherwise undo the rule that two must approve."""
    toml = regulator.home / "regulator.toml"
    toml.write_text(toml.read_text() + "\n[officers.Ada]\n[officers.Bela]\n")
    monkeypatch.setenv("ISONOMY_OFFICER", "Ada")
    file = back_up(regulator)
    toml.write_text(toml.read_text() + "revoked = true\n[officers.Cleo]\n")
    regulator.change("approving_officers = 1", "approving_officers = 2")
    policy, head = toml.read_bytes(), head_of(regulator)
    monkeypatch.setenv("ISONOMY_OFFICER", "Bela")
    done = restore(regulator, file)
    assert (done.code, "'Bela' is revoked" in done.json["error"]["text"]) == (51, True)
    assert (toml.read_bytes(), head_of(regulator)) == (policy, head)
    assert not list(regulator.folder.glob(".home.restoring*"))
    monkeypatch.setenv("ISONOMY_OFFICER", "Cleo")  # in the home's table, not in the backup's
    done = run_regulator("restore", file, regulator.home)  # opened by regulator.toml's unlock file
    assert (done.code, "regulator.toml is the one that was there" in done.stderr) == (0, True)
    assert toml.read_bytes() == policy


def test_without_a_ledger_a_home_with_another_policy_is_no_proof(regulator: Regulator) -> None:
    """`init` makes a home without officers; a backup put over it must not lose its own."""
    file, ledger = back_up(regulator), regulator.config.ledger_path
    regulator.change("approving_officers = 1", "approving_officers = 2")
    ledger.unlink()
    done = restore(regulator, file, "--assume-spent")
    assert (done.code, "which of them counts" in done.json["error"]["text"]) == (10, True)
    assert not ledger.exists()
    regulator.change("approving_officers = 2", "approving_officers = 1")
    assert restore(regulator, file).code == 0


def test_ledgers_that_went_different_ways_are_refused(regulator: Regulator) -> None:
    file = back_up(regulator)
    regulator.approve(regulator.plan_file(name="second", epsilon="0.3"))
    ahead = back_up(regulator, "ahead")
    lose(regulator)
    assert restore(regulator, file, "--assume-spent").code == 0
    done = restore(regulator, ahead)  # the restored home went on another way
    assert done.code == 43
    assert "different ways" in done.json["error"]["text"]


def verify_ledger_head(file: Path, regulator: Regulator) -> str:
    from isonomy.regulator.vault.sealed_file import read_header

    return str(read_header(file, "backup", 1).public["head"])


@pytest.mark.parametrize("place", [5, -5])
def test_a_changed_backup_is_refused(regulator: Regulator, place: int) -> None:
    file = back_up(regulator)
    raw = bytearray(file.read_bytes())
    raw[place] ^= 1
    file.write_bytes(raw)
    done = restore(regulator, file)
    assert done.code == 44
    assert head_of(regulator)


def test_a_foreign_folder_is_not_touched(regulator: Regulator, tmp_path: Path) -> None:
    file, other = back_up(regulator), tmp_path / "other"
    other.mkdir()
    (other / "letter.txt").write_text("mine")
    unlock = regulator.config.unlock_file
    done = run_regulator("restore", file, other, "--unlock-file", unlock)
    assert done.code == 10
    assert [path.name for path in other.iterdir()] == ["letter.txt"]


class TestWhileTheVaultIsChanged:
    def test_a_backup_waits_its_turn(self, regulator: Regulator) -> None:
        with regulator.vault.locked():
            done = regulator.run("backup", regulator.folder / "torn.backup")
        assert done.code == 10
        assert "changing the vault" in done.stderr
        assert not (regulator.folder / "torn.backup").exists()
        assert back_up(regulator).exists()

    def test_nobody_changes_the_vault_under_a_backup(
        self, regulator: Regulator, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        read, tries = Path.read_bytes, []

        def read_slowly(path: Path) -> bytes:
            if path.name == "vault.bin":
                with pytest.raises(ConfigError, match="changing the vault"), vault.locked():
                    vault.write(vault.read())
                tries.append(path)
            return read(path)

        vault = regulator.vault
        monkeypatch.setattr(Path, "read_bytes", read_slowly)
        file = back_up(regulator)
        monkeypatch.undo()
        assert len(tries) == 1
        secret = new_secret(regulator.config.unlock_file)
        unpack(file, regulator.folder / "out", secret)
        assert len(Vault(regulator.folder / "out" / "vault.bin", secret).read()) == 40

    def test_it_says_the_head_of_the_ledger_that_is_in_it(
        self, regulator: Regulator, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        read = Path.read_bytes

        def grow(path: Path) -> bytes:
            raw = read(path)
            if path == regulator.config.ledger_path:  # a daemon answers right after it was read
                ask(regulator.config, {"type": "note", "kind": "vault-secret", "event": {}})
            return raw

        monkeypatch.setattr(Path, "read_bytes", grow)
        file = back_up(regulator)
        monkeypatch.undo()
        unpack(file, regulator.folder / "out", new_secret(regulator.config.unlock_file))
        inside = verify_ledger(regulator.folder / "out" / "ledger.jsonl")
        assert verify_ledger_head(file, regulator) == inside.head.hex()
        assert head_of(regulator) != inside.head.hex()


class TestWitness:
    @pytest.mark.parametrize("absolute", [False, True])
    def test_a_copy_in_the_home_does_not_vouch_for_the_backup(
        self, regulator: Regulator, absolute: bool
    ) -> None:
        """It was backed up with the ledger, so it is always as old as that."""
        copy = regulator.home / "copies" / "witness.json"
        copy.parent.mkdir()
        named = copy if absolute else "copies/witness.json"
        regulator.change("witness_copies = []", f'witness_copies = ["{named}"]')
        ask(regulator.config, {"type": "witness"})
        assert copy.exists()
        told = [own.text for own in examine(regulator.config) if own.level == "warn"]
        assert any("lies in the home" in text for text in told)
        file = back_up(regulator)
        regulator.approve(regulator.plan_file(name="second", epsilon="0.3"))
        lose(regulator)
        done = restore(regulator, file)
        assert done.code == 43
        assert "--assume-spent" in done.json["error"]["text"]
        assert not regulator.home.exists()

    def test_a_copy_elsewhere_does(self, regulator: Regulator, tmp_path: Path) -> None:
        copy = tmp_path / "elsewhere" / "witness.json"
        copy.parent.mkdir()
        regulator.change("witness_copies = []", f'witness_copies = ["{copy}"]')
        ask(regulator.config, {"type": "witness"})
        old = back_up(regulator, "old")
        regulator.approve(regulator.plan_file(name="second", epsilon="0.3"))
        new = back_up(regulator, "new")
        lose(regulator)
        assert restore(regulator, old).code == 43
        assert restore(regulator, new).code == 0

    def test_one_of_somebody_else_counts_for_nothing(
        self, regulator: Regulator, tmp_path: Path
    ) -> None:
        other = Regulator.create(tmp_path / "other")
        other.approve(other.plan_file())
        file = back_up(regulator)
        lose(regulator)
        done = restore(regulator, file, "--witness", other.config.witness)
        assert done.code == 40
        assert not regulator.home.exists()

    def test_a_ledger_that_was_cut_is_not_opened(self, regulator: Regulator) -> None:
        old = regulator.config.ledger_path.read_bytes()
        regulator.approve(regulator.plan_file(name="second", epsilon="0.3"))
        regulator.config.ledger_path.write_bytes(old)  # whole records, an older state
        done = regulator.run("approve", regulator.plan_file(name="third"), "--yes")
        assert done.code == 43
        assert "spent twice" in done.stderr
        assert regulator.config.ledger_path.read_bytes() == old

    def test_a_ledger_that_is_gone_is_not_begun_anew(self, regulator: Regulator) -> None:
        regulator.config.ledger_path.unlink()
        done = regulator.run("approve", regulator.plan_file(name="third"), "--yes")
        assert done.code == 43
        assert not regulator.config.ledger_path.exists()

    def test_an_older_vault_is_not_opened(self, regulator: Regulator) -> None:
        old = regulator.config.vault_path.read_bytes()
        assert regulator.run("forget", "everybody", "--yes").code == 0
        regulator.config.vault_path.write_bytes(old)
        done = regulator.run("approve", regulator.plan_file(name="third"), "--yes")
        assert done.code == 43
        assert "could come back" in done.stderr

    def test_copies_are_kept_and_heeded(self, regulator: Regulator, tmp_path: Path) -> None:
        copy = tmp_path / "elsewhere" / "witness.json"
        copy.parent.mkdir()
        regulator.change("witness_copies = []", f'witness_copies = ["{copy}"]')
        snapshot = shutil.copytree(regulator.home, tmp_path / "snapshot")
        regulator.approve(regulator.plan_file(name="second", epsilon="0.3"))
        assert copy.exists()
        shutil.rmtree(regulator.home)
        shutil.copytree(snapshot, regulator.home)  # the whole home put back, its witness too
        done = regulator.run("approve", regulator.plan_file(name="third"), "--yes")
        assert done.code == 43


def test_a_home_can_be_moved(regulator: Regulator, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    regulator.home.rename(moved)
    assert len(RegulatorConfig.load(moved).groups) == 1
    assert run_regulator("status", "--home", moved, "--json").json["enrolled"] == 40
