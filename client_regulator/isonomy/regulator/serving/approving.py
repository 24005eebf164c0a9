"""The officer's decisions on plans, carried out: approve, withdraw, reject.

A plan's budget is set aside or freed in the ledger, so they go through `officer.ask`: to the daemon
if one runs, else directly.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from isonomy.common.agreements.approvals import Approvals
from isonomy.common.agreements.plan import Plan
from isonomy.common.alignment.alignment import AlignmentPlan
from isonomy.common.base.canonical import canonical_json
from isonomy.common.base.errors import ConfigError, DataError, IsonomyError
from isonomy.common.base.private_files import write_private
from isonomy.common.few_shot.rounds.plan import FewShotPlan
from isonomy.common.keys.identity import Identity
from isonomy.common.keys.party import PartyKeys
from isonomy.common.people.cohort import Cohort
from isonomy.regulator.config.config import RegulatorConfig
from isonomy.regulator.plans.approval import check_policy
from isonomy.regulator.plans.plan_files import (
    few_shot_approvals,
    rejection_path,
    remove_approval,
    was_closed,
)
from isonomy.regulator.serving.aligning import alignments
from isonomy.regulator.serving.officer import ask
from isonomy.regulator.vault.vault import Vault

REJECTION_DOMAIN = "isonomy/plan-rejection/v1"
MAX_REASON_CHARS = 1000


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
    is_repeated = plan.hash in approvals.hashes()
    approvals.approve(plan, cohort, PartyKeys.load(config.keys_folder))
    try:
        ask(config, {"type": "reserve", "plan": plan.hash.hex()}, open_vault)
    except IsonomyError:
        if not is_repeated:
            remove_approval(config, plan)
        raise
    rejection_path(config, plan).unlink(missing_ok=True)


def withdraw(config: RegulatorConfig, plan: Plan) -> None:
    """End a plan: no more answers, the rest of its budget free, its list of people destroyed."""
    if config.ledger_path.exists():
        ask(config, {"type": "close", "plan": plan.hash.hex()})
    config.closed_folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_private(config.closed_folder / f"{plan.hash.hex()}.json", plan.to_json())
    remove_approval(config, plan)


def reject(config: RegulatorConfig, plan: Plan, reason: str) -> Path:
    """Withdraw a plan and sign a refusal for the company. Returns the path of that record."""
    if len(reason) > MAX_REASON_CHARS or not reason.isprintable():
        raise DataError(f"a reason is one line of at most {MAX_REASON_CHARS:,} characters")
    withdraw(config, plan)
    identity = Identity.load(config.keys_folder / "identity.key")
    record = {"schema": 1, "plan": plan.hash.hex(), "reason": reason, "time": int(time.time())}
    signature = identity.sign(REJECTION_DOMAIN, canonical_json(dict(record))).hex()
    signed = {**record, "signer": identity.public.hex(), "signature": signature}
    path = rejection_path(config, plan)
    write_private(path, canonical_json(signed) + b"\n")
    return path


def approve_alignment(config: RegulatorConfig, plan: AlignmentPlan) -> None:
    """Store an alignment as approved. It costs no budget."""
    check_policy(config, plan)
    alignments(config).approve(plan, PartyKeys.load(config.keys_folder))


def approve_few_shot(
    config: RegulatorConfig, plan: FewShotPlan, open_vault: Callable[[], Vault]
) -> None:
    """Store a few-shot plan as approved and set its budget aside: both, or neither."""
    check_policy(config, plan)
    approvals = few_shot_approvals(config)
    is_repeated = approvals.approved(plan.hash)
    approvals.approve(plan, PartyKeys.load(config.keys_folder))
    try:
        ask(config, {"type": "reserve", "plan": plan.hash.hex()}, open_vault)
    except IsonomyError:
        if not is_repeated:
            approvals.withdraw(plan.hash)
        raise


def end_few_shot(config: RegulatorConfig, plan: FewShotPlan) -> None:
    """End a few-shot plan: no more rounds. Its whole budget counts as spent."""
    if config.ledger_path.exists():
        ask(config, {"type": "close", "plan": plan.hash.hex()})
    few_shot_approvals(config).withdraw(plan.hash)
