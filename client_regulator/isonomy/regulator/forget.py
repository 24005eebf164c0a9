"""Deletion: what is kept about people goes, what was spent of their budget stays.

| | a run | a cohort |
|---|---|---|
| closed | its plan | every open plan with one of its people |
| destroyed | list of ids, session state | the left; its people in the vault, and the old key |
| kept | the plan's terms; the ledger, which knows people by keyed hashes | the same |

The record that is signed says what went and what stayed; its hash is noted in the ledger. Member
hashes are keyed, and the key is kept on purpose: who is enrolled again has the budget that they had
left (tests/unit/regulator/test_forget.py).
"""

from __future__ import annotations

import hashlib
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from isonomy.common.approvals import Approvals
from isonomy.common.canonical import canonical_json
from isonomy.common.identity import Identity
from isonomy.common.plan import Plan
from isonomy.common.private_files import write_private
from isonomy.regulator.backup_list import backups_made
from isonomy.regulator.config import RegulatorConfig
from isonomy.regulator.officer import ask
from isonomy.regulator.plan_files import withdraw
from isonomy.regulator.sealed_file import shred
from isonomy.regulator.vault import Vault

DOMAIN = "isonomy/deletion/v1"


@dataclass(frozen=True)
class Forgotten:
    """What a deletion did."""

    target: str
    people: int
    plans: tuple[str, ...]
    record: Path
    backups: tuple[str, ...]


def forget_run(config: RegulatorConfig, plan: Plan) -> Forgotten:
    """Forget the people of one plan."""
    _end(config, plan)
    target = f"run {plan.hash.hex()}"
    return _record(config, target, plan.cohort_size, [plan.hash.hex()])


def forget_cohort(config: RegulatorConfig, name: str, vault: Vault) -> Forgotten:
    """Forget a cohort: first no more answers about its people, then the people themselves."""
    with vault.locked():
        table = vault.read()
        gone = table.in_cohort(name)
        people = {person for person, is_gone in zip(table.ids, gone, strict=True) if is_gone}
        approvals = Approvals(config.plans_folder)
        ended = []
        for plan_hash in approvals.hashes():
            plan, cohort = approvals.require(plan_hash)
            if people & set(cohort.ids):
                _end(config, plan)
                ended.append(plan_hash.hex())
        vault.write(table.without(gone))
    return _record(config, f"cohort {name}", len(people), ended)


def _end(config: RegulatorConfig, plan: Plan) -> None:
    withdraw(config, plan)
    state = config.state_folder / plan.hash.hex()
    for path in sorted(state.rglob("*")):
        if path.is_file() and not path.is_symlink():
            shred(path)
    shutil.rmtree(state, ignore_errors=True)


def _record(config: RegulatorConfig, target: str, people: int, plans: list[str]) -> Forgotten:
    identity = Identity.load(config.keys_folder / "identity.key")
    now = int(time.time())
    backups = backups_made(config)
    said = {
        "schema": 1,
        "kind": "deletion",
        "by": config.name,
        "target": target,
        "people": people,
        "plans_closed": plans,
        "destroyed": "lists of ids, session state, vault entries and the key they were under",
        "kept": "the ledger with keyed hashes of ids, so that spent budgets stay spent",
        "backups_made_before": backups,
        "time": now,
    }
    signature = identity.sign(DOMAIN, canonical_json(dict(said))).hex()
    raw = canonical_json({**said, "signer": identity.public.hex(), "signature": signature})
    config.deletions_folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
    digest = hashlib.sha256(raw).hexdigest()
    path = config.deletions_folder / f"{stamp}-{digest[:8]}.json"
    write_private(path, raw + b"\n")
    if config.ledger.path.exists():
        event = {"target": target, "record_sha256": digest}
        ask(config, {"type": "note", "kind": "deletion", "event": event})
    return Forgotten(target, people, tuple(plans), path, tuple(backups))
