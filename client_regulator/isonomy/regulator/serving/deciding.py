"""A plan on the officer's desk: what to read before deciding, and the decision itself.

The command `approve` and the console take the same two steps: `lay_open` reads and checks a plan
without changing anything, `approve` signs it and sets its budget aside, unless another officer must
sign first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from isonomy.common.agreements.agreement import Agreement
from isonomy.common.agreements.approvals import check_people, check_promises, company_signatures
from isonomy.common.agreements.few_shot_plan import FewShotPlan
from isonomy.common.agreements.plan import Plan
from isonomy.common.keys.identity import Identity
from isonomy.common.people.cohort import Cohort
from isonomy.regulator.config.config import RegulatorConfig
from isonomy.regulator.plans import approval, plan_files
from isonomy.regulator.plans.sign_off import missing_officers, sign_off, store
from isonomy.regulator.serving import approving
from isonomy.regulator.serving.aligning import people_of
from isonomy.regulator.serving.officer import ask
from isonomy.regulator.serving.witness import check_copies
from isonomy.regulator.vault.vault import Vault


@dataclass(frozen=True)
class Proposal:
    """A plan of any kind, the people that a run plan is about, and what was spent before it."""

    plan: Agreement
    file: Path
    cohort: Cohort | None
    spent_units: int  # the most that one of its people or samples lost or holds for other plans


@dataclass(frozen=True)
class Decision:
    """Who has approved a plan by now, and whether another officer must."""

    officers: tuple[str, ...]
    waiting: bool


def lay_open(
    config: RegulatorConfig,
    file: Path,
    people: Path | None = None,
    open_vault: Callable[[], Vault] | None = None,
) -> Proposal:
    """Return a plan's file with what belongs to it, checked: it is about exactly these people."""
    plan = plan_files.load_agreement(file)
    cohort = people_of(config, plan, file, people) if isinstance(plan, Plan) else None
    return Proposal(plan, file, cohort, _most_spent(config, plan, cohort, open_vault))


def obstacles(config: RegulatorConfig, proposal: Proposal) -> list[str]:
    """Return why a plan cannot be approved, in words, as far as that can be told beforehand."""
    plan, broken = proposal.plan, approval.obstacles(config, proposal.plan)
    if isinstance(plan, Plan | FewShotPlan):
        whom = "its samples" if isinstance(plan, FewShotPlan) else "its people"
        total = config.ledger.epsilon
        broken += approval.beyond(config, plan, proposal.spent_units, whom, total)
    return broken


def signatures_of(config: RegulatorConfig, proposal: Proposal) -> dict[str, str]:
    """Return the companies' signatures; raises unless the plan can be approved and all signed."""
    approval.refuse(obstacles(config, proposal))
    check_copies(config)
    return company_signatures(proposal.plan, proposal.file)


def approve(
    config: RegulatorConfig,
    proposal: Proposal,
    key: Identity | None,
    open_vault: Callable[[], Vault] | None = None,
) -> Decision:
    """Approve a plan as the acting officer. Returns who has approved it by now.

    If another officer must sign too, nothing is set aside yet.
    """
    signatures = signatures_of(config, proposal)
    record = sign_off(config, proposal.plan, signatures, key)
    decision = Decision(
        tuple(each.name for each in record.officers), missing_officers(config, record) > 0
    )
    if decision.waiting:
        store(config, record)
    else:
        approving.approve(config, proposal.plan, record, proposal.cohort, open_vault)
    return decision


def _most_spent(
    config: RegulatorConfig,
    plan: Agreement,
    cohort: Cohort | None,
    open_vault: Callable[[], Vault] | None,
) -> int:
    """Return the most units that one of a plan's people or samples lost, or holds for others."""
    units = 0
    if isinstance(plan, Plan) and cohort is not None:
        check_people(plan, cohort, config.name)
        check_promises(plan)
        units = plan_files.most_spent(config, cohort)
    if isinstance(plan, FewShotPlan) and config.ledger_path.exists():
        reply = ask(config, {"type": "held", "tasks": plan.pool}, open_vault)
        units = int(str(reply["units"]))
    # Everybody in the plan holds what is set aside for it, if it was approved before.
    return max(units - plan_files.units_set_aside(config, plan), 0)
