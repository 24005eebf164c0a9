"""`init` and `enroll`: a home, and the people in it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from isonomy.common.base.command_line import prompt
from isonomy.common.base.errors import ConfigError
from isonomy.common.keys.certificates import Request
from isonomy.common.keys.party import PartyKeys
from isonomy.common.kits.accounts import GROUP, is_root
from isonomy.common.kits.command import NodeFolder
from isonomy.common.kits.request import make_request_file
from isonomy.common.people.cohort import with_not_stated, written_as
from isonomy.regulator.cli.output import (
    Home,
    Json,
    PassphraseFile,
    UnlockFile,
    emit,
    open_vault,
    say,
)
from isonomy.regulator.config.config import DEFAULT_COHORT, RegulatorConfig
from isonomy.regulator.config.officers import acting_officer, check_officer
from isonomy.regulator.config.policy_template import toml_text
from isonomy.regulator.plans.sign_off import KEY_LOCK, make_officer_key
from isonomy.regulator.serving.officer import daemon_status, note
from isonomy.regulator.upkeep.home import make_home
from isonomy.regulator.vault.enrolment import Order, declared_groups, enrol
from isonomy.regulator.vault.tables import Problems, Row, read_rows
from isonomy.regulator.vault.unlock import new_secret
from isonomy.regulator.vault.vault import VaultTable

_PROGRESS_ROWS = 250_000
Complete = Annotated[
    list[str] | None,
    typer.Option(
        help='A name in --groups of which everybody has a value: no group "not stated" is added.'
    ),
]


def init(
    home: Annotated[Path, typer.Argument(help="A new folder for everything of this regulator.")],
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
    as_json: Json = False,
) -> None:
    """Make a home folder: keys, TLS request, an empty vault, and the policy with comments.

    Read and change the policy (regulator.toml) before the first approval: then the ledger is
    opened with its total, which can never be raised. With --node, the Flower node's key is made
    too, and NAME.request for the server's operator, who answers with a kit; as root, also the two
    users that own the folders.

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
    files = make_home(
        home,
        name=name,
        epsilon=epsilon,
        delta=delta,
        groups=parse_groups(groups or [], complete or []),
        group=group or (GROUP if node_folder is not None and is_root() else None),
        unlock_file=unlock_file,
        witness_copies=witness or (),
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
    fields = {**asdict(files), "tls_fingerprint": tls}
    if people is not None:  # if the file is bad, `enroll` is next, then `request`
        attributes = list(parse_groups(groups or [], complete or []))
        enroll(people, attributes, id_column=id_column, home=home, unlock_file=unlock_file)
    if node_folder is not None:
        request_file = Path(f"{name}.request")
        keys = PartyKeys.load(files.card.parent)
        request = make_request_file(keys, files.home, node_folder, request_file)
        fields |= {"request": str(request_file), "request_fingerprint": request.fingerprint}
        lines[-1] = (
            f"Next: send {request_file} to the server's operator, and read out its fingerprint:\n"
            f"  {request.fingerprint}"
        )
    emit("init", fields, "\n".join(lines), as_json=as_json)


def officer_key(
    file: Annotated[Path, typer.Argument(help="A new file for the key.")],
    name: Annotated[str, typer.Option(help="The officer's name, as records will have it.")],
    passphrase_file: PassphraseFile = None,
    as_json: Json = False,
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
    emit("officer-key", {"file": file, "name": name, "key": public}, text, as_json=as_json)


def enroll(
    file: Annotated[Path, typer.Argument(help="CSV in UTF-8, or Parquet.")],
    attribute: Annotated[list[str], typer.Option(help="A column with an attribute; repeatable.")],
    id_column: Annotated[str, typer.Option("--id", help="The column with the ids.")] = "id",
    groups: Annotated[
        list[str] | None, typer.Option(help="NAME=LABEL,LABEL… if the policy does not say.")
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
        bool, typer.Option("--show-sizes", help="Group sizes even without a terminal.")
    ] = False,
    home: Home = Path(),
    unlock_file: UnlockFile = None,
    as_json: Json = False,
) -> None:
    """Take people and their attributes into the encrypted vault: all of a file, or nobody.

    Every line is checked first; a bad one is named by its number. People without a value (empty
    cells, values such as "unknown") are the group "not stated", which --groups adds. To merge it,
    name the last group so: --groups "sex=female,male or not stated".
    Group sizes are private; they are shown at a terminal only, unless --show-sizes asks for them.

    \b
    Examples:
    isonomy-regulator enroll people.csv --id customer --attribute sex --attribute age
    isonomy-regulator enroll more.parquet --attribute sex --update --map f=female --map m=male
    isonomy-regulator enroll people.csv --attribute sex --groups sex=female,male --cohort north
    """
    config = RegulatorConfig.load(home)
    acting_officer(config.officers)  # who may not act enrolls nobody
    vault = open_vault(config, unlock_file)
    with vault.locked():
        table = vault.read()
        declared = declared_groups(
            attribute, parse_groups(groups or [], complete or []), config.groups, table.groups
        )
        order = Order(cohort, declared, config.vault.unknown_values, update, replace)
        problems = Problems(file)
        rows = _with_progress(read_rows(file, id_column, attribute, problems, delimiter))
        rows = _translated(rows, translations(mapping or [], declared))
        table, counts = enrol(table, order, rows, problems)
        generation = vault.write(table)
    note(config, "enrolment", {"vault": generation})
    if counts.replaced and daemon_status(config) is not None:
        say("The running daemon keeps the old values for open plans until it is started again.")
    if not as_json and (show_sizes or sys.stderr.isatty()):
        _show_sizes(table, config.policy.smallest_group)
    fields: dict[str, object] = {
        "file": file,
        "cohort": cohort,
        "attributes": list(declared),
        **asdict(counts),
        "vault": config.vault_path,
        "vault_generation": generation,
    }
    if show_sizes:
        fields["sizes"] = {name: table.sizes(name) for name in table.groups}
    text = (
        f"Enrolled {counts.added} people in cohort {cohort!r} ({counts.unchanged} were enrolled "
        f"with the same values, {counts.replaced} got new ones); the vault now holds "
        f"{counts.people}.\n{file} was left as it is: it holds attributes in plain text, so keep "
        "it safe or remove it."
    )
    emit("enroll", fields, text, as_json=as_json)


def parse_groups(texts: Iterable[str], complete: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """["sex=female,male"] to {"sex": ("female", "male", "not stated")}.

    Nothing is added to attributes in `complete`, nor to a group that takes people without a value.
    """
    groups: dict[str, tuple[str, ...]] = {}
    for text in texts:
        name, equals, labels = text.partition("=")
        if not equals or not name or name in groups:
            raise ConfigError(f"--groups {text!r} is not NAME=LABEL,LABEL, or names it twice")
        names = tuple(label.strip() for label in labels.split(","))
        groups[name] = names if name in complete else with_not_stated(names)
    strangers = set(complete) - set(groups)
    if strangers:
        raise ConfigError(f"--complete names {sorted(strangers)}, which no --groups declares")
    return groups


def translations(
    texts: Iterable[str], groups: Mapping[str, Sequence[str]]
) -> list[dict[str | None, str]]:
    """["f=female"] to a dictionary for each attribute, for those that have this group."""
    tables: list[dict[str | None, str]] = [{} for _ in groups]
    for text in texts:
        value, equals, label = (part.strip() for part in text.partition("="))
        spelled = [{*labels, *map(written_as, labels)} for labels in groups.values()]
        places = [place for place, labels in enumerate(spelled) if label in labels]
        if not equals or not value or not places:
            raise ConfigError(f"--map {text!r} is not VALUE=GROUP with a declared group")
        for place in places:
            if value in spelled[place] or value in tables[place]:
                raise ConfigError(f"--map {text!r}: {value!r} is a group itself, or mapped twice")
            tables[place][value] = label
    return tables


def _translated(rows: Iterator[Row], tables: Sequence[dict[str | None, str]]) -> Iterator[Row]:
    for row in rows:
        pairs = zip(row.values, tables, strict=True)
        values = tuple(table.get(value, value) for value, table in pairs)
        yield Row(row.where, row.person, values)


def _with_progress(rows: Iterator[Row]) -> Iterator[Row]:
    for number, row in enumerate(rows, start=1):
        if number % _PROGRESS_ROWS == 0:
            say(f"{number:,} lines read")
        yield row


def _show_sizes(table: VaultTable, smallest: int) -> None:
    for name in table.groups:
        say(f"{name}:")
        for label, size in table.sizes(name).items():
            small = f"   below the smallest group of {smallest}" if 0 < size < smallest else ""
            say(f"  {label:<24} {size:>12,}{small}")
