"""`ledger` and `forget`: what was answered, and the end of what is kept about people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from isonomy.common.agreements.agreement import MAX_PLAN_BYTES
from isonomy.common.base.command_line import confirm
from isonomy.common.base.documents import kind_of_content, read_bounded
from isonomy.common.base.errors import ConfigError
from isonomy.common.crypto.params import DEFAULT_PARAMETERS
from isonomy.common.ledger.entries import LedgerEntry, read_entries
from isonomy.common.ledger.ledger import verify_ledger, write_shared
from isonomy.common.ledger.records import SCHEMA
from isonomy.common.ledger.state import LedgerState
from isonomy.common.privacy.accounting import epsilon_of
from isonomy.common.privacy.declarations import Declaration, Unknowns
from isonomy.regulator.cli.output import (
    Home,
    Json,
    UnlockFile,
    Yes,
    emit,
    head_bytes,
    moment,
    open_vault,
    say,
)
from isonomy.regulator.config.config import RegulatorConfig
from isonomy.regulator.plans.plan_files import find_plan
from isonomy.regulator.serving.status import plan_status
from isonomy.regulator.upkeep.forget import forget_cohort, forget_run

_NOTES = {
    "approval": "plan approved",
    "rejection": "plan rejected",
    "deletion": "people forgotten",
    "enrolment": "people enrolled",
    "tasks-added": "tasks added",
    "tasks-destroyed": "tasks destroyed",
    "rotation": "identity replaced",
    "certificate": "certificate installed",
    "vault-secret": "the vault's secret replaced",
    "clock": "clock set back and accepted",
    "restore": "backup restored",
}
_STEPS = {  # of an inspection, and whose step it is
    "demanded": ("the regulator", "opening demanded"),
    "opened": ("", "opened"),
    "overdue": ("the regulator", "not opened in time, which counts as failed"),
    "passed": ("the regulator", "inspection passed"),
    "failed": ("the regulator", "inspection failed"),
}
# What a line for people leaves out: it is in `by`, or too long to read.
_QUIET = (
    *("kind", "officer", "second_officer", "key", "second_key", "plan", "old", "new"),
    *("record_sha256", "backup", "vault", "last"),
)


def ledger(
    file: Annotated[
        Path | None, typer.Argument(help="A ledger or a copy of one. Default: the home's.")
    ] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Check only, list nothing.")] = False,
    head: Annotated[
        str, typer.Option(help="What `isonomy-company head` printed: the ledger must contain it.")
    ] = "",
    plan: Annotated[str, typer.Option(help="Only this plan: the beginning of its hash.")] = "",
    share: Annotated[
        Path | None, typer.Option(help="Check, and write a copy that you can hand out.")
    ] = None,
    home: Home = Path(),
    as_json: Json = False,
) -> None:
    """List all answers and what each one cost, and what officers did and when.

    The people behind the answers are not named; officers are. Every record is checked while it is
    read, so any change to the file shows. Only --head shows whether records are missing at the
    end. To check a named FILE you need neither the home folder nor a key.

    Hand out a copy made with --share, never the ledger itself. Under a plan that protects whole
    records, the ledger knows who was in each sample; the copy does not.

    \b
    Examples:
    isonomy-regulator ledger --home /srv/regulator
    isonomy-regulator ledger --share copy.jsonl --home /srv/regulator
    isonomy-regulator ledger copy.jsonl --verify --head 5d41…
    """
    config = None if file is not None else RegulatorConfig.load(home)
    path = file or (config.ledger_path if config else Path())
    if not path.exists():
        raise ConfigError(f"there is no ledger at {path}; the first approval opens it")
    kind = kind_of_content(read_bounded(path, MAX_PLAN_BYTES))
    if kind not in ("", "ledger"):
        raise ConfigError(f"{path} is a {kind}, not a ledger")
    summary = verify_ledger(path, known_head=head_bytes(head) if head else None)
    if share is not None:
        write_shared(path, share)
        verify = True
    entries = [] if verify else read_entries(path)
    if plan:
        entries = [entry for entry in entries if entry.plan and entry.plan.hex().startswith(plan)]
    fields = _summary(summary)
    if not verify:
        plans = {entry.plan: plan_status(config, entry, summary.delta) for entry in summary.plans()}
        companies = {key.hex(): status["companies"] for key, status in plans.items()}
        fields["plans"] = list(plans.values())
        fields["entries"] = [_entry(entry, companies, summary.delta) for entry in entries]
    emit("ledger", fields, _for_people(summary, fields), as_json=as_json)


def forget(
    what: Annotated[str, typer.Argument(help="A run (beginning of a plan's hash), or a cohort.")],
    home: Home = Path(),
    unlock_file: UnlockFile = None,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Destroy what is kept about a run or a cohort, and write a signed record of the deletion.

    Forgetting a run destroys its list of people, its approval and how far its sessions got.
    Forgetting a cohort destroys its people and their attributes, and ends every open plan with one
    of them. The ledger stays; it holds scrambled ids. What people have spent stays spent, even if
    they are enrolled again.

    \b
    Examples:
    isonomy-regulator forget 3f9c21ab
    isonomy-regulator forget north --yes
    """
    config = RegulatorConfig.load(home)
    plan = find_plan(config, what)
    if plan is not None:
        confirm(f"Forget run {plan.hash.hex()[:16]}… ({plan.name})?", yes=yes)
        deletion = forget_run(config, plan)
    else:
        confirm(f"Forget all people of cohort {what!r}?", yes=yes)
        deletion = forget_cohort(config, what, open_vault(config, unlock_file))
    for backup in deletion.backups:
        say(f"This backup was made before and still holds them; destroy it too: {backup}")
    text = (
        f"Forgotten: {deletion.forgotten}, {deletion.people} people.\n"
        f"Signed record: {deletion.record}"
    )
    emit("forget", asdict(deletion), text, as_json=as_json)


