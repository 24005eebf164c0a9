"""`approve` and `reject`: the officer's decision on a plan."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from isonomy.common.agreements.approvals import check_people, check_promises, signers
from isonomy.common.agreements.few_shot_plan import FewShotPlan
from isonomy.common.agreements.plan import MILLION, Plan
from isonomy.common.base.command_line import confirm
from isonomy.common.privacy.accounting import epsilon_of
from isonomy.regulator.cli.output import Home, Json, UnlockFile, Yes, emit, open_vault, say
from isonomy.regulator.config.config import RegulatorConfig
from isonomy.regulator.plans import plan_files
from isonomy.regulator.plans.approval import check_policy, describe, share_of_total
from isonomy.regulator.serving import approving
from isonomy.regulator.serving.aligning import people_of


def approve(
    plan: Annotated[Path, typer.Argument(help="The plan, as the company sent it.")],
    people: Annotated[
        Path | None,
        typer.Option(help="Its ids. Default: from the alignment, or PLAN.people beside it."),
    ] = None,
    home: Home = Path(),
    unlock_file: UnlockFile = None,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Show a plan of any kind in plain language, and approve it: the daemon then takes part.

    The policy is checked first. The plan's whole budget is set aside for each of its people,
    whether the company uses it or not; all of that happens, or nothing.

    \b
    Examples:
    isonomy-regulator approve plan.json --home /srv/regulator
    """
    config = RegulatorConfig.load(home)
    loaded, cohort, spent = plan_files.load_agreement(plan), None, 0
    fields: dict[str, object]
    if approving.is_in_force(config, loaded):
        text = f"This {loaded.word} was approved before; nothing was changed. {loaded.hash.hex()}"
        fields = {"approved": loaded.hash.hex(), "kind": loaded.word, "changed": False}
        emit("approve", fields, text, as_json=as_json)
        return
    if isinstance(loaded, Plan):
        cohort = people_of(config, loaded, plan, people)
        check_people(loaded, cohort, config.name)
        check_promises(loaded)
        spent = plan_files.most_spent(config, cohort)
    signed = signers(loaded, plan)  # a wrong signature ends it here
    say(describe(config, loaded, spent))
    for card in loaded.companies:
        word = "signed exactly this" if card.name in signed else "has not signed this"
        say(f"  {card.name} {word} {loaded.word}.")
    check_policy(config, loaded)
    confirm(f"Approve this {loaded.word}?", yes=yes)
    approving.approve(config, loaded, cohort, lambda: open_vault(config, unlock_file))
    fields = {"approved": loaded.hash.hex(), "kind": loaded.word, "changed": True}
    text = f"Approved {loaded.hash.hex()}."
    if isinstance(loaded, Plan | FewShotPlan):
        epsilon, total = loaded.epsilon_millionths / MILLION, config.ledger.epsilon
        size = loaded.samples if isinstance(loaded, FewShotPlan) else loaded.cohort_size
        if isinstance(loaded, FewShotPlan):
            epsilon = round(epsilon_of(loaded.held_units, loaded.delta_value), 3)
        fields |= {"epsilon": epsilon, "epsilon_total": float(total)}
        share = share_of_total(config, loaded)
        fields["share_of_total"] = share
        text += f"\n{share:g} % of the whole budget (ε = {epsilon:g}) is set aside for each of "
        text += f"{size:,} "
        text += "samples, for good." if isinstance(loaded, FewShotPlan) else "people."
        fields["samples" if isinstance(loaded, FewShotPlan) else "people"] = size
    if cohort is not None:
        delta = float(config.ledger.delta)
        after = epsilon_of(plan_files.most_spent(config, cohort), delta)
        fields |= {"epsilon_set_aside": after, "delta": delta}
    emit("approve", fields, text, as_json=as_json)


def reject(
    plan: Annotated[str, typer.Argument(help="The plan's file, or the beginning of its hash.")],
    reason: Annotated[str, typer.Option(help="One line for the company.")] = "",
    home: Home = Path(),
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Reject a plan, with a signed record. An earlier approval is withdrawn: no more answers.

    What a plan did not spend is free again (a few-shot plan counts in full); what was spent stays
    spent. A plan that had its budget cannot be opened again.

    \b
    Examples:
    isonomy-regulator reject plan.json --reason "ε is too large for this purpose"
    isonomy-regulator reject 3f9c21ab
    """
    config = RegulatorConfig.load(home)
    loaded = plan_files.named_agreement(config, plan)
    say(loaded.describe())
    confirm(f"Reject this {loaded.word}?", yes=yes)
    record = approving.reject(config, loaded, reason)
    fields = {"rejected": loaded.hash.hex(), "kind": loaded.word, "record": record}
    text = f"Rejected {loaded.hash.hex()}.\nThe signed record for the company: {record}"
    emit("reject", fields, text, as_json=as_json)
