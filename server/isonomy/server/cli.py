"""`isonomy-server`: set up the server, admit nodes, run approved plans."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Annotated

import typer

from isonomy.common.agreements.agreement import PlanPublic
from isonomy.common.base.command_line import CommandLine
from isonomy.common.base.errors import ConfigError, IsonomyError
from isonomy.common.keys.certificates import (
    Request,
    authority_fingerprint,
    make_authority,
    sign_request,
)
from isonomy.common.keys.certificates import issue as issue_certificate
from isonomy.common.keys.certificates import renew as renew_certificate
from isonomy.common.keys.identity import Identity
from isonomy.common.node.node import check_port
from isonomy.server.config import ServerConfig
from isonomy.server.flower.flower import Flower, RunFailed, superlink_command

app = CommandLine(
    help="The server of Isonomy: company and regulator meet here. It sees ciphertexts, sizes and "
    "timing, and is trusted with no data, key or answer. What it can do is refuse to work, so its "
    "operator should be somebody whom both parties can reach."
)
Config = Annotated[
    Path, typer.Option("--config", "-c", help="The server's configuration (made by `init`).")
]
_DEFAULT = Path("server.toml")
_FINISHED = "finished"


@app.command()
def init(
    home: Annotated[Path, typer.Argument(help="A new folder for keys, state and settings.")],
    name: Annotated[str, typer.Option(help="Host name that certificates and plans carry.")],
    ip: Annotated[list[str] | None, typer.Option(help="Also valid for this address.")] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "0.0.0.0",  # noqa: S104
    superlink_port: Annotated[int, typer.Option(help="Port of Flower's SuperLink.")] = 9093,
    relay_port: Annotated[int, typer.Option(help="Port of the relay; 0: any free one.")] = 9095,
    advertise: Annotated[
        str | None, typer.Option(help="Host that the parties dial, if it is not the name.")
    ] = None,
) -> None:
    """Make the authority, this server's certificate, the token key and server.toml."""
    if (home / "server.toml").exists():
        raise ConfigError(f"{home}/server.toml exists already; a server is set up once")
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    make_authority(home / "authority")
    issue_certificate(home / "authority", home / "tls", name, [name], ip or [])
    Identity.generate().save(home / "token.key")
    (home / "server.toml").write_text(
        f'name = "{name}"\n\n[superlink]\nhost = "{host}"\nport = {superlink_port}\n\n'
        f'[relay]\nhost = "{host}"\nport = {relay_port}\nadvertise = "{advertise or name}"\n'
    )
    ServerConfig.load(home / "server.toml")
    typer.echo(f"made {home}/server.toml; hand {home}/authority/ca.pem to every party")
    typer.echo(f"authority: {authority_fingerprint(home / 'authority' / 'ca.pem')}")


