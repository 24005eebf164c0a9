"""Plans in the home: found by the beginning of their hash, approved, withdrawn.

plans/HASH.json + HASH.people        approved: the daemon answers for it
plans/closed/HASH.json               ended: the terms are kept, the list of people is not
plans/closed/HASH.rejection.json     the officer's signed no, to hand to the company
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

from isonomy.common.agreements.approvals import Approvals
from isonomy.common.agreements.plan import Plan
from isonomy.common.base.canonical import canonical_json
from isonomy.common.base.errors import ConfigError, DataError, IsonomyError
from isonomy.common.base.private_files import write_private
from isonomy.common.keys.identity import Identity
from isonomy.common.keys.party import PartyKeys
from isonomy.common.ledger.file import read_ledger
from isonomy.common.people.cohort import Cohort
from isonomy.regulator.config.config import RegulatorConfig
from isonomy.regulator.serving.officer import ask
from isonomy.regulator.vault.member_key import member_key
from isonomy.regulator.vault.sealed_file import shred
from isonomy.regulator.vault.vault import Vault

REJECTION_DOMAIN = "isonomy/plan-rejection/v1"
MIN_PREFIX = 8
_PREFIX = re.compile(rf"[0-9a-f]{{{MIN_PREFIX},64}}")


def find_plan(config: RegulatorConfig, text: str) -> Plan | None:
    """The plan whose hash begins so, open or closed; None if there is none."""
    if not _PREFIX.fullmatch(text):
        return None
    found = {
        path.stem: path
        for folder in (config.closed_folder, config.plans_folder)
        for path in folder.glob(f"{text}*.json")
        if not path.stem.endswith(".rejection")
    }
    if len(found) > 1:
        raise ConfigError(f"{len(found)} plans begin with {text}; give more digits")
    return next((Plan.load(path) for path in found.values()), None)


def named_plan(config: RegulatorConfig, text: str) -> Plan:
    """A plan by its file or by the beginning of its hash."""
    if Path(text).is_file():
        return Plan.load(Path(text))
    plan = find_plan(config, text)
    if plan is None:
        raise ConfigError(
            f"{text!r} is neither a plan's file nor the beginning ({MIN_PREFIX} digits or more) of "
            "the hash of a plan that is kept here; `isonomy-regulator status` lists them"
        )
    return plan


def inspections_folder(config: RegulatorConfig, plan: Plan) -> Path:
    """Where a plan's openings wait for the auditor and its verdicts are kept."""
    return config.state_folder / plan.hash.hex() / "inspections"


def people_beside(plan: Path) -> Path:
    """Where the company's `plan` command puts the list of people."""
    return plan.with_suffix(".people")


def held_by(config: RegulatorConfig, cohort: Cohort) -> int:
    """The most units that one of these people has set aside or spent; reads, takes no lock."""
    path = config.ledger.path
    if not path.exists():
        return 0
    with path.open("rb") as file:
        state = read_ledger(path, file).state
    return state.held_units(cohort.member_hashes(member_key(config)))


def was_closed(config: RegulatorConfig, plan: Plan) -> bool:
    """Whether the plan had a budget and gave it back: it cannot get it again."""
    path = config.ledger.path
    if not path.exists():
        return False
    with path.open("rb") as file:
        plans = read_ledger(path, file).state.plans()
    return any(own.plan == plan.hash and not own.is_open for own in plans)


def approve(
    config: RegulatorConfig, plan: Plan, cohort: Cohort, open_vault: Callable[[], Vault]
) -> None:
    """Store the plan as approved and set its budget aside: both, or neither."""
    if was_closed(config, plan):
        raise ConfigError(
            "this plan was closed and its unspent budget given back; it cannot be opened again. "
            "Ask the company for a new plan"
        )
    approvals = Approvals(config.plans_folder)
    before = plan.hash in approvals.hashes()
    approvals.approve(plan, cohort, PartyKeys.load(config.keys_folder))
    try:
        ask(config, {"type": "reserve", "plan": plan.hash.hex()}, open_vault)
    except IsonomyError:
        if not before:
            _remove(config, plan)
        raise
    _rejection(config, plan).unlink(missing_ok=True)


def withdraw(config: RegulatorConfig, plan: Plan) -> bool:
    """End a plan: no more answers, the rest of its budget free, its list of people gone."""
    approved = (config.plans_folder / f"{plan.hash.hex()}.json").exists()
    if config.ledger.path.exists():
        ask(config, {"type": "close", "plan": plan.hash.hex()})
    config.closed_folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_private(config.closed_folder / f"{plan.hash.hex()}.json", plan.to_json())
    _remove(config, plan)
    return approved


def reject(config: RegulatorConfig, plan: Plan, reason: str) -> Path:
    """Say no, signed; an approval that was given before is withdrawn. Returns the record's path."""
    if len(reason) > 1000 or not (reason.isprintable()):
        raise DataError("a reason is one line of at most 1,000 characters")
    withdraw(config, plan)
    identity = Identity.load(config.keys_folder / "identity.key")
    said = {"schema": 1, "plan": plan.hash.hex(), "reason": reason, "time": int(time.time())}
    signature = identity.sign(REJECTION_DOMAIN, canonical_json(dict(said))).hex()
    path = _rejection(config, plan)
    signer = identity.public.hex()
    write_private(path, canonical_json({**said, "signer": signer, "signature": signature}) + b"\n")
    return path


def _rejection(config: RegulatorConfig, plan: Plan) -> Path:
    return config.closed_folder / f"{plan.hash.hex()}.rejection.json"


def _remove(config: RegulatorConfig, plan: Plan) -> None:
    """Approval first: from then on the daemon does not join, whatever happens next."""
    stem = config.plans_folder / plan.hash.hex()
    stem.with_suffix(".json").unlink(missing_ok=True)
    shred(stem.with_suffix(".people"))
