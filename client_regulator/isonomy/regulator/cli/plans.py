"""`approve` and `reject`: the officer's decision on a plan."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated

import typer

from isonomy.common.agreements.few_shot_plan import FewShotPlan
from isonomy.common.agreements.plan import MILLION, Plan
from isonomy.common.base.command_line import confirm
from isonomy.common.base.output import emit, say
from isonomy.common.privacy.accounting import epsilon_of
from isonomy.regulator.cli.output import Home, PassphraseFile, UnlockFile, Yes, open_vault
from isonomy.regulator.config.config import RegulatorConfig
from isonomy.regulator.config.officers import acting_officer
from isonomy.regulator.plans import plan_files
from isonomy.regulator.plans.approval import describe, share_of_total
from isonomy.regulator.plans.sign_off import KEY_LOCK, open_officer_key
from isonomy.regulator.serving import approving, deciding
from isonomy.regulator.serving.status import moment
from isonomy.regulator.vault.unlock import read_secret


def approve(
    plan: Annotated[Path, typer.Argument(help="The plan, as the company sent it.")],
    people: Annotated[
        Path | None,
        typer.Option(help="The list of its people. Default: from the alignment, or PLAN.people."),
    ] = None,
    officer_key: Annotated[
        Path | None, typer.Option(help="Your key, if regulator.toml has one for you.")
    ] = None,
    passphrase_file: PassphraseFile = None,
    home: Home = Path(),
    unlock_file: UnlockFile = None,
    yes: Yes = False,
) -> None:
    """Show in plain words what a plan means, and approve it. The daemon then answers for it.

    The company's signature (plan.company.sig for plan.json) must lie beside the plan. Your policy
    is checked first. Approving sets the plan's whole budget aside for each of its people, whether
    the company uses it or not. If your policy wants two officers, the first approval is kept, and
    nothing is set aside before the second.

    \b
    Examples:
    isonomy-regulator approve plan.json --home /srv/regulator
    """
    config = RegulatorConfig.load(home)
    officer = acting_officer(config.officers)
    loaded = plan_files.load_agreement(plan)
    fields: dict[str, object] = {"approved": loaded.hash.hex(), "kind": loaded.word}
    if approving.is_in_force(config, loaded):
        text = f"This {loaded.word} was approved before; nothing was changed. {loaded.hash.hex()}"
        emit({**fields, "changed": False}, text)
        return
    vault = cache(lambda: open_vault(config, unlock_file))  # asks for the passphrase once
    proposal = deciding.lay_open(config, plan, people, vault)
    signed = deciding.signatures_of(config, proposal)  # a refusal comes first, and alone
    say(describe(config, loaded, proposal.spent_units))
    for name in signed:
        say(f"  {name} signed exactly this {loaded.word}.")
    confirm(f"Approve this {loaded.word} as {officer}?", yes=yes)
    key = (
        open_officer_key(officer_key, read_secret(passphrase_file, KEY_LOCK))
        if officer_key
        else None
    )
    decision = deciding.approve(config, proposal, key, vault)
    fields["officers"] = list(decision.officers)
    if decision.waiting:
        text = (
            f"{officer} approved {loaded.hash.hex()}. Another officer must approve it too; before "
            "that, nothing is set aside and nothing is answered."
        )
        emit({**fields, "changed": True, "waiting": True}, text)
        return
    text = f"Approved {loaded.hash.hex()}, by {' and '.join(decision.officers)}."
    if isinstance(loaded, Plan | FewShotPlan):
        budget = _budget(config, loaded)
        subjects = "samples" if isinstance(loaded, FewShotPlan) else "people"
        fields |= budget
        text += (
            f"\nε = {budget['epsilon']:g}, which is {budget['share_of_total']:g} % of the whole "
            f"budget (ε = {budget['epsilon_total']:g}), is set aside for each of "
            f"{budget[subjects]:,} {subjects}"
            f"{', for good' if isinstance(loaded, FewShotPlan) else ''}."
        )
    if proposal.cohort is not None:
        after = plan_files.most_spent(config, proposal.cohort)
        fields["epsilon_set_aside"] = epsilon_of(after, float(config.ledger.delta))
    emit({**fields, "changed": True}, text)


def _budget(config: RegulatorConfig, plan: Plan | FewShotPlan) -> dict[str, float]:
    """Return what a plan set aside, and for how many."""
    fields = {"epsilon_total": float(config.ledger.epsilon), "delta": float(config.ledger.delta)}
    fields["share_of_total"] = share_of_total(config, plan)
    if isinstance(plan, FewShotPlan):
        epsilon = round(epsilon_of(plan.held_units, plan.delta_value), 3)
        return {**fields, "epsilon": epsilon, "samples": plan.samples}
    return {**fields, "epsilon": plan.epsilon_millionths / MILLION, "people": plan.cohort_size}


def reject(
    plan: Annotated[str, typer.Argument(help="The plan's file, or the beginning of its hash.")],
    reason: Annotated[str, typer.Option(help="One line for the company.")] = "",
    home: Home = Path(),
    yes: Yes = False,
) -> None:
    """Reject a plan, or withdraw its approval. The company gets a signed record of it.

    A withdrawn plan gets no more answers and cannot be approved again. What it did not spend is
    free for other plans; what it spent stays spent. The budget of a few-shot plan counts as spent
    in full.

    \b
    Examples:
    isonomy-regulator reject plan.json --reason "ε is too large for this purpose"
    isonomy-regulator reject 3f9c21ab
    """
    config = RegulatorConfig.load(home)
    loaded = plan_files.named_agreement(config, plan)
    fields: dict[str, object] = {"rejected": loaded.hash.hex(), "kind": loaded.word}
    earlier = approving.standing_rejection(config, loaded)
    if earlier is not None:
        when, officer = moment(earlier["time"]), earlier["officer"]
        text = f"This {loaded.word} was rejected {when} by {officer}; nothing was changed."
        emit({**fields, "changed": False}, text)
        return
    say(loaded.describe())
    if approving.is_in_force(config, loaded):
        say(f"This {loaded.word} was approved. Rejecting it withdraws the approval, for good.")
    confirm(f"Reject this {loaded.word}?", yes=yes)
    record = approving.reject(config, loaded, reason)
    text = f"Rejected {loaded.hash.hex()}.\nThe signed record for the company: {record}"
    emit({**fields, "changed": True, "record": record}, text)
