"""`ledger` and `forget`: what was answered, and the end of what is kept about people."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from isonomy.common.base.errors import ConfigError
from isonomy.common.ledger.entries import LedgerEntry, read_entries
from isonomy.common.ledger.ledger import LedgerSummary, verify_ledger
from isonomy.common.ledger.records import SCHEMA
from isonomy.common.privacy.accounting import epsilon_of
from isonomy.regulator.cli.output import (
    HERE,
    Home,
    Json,
    UnlockFile,
    Yes,
    agree,
    emit,
    moment,
    open_vault,
    say,
)
from isonomy.regulator.config.config import RegulatorConfig
from isonomy.regulator.plans.plan_files import find_plan
from isonomy.regulator.serving.status import load_plan
from isonomy.regulator.upkeep.forget import forget_cohort, forget_run


def ledger(
    file: Annotated[
        Path | None, typer.Argument(help="A ledger, or a copy of one; without: the home's.")
    ] = None,
    verify: Annotated[bool, typer.Option("--verify", help="The check alone.")] = False,
    head: Annotated[
        str, typer.Option(help="A head from a signed answer: must be in the ledger.")
    ] = "",
    plan: Annotated[str, typer.Option(help="Only this plan: the beginning of its hash.")] = "",
    home: Home = HERE,
    as_json: Json = False,
) -> None:
    """List every debit: when, who, why, with which noise, ε spent and left. Names nobody.

    Reading always recomputes the hash chain and replays every rule, and finds any change of what is
    written. That records were cut off at the end shows only against a --head from an answer. A file
    that is named is checked anywhere, without home or key.

    \b
    Examples:
    isonomy-regulator ledger --home /srv/regulator
    isonomy-regulator ledger copy.jsonl --verify --head 5d41…
    """
    config = None if file is not None else RegulatorConfig.load(home)
    path = file or (config.ledger.path if config else Path())
    if not path.exists():
        raise ConfigError(f"there is no ledger at {path}; the first approval opens it")
    found = verify_ledger(path, known_head=_hex(head))
    entries = [] if verify else read_entries(path)
    if plan:
        entries = [own for own in entries if own.plan and own.plan.hex().startswith(plan)]
    fields: dict[str, Any] = _summary(found)
    if not verify:
        fields["plans"] = [_plan(own, found.delta) for own in found.plans]
        fields["entries"] = [_entry(config, own, found.delta) for own in entries]
    emit("ledger", fields, _for_people(found, fields), as_json=as_json)


def forget(
    what: Annotated[str, typer.Argument(help="A run (beginning of a plan's hash), or a cohort.")],
    home: Home = HERE,
    unlock_file: UnlockFile = None,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Destroy what is kept about a run or a cohort, and write a signed record of the deletion.

    A run: its list of people, session state and approval. A cohort: its people and their attributes
    in the vault, and every open run with one of them. The ledger stays, with keyed hashes of ids:
    what was spent stays spent, also for people who are enrolled again.

    \b
    Examples:
    isonomy-regulator forget 3f9c21ab
    isonomy-regulator forget north --yes
    """
    config = RegulatorConfig.load(home)
    plan = find_plan(config, what)
    if plan is not None:
        agree(f"Forget run {plan.hash.hex()[:16]}… ({plan.name})?", yes=yes)
        done = forget_run(config, plan)
    else:
        agree(f"Forget all people of cohort {what!r}?", yes=yes)
        done = forget_cohort(config, what, open_vault(config, unlock_file))
    for backup in done.backups:
        say(f"This backup was made before and still holds them; destroy it too: {backup}")
    text = f"Forgotten: {done.target}, {done.people} people.\nSigned record: {done.record}"
    fields = {
        "forgotten": done.target,
        "people": done.people,
        "plans_closed": list(done.plans),
        "record": str(done.record),
        "backups": list(done.backups),
    }
    emit("forget", fields, text, as_json=as_json)


def _hex(text: str) -> bytes | None:
    try:
        return bytes.fromhex(text) if text else None
    except ValueError:
        raise ConfigError("--head must be hexadecimal") from None


def _summary(found: LedgerSummary) -> dict[str, Any]:
    return {
        "verified": True,
        "ledger_schema": SCHEMA,
        "records": found.records,
        "answers": found.debits,
        "people": found.people,
        "head": found.head.hex(),
        "torn": found.torn,
        "epsilon_cap": epsilon_of(found.cap_units, found.delta),
        "epsilon_most_spent": epsilon_of(found.max_person_units, found.delta),
        "delta": found.delta,
    }


def _plan(own: Any, delta: float) -> dict[str, Any]:
    return {
        "plan": own.plan.hex(),
        "people": own.people,
        "open": own.is_open,
        "answers": own.answers,
        "epsilon_reserved": epsilon_of(own.units, delta),
        "epsilon_spent": epsilon_of(own.spent_units, delta),
    }


def _entry(config: RegulatorConfig | None, own: LedgerEntry, delta: float) -> dict[str, Any]:
    shown: dict[str, Any] = {"seq": own.seq, "time": moment(own.time), "type": own.kind}
    if own.plan is not None:
        terms = load_plan(config, own.plan.hex()) if config else None
        shown["plan"] = own.plan.hex()
        shown["who"] = [card.name for card in terms.companies] if terms else []
    if own.kind in ("debit", "reserve"):
        shown |= {
            "people": own.people,
            "epsilon": epsilon_of(own.units, delta),
            "epsilon_spent": epsilon_of(own.spent_units, delta),
            "epsilon_left": epsilon_of(own.left_units, delta) if own.left_units else 0.0,
        }
    if own.query_id:
        shown["query"] = own.query_id
    if own.kind == "debit":
        shown["purpose"] = own.event.get("purpose", "")
        shown["noise"] = {name: own.event.get(name) for name in ("mechanism", "noise")}
    return {**shown, "event": dict(own.event)}


def _for_people(found: LedgerSummary, fields: dict[str, Any]) -> str:
    lines = [
        f"The ledger holds: {found.records} records, {found.debits} answers about {found.people:,} "
        f"people; head {found.head.hex()[:16]}…",
        f"Most that a person has spent: ε = {fields['epsilon_most_spent']:.4g} of "
        f"{fields['epsilon_cap']:.4g} (δ = {found.delta:g})",
    ]
    for own in fields.get("entries", ()):
        who = ", ".join(own.get("who", ())) or own.get("plan", "")[:12]
        if own["type"] == "debit" and own["event"].get("kind") == "few_shot":
            most = own["epsilon_spent"]  # set aside in full: individual accounts end there
            what = (
                f"{own['purpose']}, round {own['event']['round']}: {own['people']:,} samples; each "
                f"loses at most ε = {min(own['epsilon'], most):.4g} in it, {most:.4g} in all rounds"
            )
        elif own["type"] == "debit":
            noise = own["noise"]
            what = (
                f"{own['purpose'] or own['query']}: {noise['mechanism']} noise {noise['noise']}, "
                f"{own['people']:,} people, ε = {own['epsilon']:.4g}; spent "
                f"{own['epsilon_spent']:.4g}, left {own['epsilon_left']:.4g}"
            )
        elif own["type"] == "reserve":
            what = f"set ε = {own['epsilon']:.4g} aside for {own['people']:,} people"
        else:
            what = " ".join(f"{key}={value}" for key, value in own["event"].items())
        lines.append(f"{own['time']}  {own['type']:<10} {who:<16} {what}".rstrip())
    return "\n".join(lines)
