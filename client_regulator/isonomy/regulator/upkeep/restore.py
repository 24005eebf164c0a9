"""Restoring a home without rolling anybody's budget back.

Rules, in order:
    (0) if a home is there, its officers say who may restore, and its regulator.toml stays: nobody
        undoes a revocation or a second officer with an old backup. A home without a ledger may be
        anybody's, so its regulator.toml must then say what the backup's says;
    (1) the backup decrypts, and its ledger holds;
    (2) of the home's own ledger (if there is one) and the backup's, the longer one counts, and it
        must contain the shorter: two ledgers that went different ways are refused;
    (3) it contains every head that is known from elsewhere: heads from signed answers (--head) and
        head witnesses (--witness, the home's own, its copies elsewhere). A copy below the home is
        part of the backup, so it proves nothing;
    (3a) it is the newest state: it came from the home, or it ends where such a witness ends. A
        company's head proves nothing here: the company gains from a rollback and chooses which head
        it shows. Without that proof the officer must say --assume-spent; then every plan that is
        open in the backup is closed, and all that was set aside for it counts as spent;
    (4) of two vaults the newer one counts, and none older than witnessed comes back;
    (5) what was forgotten since the backup stays forgotten: plans that ended, their state, lists
        with somebody who is no longer enrolled. What came since is carried over.
Then the folder is put in place in one step; what was there before is kept beside it.
"""

from __future__ import annotations

import secrets
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from isonomy.common.base.errors import ConfigError, StorageError
from isonomy.common.base.private_files import fsync_folder
from isonomy.common.ledger.ledger import Ledger, read_ledger
from isonomy.regulator.config.config import FILE_NAME, RegulatorConfig
from isonomy.regulator.config.faults import RollbackRefused
from isonomy.regulator.config.officers import acting_officer
from isonomy.regulator.plans.plan_files import known_terms
from isonomy.regulator.serving.approving import file_away
from isonomy.regulator.serving.officer import ask, daemon_status
from isonomy.regulator.serving.witness import (
    Witness,
    check_vault,
    load_witness,
    vault_generation,
)
from isonomy.regulator.upkeep._carry_over import stay_forgotten
from isonomy.regulator.upkeep._remains import shred_folder
from isonomy.regulator.upkeep.backup import unpack
from isonomy.regulator.vault.unlock import Secret
from isonomy.regulator.vault.vault import Vault

_UNPROVED = (
    "there is no ledger or witness of this home to compare with, so nothing shows that this backup "
    "is the newest state; a company's head cannot. Name the copy of witness.json on another disk "
    "with --witness. If there is none, --assume-spent restores the backup, closes every plan that "
    "is open in it, and counts all that was set aside for these plans as spent"
)


@dataclass(frozen=True)
class Restored:
    """What is in place now, and where the former home was moved to."""

    home: Path
    records: int
    ledger_from: str  # "backup" or "home"
    vault_from: str
    before: Path | None
    plans_spent: int  # plans that were closed in full, because nobody knows what they spent


def restore(
    file: Path,
    home: Path,
    secret: Secret,
    *,
    heads: Sequence[bytes] = (),
    witnesses: Sequence[Path] = (),
    assume_spent: bool = False,
) -> Restored:
    """Put a backup in place; raises before anything is changed. Returns what is in place now."""
    home = home.resolve()
    old = _present(home)
    staging = home.with_name(f".{home.name}.restoring-{secrets.token_hex(4)}")
    try:
        file_id = unpack(file, staging, secret)  # (1)
        new = RegulatorConfig.load(staging)
        officer = acting_officer((old or new).officers)  # (0)
        _check_policies(old, new)
        ledger_from = _choose_ledger(old, new)  # (1), (2)
        trusted = _trusted_witnesses(old, new, home, witnesses)
        chain = _read(new.ledger_path) if new.ledger_path.exists() else _Chain()
        _check_heads(chain, heads, trusted)  # (3)
        is_newest = ledger_from == "home" or chain.head in {each.head for each in trusted}
        if not is_newest and not assume_spent:  # (3a)
            raise RollbackRefused(_UNPROVED)
        vault_from = _choose_vault(old, new)  # (4)
        for witness in trusted:
            check_vault(new, witness)
        stay_forgotten(old, new, Vault(new.vault_path, secret), newer=ledger_from)  # (5)
        plans_spent = 0 if is_newest else _spend_open_plans(new, officer)  # (3a)
        (new.home / "run").mkdir(exist_ok=True)
        if old is not None:
            shutil.copy2(old.home / FILE_NAME, new.home / FILE_NAME)  # (0)
        before = _swap(staging, home)
    finally:
        shred_folder(staging)  # after a failure it still holds keys and lists in plain text
    config = RegulatorConfig.load(home)
    if config.ledger_path.exists() or not is_newest:
        event = {"backup": file_id, "newest": int(is_newest)}
        ask(config, {"type": "note", "kind": "restore", "event": event})
    return Restored(home, chain.records, ledger_from, vault_from, before, plans_spent)


