"""The officer's decisions on plans, carried out: approve, withdraw, reject.

A plan's budget is set aside or freed in the ledger, so they go through `officer.ask`: to the daemon
if one runs, else directly.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from isonomy.common.agreements.agreement import Agreement
from isonomy.common.agreements.approvals import Approvals
from isonomy.common.agreements.few_shot_plan import FewShotPlan
from isonomy.common.agreements.plan import Plan
from isonomy.common.alignment.alignment import AlignmentPlan
from isonomy.common.base.canonical import canonical_json
from isonomy.common.base.errors import DataError, IsonomyError
from isonomy.common.base.private_files import private_folder, write_private
from isonomy.common.keys.identity import Identity
from isonomy.common.keys.party import PartyKeys
from isonomy.common.people.cohort import Cohort
from isonomy.regulator.config.config import RegulatorConfig
from isonomy.regulator.config.officers import acting_officer
from isonomy.regulator.plans.approval import check_approvable
from isonomy.regulator.plans.inbox import take_out_of_inbox
from isonomy.regulator.plans.plan_files import (
    few_shot_approvals,
    keys_folder,
    rejection_path,
    rejections,
    units_set_aside,
)
from isonomy.regulator.plans.sign_off import SignOff, check_sign_off, sign_off_path, store
from isonomy.regulator.serving.aligning import alignments
from isonomy.regulator.serving.officer import ask, note
from isonomy.regulator.vault.sealed_file import shred
from isonomy.regulator.vault.vault import Vault

REJECTION_DOMAIN = "isonomy/plan-rejection/v1"
MAX_REASON_CHARS = 1000


def approve(
    config: RegulatorConfig,
    plan: Agreement,
    record: SignOff,
    cohort: Cohort | None = None,
    open_vault: Callable[[], Vault] | None = None,
) -> None:
    """Store a plan of any kind as approved, and set its budget aside: both, or neither.

    `record` says who signed for it. A run plan needs its `cohort`. An alignment costs no budget.
    """
    check_approvable(config, plan)
    is_repeated = _is_approved(config, plan)
    keys = PartyKeys.load(config.keys_folder)
    if isinstance(plan, AlignmentPlan):
        alignments(config).approve(plan, keys)
    elif isinstance(plan, FewShotPlan):
        few_shot_approvals(config).approve(plan, keys)
    elif isinstance(plan, Plan) and cohort is not None:
        Approvals(config.plans_folder).approve(plan, cohort, keys)
    path = sign_off_path(config, plan.hash)
    earlier = path.read_bytes() if path.exists() else None  # of a first officer
    store(config, record)
    try:
        opener = None if isinstance(plan, AlignmentPlan) else open_vault
        ask(config, {"type": "reserve", "plan": plan.hash.hex()}, opener)
    except IsonomyError:  # also a question for the passphrase that was left
        if not is_repeated:
            _remove_approval(config, plan)
        if earlier is not None:
            write_private(path, earlier)
        raise
    take_out_of_inbox(config, plan.hash.hex())


def is_in_force(config: RegulatorConfig, plan: Agreement) -> bool:
    """Return whether a plan is approved, unchanged since, and has its budget: nothing is to do."""
    try:
        check_sign_off(config, plan)
        match plan:
            case AlignmentPlan():
                return alignments(config).approved(plan.hash)
            case FewShotPlan():
                few_shot_approvals(config).require(plan.hash)
            case _:
                Approvals(config.plans_folder).require(plan.hash)
    except IsonomyError:
        return False
    return units_set_aside(config, plan) > 0


def standing_rejection(config: RegulatorConfig, plan: Agreement) -> dict[str, Any] | None:
    """Return the last refusal of a plan that nobody has approved since: nothing is to do."""
    if sign_off_path(config, plan.hash).exists() or units_set_aside(config, plan):
        return None
    records = [one for one in rejections(config) if one["plan"] == plan.hash.hex()]
    return records[-1] if records else None


def withdraw(config: RegulatorConfig, plan: Agreement) -> None:
    """End a plan of any kind: no more answers.

    What a run plan did not spend is free again and its list of people is destroyed. The budget of
    a few-shot plan counts as spent in full.
    """
    if config.ledger_path.exists() and not isinstance(plan, AlignmentPlan):
        ask(config, {"type": "close", "plan": plan.hash.hex()})
    file_away(config, plan)


def file_away(config: RegulatorConfig, plan: Agreement) -> None:
    """Move a plan that ended in the ledger to the closed ones, and destroy its list of people."""
    if isinstance(plan, Plan):
        private_folder(config.closed_folder)
        write_private(config.closed_folder / f"{plan.hash.hex()}.json", plan.to_json())
    _remove_approval(config, plan)


def reject(config: RegulatorConfig, plan: Agreement, reason: str) -> Path:
    """Withdraw a plan and sign a refusal for the company. Returns the path of that record."""
    if len(reason) > MAX_REASON_CHARS or not reason.isprintable():
        raise DataError(f"a reason is one line of at most {MAX_REASON_CHARS:,} characters")
    officer = acting_officer(config.officers)  # before anything changes
    withdraw(config, plan)
    now = int(time.time())
    record = {"schema": 1, "plan": plan.hash.hex(), "reason": reason, "time": now}
    record |= {"officer": officer}
    path = rejection_path(config, plan, now)
    private_folder(path.parent)
    signed = signed_record(config, REJECTION_DOMAIN, record)
    write_private(path, signed)
    digest = hashlib.sha256(signed).hexdigest()
    note(config, "rejection", {"plan": plan.hash.hex(), "record_sha256": digest})
    take_out_of_inbox(config, plan.hash.hex())
    return path


def signed_record(config: RegulatorConfig, domain: str, record: Mapping[str, Any]) -> bytes:
    """Return a record as this regulator hands it out: canonical JSON with signer and signature."""
    identity = Identity.load(config.keys_folder / "identity.key")
    signature = identity.sign(domain, canonical_json(dict(record))).hex()
    return canonical_json({**record, "signer": identity.public.hex(), "signature": signature})


def _folder(config: RegulatorConfig, plan: Agreement) -> Path:
    match plan:
        case AlignmentPlan():
            return config.alignments_folder
        case FewShotPlan():
            return config.few_shot_folder
        case _:
            return config.plans_folder


def _is_approved(config: RegulatorConfig, plan: Agreement) -> bool:
    return (_folder(config, plan) / f"{plan.hash.hex()}.json").exists()


def _remove_approval(config: RegulatorConfig, plan: Agreement) -> None:
    # The approval goes first: without it the daemon joins no session, even if the next line fails.
    stem = _folder(config, plan) / plan.hash.hex()
    stem.with_suffix(".json").unlink(missing_ok=True)
    sign_off_path(config, plan.hash).unlink(missing_ok=True)
    if isinstance(plan, Plan):  # the people that an alignment found stay: plans are made about them
        shred(stem.with_suffix(".people"))
        for path in keys_folder(config, plan).glob("*"):
            shred(path)
