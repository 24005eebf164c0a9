"""`isonomy-server`: set up the server, admit nodes, run approved plans."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from isonomy.common.agreements.agreement import PlanPublic
from isonomy.common.base.command_line import CommandLine, confirm, prompt
from isonomy.common.base.errors import ConfigError
from isonomy.common.base.private_files import read_secret
from isonomy.common.keys.certificates import (
    NODE,
    Authority,
    Request,
    authority_fingerprint,
    sign_request,
)
from isonomy.common.keys.certificates import renew as renew_certificate
from isonomy.common.kits.accounts import acting_as_owner
from isonomy.common.kits.install import UNITS, start_units
from isonomy.common.kits.request import KitRequest
from isonomy.server.config import ServerConfig
from isonomy.server.flower.operator import ask
from isonomy.server.setup import Address, make_home, make_kits, server_units

app = CommandLine(
    help="The server of Isonomy: company and regulator meet here. It sees ciphertexts, sizes and "
    "timing, and is trusted with no data, key or answer. At worst it can stop the work."
)
Config = Annotated[
    Path, typer.Option("--config", "-c", help="The server's configuration (made by `init`).")
]
AuthorityFolder = Annotated[
    Path, typer.Option("--authority", help="The authority's folder (made by `init`).")
]
PassphraseFile = Annotated[
    Path | None,
    typer.Option(help="File with the authority's passphrase; without, it is asked for."),
]
_DEFAULT = Path("server.toml")


@app.command()
def init(
    home: Annotated[Path, typer.Argument(help="A new folder for keys, state and settings.")],
    authority: AuthorityFolder,
    name: Annotated[str, typer.Option(help="Host name that certificates and plans carry.")],
    ip: Annotated[list[str] | None, typer.Option(help="Also valid for this address.")] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "0.0.0.0",  # noqa: S104
    door_port: Annotated[int, typer.Option(help="Port for the parties' nodes.")] = 9093,
    relay_port: Annotated[int, typer.Option(help="Port of the relay; 0: any free one.")] = 9095,
    advertise: Annotated[
        str | None, typer.Option(help="Host that the parties dial, if it is not the name.")
    ] = None,
    passphrase_file: PassphraseFile = None,
) -> None:
    """Make the authority, and a server's home: its certificate, the token key and server.toml.

    The authority's key signs who is company, regulator, node and server. It is sealed by a
    passphrase, and the server never needs it: run `init` and `sign` on the operator's own machine,
    and copy the home (not the authority) to the server.
    """
    if (home / "server.toml").exists():
        raise ConfigError(f"{home}/server.toml exists already; a server is set up once")
    signer = Authority.create(authority, _passphrase(passphrase_file, new=True))
    address = Address(name, host, door_port, relay_port, advertise or name)
    make_home(home, signer, address, ip or [])
    typer.echo(f"made {home}/server.toml, and the authority in {authority}")
    typer.echo(f"authority: {authority_fingerprint(authority / 'ca.pem')}")


@app.command()
def kit(
    requests: Annotated[list[Path], typer.Argument(help="NAME.request of each party.")],
    home: Annotated[Path, typer.Option(help="The server's home; made if it is not there.")],
    authority: Annotated[
        Path, typer.Option(help="The authority's folder; made if it is not there.")
    ],
    name: Annotated[str, typer.Option(help="Host name that certificates and plans carry.")],
    ip: Annotated[list[str] | None, typer.Option(help="Also valid for this address.")] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the kits.")] = Path(),
    start: Annotated[
        bool, typer.Option("--start", help="Install the server's service and start it, as root.")
    ] = False,
    units: Annotated[Path, typer.Option(help="Where systemd looks for units.")] = UNITS,
    yes: Annotated[bool, typer.Option("--yes", help="Sign without asking.")] = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="Take new node keys in place of those registered.")
    ] = False,
    passphrase_file: PassphraseFile = None,
) -> None:
    """Make one kit per party from their requests, and the server's home: all of the set-up at once.

    Run it on the server. A kit holds certificates, the other parties' cards, services, a compose
    file and that party's steps, signed by the authority; nothing in it is secret. Compare each
    request's fingerprint with what the party reads out. Afterwards keep the authority's folder
    elsewhere: the server never needs it. To renew all certificates, make the kits again; the
    server takes its own when it is started again, which --start does.

    \b
    Examples:
    isonomy-server kit company.request regulator.request --home /srv/isonomy \\
        --authority authority --name server.example.org -o kits --start
    """
    loaded = [KitRequest.load(path) for path in requests]
    names = [each.card.name for each in loaded]
    if len(set(names)) < len(names) or sum(e.card.role == "regulator" for e in loaded) != 1:
        raise ConfigError("a federation has one regulator and its companies, each with its name")
    for each in loaded:  # all questions first: a "no" changes nothing
        question = f"Make a kit for {each.card.name} ({each.card.role}), {each.fingerprint}?"
        confirm(question, yes=yes)
    is_new = not (authority / "ca.key").exists()
    passphrase = _passphrase(passphrase_file, new=is_new)
    signer = (Authority.create if is_new else Authority.open)(authority, passphrase)
    if (home / "server.toml").exists():
        with acting_as_owner(home):
            renew_certificate(signer, home / "tls")  # as a kit renews those of a party
    else:
        make_home(home, signer, Address(name, advertise=name), ip or [], give=True)
    config = ServerConfig.load(home / "server.toml")
    if config.name != name:
        raise ConfigError(f"the server in {home} is {config.name!r}, not {name!r}")
    for path in make_kits(config, signer, loaded, output, replace=replace):
        typer.echo(f"made {path}", err=True)
    typer.echo(f"authority: {authority_fingerprint(authority / 'ca.pem')}", err=True)
    if start:
        typer.echo(start_units(server_units(config.home), units), err=True)


@app.command()
def sign(
    requests: Annotated[list[Path], typer.Argument(help="tls.csr files from the parties.")],
    authority: AuthorityFolder,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", help="A folder: OUT/NAME for a party, OUT/NAME/node."),
    ] = Path(),
    yes: Annotated[bool, typer.Option("--yes", help="Sign without asking.")] = False,
    passphrase_file: PassphraseFile = None,
) -> None:
    """Sign certificates for parties and their nodes: tls.pem and ca.pem for each request.

    Compare the key's fingerprint with what its owner reads out: a certificate lets its holder take
    that party's place at the relay, or its node's at the door (and no more: messages are signed
    with other keys). Nothing in the folders is secret. To renew, sign the same request again.
    """
    signer = Authority.open(authority, _passphrase(passphrase_file))
    loaded = [Request.load(path) for path in requests]
    subjects = [f"{each.name} ({each.role}), key {each.fingerprint}" for each in loaded]
    for subject in subjects:  # all questions first: a "no" changes nothing
        confirm(f"Sign a certificate for {subject}?", yes=yes)
    for request, subject in zip(loaded, subjects, strict=True):
        folder = output / request.name / (NODE if request.role == NODE else "")
        files = sign_request(signer, request, folder)
        typer.echo(f"signed {files.cert} for {subject}", err=True)
    typer.echo(f"authority: {authority_fingerprint(authority / 'ca.pem')}", err=True)


@app.command()
def renew(
    folder: Annotated[Path, typer.Argument(help="Folder with the server's tls.pem.")],
    authority: AuthorityFolder,
    passphrase_file: PassphraseFile = None,
) -> None:
    """Renew the server's certificate for the same key and names. Plans stay as they are.

    A party's certificate is renewed by signing its request again.
    """
    renew_certificate(Authority.open(authority, _passphrase(passphrase_file)), folder)
    typer.echo(f"renewed {folder}/tls.pem; copy it to where it is used")


@app.command()
def serve(config: Config = _DEFAULT) -> None:
    """Start the server, in the foreground: the door for the parties' nodes, and the relay in a run.

    The other commands reach it by a socket in its home, as the same user. With -v it logs every
    message that passes the relay: sender, recipient, query and size, never content.
    """
    settings = ServerConfig.load(config)
    from isonomy.server.flower.serve import serve  # seconds of imports

    serve(settings)


@app.command()
def register(
    certificates: Annotated[
        list[Path], typer.Argument(help="tls.pem of each party's node, as `sign` made it.")
    ],
    config: Config = _DEFAULT,
    replace: Annotated[
        bool, typer.Option("--replace", help="In place of the party's node key that was lost.")
    ] = False,
) -> None:
    """Admit the parties' nodes, each under the name in its certificate.

    With --replace the party's former node key is refused from now on.
    """
    settings = ServerConfig.load(config)
    for path in certificates:
        typer.echo(f"registered {settings.register(path, replace=replace)}", err=True)


@app.command()
def run(
    plan: Annotated[Path, typer.Argument(help="The plan's public part (….public.json).")],
    config: Config = _DEFAULT,
) -> None:
    """Run a session for a plan and wait for its end; the outcome is JSON on stdout.

    The same command resumes a run that broke off: the relay's checkpoints and the parties' records
    say where to go on. Ctrl-C stops the run; if this command is killed, the run goes on.
    """
    settings = ServerConfig.load(config)
    public = _read_public(plan, settings)
    settings.add_plan(public)
    typer.echo("waiting for the parties and the end of the session", err=True)
    try:
        ask(settings, {"type": "run", "plan": public.hash.hex()})
    except KeyboardInterrupt:
        ask(settings, {"type": "stop", "plan": public.hash.hex()})
        raise
    outcome = settings.state_folder(public) / "outcome.json"
    typer.echo(json.dumps(json.loads(outcome.read_text())))


@app.command()
def stop(
    plan: Annotated[Path, typer.Argument(help="The plan's public part (….public.json).")],
    config: Config = _DEFAULT,
) -> None:
    """Stop a plan's run. The parties keep their state, and the next run resumes it."""
    settings = ServerConfig.load(config)
    ask(settings, {"type": "stop", "plan": _read_public(plan, settings).hash.hex()})


