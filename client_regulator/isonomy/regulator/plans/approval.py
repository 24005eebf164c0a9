"""The rules that a plan has to meet, and the plan in the officer's words.

The rules are checked twice: before the officer's approval is written, and when the daemon sets the
budget aside. The ledger enforces its own cap after both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal

from isonomy.common.agreements.agreement import Agreement
from isonomy.common.agreements.few_shot_plan import FewShotPlan
from isonomy.common.agreements.plan import MILLION, Plan
from isonomy.common.base.errors import ConfigError, PolicyRefused
from isonomy.common.keys.party import fingerprint
from isonomy.common.ledger.ledger import Ledger
from isonomy.common.people.cohort import Cohort
from isonomy.common.privacy.accounting import epsilon_of, units_for
from isonomy.common.privacy.shown import at_most, right_guess, share_up
from isonomy.regulator.config.config import RegulatorConfig
from isonomy.regulator.config.policy import Policy
from isonomy.regulator.plans.plan_files import was_closed
from isonomy.regulator.vault.attributes import rows_of
from isonomy.regulator.vault.vault import VaultTable


def refusals(config: RegulatorConfig, plan: Agreement) -> list[str]:
    """Return every rule of policy and validity that a plan of any kind breaks, in words."""
    policy, broken = config.policy, list[str]()
    strangers = [card.name for card in plan.companies if fingerprint(card) not in policy.companies]
    if policy.companies and strangers:
        broken.append(f"{', '.join(strangers)} may not ask (policy.companies)")
    if plan.has_ended(datetime.now(UTC).date()):
        broken.append(f"it was valid until {plan.words.valid_until}")
    match plan:
        case Plan():
            broken += _budget_refusals(config, plan, plan.strategy) + _plan_refusals(policy, plan)
        case FewShotPlan():
            broken += _budget_refusals(config, plan, "few_shot") + _few_shot_refusals(policy, plan)
    return broken


def check_policy(config: RegulatorConfig, plan: Agreement) -> None:
    """Raise PolicyRefused with every rule that a plan or an alignment breaks."""
    refuse(refusals(config, plan))


def check_approvable(config: RegulatorConfig, plan: Agreement) -> None:
    """Raise PolicyRefused as `check_policy` does, and for a plan that could get no answer."""
    refuse(obstacles(config, plan))


def obstacles(config: RegulatorConfig, plan: Agreement) -> list[str]:
    """Return every rule that a plan breaks, and why it could get no answer, in words."""
    broken = refusals(config, plan)
    if isinstance(plan, Plan):
        broken += _futile(config, plan)
    if isinstance(plan, Plan | FewShotPlan) and was_closed(config, plan):
        broken.append("it was closed, for good. Ask the company for a new plan")
    return broken


def check_plan(
    config: RegulatorConfig,
    ledger: Ledger,
    plan: Plan,
    cohort: Cohort,
    vault: VaultTable,
    member_key: bytes,
) -> None:
    """Raise PolicyRefused if the plan breaks the policy or somebody's total over all plans."""
    broken = refusals(config, plan)
    if not _has_budget(ledger, plan):
        check_cohorts(config, vault)
        rows, members = rows_of(vault, cohort), cohort.member_hashes(member_key)
        broken += _above_total(config, ledger, plan, members, "its people", config.ledger.epsilon)
        for name, limit in config.cohorts.items():
            inside = vault.in_cohort(name)[rows]
            some = [member for member, is_in in zip(members, inside, strict=True) if is_in]
            broken += _above_total(config, ledger, plan, some, f"cohort {name!r}", limit.epsilon)
    refuse(broken)


def check_few_shot(
    config: RegulatorConfig, ledger: Ledger, plan: FewShotPlan, members: Sequence[bytes]
) -> None:
    """Raise PolicyRefused if the plan breaks the policy or some sample's total over all plans."""
    broken = refusals(config, plan)
    if not _has_budget(ledger, plan):
        broken += _above_total(config, ledger, plan, members, "its samples", config.ledger.epsilon)
    refuse(broken)


def check_cohorts(config: RegulatorConfig, vault: VaultTable) -> None:
    """Raise ConfigError for a total of people whom the vault does not know.

    A slip in the name would leave the people that it was meant for without their tighter total, and
    nobody would notice.
    """
    strangers = sorted(set(config.cohorts) - set(vault.cohort_names))
    if strangers:
        raise ConfigError(
            f"regulator.toml has a total for {', '.join(f'[cohorts.{n}]' for n in strangers)}, "
            "and nobody is enrolled under that name. Correct it, enroll them first, or remove it"
        )