@dataclass(frozen=True)
class _Chain:
    ledger_id: bytes = b""
    records: int = 0
    head: bytes = b""
    heads: frozenset[bytes] = frozenset()


def _read(path: Path) -> _Chain:
    heads: set[bytes] = set()
    state = read_ledger(path, lambda sealed, _: heads.add(sealed.hash))
    return _Chain(state.ledger_id, state.records, state.head, frozenset(heads))


def _present(home: Path) -> RegulatorConfig | None:
    if not (home / FILE_NAME).exists():
        if home.exists() and any(home.iterdir()):
            raise ConfigError(f"{home} is neither a regulator's home nor empty; nothing was done")
        return None
    config = RegulatorConfig.load(home)
    if daemon_status(config) is not None:
        raise ConfigError("the daemon of this home is running; stop it first")
    return config


def _check_policies(old: RegulatorConfig | None, new: RegulatorConfig) -> None:
    """Raise ConfigError if two policies differ and no ledger shows that the home's one counts."""
    if old is None or old.ledger_path.exists() or old.model_dump() == new.model_dump():
        return
    raise ConfigError(
        f"{old.home} has no ledger, and its {FILE_NAME} differs from the one in the backup, so "
        "nothing shows which of them counts (officers, policy). Nothing was restored; "
        "restore into a new folder, and compare the two files"
    )


def _trusted_witnesses(
    old: RegulatorConfig | None, new: RegulatorConfig, home: Path, named: Sequence[Path]
) -> list[Witness]:
    """Return the witnesses that were not in the backup.

    An identity in the backup must have signed them: the home's own keys may be what was lost.
    """
    copies = {path.resolve() for config in (old, new) if config for path in config.witness_paths}
    inside = (home, new.home.resolve())
    paths = [path for path in sorted(copies) if not set(inside) & set(path.parents)]
    paths += [old.witness] if old else []
    return [load_witness(path, new) for path in (*named, *(p for p in paths if p.exists()))]


def _choose_ledger(old: RegulatorConfig | None, new: RegulatorConfig) -> str:
    """Put the longer ledger into `new` (the unpacked backup). Returns where it came from."""
    if old is None or not old.ledger_path.exists():
        return "backup"
    present = _read(old.ledger_path)
    if not new.ledger_path.exists():
        shutil.copy2(old.ledger_path, new.ledger_path)
        return "home"
    saved = _read(new.ledger_path)
    if saved.head in present.heads:
        shutil.copy2(old.ledger_path, new.ledger_path)
        return "home"
    if present.head in saved.heads:
        return "backup"
    raise RollbackRefused(
        f"the ledger in {old.home} and the one in the backup went different ways: neither contains "
        "the other. Nothing was restored; compare them with the companies' heads"
    )


def _check_heads(chain: _Chain, heads: Sequence[bytes], witnesses: Sequence[Witness]) -> None:
    """Raise RollbackRefused unless the ledger contains every head that is known from elsewhere."""
    if not chain.records and (heads or witnesses):
        raise RollbackRefused("the backup is too old: it has no ledger. Find a newer one")
    missing = [head for head in heads if head not in chain.heads]
    missing += [
        witness.head
        for witness in witnesses
        if witness.head not in chain.heads or witness.ledger_id != chain.ledger_id
    ]
    if missing:
        raise RollbackRefused(
            f"this ledger is too old: it lacks {len(missing)} record(s) that a company or a "
            f"witness knows of (first: {missing[0].hex()[:16]}…), so budgets would be spent twice. "
            "Find a newer copy"
        )


def _spend_open_plans(new: RegulatorConfig, officer: str) -> int:
    """Close every open plan, all that was set aside for it spent. Returns how many there were."""
    if not new.ledger_path.exists():
        return 0
    with Ledger.open(new.ledger_path) as ledger:
        plans = [plan.plan for plan in ledger.plans() if plan.is_open]
        for plan in plans:
            ledger.close_plan(plan, in_full=True, officer=officer)
    for terms in filter(None, (known_terms(new, plan) for plan in plans)):
        file_away(new, terms)
    return len(plans)


def _choose_vault(old: RegulatorConfig | None, new: RegulatorConfig) -> str:
    if old is None or not old.vault_path.exists():
        return "backup"
    if vault_generation(old) <= vault_generation(new):
        return "backup"
    shutil.copy2(old.vault_path, new.vault_path)
    return "home"


def _swap(staging: Path, home: Path) -> Path | None:
    before = None
    try:
        if home.exists() and any(home.iterdir()):
            stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
            before = home.with_name(f"{home.name}.before-restore-{stamp}")
            home.rename(before)
        elif home.exists():
            home.rmdir()
        staging.rename(home)
        fsync_folder(home)
    except OSError as error:
        raise StorageError(f"cannot put {home} in place: {error.strerror}") from None
    return before