@app.command()
def relay(
    plan: Annotated[Path, typer.Argument(help="The plan's public part (….public.json).")],
    tickets: Annotated[Path, typer.Option(help="Folder for one ticket per party.")],
    config: Config = _DEFAULT,
) -> None:
    """Run a relay without Flower, until stopped: for tests and measurements.

    The tickets in the folder admit their holders; hand each to its party in a safe way.
    """
    from isonomy.server.relay.stand_alone import serve

    settings = ServerConfig.load(config)
    serve(settings, _read_public(plan, settings), tickets)


@app.command()
def measure(
    config: Config = _DEFAULT,
    legs: Annotated[int, typer.Option(help="How many legs; each takes seconds.")] = 2,
    size: Annotated[int, typer.Option(help="Bytes per message.")] = 2_000_000,
) -> None:
    """Time one leg of a Flower message to a node that is online; JSON on stdout."""
    answer = ask(ServerConfig.load(config), {"type": "measure", "legs": legs, "bytes": size})
    typer.echo(json.dumps({"leg_ms": int(str(answer["leg_us"])) / 1e3, "bytes": size}))


def _passphrase(file: Path | None, *, new: bool = False) -> str:
    if file is not None:
        return read_secret(file)
    if not sys.stdin.isatty():
        raise ConfigError(
            "the authority's passphrase is needed and there is no terminal to ask at; name a file "
            "with --passphrase-file"
        )
    text = "Passphrase of the authority"
    return prompt(text, hide_input=True, confirmation_prompt=new)


def _read_public(path: Path, settings: ServerConfig) -> PlanPublic:
    try:
        public = PlanPublic.from_json(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    if public.relay_name != settings.name:
        raise ConfigError(
            f"the plan names the relay {public.relay_name!r}; this server is {settings.name!r}"
        )
    return public
