"""Deletion: what is kept about people is destroyed, what was spent of their budget stays.

| | a run | a cohort |
|---|---|---|
| closed | its plan | every open plan with one of its people |
| destroyed | its list of ids, its session state | the same of these plans, and of plans that ended
before; lists of alignments with one of its people; its people in the vault, and the old key |
| kept | people, lists of alignments, other plans; the plan's terms; the ledger, which knows people
by keyed hashes | the terms and the ledger |

Tasks for few-shot runs are destroyed by name (`tasks remove`). A cohort whose ids occur in tasks is
not forgotten before that: the record must be true.

Steps of a deletion, so that none is ever done without a record:
    (1) a note is written that it begins (deletions/….begun: whom, how many, which plans; no ids)
    (2) plans end, lists and state are destroyed, then the people leave the vault
    (3) the signed record is written, its hash is noted in the ledger, and the note (1) is removed
The same command completes a deletion that was cut short, even if the cohort has already left the
vault; until then `doctor` names it.

Member hashes are keyed, and the key is kept on purpose: whoever is enrolled again has the budget
that they had left (tests/regulator/upkeep/test_forget.py).
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from isonomy.common.agreements.approvals import Approvals
from isonomy.common.agreements.plan import Plan
from isonomy.common.base.documents import Document
from isonomy.common.base.errors import ConfigError
from isonomy.common.base.private_files import private_folder, write_private
from isonomy.common.people.cohort import Cohort, id_key
from isonomy.regulator.config.config import RegulatorConfig
from isonomy.regulator.config.officers import acting_officer
from isonomy.regulator.serving.approving import signed_record, withdraw
from isonomy.regulator.serving.officer import note
from isonomy.regulator.upkeep._remains import shred_ended, shred_folder, shred_halves, shred_lists
from isonomy.regulator.upkeep.backup import backups_made
from isonomy.regulator.vault.member_key import member_key
from isonomy.regulator.vault.task_pools import pools_about
from isonomy.regulator.vault.vault import Vault

DOMAIN = "isonomy/deletion/v1"
_SUFFIX = ".begun"
_LEDGER = "the ledger with keyed hashes of ids, so that spent budgets stay spent"
_RUN = {
    "destroyed": "the run's list of ids and its session state",
    "kept": f"people in the vault, lists that alignments found; {_LEDGER}",
}
_COHORT = {
    "destroyed": "lists of ids, session state, vault entries and the key they were under",
    "kept": _LEDGER,
}


@dataclass(frozen=True)
class DeletionResult:
    """What a deletion did."""

    forgotten: str
    people: int
    plans_closed: tuple[str, ...]
    record: Path
    backups: tuple[str, ...]


class Pending(Document):
    """A deletion that has begun and has no record yet."""

    word: ClassVar[str] = "note of a deletion that began (remove it, and forget again)"

    target: str
    people: int
    plans_closed: tuple[str, ...]


def forget_run(config: RegulatorConfig, plan: Plan) -> DeletionResult:
    """Forget the people of one plan. Returns what was done."""
    target = f"run {plan.hash.hex()}"
    pending = _begin(config, target, plan.cohort_size, [plan.hash.hex()])  # (1)
    _end(config, plan)  # (2)
    return _record(config, pending, _RUN)  # (3)


def forget_cohort(config: RegulatorConfig, name: str, vault: Vault) -> DeletionResult:
    """Forget a cohort: first end all answers about its people, then remove the people.

    Returns what was done.
    """
    target = f"cohort {name}"
    with vault.locked():
        table, earlier = vault.read(), _pending(config, target)
        if name not in table.cohort_names and earlier is not None:
            return _record(config, earlier, _COHORT)  # it was cut short after (2)
        leaving = table.in_cohort(name)
        people = {id_key(table.ids[row]) for row in np.flatnonzero(leaving)}
        _refuse_tasks(pools_about(config, vault, people))
        members = Cohort(tuple(people)).member_hashes(member_key(config)) if people else []
        approvals = Approvals(config.plans_folder)
        plans = [approvals.require(plan_hash) for plan_hash in approvals.hashes()]
        ended = [plan for plan, cohort in plans if not people.isdisjoint(cohort.keys)]
        pending = _begin(config, target, len(people), [plan.hash.hex() for plan in ended])  # (1)
        for plan in ended:  # (2)
            _end(config, plan)
        shred_ended(config, members)
        shred_lists(config, lambda others: not people.isdisjoint(others))
        shred_halves(config)
        # The vault comes last: as long as the people are in it, the rest of them can be found.
        vault.write(table.without(leaving))
        return _record(config, pending, _COHORT)  # (3)


def unfinished(config: RegulatorConfig) -> list[Pending]:
    """Return the deletions that were cut short."""
    return [Pending.load(path) for path in sorted(config.deletions_folder.glob(f"*{_SUFFIX}"))]


def _refuse_tasks(names: list[str]) -> None:
    """Raise ConfigError if samples of these people would be left, contrary to the record."""
    if names:
        raise ConfigError(
            f"samples of these people are in the tasks {', '.join(names)}; nothing was forgotten. "
            f"Destroy those first: isonomy-regulator tasks remove {names[0]}"
        )


def _end(config: RegulatorConfig, plan: Plan) -> None:
    withdraw(config, plan)
    shred_folder(config.state_folder / plan.hash.hex())


def _begin(config: RegulatorConfig, target: str, people: int, plans: Iterable[str]) -> Pending:
    acting_officer(config.officers)  # who may not act begins nothing
    earlier = _pending(config, target)
    closed = earlier.plans_closed if earlier else ()  # by the attempt that was cut short
    plans_closed = tuple(dict.fromkeys([*closed, *plans]))
    pending = Pending(target=target, people=people, plans_closed=plans_closed)
    private_folder(config.deletions_folder)
    write_private(_note_path(config, target), pending.to_json())
    return pending


def _note_path(config: RegulatorConfig, target: str) -> Path:
    return config.deletions_folder / (hashlib.sha256(target.encode()).hexdigest()[:16] + _SUFFIX)


def _pending(config: RegulatorConfig, target: str) -> Pending | None:
    path = _note_path(config, target)
    return Pending.load(path) if path.exists() else None


def _record(config: RegulatorConfig, pending: Pending, what: dict[str, str]) -> DeletionResult:
    """Write the signed record and note its hash in the ledger. Returns what the deletion did."""
    now = int(time.time())
    backups = backups_made(config)
    record = {
        "schema": 1,
        "kind": "deletion",
        "by": config.name,
        "officer": acting_officer(config.officers),
        **pending.model_dump(mode="json"),
        **what,
        "backups_made_before": backups,
        "time": now,
    }
    raw = signed_record(config, DOMAIN, record)
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
    digest = hashlib.sha256(raw).hexdigest()
    path = config.deletions_folder / f"{stamp}-{digest[:8]}.json"
    write_private(path, raw)
    note(config, "deletion", {"target": pending.target, "record_sha256": digest})
    _note_path(config, pending.target).unlink(missing_ok=True)
    return DeletionResult(
        pending.target, pending.people, pending.plans_closed, path, tuple(backups)
    )
