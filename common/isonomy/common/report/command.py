"""The command `verify`: `isonomy-regulator verify`, and alone as `isonomy-verify`.

It is here and not with a role, because checking a report needs neither a role nor what the roles
install: no encryption library, no Flower, no gRPC.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from isonomy.common.base.command_line import CommandLine
from isonomy.common.base.output import emit, wants_json
from isonomy.common.keys.party import Card
from isonomy.common.keys.rotation import Rotation
from isonomy.common.ledger.reading import ledger_bar
from isonomy.common.report.few_shot import load_plan
from isonomy.common.report.verify import Check, ReportPaths, SignerUnknown, Verification, require

SCHEMA = "isonomy-regulator/verify"  # also as `isonomy-verify`
_MARKS = {"ok": "[green]ok[/]", "failed": "[bold red]FAILED[/]", "not given": "[dim]–[/]"}
_MISSING, _KEY_CHECKS = "[bold red]MISSING[/]", (7, 8)  # one of the two says whose key it is

app = CommandLine(help="Verify a report that a regulator signed.")


def verify(
    path: Annotated[Path, typer.Argument(metavar="REPORT", help="report.json, or its folder.")],
    card: Annotated[
        Path | None, typer.Option(help="The regulator's card.json, from a source you trust.")
    ] = None,
    plan: Annotated[Path | None, typer.Option(help="The plan, from a source you trust.")] = None,
    ledger: Annotated[Path | None, typer.Option(help="The regulator's ledger, or a copy.")] = None,
    rotation: Annotated[
        list[Path] | None,
        typer.Option(help="A record of a new identity, from the report's key to the card's."),
    ] = None,
) -> None:
    """Verify a report: numbered checks; any change of one byte ends in exit code 40.

    Needs no home, no encryption library and no network. Without --card or --plan nobody vouches
    for the key that signed: it ends with code 46, and shows the fingerprint to ask the regulator
    about. Reports of an older identity need its --rotation records beside the card of today.

    \b
    Examples:
    isonomy-verify reports/spring --card regulator-card.json
    isonomy-verify reports/2025 --card regulator-card.json --rotation rotations/5d41.json
    """
    verification = Verification(
        ReportPaths.of(path),
        card=Card.load(card) if card else None,
        plan=load_plan(plan) if plan else None,
        ledger=ledger,
        rotations=[Rotation.load(path) for path in rotation or ()],
    )
    with ledger_bar():
        outcomes = verification.run()
    if not wants_json():
        _show(outcomes)
    require(outcomes)
    if card is None and plan is None:
        raise SignerUnknown(
            "not verified: whose key? The report holds in itself, and anybody could have signed "
            "it. Name the regulator's card (--card), or the plan that you agreed on (--plan)"
        )
    checks = [{"number": c.number, "what": c.what, "state": c.state} for c in outcomes]
    emit({"verified": True, "checks": checks}, "the report holds", schema=SCHEMA)


def _show(outcomes: list[Check]) -> None:
    console = Console(stderr=True, soft_wrap=True)
    keyless = all(check.state != "ok" for check in outcomes if check.number in _KEY_CHECKS)
    for check in outcomes:
        missing = keyless and check.number == _KEY_CHECKS[0] and check.state == "not given"
        mark = _MISSING if missing else _MARKS[check.state]
        console.print(f"({check.number}) {mark:<8} ", end="", highlight=False)
        detail = f": {check.detail}" if check.detail else ""
        console.print(f"{check.what}{detail}", markup=False, highlight=False)


app.command()(verify)
