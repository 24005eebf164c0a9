"""The policy's rules for few-shot plans. Needs no encryption.

The same rules hold when the officer approves (before anything is written), and when the daemon sets
the budget aside; the ledger's own cap (ledger_state) stands behind both.
"""

from __future__ import annotations

from isonomy.common.agreements.approvals import ApprovalStore
from isonomy.common.base.errors import PolicyRefused
from isonomy.common.few_shot.rounds.plan import MILLION, FewShotPlan
from isonomy.common.keys.party import fingerprint
from isonomy.common.privacy.accounting import units_for
from isonomy.regulator.config.config import RegulatorConfig
from isonomy.regulator.config.policy import Policy

STRATEGY = "few_shot"


def approvals(config: RegulatorConfig) -> ApprovalStore[FewShotPlan]:
    """Where approved few-shot plans lie."""
    return ApprovalStore(config.few_shot_folder, FewShotPlan)


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
