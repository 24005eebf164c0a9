"""`isonomy-company audit` and `countersign`: decisions audited, and a report confirmed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from isonomy.common.agreements.plan import Plan
from isonomy.common.base.output import emit, say
from isonomy.company.cli.options import (
    HOME,
    GroupOption,
    HomeFolder,
    YesOption,
    confirm,
)
from isonomy.company.federation.home import Home


def audit(
    plan_file: Annotated[Path, typer.Argument(metavar="PLAN", help="An approved plan.")],
    decisions: Annotated[
        Path, typer.Option(help="CSV with columns id, decision and, if known, label; or id, score.")
    ],
    name: Annotated[str, typer.Option(help="Its name in the report: before, after …")],
    attribute: Annotated[
        list[str] | None, typer.Option(help="Attributes to cross; without: all of the plan.")
    ] = None,
    share: Annotated[
        float | None,
        typer.Option(help="Part of the plan's budget; without: what it keeps, or a twentieth."),
    ] = None,
    pos_label: Annotated[
        str | None,
        typer.Option(help="The favourable decision. Default: 1, if they are 0/1 or -1/1."),
    ] = None,
    whose: Annotated[
        str, typer.Option(help="Whose decisions these are: 'trained on', 'held out' or 'live'.")
    ] = "",
    smallest_group: Annotated[int, typer.Option(help="Groups of fewer people are not shown.")] = 50,
    alone: Annotated[
        bool,
        typer.Option("--alone", help="With several companies: audit only this one's decisions."),
    ] = False,
    statement: Annotated[
        Path | None, typer.Option(help="Write (or add to) the statement for the regulator.")
    ] = None,
    model: Annotated[str, typer.Option(help="The model in a few words, for the statement.")] = "",
    model_file: Annotated[
        Path | None,
        typer.Option(help="The model's file: audit, report and statement name its SHA-256."),
    ] = None,
    reason: Annotated[str, typer.Option(help="Why the attributes are needed.")] = "",
    home: HomeFolder = HOME,
    group: GroupOption = None,
    yes: YesOption = False,
) -> None:
    """Have decisions audited by the regulator's attributes, in the session of an approved plan.

    The command says what the audit costs and asks before it spends that; the same audit again is
    free. A training keeps a tenth of the plan, enough for two audits, or what `plan --audits` says.
    The regulator's report then shows the audit. Scores are audited as shares of people above their
    median.

    \b
    Examples:
    isonomy-company audit plan.json --decisions after.csv --name after --share 0.05
    """
    from isonomy.company.federation.auditing import audit as run_audit
    from isonomy.company.federation.auditing import audit_scores, price
    from isonomy.company.federation.decisions import numbers, read_decisions
    from isonomy.company.federation.joining import join
    from isonomy.company.federation.statement import add_to_statement

    plan = Plan.load(plan_file)
    rows = read_decisions(decisions)
    crossed = "*".join(attribute or plan.groups)
    with join(plan, home=home, group=group) as oracle:
        cost = price(
            oracle,
            share=share,
            attribute=crossed,
            people=len(set(rows.ids)),
            labelled=rows.labels is not None,
        )
        say(str(cost))
        confirm("Spend it?", yes)
        options: dict[str, Any] = {
            **{"ids": rows.ids, "name": name, "attribute": crossed, "share": share},
            **{
                "whose": whose,
                "smallest_group": smallest_group,
                "alone": alone,
                "model_file": model_file,
            },
        }
        if rows.scored:
            result = audit_scores(oracle, numbers(rows.decisions), **options)
        else:
            result = run_audit(oracle, rows.decisions, rows.labels, pos_label=pos_label, **options)
    if statement is not None:
        company = Home(home).keys().name
        add_to_statement(
            statement, plan, company, [result], model=model, file=model_file, reason=reason
        )
    emit(result.fields(), str(result))


def countersign(
    report: Annotated[Path, typer.Argument(help="report.json, or its folder.")],
    home: HomeFolder = HOME,
    yes: YesOption = False,
) -> None:
    """Verify a regulator's report against the approved plan, and add this company's signature.

    Countersigning says: the totals and the statement in this report are ours, and we have seen it.

    \b
    Examples:
    isonomy-company countersign reports/spring --home company
    """
    from isonomy.common.report.few_shot import FewShotReport, ReportedPlan
    from isonomy.common.report.sign import Signatures
    from isonomy.common.report.sign import countersign as add_signature
    from isonomy.common.report.verify import ReportPaths, Verification, require

    paths, company = ReportPaths.of(report), Home(home)
    checked = Verification(paths)
    require(checked.run())
    signed = checked.report
    plan: ReportedPlan
    if isinstance(signed, FewShotReport):
        plan = company.few_shot.require(signed.plan.hash)
        content = f"{signed.training.rounds} few-shot rounds"
    else:
        plan, _ = company.approvals.require(signed.plan.hash)
        names = ", ".join(repr(audit.name) for audit in signed.audits) or "none"
        content = f"audits: {names}; {signed.privacy.answers} answers"
    require(Verification(paths, card=plan.regulator, plan=plan).run())
    keys = company.keys()
    plan.card(keys.name)  # a party of this plan
    say(
        f"Report of {plan.regulator.name} on plan {plan.name!r} ({plan.hash.hex()[:16]}…)\n"
        f"  {content}\n  page: {paths.html}\n"
        "Your signature says: we have seen it, and its totals and statement are ours."
    )
    confirm(f"Countersign as {keys.name}?", yes)
    old = Signatures.load(paths.signatures)
    add_signature(signed.to_json(), old, keys).save(paths.signatures)
    facts = {"countersigned": paths.signatures, "company": keys.name}
    emit(facts, f"Countersigned as {keys.name}: {paths.signatures}")
