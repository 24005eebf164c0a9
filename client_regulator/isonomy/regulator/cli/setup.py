"""`init`, `enroll` and `check-ids`: a home, and the people in it."""

from __future__ import annotations

import sys
from dataclasses import asdict, replace
from pathlib import Path
from pwd import getpwnam
from typing import Annotated

import typer

from isonomy.common.base.command_line import prompt
from isonomy.common.base.output import emit, say, wants_json
from isonomy.common.base.progress import Stages
from isonomy.common.keys.certificates import Request
from isonomy.common.keys.party import PartyKeys
from isonomy.common.kits.command import NodeFolder
from isonomy.common.kits.request import make_request_file
from isonomy.common.kits.users import DATA, GROUP, NODE, give_empty, is_root, make_accounts
from isonomy.common.people.id_summary import IdSummary, Lines
from isonomy.regulator.cli.output import Home, PassphraseFile, UnlockFile, open_vault
from isonomy.regulator.config.config import DEFAULT_COHORT, RegulatorConfig
from isonomy.regulator.config.officers import check_officer
from isonomy.regulator.config.policy_template import toml_text
from isonomy.regulator.plans.sign_off import KEY_LOCK, make_officer_key
from isonomy.regulator.upkeep.home import make_home
from isonomy.regulator.upkeep.people import EnrolmentOrder, enroll_people
from isonomy.regulator.vault.spellings import parse_groups
from isonomy.regulator.vault.tables import count_rows
from isonomy.regulator.vault.unlock import new_secret
from isonomy.regulator.vault.vault import VaultTable

_PROGRESS_ROWS = 5_000
Complete = Annotated[
    list[str] | None,
    typer.Option(
        help='A name in --groups of which everybody has a value: no group "not stated" is added.'
    ),
]


def init(
    home: Annotated[Path, typer.Argument(help="A new folder for all files of this regulator.")],
    name: Annotated[str, typer.Option(help="The regulator's name in plans.")] = "regulator",
    epsilon: Annotated[
        str, typer.Option(help="A person's whole budget (ε), over all plans and for ever.")
    ] = "2",
    delta: Annotated[
        str, typer.Option(help="How often the promise may fail (δ): a tiny number.")
    ] = "1e-6",
    groups: Annotated[
        list[str] | None, typer.Option(help="NAME=LABEL,LABEL… for each attribute.")
    ] = None,
    complete: Complete = None,
    group: Annotated[
        str | None, typer.Option(help="User group that the Flower node's user shares.")
    ] = None,
    unlock_file: Annotated[
        Path | None,
        typer.Option(
            "--unlock-file",
            help="Unlock the vault by this file (made if it does not exist), not by a passphrase.",
        ),
    ] = None,
    witness: Annotated[
        list[Path] | None,
        typer.Option(help="Keep a copy of witness.json here, on another disk; repeatable."),
    ] = None,
    node_folder: NodeFolder = None,
    people: Annotated[
        Path | None, typer.Option(help="Enroll the people of this file too, as `enroll` does.")
    ] = None,
    id_column: Annotated[str, typer.Option("--id", help="Its column with the ids.")] = "id",
) -> None:
    """Make a home folder: keys, TLS request, an empty vault, and the policy with comments.

    Read and change the policy (regulator.toml) before the first approval, which opens the ledger
    with the policy's total: that can never be raised. With --node, the command also makes the
    Flower node's key, and NAME.request for the server's operator, who answers with a kit; as root,
    also the two users that own the folders.

    \b
    Examples:
    isonomy-regulator init /srv/regulator --groups sex=female,male --epsilon 2
    isonomy-regulator init /srv/regulator --groups sex=female,male --people people.csv \\
        --id customer --node /srv/node --unlock-file /srv/regulator/unlock.key
    """
    if not witness and unlock_file is None and sys.stdin.isatty():
        question = "A file on another disk for a copy of the ledger's witness (empty: none)"
        path = prompt(question, default="", show_default=False)
        witness = [Path(path)] if path else []
    user = None
    if node_folder is not None and is_root():
        make_accounts(DATA, NODE)
        user = getpwnam(DATA).pw_uid
        for copy in witness or ():
            give_empty(copy.absolute().parent, DATA)
    files = make_home(
        home,
        name=name,
        epsilon=epsilon,
        delta=delta,
        groups=parse_groups(groups or [], complete or []),
        group=group or (GROUP if node_folder is not None and is_root() else None),
        unlock_file=unlock_file,
        witness_copies=witness or (),
        user=user,
    )
    if not witness:
        say(
            "No copy of the ledger's witness is kept elsewhere. If this disk is lost, every open "
            "plan counts as spent: name a path on another disk (witness_copies in regulator.toml)."
        )
    tls = Request.load(files.tls_request).fingerprint
    lines = [
        f"Made {files.home}.",
        f"  policy           {files.policy}   (read it, change it)",
        f"  card             {files.card}   (for the companies)",
        f"  TLS request      {files.tls_request}   (for the server's operator)",
        f"  TLS fingerprint  {tls}   (read it to the operator)",
        f"  fingerprint      {files.fingerprint}   (read it out by telephone)",
        f"Next: isonomy-regulator enroll FILE --id COLUMN --attribute COLUMN --home {files.home}",
    ]
    fields: dict[str, object] = {**asdict(files), "tls_fingerprint": tls}
    if people is not None:  # if the file is bad, `enroll` is next, then `request`
        attributes = list(parse_groups(groups or [], complete or []))
        order = EnrolmentOrder(people, id_column, attributes)
        enrolled, text = _enroll(RegulatorConfig.load(home), order, unlock_file)
        fields["enrolled"] = enrolled
        lines.insert(0, text)
    if node_folder is not None:
        request_file = Path(f"{name}.request")
        keys = PartyKeys.load(files.card.parent)
        request = make_request_file(keys, files.home, node_folder, request_file)
        fields |= {"request": str(request_file), "request_fingerprint": request.fingerprint}
        lines[-1] = (
            f"Next: send {request_file} to the server's operator, and read out its fingerprint:\n"
            f"  {request.fingerprint}"
        )
    emit(fields, "\n".join(lines))


