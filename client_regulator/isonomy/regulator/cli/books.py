"""`ledger` and `forget`: what was answered, and the end of what is kept about people."""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from isonomy.common.agreements.agreement import MAX_PLAN_BYTES
from isonomy.common.base.command_line import confirm
from isonomy.common.base.documents import kind_of_content, read_bounded
from isonomy.common.base.errors import ConfigError, LedgerTampered
from isonomy.common.base.output import emit, say
from isonomy.common.ledger.ledger import write_shared
from isonomy.common.ledger.reading import ledger_bar
from isonomy.common.privacy.shown import at_most
from isonomy.regulator.cli.output import Home, UnlockFile, Yes, open_vault
from isonomy.regulator.config.acts import remember
from isonomy.regulator.config.config import RegulatorConfig
from isonomy.regulator.config.officers import acting_officer
from isonomy.regulator.plans.plan_files import find_plan
from isonomy.regulator.serving.ledger_story import entry_words, head_bytes, read_story
from isonomy.regulator.upkeep.forget import forget_cohort, forget_run


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
    if config is not None and share is not None:
        acting_officer(config.officers)  # who may not act hands nothing out
    if not path.exists():
        raise ConfigError(f"there is no ledger at {path}; the first approval opens it")
    beginning = read_bounded(path, MAX_PLAN_BYTES)
    kind = kind_of_content(beginning)
    if kind not in ("", "ledger"):
        raise ConfigError(f"{path} is a {kind}, not a ledger")
    if not beginning.startswith(b"{"):
        raise LedgerTampered(f"{path} is not a ledger, or its beginning was changed")
    known_head = head_bytes(head) if head else None
    listed = not verify and share is None
    with ledger_bar():
        fields = read_story(path, config, plan=plan, known_head=known_head, listed=listed)
    if share is not None:
        write_shared(path, share)
        if config is not None:
            digest = hashlib.sha256(share.read_bytes()).hexdigest()
            remember(config, "ledger-shared", {"sha256": digest})
    text = _for_people(fields)
    emit(fields, text if share is None else f"{text}\nWrote {share}, a copy to hand out")


def forget(
    what: Annotated[str, typer.Argument(help="A run (beginning of a plan's hash), or a cohort.")],
    home: Home = Path(),
    unlock_file: UnlockFile = None,
    yes: Yes = False,
) -> None:
    """Destroy what is kept about a run or a cohort, and write a signed record of the deletion.

    Forgetting a run destroys its list of people, its approval and the state of its sessions.
    Forgetting a cohort destroys its people and their attributes, and closes every open plan that
    one of them is in. The ledger stays; it holds keyed hashes of ids. What people have spent stays
    spent, even if they are enrolled again.

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
    emit(asdict(deletion), text)


def _for_people(fields: dict[str, Any]) -> str:
    lines = [
        f"Verified: {fields['records']} records, chain intact, {fields['answers']} answers, "
        f"budgets of {fields['people']:,} {fields['subjects']}; head {fields['head'][:16]}…",
        f"Most that one of them has spent: ε = {at_most(fields['epsilon_most_spent'])} of "
        f"{at_most(fields['epsilon_cap'])} (δ = {fields['delta']:g})",
    ]
    for entry in fields.get("entries", ()):
        who = " ".join([", ".join(entry.get("who", ())), entry.get("plan", "")[:8]]).strip()
        line = f"{entry['time']}  {entry['type']:<10} {who:<24} {entry_words(entry)}"
        lines.append(line.rstrip())
    if fields.get("lists"):
        lines.append(f"Not shown: {fields['lists']} records that list hashed ids or tag a key")
    return "\n".join(lines)