def describe(config: RegulatorConfig, plan: Agreement, spent_units: int = 0) -> str:
    """Return a plan in the officer's words: who may ask what, about whom, and what it costs."""
    lines = [plan.describe()]
    if isinstance(plan, Plan):
        names = ", ".join(card.name for card in plan.companies)
        by = "; ".join(f"{name} ({', '.join(labels)})" for name, labels in plan.groups.items())
        lines += [
            f"\nThis plan lets {names} ask at most {config.policy.queries_per_run:,} questions "
            f"about {plan.cohort_size:,} people, by {by}.",
            f"It sets ε = {_epsilon(plan):g} at δ = {plan.delta} aside for each of them, whether "
            f"{names} {'uses' if len(plan.companies) == 1 else 'use'} it or not.",
        ]
    if isinstance(plan, Plan | FewShotPlan):
        lines += [_shares(config, plan, spent_units), _meaning(config, plan)]
    lines.append("Compare these fingerprints, and the hash, by telephone before you approve:")
    return "\n".join([*lines, *(f"  {who}: {key}" for who, key in fingerprints(plan).items())])


def fingerprints(plan: Agreement) -> dict[str, str]:
    """Return what an officer compares by telephone: the keys of the companies and the auditor."""
    keys = {card.name: fingerprint(card) for card in plan.companies}
    auditor = plan.auditor_card if isinstance(plan, Plan) else None
    if auditor is not None:
        keys[f"the auditor {auditor.name}"] = fingerprint(auditor)
    return keys


def share_of_total(config: RegulatorConfig, plan: Plan | FewShotPlan) -> float:
    """Return what a plan sets aside, as a percentage of everybody's total budget."""
    return share_up(plan.held_units, config.ledger.cap_units)


@dataclass(frozen=True)
class BudgetShares:
    """A person's whole budget in per cent: taken before a plan, by it, and left after it."""

    before: float
    plan: float
    left: float  # below 0: the plan wants more than there is


def budget_shares(
    config: RegulatorConfig, plan: Plan | FewShotPlan, spent_units: int
) -> BudgetShares:
    """Return the budget before and after a plan, in shares that add up."""
    before = share_up(spent_units, config.ledger.cap_units)
    share = share_of_total(config, plan)
    left = round(100 - before - share, 1)  # rounding up may take a tenth too much
    fits = spent_units + plan.held_units <= config.ledger.cap_units
    return BudgetShares(before, share, max(left, 0.0) if fits else left)


def guessing_chances(config: RegulatorConfig, plan: Plan | FewShotPlan) -> tuple[str, str]:
    """Return what ε means for one person, e^ε / (1 + e^ε): for this plan and for the total."""
    return right_guess(_epsilon(plan)), right_guess(float(config.ledger.epsilon))


def _shares(config: RegulatorConfig, plan: Plan | FewShotPlan, spent_units: int) -> str:
    """Return the budget before and after a plan, in words."""
    shares = budget_shares(config, plan, spent_units)
    whose = "a sample's" if isinstance(plan, FewShotPlan) else "a person's"
    return (
        f"Of {whose} whole budget (ε = {config.ledger.epsilon}) this plan takes "
        f"{shares.plan:g} %; {shares.before:g} % are set aside or spent already, for whoever has "
        f"least left; {shares.left:g} % are left. Shares add up, ε does not: it grows more slowly "
        "than what is spent."
    )


def _meaning(config: RegulatorConfig, plan: Plan | FewShotPlan) -> str:
    """Return what ε means for one person, in words."""
    chances = guessing_chances(config, plan)
    about, values = (
        ("a sample", "versions of it, its attribute included")
        if isinstance(plan, FewShotPlan)
        else ("a person", "values of their attribute")
    )
    return (
        f"Somebody who knows everything else about {about}, and could only toss a coin between two "
        f"{values}, is right with a chance of at most {chances[0]} instead of 50 % after all "
        f"answers of this plan, and of at most {chances[1]} once the whole budget is spent "
        f"(failure probability {config.ledger.delta})."
    )


