"""What a restore takes from the home that is there, so that what was forgotten stays forgotten.

| | in the restored home |
|---|---|
| plans, closed plans, deletions | the backup's and the home's; a plan that ended since is ended |
| approvals of alignments, officers' signatures | the home's only: what was withdrawn stays so |
| lists of alignments | the backup's and the home's, if everybody in them is enrolled |
| approvals of few-shot plans, tasks | the backup's, if the home has them too: else they ended |
| state of sessions | the home's, if its ledger is the newer one; else the backup's |
| state of ended plans | only if the home has it too: else it was destroyed |

Works on the unpacked backup, before it is put in place. The home that is there is only read.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from isonomy.common.base.errors import StorageError
from isonomy.common.base.private_files import private_folder
from isonomy.common.people.cohort import id_key
from isonomy.regulator.config.config import RegulatorConfig
from isonomy.regulator.config.faults import VaultLocked, VaultTampered
from isonomy.regulator.upkeep._remains import shred_folder, shred_lists
from isonomy.regulator.vault.sealed_file import shred
from isonomy.regulator.vault.task_pools import opens
from isonomy.regulator.vault.vault import Vault


def stay_forgotten(
    old: RegulatorConfig | None, new: RegulatorConfig, vault: Vault, *, newer: str
) -> None:
    """Make `new` (unpacked) forget what `old` has forgotten, and know what came since.

    `vault`: the one that was chosen; `newer`: whose ledger counts, "home" or "backup".
    """
    try:
        if old is not None:
            _plans(old, new)
            _state(old, new, from_home=newer == "home")
            _kept_by_home(old.alignments_folder, new.alignments_folder)
            if old.approvals_folder.is_dir():
                _kept_by_home(old.approvals_folder, new.approvals_folder)
            _few_shot(old, new, vault)
    except OSError as error:
        raise StorageError(f"cannot read {error.filename}: {error.strerror}") from None
    _lists(old, new, vault)


def _plans(old: RegulatorConfig, new: RegulatorConfig) -> None:
    for folder in ("closed_folder", "deletions_folder", "plans_folder"):
        _copy_files(getattr(old, folder), getattr(new, folder))
    for closed in new.closed_folder.glob("*.json"):
        if not (old.plans_folder / closed.name).exists():
            stem = new.plans_folder / closed.name
            stem.unlink(missing_ok=True)
            shred(stem.with_suffix(".people"))


def _state(old: RegulatorConfig, new: RegulatorConfig, *, from_home: bool) -> None:
    """Choose the state of sessions.

    Older state never replaces newer state: a session's counters must not run twice.
    """
    if from_home:
        for source in old.state_folder.glob("*"):
            if source.is_dir():
                shred_folder(new.state_folder / source.name)
                shutil.copytree(source, new.state_folder / source.name, symlinks=True)
    for state in new.state_folder.glob("*"):
        folders = (new.plans_folder, new.few_shot_folder)
        approved = any((folder / f"{state.name}.json").exists() for folder in folders)
        if not approved and not (old.state_folder / state.name).exists():
            shred_folder(state)


def _kept_by_home(source: Path, target: Path) -> None:
    for approval in target.glob("*.json"):
        if not (source / approval.name).exists():
            approval.unlink()
    _copy_files(source, target)


def _few_shot(old: RegulatorConfig, new: RegulatorConfig, vault: Vault) -> None:
    """Plans that were rejected and tasks that were destroyed since do not come back."""
    for approval in new.few_shot_folder.glob("*.json"):
        if not (old.few_shot_folder / approval.name).exists():
            approval.unlink()
    _copy_files(old.few_shot_folder, new.few_shot_folder)
    if not old.tasks_folder.is_dir():
        return  # there never were any, or all were lost: keep those of the backup
    for pool in new.tasks_folder.glob("*.*"):  # including what an interrupted rotation left
        if not (old.tasks_folder / pool.with_suffix(".bin").name).exists():
            shred(pool)
    # A pool never changes, but the secret may have: keep the copies that go with the chosen vault.
    same = old.vault_path.exists() and old.vault_path.read_bytes() == new.vault_path.read_bytes()
    for pool in old.tasks_folder.glob("*.bin"):
        copy = new.tasks_folder / pool.name
        if same or not copy.exists() or not opens(copy, vault.secret):
            private_folder(copy.parent)
            shutil.copy2(pool, copy)


def _lists(old: RegulatorConfig | None, new: RegulatorConfig, vault: Vault) -> None:
    try:
        enrolled = set(map(id_key, vault.read().ids))
    except (VaultLocked, VaultTampered):
        # The home's vault is broken, or has another secret than the backup: nobody can tell who is
        # enrolled, so no list comes back that the home does not hold itself.
        lists = old.alignments_folder if old else None
        for path in new.alignments_folder.glob("*.people"):
            if lists is None or not (lists / path.name).exists():
                path.with_suffix(".json").unlink(missing_ok=True)
                shred(path)
        return
    shred_lists(new, lambda people: not people <= enrolled)


def _copy_files(source: Path, target: Path) -> None:
    if source.exists():
        private_folder(target)
        for path in source.iterdir():
            if path.is_file():
                shutil.copy2(path, target / path.name)
