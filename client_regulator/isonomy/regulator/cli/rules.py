"""`apply-rule`: decide by a rule that needs attributes which only the regulator has."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from isonomy.common.agreements.decision_rule import DecisionRule
from isonomy.common.agreements.plan import MILLION
from isonomy.common.base.errors import ConfigError
from isonomy.regulator.cli.output import Home, Json, UnlockFile, Yes, agree, emit, open_vault, say
from isonomy.regulator.config.config import RegulatorConfig
from isonomy.regulator.report.rule_application import apply_rule as decide
from isonomy.regulator.report.rule_application import (
    check_allowed,
    read_base_decisions,
    write_decisions,
)
from isonomy.regulator.serving.officer import ask
from isonomy.regulator.vault.member_key import member_key


def apply_rule(
    rule_file: Annotated[Path, typer.Argument(metavar="RULE", help="The company's rule, JSON.")],
    decisions: Annotated[Path, typer.Option(help="CSV with columns id and decision (0 or 1).")],
    out: Annotated[Path, typer.Option("--out", "-o", help="A new CSV for the final decisions.")],
    home: Home = Path(),
    unlock_file: UnlockFile = None,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Apply a rule of DP-postprocessing to a company's base decisions.

    WARNING: the decisions depend on attributes and reveal them, outside the ledger's budget. The
    policy forbids it unless apply_rules = true. It is noted in the ledger.

    \b
    Examples:
    isonomy-regulator apply-rule rule.json --decisions base.csv -o final.csv
    """
    config = RegulatorConfig.load(home)
    check_allowed(config)
    rule, base = DecisionRule.load(rule_file), read_base_decisions(decisions)
    if out.exists():
        raise ConfigError(f"{out} exists already; name a new file")
    vault = open_vault(config, unlock_file)
    final = decide(rule, base, vault.read(), member_key(config))
    say(
        f"WARNING: {len(base.people):,} decisions will depend on {rule.attribute!r}. Chances of "
        f"two groups differ by up to {rule.largest_difference / MILLION:.1%}; whoever sees base "
        "and final decision learns about the attribute. No ε covers this."
    )
    agree("Write these decisions?", yes=yes)
    event = {"rule": rule.hash, "attribute": rule.attribute, "people": len(base.people)}
    ask(config, {"type": "note", "kind": "rule", "event": event}, lambda: vault)
    write_decisions(out, base.people.ids, final)
    fields = {"out": out, "rule": rule.hash, "people": len(base.people), "reveals": True}
    emit("apply-rule", fields, f"Wrote {len(base.people):,} decisions to {out}.", as_json=as_json)
