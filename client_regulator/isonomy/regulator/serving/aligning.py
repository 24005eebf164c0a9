"""The regulator's part in an alignment: everybody who is enrolled, and nothing about them.

The common people are kept in the home (alignments/<hash>.people), where `approve` finds them by the
Merkle root that a plan binds. No attribute is looked at, and no budget is spent.
"""

from __future__ import annotations

from pathlib import Path

from isonomy.common.agreements.approvals import read_people
from isonomy.common.agreements.plan import Plan
from isonomy.common.alignment.alignment import AlignmentPlan, checked_ids
from isonomy.common.alignment.session import align
from isonomy.common.alignment.store import Alignments
from isonomy.common.base.errors import ConfigError, PolicyRefused
from isonomy.common.keys.party import PartyKeys, fingerprint
from isonomy.common.people.cohort import Cohort
from isonomy.common.session.connection import Session
from isonomy.regulator.config.config import RegulatorConfig
from isonomy.regulator.plans.plan_files import people_beside
from isonomy.regulator.vault.vault import VaultTable


def alignments(config: RegulatorConfig) -> Alignments:
    """Where approved alignments and their results lie."""
    return Alignments(config.home / "alignments")


def approve_alignment(config: RegulatorConfig, plan: AlignmentPlan) -> None:
    """Store the officer's approval, within the policy."""
    check_policy(config, plan)
    alignments(config).approve(plan, PartyKeys.load(config.keys_folder))


def check_policy(config: RegulatorConfig, plan: AlignmentPlan) -> None:
    """Raise PolicyRefused for a company that may not come at all."""
    (company,) = plan.companies
    if config.policy.companies and fingerprint(company) not in config.policy.companies:
        raise PolicyRefused(f"{company.name} may not ask (policy.companies in regulator.toml)")


def attend(
    config: RegulatorConfig, session: Session, plan: AlignmentPlan, vault: VaultTable
) -> None:
    """Carry an alignment out and keep its result."""
    store = alignments(config)
    with session:
        check_policy(config, plan)  # it may have changed since the approval
        cohort = checked_ids(vault.ids, limit=plan.regulator_people)
        store.begin(plan.hash)
        store.save(plan.hash, align(session, cohort))


def people_of(config: RegulatorConfig, plan: Plan, path: Path, given: Path | None) -> Cohort:
    """The people of a plan: from a list, or from the alignment that found them."""
    if given is not None:
        return read_people(given)
    found = alignments(config).find(plan.cohort_root)
    if found is not None:
        return found
    beside = people_beside(path)
    if not beside.exists():
        raise ConfigError(
            f"no alignment here found the {plan.cohort_size:,} people of this plan, and there is "
            f"no list {beside}. Align the records first, or pass --people."
        )
    return read_people(beside)
