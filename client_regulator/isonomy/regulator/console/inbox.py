"""Inbox: plans that came in, each in plain words, and the officer's decision."""

from __future__ import annotations

import contextlib
from typing import Any

from starlette.responses import Response
from starlette.routing import Route

from isonomy.common.agreements.about import NOT_GIVEN
from isonomy.common.agreements.agreement import Agreement
from isonomy.common.agreements.approvals import company_signatures
from isonomy.common.agreements.few_shot_plan import FewShotPlan
from isonomy.common.agreements.plan import MILLION, Plan
from isonomy.common.alignment.alignment import AlignmentPlan
from isonomy.common.base.errors import ConfigError, IsonomyError
from isonomy.common.figures import style
from isonomy.regulator.config.config import RegulatorConfig
from isonomy.regulator.console.call import Call, act, page
from isonomy.regulator.console.render import TEXTS, budget_bar
from isonomy.regulator.plans.approval import (
    BudgetShares,
    budget_shares,
    fingerprints,
    guessing_chances,
)
from isonomy.regulator.plans.inbox import (
    inbox_path,
    put_into_inbox,
    take_out_of_inbox,
    waiting_plans,
)
from isonomy.regulator.plans.plan_files import known_terms, rejections
from isonomy.regulator.plans.sign_off import check_sign_off, incomplete
from isonomy.regulator.serving import approving, deciding
from isonomy.regulator.serving.deciding import Proposal

UPLOADS = ("/inbox",)


def waiting(config: RegulatorConfig) -> list[dict[str, Any]]:
    """Return the plans that wait, with who has approved each already."""
    first = {one.plan: [each.name for each in one.officers] for one in incomplete(config)}
    return [
        {"plan": plan, "hash": plan.hash.hex(), "approved_by": first.get(plan.hash, [])}
        for plan in waiting_plans(config)
    ]


def inbox(call: Call) -> Response:
    """The list, and the form for files that came in."""
    config = call.config
    rejected = [{**record, "name": _name(config, record)} for record in rejections(config)]
    return call.show("inbox.html.j2", waiting=waiting(config), rejected=rejected[::-1])


def _name(config: RegulatorConfig, record: dict[str, Any]) -> str:
    """Return the name of a rejected plan, if its terms are kept."""
    terms = known_terms(config, bytes.fromhex(record["plan"]))
    return terms.name if terms else ""


def receive(call: Call) -> Response:
    """Take in what a company sent."""
    config, texts = call.config, TEXTS["inbox"]
    plan = put_into_inbox(config, call.form.files)
    name = plan.hash.hex()
    if not approving.is_in_force(config, plan):
        return call.go(f"/inbox/{name}")
    take_out_of_inbox(config, name)
    officers = texts["and"].join(each.name for each in check_sign_off(config, plan).officers)
    page = "/live" if isinstance(plan, AlignmentPlan) else f"/live/{name}"
    return call.go(page, texts["approved_before"].format(name=plan.name, officers=officers), "warn")


def plan_page(call: Call) -> Response:
    """One plan in plain words, with everything to check before deciding."""
    config, name = call.config, call.named("plan")
    path = inbox_path(config, name)
    if name not in {plan.hash.hex() for plan in waiting_plans(config)}:
        return call.go("/inbox", TEXTS["inbox"]["gone"], "warn")
    fault = ""
    try:
        proposal = deciding.lay_open(config, path)
    except IsonomyError as error:  # shown, and it cannot be approved; it can be rejected
        proposal, fault = Proposal(_load(config, name), path, None, 0), str(error)
    return call.show("plan.html.j2", fault=fault, **_facts(config, proposal))


def approve(call: Call) -> Response:
    """Approve a plan; every box must be ticked."""
    config, name, form, texts = call.config, call.named("plan"), call.form, TEXTS["inbox"]
    _load(config, name)
    proposal = deciding.lay_open(config, inbox_path(config, name), None, call.actor.open_vault)
    if {"hash", *fingerprints(proposal.plan).values()} - {*form.all("compared")}:
        raise ConfigError(texts["tick_all"])
    decision = deciding.approve(config, proposal, call.actor.key, call.actor.open_vault)
    if decision.waiting:
        return call.go(f"/inbox/{name}", texts["half"].format(officer=call.actor.name))
    by = texts["and"].join(decision.officers)
    return call.go("/live", texts["approved"].format(name=proposal.plan.name, officers=by))


def reject(call: Call) -> Response:
    """Reject a plan, with a signed record for the company."""
    config, name = call.config, call.named("plan")
    plan = _load(config, name)
    if not call.form["reason"].strip():
        raise ConfigError(TEXTS["inbox"]["no_reason"])
    record = approving.reject(config, plan, call.form["reason"].strip())
    return call.go("/inbox", TEXTS["inbox"]["rejected"].format(name=plan.name, record=record))


def _load(config: RegulatorConfig, name: str) -> Agreement:
    for plan in waiting_plans(config):
        if plan.hash.hex() == name:
            return plan
    raise ConfigError(TEXTS["inbox"]["gone"])


def _facts(config: RegulatorConfig, proposal: Proposal) -> dict[str, Any]:
    """Return what the page shows of a plan."""
    plan, signed, shares = proposal.plan, dict[str, str](), None
    with contextlib.suppress(IsonomyError):  # then the page says that it is not signed
        signed = company_signatures(plan, proposal.file)
    if isinstance(plan, Plan | FewShotPlan):
        shares = budget_shares(config, plan, proposal.spent_units)
    quorum, about = config.policy.approving_officers, plan.words.lines()
    first = [one for one in incomplete(config) if one.plan == plan.hash]
    return {
        "plan": plan,
        "hash": plan.hash.hex(),
        "is_run": isinstance(plan, Plan),
        "broken": deciding.obstacles(config, proposal),
        "rejected": approving.standing_rejection(config, plan),
        "signed": signed,
        "fingerprints": fingerprints(plan),
        "shares": shares,
        "bar": _bar(shares) if shares else "",
        "chances": guessing_chances(config, plan) if shares else None,  # type: ignore[arg-type]
        "epsilon": plan.epsilon_millionths / MILLION if isinstance(plan, Plan) else None,
        "words": plan.describe(),
        "about": {title: text for title, text in about.items() if text != NOT_GIVEN},
        "absent": [title for title, text in about.items() if text == NOT_GIVEN],
        "approved_by": [each.name for one in first for each in one.officers],
        "quorum": quorum,
    }


def _bar(shares: BudgetShares) -> Any:
    texts = TEXTS["inbox"]
    return budget_bar(
        [
            (texts["bar_before"], shares.before, style.GREY),
            (texts["bar_plan"], shares.plan, style.BLUE),
            (texts["bar_left"], max(shares.left, 0.0), style.SHADE),
        ],
        texts["bar"].format(before=shares.before, plan=shares.plan, left=max(shares.left, 0.0)),
    )


ROUTES = [
    Route("/inbox", page(inbox)),
    Route("/inbox", act(receive, inbox, proof=False), methods=["POST"]),
    Route("/inbox/{plan}", page(plan_page)),
    Route("/inbox/{plan}/approve", act(approve, plan_page), methods=["POST"]),
    Route("/inbox/{plan}/reject", act(reject, plan_page), methods=["POST"]),
]
