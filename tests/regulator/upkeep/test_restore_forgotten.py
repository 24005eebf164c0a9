"""A restore over a home: what it has forgotten since the backup does not come back."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from regulator_kit import Outcome, Regulator, run_regulator

from isonomy.common.people.cohort import Cohort
from isonomy.regulator.serving.aligning import alignments
from isonomy.regulator.upkeep import _remains as remains
from isonomy.regulator.vault.task_pools import (
    list_pools,
    open_pool,
    remove_pool,
    seal_pools_anew,
)


@pytest.fixture
def regulator(tmp_path: Path) -> Regulator:
    made = Regulator.create(tmp_path)
    made.approve(made.plan_file(name="first", epsilon="0.3"))
    return made


def back_up(regulator: Regulator) -> Path:
    path = regulator.folder / "one.backup"
    assert regulator.run("backup", path).code == 0
    return path


def restore(regulator: Regulator, file: Path) -> Outcome:
    unlock = regulator.config.unlock_file
    return run_regulator("restore", file, regulator.home, "--unlock-file", unlock, "--json")


def aligned(regulator: Regulator, number: int, ids: list[str]) -> Path:
    """A list as an alignment leaves it, with its approval."""
    (regulator.home / "alignments").mkdir(exist_ok=True)
    store, plan_hash = alignments(regulator.config), bytes([number] * 32)
    store.save(plan_hash, Cohort.of(ids))
    path = store.people(plan_hash)
    path.with_suffix(".json").write_text("approved")
    return path


class TestForgottenSinceTheBackup:
    @pytest.fixture
    def plan(self, regulator: Regulator) -> str:
        """The approved plan, with state; and a list of alignments about the same people."""
        plan = regulator.plan(name="first", epsilon="0.3")[0].hash.hex()
        self.state(regulator, plan, b"older")
        aligned(regulator, 1, list(Regulator.people(40)))
        return plan

    @staticmethod
    def state(regulator: Regulator, plan: str, content: bytes) -> Path:
        folder = regulator.config.state_folder / plan / "inspections"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "a.norms").write_bytes(content)
        return folder / "a.norms"

    def lists(self, regulator: Regulator) -> list[Path]:
        return [*regulator.home.rglob("*.people"), *(regulator.home / "alignments").glob("*.json")]

    def test_lists_and_state_of_a_cohort(self, regulator: Regulator, plan: str) -> None:
        assert regulator.run("reject", plan, "--yes").code == 0  # its list goes, its state stays
        file = back_up(regulator)
        assert regulator.run("forget", "everybody", "--yes").code == 0
        assert restore(regulator, file).code == 0
        assert self.lists(regulator) == []
        assert list(regulator.config.state_folder.rglob("*.norms")) == []

    def test_state_of_a_run(self, regulator: Regulator, plan: str) -> None:
        file = back_up(regulator)
        assert regulator.run("forget", plan, "--yes").code == 0
        assert restore(regulator, file).code == 0
        assert not (regulator.config.state_folder / plan).exists()
        assert len(list((regulator.home / "alignments").glob("*.people"))) == 1

    def test_a_home_that_lost_its_lists_gets_them_back(
        self, regulator: Regulator, plan: str
    ) -> None:
        file = back_up(regulator)
        kept = self.lists(regulator)
        shutil.rmtree(regulator.config.plans_folder)
        (regulator.home / "alignments" / f"{'01' * 32}.people").unlink()
        assert restore(regulator, file).code == 0
        assert sorted(self.lists(regulator)) == sorted(kept)

    def test_what_came_since_is_kept(self, regulator: Regulator, plan: str) -> None:
        file = back_up(regulator)
        newer = self.state(regulator, plan, b"newer")
        second = aligned(regulator, 2, list(Regulator.people(9)))
        assert restore(regulator, file).code == 0
        assert newer.read_bytes() == b"newer"  # older state would let counters run twice
        assert second.exists()

    def test_an_alignment_that_was_withdrawn_is_not_approved_again(
        self, regulator: Regulator, plan: str
    ) -> None:
        file = back_up(regulator)
        (approval,) = (regulator.home / "alignments").glob("*.json")
        approval.unlink()
        assert restore(regulator, file).code == 0
        assert not approval.exists()

    def test_under_another_secret_no_list_comes_back_that_the_home_has_not(
        self, regulator: Regulator, plan: str
    ) -> None:
        """Nobody can tell from a vault that stays shut who is enrolled."""
        kept = aligned(regulator, 2, list(Regulator.people(9)))
        file = back_up(regulator)
        (regulator.home / "alignments" / f"{'01' * 32}.people").unlink()
        other = regulator.folder / "secret" / "other"
        assert regulator.run("rotate", "vault", "--new-unlock-file", other).code == 0
        done = restore(regulator, file)
        assert (done.code, done.json["vault_from"]) == (0, "home")
        assert list((regulator.home / "alignments").glob("*.people")) == [kept]

    def test_nothing_readable_is_left_of_a_restore_that_was_refused(
        self, regulator: Regulator, plan: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        file, shredded = back_up(regulator), []
        shutil.rmtree(regulator.home)
        monkeypatch.setattr(remains, "shred", lambda path: shredded.append(path.name))
        assert restore(regulator, file).code == 43
        assert {"identity.key", "member.key", f"{plan}.people"} <= set(shredded)
        assert not list(regulator.folder.glob(".home.restoring*"))


class TestFewShot:
    """Tasks that were destroyed and few-shot plans that ended since the backup stay so."""

    def add(self, regulator: Regulator, name: str) -> None:
        count = 10
        path = regulator.folder / f"{name}.npz"
        ids = np.array([f"{name}-{number}" for number in range(count)])
        np.savez(path, inputs=np.ones((count, 2)), labels=np.arange(count) % 2, ids=ids)
        assert regulator.run("tasks", "add", name, path).code == 0

    def test_what_ended_does_not_come_back_and_the_rest_does(self, regulator: Regulator) -> None:
        approvals = regulator.config.few_shot_folder
        approvals.mkdir()
        for name in ("kept", "gone"):
            self.add(regulator, name)
            (approvals / f"{name}.json").write_text(name)
        file = back_up(regulator)
        (approvals / "gone.json").unlink()
        (approvals / "kept.json").rename(approvals / ("00" * 32 + ".json"))
        remove_pool(regulator.config, "gone")
        self.add(regulator, "later")
        assert restore(regulator, file).code == 0
        assert [own.name for own in list_pools(regulator.config)] == ["kept", "later"]
        assert [own.name for own in approvals.iterdir()] == ["00" * 32 + ".json"]
        for name in ("kept", "later"):
            assert len(open_pool(regulator.config, regulator.vault, name)) == 10

    def test_nor_does_the_second_copy_of_a_rotation_that_was_killed(
        self, regulator: Regulator
    ) -> None:
        self.add(regulator, "gone")
        seal_pools_anew(regulator.config, regulator.vault, regulator.vault.secret)
        file = back_up(regulator)
        remove_pool(regulator.config, "gone")
        assert restore(regulator, file).code == 0
        assert list(regulator.config.tasks_folder.glob("*")) == []
