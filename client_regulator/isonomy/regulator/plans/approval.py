"""What an approval means: the plan in the officer's words, and every rule it has to meet.

The same rules hold when the officer approves (before anything is written), and when the daemon sets
the budget aside; the ledger's own cap (ledger_state) stands behind both.
"""

from __future__ import annotations

from isonomy.common.agreements.plan import MILLION, Plan
from isonomy.common.base.errors import ConfigError, PolicyRefused
from isonomy.common.keys.party import fingerprint
from isonomy.common.ledger.ledger import Ledger
from isonomy.common.people.cohort import Cohort
from isonomy.common.privacy.accounting import epsilon_of, units_for
from isonomy.regulator.config.config import RegulatorConfig
from isonomy.regulator.vault.attributes import rows_of
from isonomy.regulator.vault.vault import VaultTable


def check_plan(
    config: RegulatorConfig,
    ledger: Ledger,
    plan: Plan,
    cohort: Cohort,
    vault: VaultTable,
    member_key: bytes,
) -> None:
    """Raise PolicyRefused with every rule that the plan breaks. A plan that has its budget passes
    the totals: they were checked when it got it.
    """
    broken = config.policy.refusals(plan, config.ledger.delta)
    if plan.hash not in {own.plan for own in ledger.plans()}:
        broken += _totals(config, ledger, plan, cohort, vault, member_key)
    if broken:
        raise PolicyRefused(
            f"the policy in regulator.toml does not allow this plan: {'; '.join(broken)}"
        )


def check_cohorts(config: RegulatorConfig, vault: VaultTable) -> None:
    """Raise ConfigError for a total of people whom the vault does not know.

    A slip in the name would leave the people that it was meant for without their tighter total, and
    nobody would notice.
    """
    strangers = sorted(set(config.cohorts) - set(vault.cohort_names))
    if strangers:
        raise ConfigError(
            f"regulator.toml has a total for {', '.join(f'[cohorts.{own}]' for own in strangers)}, "
            "and nobody is enrolled under that name. Correct it, enroll them first, or remove it"
        )


def _totals(
    config: RegulatorConfig,
    ledger: Ledger,
    plan: Plan,
    cohort: Cohort,
    vault: VaultTable,
    member_key: bytes,
) -> list[str]:
    """Totals that the file sets below the ledger's own cap: for everybody, and by cohort."""
    check_cohorts(config, vault)
    delta = float(config.ledger.delta)
    rows = rows_of(vault, cohort)
    members = cohort.member_hashes(member_key)
    found = []
    limits = {"": config.ledger.epsilon} | {n: own.epsilon for n, own in config.cohorts.items()}
    for name, epsilon in limits.items():
        concerned = members
        if name:
            inside = vault.in_cohort(name)[rows]
            concerned = [own for own, is_in in zip(members, inside, strict=True) if is_in]
        held = ledger.held_units(concerned)
        if concerned and held + plan.cap_units > units_for(float(epsilon), delta):
            whom = f"cohort {name!r}" if name else "its people"
            found.append(
                f"ε = {plan.epsilon_millionths / MILLION:g} on top of the "
                f"{epsilon_of(held, delta):.3g} that somebody of {whom} has already set aside is "
                f"above the total of {epsilon}"
            )
    return found


def describe(config: RegulatorConfig, plan: Plan, held_units: int) -> str:
    """The plan as its approval reads: who may ask what, about whom, and what it costs."""
    delta = float(config.ledger.delta)
    companies = ", ".join(card.name for card in plan.companies)
    asked = "; ".join(f"{name} ({', '.join(own)})" for name, own in plan.groups.items())
    asks = plan.epsilon_millionths / MILLION
    after = epsilon_of(min(held_units + plan.cap_units, 10**30), delta)
    lines = [
        f"This plan lets {companies} ask at most {config.policy.queries_per_run:,} questions about "
        f"{plan.cohort_size:,} people, by {asked}.",
        f"It spends ε = {asks:g} of your {config.ledger.epsilon} (at δ = {plan.delta}) for each of "
        f"these people, whether {companies} uses it or not.",
        f"Set aside or spent so far: ε = {epsilon_of(held_units, delta):.3g}; with this plan "
        f"ε = {after:.3g} at most.",
        "Compare these fingerprints by telephone before you approve:",
        *(f"  {card.name}: {fingerprint(card)}" for card in plan.companies),
    ]
    return "\n".join([plan.describe(), "", *lines])
