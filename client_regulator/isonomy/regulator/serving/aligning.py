"""The regulator's part in an alignment: everybody who is enrolled, and nothing about them.

The common people are kept in the home (alignments/<hash>.people), where `approve` finds them by the
Merkle root that a plan binds. No attribute is read, and no budget is spent.
"""

from __future__ import annotations

from pathlib import Path

from isonomy.common.agreements.approvals import read_people
from isonomy.common.agreements.plan import Plan
from isonomy.common.alignment.alignment import AlignmentPlan, checked_ids
from isonomy.common.alignment.session import align
from isonomy.common.alignment.store import Alignments
from isonomy.common.base.errors import ConfigError
from isonomy.common.people.cohort import Cohort
from isonomy.common.session.connection import Session
from isonomy.regulator.config.config import RegulatorConfig
from isonomy.regulator.plans.approval import check_policy
from isonomy.regulator.plans.sign_off import check_sign_off
from isonomy.regulator.vault.vault import VaultTable


def alignments(config: RegulatorConfig) -> Alignments:
    """Return the store of approved alignments and their results."""
    return Alignments(config.alignments_folder)


def attend(
    config: RegulatorConfig, session: Session, plan: AlignmentPlan, vault: VaultTable
) -> None:
    """Carry an alignment out and store its result."""
    with session:
        check_sign_off(config, plan)
        check_policy(config, plan)  # it may have changed since the approval
        cohort = checked_ids(vault.ids, limit=plan.regulator_people)
        align(session, cohort, alignments(config))


def people_of(config: RegulatorConfig, plan: Plan, path: Path, people: Path | None) -> Cohort:
    """Return the people of a plan: from a list, or from the alignment that found them."""
    if people is not None:
        return read_people(people)
    aligned = alignments(config).find(plan.cohort_root)
    if aligned is not None:
        return aligned
    beside = path.with_suffix(".people")  # where the company's `plan` command puts the list
    if not beside.exists():
        raise ConfigError(
            f"no alignment here found the {plan.cohort_size:,} people of this plan, and there is "
            f"no list {beside}. Align the records first, or pass --people"
        )
    return read_people(beside)