def officer_key(
    file: Annotated[Path, typer.Argument(help="A new file for the key.")],
    name: Annotated[str, typer.Option(help="The officer's name, as records will have it.")],
    passphrase_file: PassphraseFile = None,
) -> None:
    """Make a key with which one officer signs approvals, locked by a passphrase of their own.

    Every officer makes one and tells nobody the passphrase. The lines that this prints go into
    regulator.toml; with approving_officers = 2 a plan then needs two officers' signatures.

    \b
    Examples:
    isonomy-regulator officer-key ada.key --name "Ada Byron"
    """
    name = check_officer({}, name)
    public = make_officer_key(file, new_secret(passphrase_file, KEY_LOCK))
    text = (
        f"Made {file}. Add these lines to regulator.toml:\n[officers.{toml_text(name)}]\n"
        f'key = "{public}"'
    )
    emit({"file": file, "name": name, "key": public}, text)


def enroll(
    file: Annotated[Path, typer.Argument(help="CSV in UTF-8, or Parquet.")],
    attribute: Annotated[list[str], typer.Option(help="A column with an attribute; repeatable.")],
    id_column: Annotated[str, typer.Option("--id", help="The column with the ids.")] = "id",
    groups: Annotated[
        list[str] | None, typer.Option(help="NAME=LABEL,LABEL… if regulator.toml has no such line.")
    ] = None,
    complete: Complete = None,
    mapping: Annotated[
        list[str] | None,
        typer.Option("--map", help="VALUE=GROUP: how the file spells a group; repeatable."),
    ] = None,
    cohort: Annotated[str, typer.Option(help="A name for these people.")] = DEFAULT_COHORT,
    update: Annotated[bool, typer.Option("--update", help="Add people or attributes.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Also change values.")] = False,
    delimiter: Annotated[str, typer.Option(help="What separates the columns of a CSV file.")] = ",",
    show_sizes: Annotated[
        bool, typer.Option("--show-sizes", help="Show group sizes even without a terminal.")
    ] = False,
    home: Home = Path(),
    unlock_file: UnlockFile = None,
) -> None:
    """Take people and their attributes into the encrypted vault: all of a file, or nobody.

    Every line is checked first; a bad one is named by its number. People without a value (empty
    cells, values such as "unknown") form the group "not stated", which --groups adds. To merge it
    with another group, say so in the last label: --groups "sex=female,male or not stated".
    Group sizes are private; they are shown at a terminal only, unless --show-sizes asks for them.

    \b
    Examples:
    isonomy-regulator enroll people.csv --id customer --attribute sex --attribute age
    isonomy-regulator enroll more.parquet --attribute sex --update --map f=female --map m=male
    isonomy-regulator enroll people.csv --attribute sex --groups sex=female,male --cohort north
    """
    order = EnrolmentOrder(
        file,
        id_column,
        attribute,
        groups=parse_groups(groups or [], complete or []),
        spellings=mapping or (),
        cohort=cohort,
        update=update,
        replace=replace,
        delimiter=delimiter,
    )
    config = RegulatorConfig.load(home)
    emit(*_enroll(config, order, unlock_file, show_sizes=show_sizes))