def _budget_refusals(config: RegulatorConfig, plan: Plan | FewShotPlan, strategy: str) -> list[str]:
    policy, delta, broken = config.policy, config.ledger.delta, []
    if policy.strategies and strategy not in policy.strategies:
        broken.append(f"strategy {strategy!r} is not among {', '.join(policy.strategies)}")
    if float(plan.delta) > float(delta):
        broken.append(f"δ = {plan.delta} is above the policy's {delta}")
    limit = policy.epsilon_per_run
    if limit is not None and plan.held_units > units_for(float(limit), float(delta)):
        broken.append(f"ε = {at_most(_epsilon(plan), 3)} is above the {limit} of one run")
    return broken


def _plan_refusals(policy: Policy, plan: Plan) -> list[str]:
    broken = []
    if policy.notions and plan.notion not in policy.notions:
        broken.append(f"notion {plan.notion!r} is not among {', '.join(policy.notions)}")
    if plan.cohort_size < policy.smallest_group:  # every question would be refused
        broken.append(f"{plan.cohort_size} people; at least {policy.smallest_group} are required")
    if plan.inspection_millionths < Decimal(policy.inspection_rate) * MILLION:
        what = "people of every query" if plan.carrier == "pads" else "queries"
        broken.append(f"the policy wants {policy.inspection_rate} of the {what} inspected")
    if policy.auditor and plan.auditor != policy.auditor:
        broken.append("the plan names another auditor than the policy, or none")
    return broken


def _futile(config: RegulatorConfig, plan: Plan) -> list[str]:
    """Return why every question of a plan would be refused, though the policy allows the plan."""
    policy = config.policy
    reasons = [
        f"it asks for {name!r} with the groups {', '.join(labels)}; this regulator declares "
        f"{', '.join(config.groups[name])}"
        for name, labels in plan.groups.items()
        if config.groups.get(name, labels) != tuple(labels)
    ]
    if plan.auditor and plan.inspections_over(datetime.now(UTC).date()):
        reasons.append(
            f"its inspections ended on {plan.inspection_deadline}, and with them its answers"
        )
    if plan.strategy == "audit" and plan.record_privacy:
        reasons.append("it is for audits, and a plan that protects whole records takes none")
    if plan.strategy == "audit" and "open" not in policy.kinds:
        reasons.append("it is for audits, which are open questions; policy.kinds allows none")
    return reasons


def _few_shot_refusals(policy: Policy, plan: FewShotPlan) -> list[str]:
    broken = []
    if plan.settings.rounds > policy.queries_per_run:
        broken.append(f"{plan.settings.rounds:,} rounds; {policy.queries_per_run:,} are allowed")
    if plan.samples < policy.smallest_group:
        broken.append(f"{plan.samples} samples; at least {policy.smallest_group} are required")
    if float(policy.inspection_rate):
        broken.append(
            f"the policy wants {policy.inspection_rate} of the queries inspected; in few-shot "
            "rounds there is nothing of the company's to inspect"
        )
    return broken


def _has_budget(ledger: Ledger, plan: Plan | FewShotPlan) -> bool:
    """A plan whose budget is set aside passes the totals: they were checked when it got it."""
    return plan.hash in {entry.plan for entry in ledger.plans()}


def _above_total(
    config: RegulatorConfig,
    ledger: Ledger,
    plan: Plan | FewShotPlan,
    members: Sequence[bytes],
    whom: str,
    total: str,
) -> list[str]:
    return beyond(config, plan, ledger.held_units(members), whom, total) if members else []


def beyond(
    config: RegulatorConfig, plan: Plan | FewShotPlan, units: int, whom: str, total: str
) -> list[str]:
    """Return that a plan goes beyond a total, on top of the units that somebody has set aside."""
    delta = float(config.ledger.delta)
    if units + plan.held_units <= units_for(float(total), delta):
        return []
    return [
        f"ε = {at_most(_epsilon(plan), 3)} on top of the {at_most(epsilon_of(units, delta), 3)} "
        f"that somebody of {whom} has already set aside is above the total of {total}"
    ]


def refuse(broken: Sequence[str]) -> None:
    """Raise PolicyRefused if a plan breaks any rule."""
    if broken:
        raise PolicyRefused(
            f"regulator.toml or the plan's own terms do not allow this plan: {'; '.join(broken)}"
        )


def _epsilon(plan: Plan | FewShotPlan) -> float:
    """What counts against the total: of a few-shot plan, that of an exchanged sample."""
    if isinstance(plan, FewShotPlan):
        return epsilon_of(plan.held_units, float(plan.delta))
    return plan.epsilon_millionths / MILLION