def _summary(summary: LedgerState) -> dict[str, Any]:
    return {
        "verified": True,
        "ledger_schema": SCHEMA,
        "records": summary.records,
        "answers": summary.debits,
        "people": summary.people,
        "head": summary.head.hex(),
        "torn": summary.torn,
        "epsilon_cap": epsilon_of(summary.cap_units, summary.delta),
        "epsilon_most_spent": epsilon_of(summary.max_person_units, summary.delta),
        "delta": summary.delta,
    }


def _entry(
    entry: LedgerEntry, companies: Mapping[str, Sequence[str]], delta: float
) -> dict[str, Any]:
    """Return a ledger entry as JSON shows it, in ε."""
    fields: dict[str, Any] = {"seq": entry.seq, "time": moment(entry.time), "type": entry.kind}
    plan = entry.plan.hex() if entry.plan is not None else str(entry.event.get("plan", ""))
    if plan:
        who = list(companies.get(plan, ()))
        fields |= {"plan": plan, "who": ["the regulator"] if _is_of_regulator(entry) else who}
    if entry.kind in ("debit", "reserve"):
        fields |= {
            "people": entry.people,
            "epsilon": epsilon_of(entry.units, delta),
            "epsilon_spent": epsilon_of(entry.spent_units, delta),
            "epsilon_left": epsilon_of(entry.left_units, delta) if entry.left_units else 0.0,
        }
    if entry.query_id:
        fields["query"] = entry.query_id
    if entry.kind == "debit":
        fields["purpose"] = entry.event.get("purpose", "")
        fields["noise"] = {name: entry.event.get(name) for name in ("mechanism", "noise")}
    return {**fields, "event": dict(entry.event)}


def _is_of_regulator(entry: LedgerEntry) -> bool:
    """Return whether the regulator itself acted: asked about its people, or inspected."""
    if entry.kind == "inspection":
        return bool(_STEPS[str(entry.event["step"])][0])
    text = entry.event.get("declaration")
    return text is not None and isinstance(Declaration.from_text(str(text)).content, Unknowns)


def _for_people(summary: LedgerState, fields: dict[str, Any]) -> str:
    lines = [
        f"Verified: {summary.records} records, chain intact, {summary.debits} answers about "
        f"{summary.people:,} people; head {summary.head.hex()[:16]}…",
        f"Most that a person has spent: ε = {fields['epsilon_most_spent']:.4g} of "
        f"{fields['epsilon_cap']:.4g} (δ = {summary.delta:g})",
    ]
    for entry in fields.get("entries", ()):
        who = ", ".join(entry.get("who", ())) or entry.get("plan", "")[:12]
        lines.append(f"{entry['time']}  {entry['type']:<10} {who:<16} {_words(entry)}".rstrip())
    return "\n".join(lines)


def _words(entry: dict[str, Any]) -> str:
    """Return what one entry says, in one line."""
    event = entry["event"]
    if entry["type"] == "reserve":
        return f"set ε = {entry['epsilon']:.4g} aside for {entry['people']:,} people"
    if entry["type"] == "close":
        return f"unused budget returned (plan closed){_by(event)}"
    if entry["type"] == "note":
        return f"{_NOTES.get(event['kind'], event['kind'])}{_by(event)}{_details(event)}"
    if entry["type"] == "inspection":
        return f"query {entry['query']}: {_STEPS[event['step']][1]}{_by(event)}"
    if entry["type"] != "debit":
        return _details(event).strip()
    if event.get("kind") == "few_shot":
        most = entry["epsilon_spent"]  # set aside in full: individual accounts end there
        return (
            f"{entry['purpose']}, round {event['round']}: {entry['people']:,} samples; each loses "
            f"at most ε = {min(entry['epsilon'], most):.4g} in it, {most:.4g} in all rounds"
        )
    return (
        f"{entry['purpose'] or entry['query']}: {_noise(event)}, {entry['people']:,} people asked "
        f"about, ε = {entry['epsilon']:.4g}; spent {entry['epsilon_spent']:.4g}, left "
        f"{entry['epsilon_left']:.4g}{_by(event)}"
    )


def _by(event: Mapping[str, Any]) -> str:
    """Return the officers who acted; nothing where the daemon answered a company."""
    names = [event[name] for name in ("officer", "second_officer") if event.get(name)]
    return f", by {' and '.join(names)}" if names else ""


def _details(event: Mapping[str, Any]) -> str:
    shown = {key: value for key, value in event.items() if key not in _QUIET}
    return "".join(f" ({key}: {value})" for key, value in shown.items())


def _noise(event: Mapping[str, Any]) -> str:
    """Return the noise of an answer in people: in the most that one of them adds to a sum."""
    size = int(event.get("noise", 0)) / DEFAULT_PARAMETERS.row_bound
    return f"noise ± {size:.3g} {'people' if event.get('norm') == '1.0' else 'whole rows'}"
