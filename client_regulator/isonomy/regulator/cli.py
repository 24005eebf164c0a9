"""`isonomy-regulator`: keys, approvals, the daemon and its Flower node, the ledger."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from isonomy.common.accounting import epsilon_of
from isonomy.common.approvals import Approvals, read_people
from isonomy.common.bridge import DaemonAbsent, call
from isonomy.common.command_line import CommandLine
from isonomy.common.errors import ConfigError
from isonomy.common.ledger import verify_ledger
from isonomy.common.node import flower_environment, make_node_key, supernode_command
from isonomy.common.node_process import run_node
from isonomy.common.party import PartyKeys, fingerprint
from isonomy.common.plan import Plan
from isonomy.regulator.config import RegulatorConfig
from isonomy.regulator.daemon import Daemon
from isonomy.regulator.vault import load_table, make_member_key

app = CommandLine(
    help="The regulator's side of Isonomy. Attributes stay on this machine: they leave only as "
    "encrypted columns, and answers carry noise that is paid for in the ledger before they go."
)
Config = Annotated[
    Path, typer.Option("--config", "-c", help="The regulator's configuration (TOML).")
]
_DEFAULT = Path("regulator.toml")


@app.command()
def keys(config: Config = _DEFAULT) -> None:
    """Make this regulator's keys, once. They are never overwritten.

    Hand keys/card.json to the company and node/node.key.pub to the server's operator, and compare
    the fingerprint by telephone. Back the folder up: without member.key the ledger is unreadable.
    """
    settings = RegulatorConfig.load(config)
    made = PartyKeys.create(settings.keys_folder, settings.name, "regulator")
    make_member_key(settings)
    settings.node_folder.mkdir(parents=True, exist_ok=True)
    public = make_node_key(settings.node_folder / "node.key")
    typer.echo(
        json.dumps(
            {
                "card": str(settings.keys_folder / "card.json"),
                "fingerprint": fingerprint(made.card()),
                "node_key": str(public),
            }
        )
    )


@app.command()
def approve(
    plan: Annotated[Path, typer.Argument(help="The plan, as the company sent it.")],
    people: Annotated[Path, typer.Option(help="The ids that came with it, one per line.")],
    config: Config = _DEFAULT,
    yes: Annotated[bool, typer.Option("--yes", help="Approve without asking.")] = False,
) -> None:
    """Approve a plan: the daemon then joins sessions of this plan and no others.

    Its whole budget is set aside for each of its people, whether the company uses it or not.
    """
    settings = RegulatorConfig.load(config)
    loaded, cohort = Plan.load(plan), read_people(people)
    typer.echo(loaded.describe(), err=True)
    for card in loaded.companies:
        typer.echo(f"  {card.name}: {fingerprint(card)}", err=True)
    load_table(settings, loaded, cohort)  # everybody enrolled, groups as declared
    if not yes and not typer.confirm("Approve this plan?", err=True):
        raise typer.Exit(1)
    own = PartyKeys.load(settings.keys_folder)
    Approvals(settings.plans_folder).approve(loaded, cohort, own)
    try:  # a daemon that is up holds the ledger, so it sets the budget aside
        call(settings.socket, {"type": "reload"})
    except DaemonAbsent:
        with Daemon(settings) as daemon:
            daemon.reserve_all()
    typer.echo(json.dumps({"approved": loaded.hash.hex()}))


@app.command()
def serve(config: Config = _DEFAULT) -> None:
    """Hold attributes, keys and ledger, and answer for approved plans, until stopped.

    Run it as a user of its own; the Flower node runs as another user and reaches it by the socket
    only. Logs are JSON lines on stderr.
    """
    with Daemon(RegulatorConfig.load(config)) as daemon:
        daemon.serve()


@app.command()
def node(
    superlink: Annotated[str, typer.Option(help="HOST:PORT of the server's SuperLink.")],
    daemon_socket: Annotated[Path, typer.Option("--socket", help="The daemon's local socket.")],
    folder: Annotated[Path, typer.Option(help="Folder with node.key, and for Flower's files.")],
    ca: Annotated[Path, typer.Option(help="The server's ca.pem.")],
    port: Annotated[int, typer.Option(help="A free local port for Flower's own use.")] = 9094,
) -> None:
    """Start the Flower node (SuperNode), in the foreground, as a user without access to the home.

    Code that arrives with a run executes here. It sees the socket, and no data.
    """
    command = supernode_command(
        superlink=superlink, ca=ca, key=folder / "node.key", daemon_socket=daemon_socket, port=port
    )
    run_node(command, flower_environment(folder / "flower"))


@app.command()
def ledger(
    file: Annotated[Path, typer.Argument(help="A ledger, or a copy of one.")],
    verify: Annotated[bool, typer.Option("--verify", help="The check alone, no plans.")] = False,
    head: Annotated[
        str, typer.Option(help="A head from a signed answer: must be in the ledger.")
    ] = "",
) -> None:
    """Check a ledger and show what it holds, as JSON. Needs no key; names nobody.

    Reading always recomputes the hash chain and replays every rule, and finds any change of what is
    written. That records were cut off at the end shows only against a `--head` from an answer.
    """
    try:
        known = bytes.fromhex(head) if head else None
    except ValueError:
        raise ConfigError("--head must be hexadecimal") from None
    found = verify_ledger(file, known_head=known)
    shown: dict[str, object] = {
        "verified": True,
        "records": found.records,
        "answers": found.debits,
        "people": found.people,
        "head": found.head.hex(),
        "torn": found.torn,
        "epsilon_cap": epsilon_of(found.cap_units, found.delta),
        "epsilon_most_spent": epsilon_of(found.max_person_units, found.delta),
        "delta": found.delta,
    }
    if not verify:
        shown["plans"] = [
            {
                "plan": plan.plan.hex(),
                "people": plan.people,
                "open": plan.is_open,
                "epsilon_reserved": epsilon_of(plan.units, found.delta),
                "epsilon_spent": epsilon_of(plan.spent_units, found.delta),
            }
            for plan in found.plans
        ]
    typer.echo(json.dumps(shown))
