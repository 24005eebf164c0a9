"""`report` and `verify`: a run's findings, signed, and the check that anybody can run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from isonomy.common.agreements.few_shot_plan import FewShotPlan
from isonomy.common.agreements.plan import MILLION
from isonomy.common.base.command_line import prompt
from isonomy.common.base.errors import ConfigError
from isonomy.common.base.output import emit, say
from isonomy.common.ledger.reading import ledger_bar
from isonomy.common.report.command import verify
from isonomy.common.report.few_shot import AnyReport, FewShotReport
from isonomy.common.report.schema import OFFICER_TEXTS
from isonomy.regulator.cli.output import Home, UnlockFile, open_vault

__all__ = ["report", "verify"]


def report(
    run: Annotated[
        str, typer.Argument(help="Beginning of the plan's hash, the plan's file, or a run folder.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the three files.")] = Path(),
    home: Home = Path(),
    statement: Annotated[
        Path | None,
        typer.Option(help="The company's statement.json, shown as the company's words."),
    ] = None,
    reason: Annotated[str, typer.Option(help=OFFICER_TEXTS["reason"])] = "",
    alternatives: Annotated[str, typer.Option(help=OFFICER_TEXTS["alternatives"])] = "",
    access: Annotated[str, typer.Option(help=OFFICER_TEXTS["access"])] = "",
    retention: Annotated[str, typer.Option(help=OFFICER_TEXTS["retention"])] = "",
    unknowns: Annotated[
        str,
        typer.Option(help="Share of the budget (e.g. 0.01) to release how many have no value."),
    ] = "",
    appendix: Annotated[
        Path | None, typer.Option(help="Tables and figures (JSON) to add to the page.")
    ] = None,
    company: Annotated[
        str, typer.Option(help="With several companies: the one that the report is about.")
    ] = "",
    unlock_file: UnlockFile = None,
) -> None:
    """Write a run's report: report.json, report.html and the signature report.sig.

    Every number comes from this regulator's ledger; all audits of the run are shown. Groups below
    the policy's smallest size are pooled or withheld. The daemon may go on serving meanwhile.
    If a plan has several companies, each gets a report of its own (--company); without that option,
    the report shows what they had audited together. For a few-shot plan it states the rounds, what
    each sample can have lost, and rates by group if the plan measures tasks.

    The command asks for four texts, for the record of the EU AI Act's Article 10(5), unless they
    come as options; none may be empty. Where the article does not apply, say that.

    \b
    Examples:
    isonomy-regulator report 3f0c91ab --home /srv/regulator -o reports/spring
    isonomy-regulator report 3f0c91ab -o reports/spring --statement statement.json --unknowns 0.01
    """
    from isonomy.common.report.schema import Statement
    from isonomy.regulator.config.config import RegulatorConfig
    from isonomy.regulator.report.appendix import Appendix
    from isonomy.regulator.report.reporting import (
        Words,
        check_new_report,
        find_run,
        officer_word,
        write_report,
    )

    config = RegulatorConfig.load(home)
    plan = find_run(config, run)
    check_new_report(out)
    if unknowns and isinstance(plan, FewShotPlan):
        raise ConfigError("--unknowns is about people without a value; few-shot plans have none")
    texts = {"reason": reason, "alternatives": alternatives}
    officer = officer_word(_asked_for({**texts, "access": access, "retention": retention}))
    if unknowns:
        from isonomy.regulator.serving.officer import ask

        request = {"type": "unknowns", "plan": plan.hash.hex(), "share": _millionths(unknowns)}
        ask(config, request, lambda: open_vault(config, unlock_file))
    words = Words(
        officer,
        Statement.load(statement) if statement else None,
        Appendix.load(appendix) if appendix else None,
        company,
    )
    with ledger_bar():
        paths, contents = write_report(config, plan, out, words)
    fields = {
        "report": paths.report,
        "html": paths.html,
        "signature": paths.signatures,
        "plan": plan.hash.hex(),
        "epsilon_cap": plan.epsilon_millionths / MILLION,
        **_outcome(contents),
    }
    text = f"{paths.html}\n{paths.report}\n{paths.signatures}"
    emit(fields, text)


def _asked_for(texts: dict[str, str]) -> dict[str, str]:
    """Return the officer's texts; those that no option gives are asked for at a terminal."""
    if sys.stdin.isatty():
        return {name: text or prompt(OFFICER_TEXTS[name]) for name, text in texts.items()}
    return texts


def _outcome(contents: AnyReport) -> dict[str, float]:
    """Return what a report is about, in numbers; says what it cannot state."""
    if isinstance(contents, FewShotReport):
        if contents.measured is None:
            say("Accuracy and fairness by group were not measured in this run; the report says so.")
        training = contents.training
        return {"rounds": training.rounds, "epsilon_lost": training.lost_epsilon / MILLION}
    usable = sum(bool(audit.tables) for audit in contents.audits)
    if not usable:
        say("No audit of this run could be evaluated; the report says so.")
    return {
        "audits": len(contents.audits),
        "audits_evaluated": usable,
        "epsilon_spent": contents.privacy.spent_epsilon / MILLION,
    }


def _millionths(text: str) -> int:
    try:
        return round(float(text) * MILLION)
    except (ValueError, OverflowError):
        raise ConfigError(f"--unknowns takes a share such as 0.01, got {text!r}") from None