@app.command()
def sign(
    requests: Annotated[list[Path], typer.Argument(help="tls.csr files from the parties.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="A folder; each party's files go to OUT/NAME.")
    ] = Path(),
    config: Config = _DEFAULT,
    yes: Annotated[bool, typer.Option("--yes", help="Sign without asking.")] = False,
) -> None:
    """Sign certificates for parties that made their own TLS keys: tls.pem and ca.pem for each.

    Compare the key's fingerprint with what its owner reads out: a certificate lets its holder take
    that party's place at the relay (and no more: messages are signed with other keys). Nothing in
    the folders is secret. To renew, sign the same request again.
    """
    settings = ServerConfig.load(config)
    for path in requests:
        request = Request.load(path)
        subject = f"{request.name} ({request.role or 'no role'}), key {request.fingerprint}"
        if not yes and not typer.confirm(f"Sign a certificate for {subject}?", err=True):
            raise typer.Exit(1)
        files = sign_request(settings.authority, request, output / request.name)
        typer.echo(f"signed {files.cert} for {subject}", err=True)
    typer.echo(f"authority: {authority_fingerprint(settings.authority / 'ca.pem')}", err=True)


@app.command()
def issue(
    parties: Annotated[
        list[str], typer.Argument(help="NAME=FOLDER for each party, names as on their cards.")
    ],
    config: Config = _DEFAULT,
) -> None:
    """Make keys and certificates in one step, where all parties are on this one machine.

    FOLDER gets ca.pem, tls.pem and tls.key. On machines of their own, parties make their keys
    themselves, and the server only signs: see `sign`.
    """
    authority = ServerConfig.load(config).authority
    for party in parties:
        name, equals, folder = party.partition("=")
        if not equals:
            raise ConfigError(f"{party!r} is not NAME=FOLDER")
        issue_certificate(authority, Path(folder), name)
        typer.echo(f"made {folder}", err=True)


@app.command()
def renew(
    folder: Annotated[Path, typer.Argument(help="This server's tls folder, or one of `issue`.")],
    config: Config = _DEFAULT,
) -> None:
    """Renew a certificate for the same key and names. Identities and plans stay as they are.

    A party's certificate is renewed by signing its request again.
    """
    renew_certificate(ServerConfig.load(config).authority, folder)
    typer.echo(f"renewed {folder}/tls.pem; copy it to where it is used")


@app.command()
def superlink(config: Config = _DEFAULT) -> None:
    """Start Flower's SuperLink with TLS and node authentication, in the foreground.

    Anybody who reaches its port can start a run, which ships code to the nodes (not to the
    daemons): keep the port for the parties, by a firewall.
    """
    settings = ServerConfig.load(config)
    check_port(settings.superlink.host, settings.superlink.port)
    settings.tls.read()  # a broken certificate is named here, not in Flower's log
    command, environment = superlink_command(settings, config)
    os.execvpe(command[0], command, environment)  # noqa: S606


@app.command()
def register(
    nodes: Annotated[
        list[str], typer.Argument(help="NAME=KEY.pub for each party's node, e.g. company=c.pub")
    ],
    config: Config = _DEFAULT,
) -> None:
    """Admit the parties' nodes. A node's name gives its role, so check whose key it is."""
    flower = Flower(ServerConfig.load(config))
    for node in nodes:
        name, equals, key = node.partition("=")
        if not equals or not Path(key).is_file():
            raise ConfigError(f"{node!r} is not NAME=KEY.pub with an existing file")
        flower.register(Path(key), name)
        typer.echo(f"registered {name}", err=True)


@app.command()
def run(
    plan: Annotated[Path, typer.Argument(help="The plan's public part (….public.json).")],
    config: Config = _DEFAULT,
    node: Annotated[
        list[str] | None, typer.Option(help="NAME=KEY.pub: register this node first.")
    ] = None,
    timeout_s: Annotated[int, typer.Option(help="Give up waiting after this long.")] = 86_400,
) -> None:
    """Run a session for a plan and wait for its end; the outcome is JSON on stdout.

    The same command resumes a run that broke off: the relay's checkpoints and the parties' records
    say where to go on. With -v the relay logs every message that passes.
    """
    settings = ServerConfig.load(config)
    public = _read_public(plan, settings)
    settings.add_plan(public)
    if node:
        register(node, config)
    flower = Flower(settings)
    run_id = flower.run(public.hash.hex())
    typer.echo(f"run {run_id} started", err=True)
    outcome = settings.state_folder(public) / "outcome.json"
    outcome.unlink(missing_ok=True)
    status = _wait(flower, run_id, timeout_s)
    if outcome.exists():
        typer.echo(json.dumps({"run": run_id, "status": status, **json.loads(outcome.read_text())}))
    if status != "finished:completed":
        raise RunFailed(
            f"run {run_id} ended as {status}; `flwr log {run_id}` (FLWR_HOME="
            f"{settings.home}/flower-cli) shows why. Run the same command again to resume"
        )


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
    settings = ServerConfig.load(config)
    result = settings.home / "flower-legs.json"
    result.unlink(missing_ok=True)
    flower = Flower(settings)
    status = _wait(flower, flower.measure(legs, size), 600)
    if not result.exists():
        raise RunFailed(f"the measurement ended as {status}")
    typer.echo(result.read_text())


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


def _wait(flower: Flower, run_id: str, timeout_s: float) -> str:
    deadline, failures = time.monotonic() + timeout_s, 0
    try:
        while True:
            try:
                status, failures = flower.status(run_id), 0
            except IsonomyError:
                failures += 1  # a SuperLink that restarts is no reason to give up
                status = "unknown"
                if failures > 30:
                    raise
            if status.startswith(_FINISHED):
                return status
            if time.monotonic() > deadline:
                flower.stop(run_id)
                raise RunFailed(f"run {run_id} did not end within {timeout_s} s and was stopped")
            time.sleep(1.0)
    except KeyboardInterrupt:
        flower.stop(run_id)
        raise
