"""`approve` and `reject`: the officer's decision on a plan."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from isonomy.common.agreements.agreement import kind_of
from isonomy.common.agreements.approvals import check_people, check_promises
from isonomy.common.agreements.plan import MILLION, Plan
from isonomy.common.alignment.alignment import AlignmentPlan
from isonomy.common.few_shot.rounds.plan import FewShotPlan
from isonomy.common.keys.party import fingerprint
from isonomy.common.privacy.accounting import epsilon_of
from isonomy.regulator.cli.output import Home, Json, UnlockFile, Yes, agree, emit, open_vault, say
from isonomy.regulator.config.config import RegulatorConfig
from isonomy.regulator.plans import plan_files
from isonomy.regulator.plans.approval import check_policy, describe
from isonomy.regulator.serving import approving
from isonomy.regulator.serving.aligning import alignments, people_of


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
    """Show a plan (or an alignment) in plain language, and approve it: the daemon then takes part.

    The policy is checked first. The plan's whole budget is set aside for each of its people,
    whether the company uses it or not; all of that happens, or nothing.

    \b
    Examples:
    isonomy-regulator approve plan.json --home /srv/regulator
    """
    config = RegulatorConfig.load(home)
    if kind_of(plan) == "alignment":
        _approve_alignment(config, AlignmentPlan.load(plan), yes=yes, as_json=as_json)
        return
    if kind_of(plan) == "few-shot":
        few_shot_plan = FewShotPlan.load(plan)
        _approve_few_shot(config, few_shot_plan, unlock_file, yes=yes, as_json=as_json)
        return
    loaded = Plan.load(plan)
    cohort = people_of(config, loaded, plan, people)
    check_people(loaded, cohort, config.name)
    check_promises(loaded)
    say(describe(config, loaded, plan_files.most_spent(config, cohort)))
    check_policy(config, loaded)
    agree("Approve this plan?", yes=yes)
    approving.approve(config, loaded, cohort, lambda: open_vault(config, unlock_file))
    delta = float(config.ledger.delta)
    epsilon, total = loaded.epsilon_millionths / MILLION, config.ledger.epsilon
    fields = {
        "approved": loaded.hash.hex(),
        "people": len(cohort),
        "epsilon": epsilon,
        "epsilon_total": float(total),
        "epsilon_set_aside": epsilon_of(plan_files.most_spent(config, cohort), delta),
        "delta": delta,
    }
    text = (
        f"Approved {loaded.hash.hex()}.\nε = {epsilon:g} of {total} is set aside for each of "
        f"{len(cohort):,} people."
    )
    emit("approve", fields, text, as_json=as_json)


def _approve_alignment(
    config: RegulatorConfig, plan: AlignmentPlan, *, yes: bool, as_json: bool
) -> None:
    say(plan.describe())
    say(f"  {plan.companies[0].name}: {fingerprint(plan.companies[0])}")
    agree("Approve this alignment?", yes=yes)
    approving.approve_alignment(config, plan)
    fields = {"approved": plan.hash.hex(), "alignment": True}
    emit("approve", fields, f"Approved alignment {plan.hash.hex()}.", as_json=as_json)


def _approve_few_shot(
    config: RegulatorConfig,
    plan: FewShotPlan,
    unlock_file: Path | None,
    *,
    yes: bool,
    as_json: bool,
) -> None:
    say(plan.describe())
    say(f"  {plan.companies[0].name}: {fingerprint(plan.companies[0])}")
    check_policy(config, plan)
    agree("Approve this few-shot plan?", yes=yes)
    approving.approve_few_shot(config, plan, lambda: open_vault(config, unlock_file))
    epsilon = plan.epsilon_millionths / MILLION
    fields = {"approved": plan.hash.hex(), "samples": plan.samples, "epsilon": epsilon}
    text = (
        f"Approved {plan.hash.hex()}.\nε = {epsilon:g} of {config.ledger.epsilon} is set aside for "
        f"each of {plan.samples:,} samples, for good."
    )
    emit("approve", {**fields, "few_shot": True}, text, as_json=as_json)


def reject(
    plan: Annotated[str, typer.Argument(help="The plan's file, or the beginning of its hash.")],
    reason: Annotated[str, typer.Option(help="One line for the company.")] = "",
    home: Home = Path(),
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Reject a plan, with a signed record. An earlier approval is withdrawn: no more answers.

    What the plan did not spend is free again; what was spent stays spent. A plan that had its
    budget cannot be opened again.

    \b
    Examples:
    isonomy-regulator reject plan.json --reason "ε is too large for this purpose"
    isonomy-regulator reject 3f9c21ab
    """
    config = RegulatorConfig.load(home)
    if Path(plan).is_file() and kind_of(Path(plan)) == "alignment":
        aligning = AlignmentPlan.load(Path(plan))
        alignments(config).require(aligning.hash)
        agree("Withdraw the approval of this alignment?", yes=yes)
        alignments(config).withdraw(aligning.hash)
        fields = {"rejected": aligning.hash.hex(), "alignment": True}
        emit("reject", fields, f"Withdrawn: {aligning.hash.hex()}.", as_json=as_json)
        return
    training = _few_shot_named(config, plan)
    if training is not None:
        say(training.describe())
        agree("End this few-shot plan?", yes=yes)
        approving.end_few_shot(config, training)
        fields = {"rejected": training.hash.hex(), "few_shot": True}
        emit("reject", fields, f"Ended: {training.hash.hex()}.", as_json=as_json)
        return
    loaded = plan_files.named_plan(config, plan)
    say(loaded.describe())
    agree("Reject this plan?", yes=yes)
    record = approving.reject(config, loaded, reason)
    fields = {"rejected": loaded.hash.hex(), "record": record}
    text = f"Rejected {loaded.hash.hex()}.\nThe signed record for the company: {record}"
    emit("reject", fields, text, as_json=as_json)


def _few_shot_named(config: RegulatorConfig, text: str) -> FewShotPlan | None:
    """Return a few-shot plan by its file or by the beginning of the hash of an approved one."""
    if Path(text).is_file():
        return FewShotPlan.load(Path(text)) if kind_of(Path(text)) == "few-shot" else None
    if len(text) < plan_files.MIN_PREFIX:
        return None
    approved = plan_files.few_shot_approvals(config).all()
    matches = [plan for plan in approved if plan.hash.hex().startswith(text)]
    return matches[0] if len(matches) == 1 else None
