"""Deletion: what is kept about people goes, what was spent of their budget stays.

| | a run | a cohort |
|---|---|---|
| closed | its plan | every open plan with one of its people |
| destroyed | its list of ids, its session state | the same of these plans, and of plans that ended
before; lists of alignments with one of its people; its people in the vault, and the old key |
| kept | people, lists of alignments, other plans; the plan's terms; the ledger, which knows people
by keyed hashes | the terms and the ledger |

Tasks for few-shot runs are destroyed by name (`tasks remove`). A cohort whose ids occur in some is
not forgotten before that: the record must be true.

Steps of a deletion, so that none is ever done without a record:
    (1) it is written down that it begins (deletions/….begun: whom, how many, which plans; no ids)
    (2) plans end, lists and state go, then the people leave the vault
    (3) the signed record is written, its hash noted in the ledger, and (1) removed
A deletion that was cut short is done again by the same command, also when the cohort has left the
vault already; until then `doctor` names it.

Member hashes are keyed, and the key is kept on purpose: who is enrolled again has the budget that
they had left (tests/regulator/upkeep/test_forget.py).
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from isonomy.common.agreements.approvals import Approvals
from isonomy.common.agreements.plan import Plan
from isonomy.common.base.canonical import canonical_json
from isonomy.common.base.errors import ConfigError
from isonomy.common.base.private_files import write_private
from isonomy.common.keys.identity import Identity
from isonomy.common.people.cohort import Cohort
from isonomy.regulator.config.config import RegulatorConfig
from isonomy.regulator.serving.approving import withdraw
from isonomy.regulator.serving.officer import ask
from isonomy.regulator.upkeep.backup_list import backups_made
from isonomy.regulator.upkeep.remains import shred_ended, shred_folder, shred_halves, shred_lists
from isonomy.regulator.vault.member_key import member_key
from isonomy.regulator.vault.task_pools import pools_about
from isonomy.regulator.vault.vault import Vault

DOMAIN = "isonomy/deletion/v1"
BEGUN = ".begun"
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
class Forgotten:
    """What a deletion did."""

    target: str
    people: int
    plans: tuple[str, ...]
    record: Path
    backups: tuple[str, ...]


@dataclass(frozen=True)
class Begun:
    """A deletion that has begun and has no record yet."""

    target: str
    people: int
    plans: tuple[str, ...]


def forget_run(config: RegulatorConfig, plan: Plan) -> Forgotten:
    """Forget the people of one plan."""
    begun = _begin(config, f"run {plan.hash.hex()}", plan.cohort_size, [plan.hash.hex()])  # (1)
    _end(config, plan)  # (2)
    return _record(config, begun, _RUN)  # (3)


def forget_cohort(config: RegulatorConfig, name: str, vault: Vault) -> Forgotten:
    """Forget a cohort: first no more answers about its people, then the people themselves."""
    target = f"cohort {name}"
    with vault.locked():
        table, before = vault.read(), _begun(config, target)
        if name not in table.cohort_names and before is not None:
            return _record(config, before, _COHORT)  # cut short after (2)
        gone = table.in_cohort(name)
        people = {person for person, is_gone in zip(table.ids, gone, strict=True) if is_gone}
        _refuse_tasks(config, pools_about(config, vault, people))
        members = Cohort(tuple(people)).member_hashes(member_key(config)) if people else []
        approvals = Approvals(config.plans_folder)
        plans = [approvals.require(plan_hash) for plan_hash in approvals.hashes()]
        ended = [plan for plan, cohort in plans if people & set(cohort.ids)]
        begun = _begin(config, target, len(people), [plan.hash.hex() for plan in ended])  # (1)
        for plan in ended:  # (2)
            _end(config, plan)
        shred_ended(config, members)
        shred_lists(config, lambda ids: not people.isdisjoint(ids))
        shred_halves(config)
        vault.write(table.without(gone))  # last: as long as they are in it, the rest can be found
        return _record(config, begun, _COHORT)  # (3)


def _refuse_tasks(config: RegulatorConfig, names: list[str]) -> None:
    """What is left of somebody in tasks is theirs too, and the record would say that it is gone."""
    if names:
        raise ConfigError(
            f"samples of these people are in the tasks {', '.join(names)}; nothing was forgotten. "
            f"Destroy those first: isonomy-regulator tasks remove {names[0]}"
        )


def unfinished(config: RegulatorConfig) -> list[Begun]:
    """Deletions that were cut short."""
    return [_read(path) for path in sorted(config.deletions_folder.glob(f"*{BEGUN}"))]


def _end(config: RegulatorConfig, plan: Plan) -> None:
    withdraw(config, plan)
    shred_folder(config.state_folder / plan.hash.hex())


def _begin(config: RegulatorConfig, target: str, people: int, plans: Iterable[str]) -> Begun:
    before = _begun(config, target)
    known = before.plans if before else ()  # closed by the attempt that was cut short
    begun = Begun(target, people, tuple(dict.fromkeys([*known, *plans])))
    config.deletions_folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    said = {"target": target, "people": people, "plans_closed": list(begun.plans)}
    write_private(_begun_path(config, target), canonical_json(said) + b"\n")
    return begun


def _begun_path(config: RegulatorConfig, target: str) -> Path:
    return config.deletions_folder / (hashlib.sha256(target.encode()).hexdigest()[:16] + BEGUN)


def _begun(config: RegulatorConfig, target: str) -> Begun | None:
    path = _begun_path(config, target)
    return _read(path) if path.exists() else None


def _read(path: Path) -> Begun:
    try:
        raw = json.loads(path.read_bytes())
        return Begun(str(raw["target"]), int(raw["people"]), tuple(map(str, raw["plans_closed"])))
    except (OSError, ValueError, KeyError, TypeError):
        raise ConfigError(
            f"{path} says that a deletion began, and cannot be read; remove it, and forget the "
            "cohort or run again"
        ) from None


def _record(config: RegulatorConfig, begun: Begun, what: dict[str, str]) -> Forgotten:
    identity = Identity.load(config.keys_folder / "identity.key")
    now = int(time.time())
    backups = backups_made(config)
    said = {
        "schema": 1,
        "kind": "deletion",
        "by": config.name,
        "target": begun.target,
        "people": begun.people,
        "plans_closed": list(begun.plans),
        **what,
        "backups_made_before": backups,
        "time": now,
    }
    signature = identity.sign(DOMAIN, canonical_json(dict(said))).hex()
    raw = canonical_json({**said, "signer": identity.public.hex(), "signature": signature})
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
    digest = hashlib.sha256(raw).hexdigest()
    path = config.deletions_folder / f"{stamp}-{digest[:8]}.json"
    write_private(path, raw + b"\n")
    if config.ledger.path.exists():
        event = {"target": begun.target, "record_sha256": digest}
        ask(config, {"type": "note", "kind": "deletion", "event": event})
    _begun_path(config, begun.target).unlink(missing_ok=True)
    return Forgotten(begun.target, begun.people, begun.plans, path, tuple(backups))