def check_ids(home: Home = Path(), unlock_file: UnlockFile = None) -> None:
    """Say what the ids of the enrolled people look like: counts and patterns, never an id.

    A company has the same command for its own list. Compare both by telephone before an alignment.
    No attribute is looked at, and no budget is spent.

    \b
    Examples:
    isonomy-regulator check-ids --home /srv/regulator
    """
    enrolled = open_vault(RegulatorConfig.load(home), unlock_file).read()
    summary = IdSummary.of(enrolled.ids)
    # A vault has no lines to look up.
    alike, damaged = Lines(summary.alike.count), Lines(summary.damaged.count)
    summary = replace(summary, alike=alike, damaged=damaged)
    emit(asdict(summary), summary.describe())


def _enroll(
    config: RegulatorConfig,
    order: EnrolmentOrder,
    unlock_file: Path | None,
    *,
    show_sizes: bool = False,
) -> tuple[dict[str, object], str]:
    """Take the people in; returns what was done, as fields and in words."""
    vault, lines = open_vault(config, unlock_file), count_rows(order.file)
    with Stages() as stages:

        def on_row(number: int) -> None:
            if number % _PROGRESS_ROWS == 0:
                stages.show("reading the file", number, lines)

        done = enroll_people(config, vault, order, on_row=on_row)
    counts, table = done.counts, done.table
    for warning in counts.damaged.describe():
        say(f"Look at {order.file}: {warning}.")
    if done.old_values_served:
        say("The running daemon keeps the old values for open plans until it is started again.")
    if not wants_json() and (show_sizes or sys.stderr.isatty()):
        _show_sizes(table, config.policy.smallest_group)
    fields: dict[str, object] = {
        "file": order.file,
        "cohort": order.cohort,
        "attributes": list(order.attributes),
        **asdict(counts),
        "vault": config.vault_path,
        "vault_generation": done.generation,
    }
    if show_sizes:
        fields["sizes"] = {name: table.sizes(name) for name in table.groups}
    text = (
        f"Enrolled {counts.added} people in cohort {order.cohort!r} ({counts.unchanged} were "
        f"enrolled with the same values, {counts.replaced} got new ones); the vault now holds "
        f"{counts.people}.\n{order.file} was left as it is: it holds attributes in plain text, so "
        "keep it safe or remove it."
    )
    return fields, text


def _show_sizes(table: VaultTable, smallest: int) -> None:
    for name in table.groups:
        say(f"{name}:")
        for label, size in table.sizes(name).items():
            small = f"   below the smallest group of {smallest}" if 0 < size < smallest else ""
            say(f"  {label:<24} {size:>12,}{small}")
