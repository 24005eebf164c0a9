"""A regulator's word on few-shot plans: the policy's rules, approval and end. Needs no encryption.

The same rules hold when the officer approves (before anything is written), and when the daemon sets
the budget aside; the ledger's own cap (ledger_state) stands behind both.
"""

from __future__ import annotations

from collections.abc import Callable

from isonomy.common.base.errors import IsonomyError, PolicyRefused
from isonomy.common.few_shot.rounds.approvals import FewShotApprovals
from isonomy.common.few_shot.rounds.plan import MILLION, FewShotPlan
from isonomy.common.keys.party import PartyKeys, fingerprint
from isonomy.common.privacy.accounting import units_for
from isonomy.regulator.config.config import RegulatorConfig
from isonomy.regulator.config.policy import Policy
from isonomy.regulator.serving.officer import ask
from isonomy.regulator.vault.vault import Vault

STRATEGY = "few_shot"


def approvals(config: RegulatorConfig) -> FewShotApprovals:
    """Where approved few-shot plans lie."""
    return FewShotApprovals(config.few_shot_folder)


def refusals(policy: Policy, plan: FewShotPlan, delta: str) -> list[str]:
    """Every rule of the policy that the plan breaks, in words."""
    found = []
    (company,) = plan.companies
    if policy.companies and fingerprint(company) not in policy.companies:
        found.append(f"{company.name} may not ask (policy.companies)")
    if policy.strategies and STRATEGY not in policy.strategies:
        found.append(f"strategy {STRATEGY!r} is not among {', '.join(policy.strategies)}")
    if float(plan.delta) > float(delta):
        found.append(f"δ = {plan.delta} is above the policy's {delta}")
    limit = policy.epsilon_per_run
    if limit is not None and plan.cap_units > units_for(float(limit), float(delta)):
        asked = f"ε = {plan.epsilon_millionths / MILLION:g} at δ = {plan.delta}"
        found.append(f"{asked} is above the {limit} of one run at δ = {delta}")
    if plan.settings.rounds > policy.queries_per_run:
        found.append(f"{plan.settings.rounds:,} rounds; {policy.queries_per_run:,} are allowed")
    if plan.samples < policy.smallest_group:
        found.append(f"{plan.samples} samples; at least {policy.smallest_group} are asked for")
    if float(policy.inspection_rate):
        found.append(
            f"the policy wants {policy.inspection_rate} of the queries inspected; in few-shot "
            "rounds there is nothing of the company's to inspect"
        )
    return found


def check_policy(config: RegulatorConfig, plan: FewShotPlan) -> None:
    """Raise PolicyRefused with every rule that the plan breaks."""
    broken = refusals(config.policy, plan, config.ledger.delta)
    if broken:
        raise PolicyRefused(
            f"the policy in regulator.toml does not allow this plan: {'; '.join(broken)}"
        )


def approve(config: RegulatorConfig, plan: FewShotPlan, open_vault: Callable[[], Vault]) -> None:
    """Store the plan as approved and set its budget aside: both, or neither."""
    check_policy(config, plan)
    store = approvals(config)
    before = store.approved(plan.hash)
    store.approve(plan, PartyKeys.load(config.keys_folder))
    try:
        ask(config, {"type": "reserve", "plan": plan.hash.hex()}, open_vault)
    except IsonomyError:
        if not before:
            store.withdraw(plan.hash)
        raise


def reject(config: RegulatorConfig, plan: FewShotPlan) -> None:
    """End a plan: no more rounds. Its budget counts as spent: accounts are the samples' own."""
    if config.ledger.path.exists():
        ask(config, {"type": "close", "plan": plan.hash.hex()})
    approvals(config).withdraw(plan.hash)


__all__ = ["approvals", "approve", "check_policy", "refusals", "reject"]
