"""`isonomy-server`: set up the server, admit nodes, run approved plans."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from pwd import getpwnam
from typing import Annotated, Any

import typer

from isonomy.common.agreements.agreement import PlanPublic
from isonomy.common.base.command_line import CommandLine, MetricsPort, confirm, prompt
from isonomy.common.base.errors import ConfigError, IsonomyError
from isonomy.common.base.exit_codes import help_for
from isonomy.common.base.output import emit
from isonomy.common.base.private_files import read_secret
from isonomy.common.base.progress import Wait, waiting
from isonomy.common.keys.certificates import (
    NODE,
    Authority,
    Request,
    authority_fingerprint,
    sign_request,
)
from isonomy.common.keys.certificates import renew as renew_certificate
from isonomy.common.kits.access import program_fault
from isonomy.common.kits.install import UNITS, start_units
from isonomy.common.kits.request import KitRequest
from isonomy.common.kits.users import SERVER, acting_as_owner, is_root, make_accounts
from isonomy.server.config import ServerConfig
from isonomy.server.flower.operator import ask, running
from isonomy.server.flower.overview import awaited
from isonomy.server.flower.sessions import OUTCOME_FILE, find_session, known_sessions
from isonomy.server.setup import Address, make_home, make_kits, server_units

app = CommandLine(
    name="isonomy-server",
    help="The server of Isonomy: company and regulator meet here. It sees ciphertexts, sizes and "
    "timing, and is trusted with no data, key or answer. At worst it can stop the work; where "
    "several companies pool their sums, it could also add wrongly (docs/threat-model.md).",
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
    spoken = authority_fingerprint(authority / "ca.pem")
    facts = {"config": home / "server.toml", "authority": authority, "fingerprint": spoken}
    emit(facts, f"Made {home}/server.toml, and the authority in {authority}.\nauthority: {spoken}")


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
    server uses its new one after a restart, which --start does.

    \b
    Examples:
    isonomy-server kit company.request regulator.request --home /srv/isonomy \\
        --authority authority --name server.example.org -o kits --start
    """
    loaded = [KitRequest.load(path) for path in requests]
    names = [each.card.name for each in loaded]
    if len(set(names)) < len(names) or sum(e.card.role == "regulator" for e in loaded) != 1:
        raise ConfigError(
            "expected requests of one regulator and of its companies, each under another name"
        )
    if is_root():
        make_accounts(SERVER)
        if fault := program_fault("server", getpwnam(SERVER).pw_uid):
            raise ConfigError(fault)
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
    kits = list(make_kits(config, signer, loaded, output, replace=replace))
    spoken = authority_fingerprint(authority / "ca.pem")
    services = "No service was started."
    if start:
        services = start_units(server_units(config.home), units)
    lines = [*(f"Made {path}" for path in kits), f"authority: {spoken}", services]
    emit({"kits": kits, "fingerprint": spoken, "services": services}, "\n".join(lines))


@app.command()
def sign(
    requests: Annotated[list[Path], typer.Argument(help="tls.csr files from the parties.")],
    authority: AuthorityFolder,
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", help="A folder: OUT/NAME for a party, OUT/NAME/node for its node."
        ),
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
    signed = []
    for request in loaded:
        folder = output / request.name / (NODE if request.role == NODE else "")
        signed.append(sign_request(signer, request, folder).cert)
    spoken = authority_fingerprint(authority / "ca.pem")
    pairs = zip(signed, subjects, strict=True)
    lines = [*(f"Signed {path} for {subject}" for path, subject in pairs), f"authority: {spoken}"]
    emit({"signed": signed, "fingerprint": spoken}, "\n".join(lines))


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
    emit({"renewed": folder / "tls.pem"}, f"Renewed {folder}/tls.pem; copy it to where it is used.")


@app.command(service=True)
def serve(config: Config = _DEFAULT, metrics_port: MetricsPort = 0) -> None:
    """Start the server, in the foreground: the door for the parties' nodes, and the relay in a run.

    The other commands reach it by a socket in its home, as the same user. With -v it logs every
    message that passes the relay: sender, recipient, query and size, never content.
    """
    settings = ServerConfig.load(config)
    from isonomy.server.flower.serve import serve  # seconds of imports

    serve(settings, metrics_port)


@app.command()
def register(
    certificates: Annotated[
        list[Path], typer.Argument(help="tls.pem of each party's node, as `sign` made it.")
    ],
    config: Config = _DEFAULT,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace the party's node key, which was lost.")
    ] = False,
) -> None:
    """Admit the parties' nodes, each under the name in its certificate.

    With --replace the party's former node key is refused from now on.
    """
    settings = ServerConfig.load(config)
    names = [settings.register(path, replace=replace) for path in certificates]
    emit({"registered": names}, f"Registered {', '.join(names)}.")


@app.command()
def run(
    plan: Annotated[Path, typer.Argument(help="The plan's public part (….public.json).")],
    config: Config = _DEFAULT,
) -> None:
    """Run a session for a plan and wait for its end; prints what passed, and how each side ended.

    Meanwhile it says whom it waits for, since when and why. The same command resumes a run that
    broke off: the relay's checkpoints and the parties' records say where to go on. The session ends
    with this command: Ctrl-C ends it at once, a kill within some seconds.
    """
    settings = ServerConfig.load(config)
    public = _read_public(plan, settings)
    settings.add_plan(public)
    name = public.hash.hex()
    try:
        with waiting(partial(_look, settings, name)):
            ask(settings, {"type": "run", "plan": name})
    except KeyboardInterrupt:
        ask(settings, {"type": "stop", "plan": name})
        raise
    result = json.loads((settings.state_folder(public) / OUTCOME_FILE).read_text())
    emit(result, _in_words(result))


@app.command()
def stop(
    session: Annotated[
        str, typer.Argument(help="The plan's public part, or the beginning of its hash.")
    ],
    config: Config = _DEFAULT,
) -> None:
    """Stop a session. The parties keep their state, and the next run of the plan resumes it.

    \b
    Examples:
    isonomy-server stop 3f9c21ab -c /srv/isonomy/server.toml
    """
    settings = ServerConfig.load(config)
    name = find_session(settings, session)
    ask(settings, {"type": "stop", "plan": name})
    emit({"stopped": name}, f"Stopped the session of plan {name[:12]}….")


@app.command()
def status(config: Config = _DEFAULT) -> None:
    """Show whether the server runs, whose nodes are connected, and what each session waits for.

    \b
    Examples:
    isonomy-server status -c /srv/isonomy/server.toml
    """
    settings = ServerConfig.load(config)
    current = running(settings)
    registered = sorted(path.stem for path in (settings.home / "nodes").glob("*.pem"))
    fields = {"name": settings.name, "server": current, "registered": registered}
    emit(fields, _status_in_words(settings, current, registered))


@app.command("list")
def list_sessions(config: Config = _DEFAULT) -> None:
    """List every plan that this server has run: on, done, or broken off and why.

    \b
    Examples:
    isonomy-server list -c /srv/isonomy/server.toml
    """
    rows = known_sessions(ServerConfig.load(config))
    lines = [
        f"{row['plan'][:12]}…  {row['state']:<10}  {_moment(row['when'])}  "
        f"{', '.join(row.get('parties', []))}"
        + (f"  {row['messages']:,} messages, {row['bytes']:,} bytes" if "bytes" in row else "")
        + (f"\n    {row['reason']}" if row.get("reason") else "")
        for row in rows
    ]
    emit({"sessions": rows}, "\n".join(lines) or "No plan was run here yet.")


@app.command(service=True)
def relay(
    plan: Annotated[Path, typer.Argument(help="The plan's public part (….public.json).")],
    tickets: Annotated[Path, typer.Option(help="Folder for one ticket per party.")],
    config: Config = _DEFAULT,
    metrics_port: MetricsPort = 0,
) -> None:
    """Run a relay without Flower, until stopped: for tests and measurements.

    The tickets in the folder admit their holders; hand each to its party in a safe way.
    """
    from isonomy.server.relay.stand_alone import serve

    settings = ServerConfig.load(config)
    serve(settings, _read_public(plan, settings), tickets, metrics_port)


@app.command()
def measure(
    config: Config = _DEFAULT,
    legs: Annotated[int, typer.Option(help="How many messages; each takes seconds.")] = 2,
    size: Annotated[int, typer.Option(help="Bytes per message.")] = 2_000_000,
) -> None:
    """Time a Flower message, one way, to a node that is online."""
    answer = ask(ServerConfig.load(config), {"type": "measure", "legs": legs, "bytes": size})
    leg_ms = int(str(answer["leg_us"])) / 1e3
    emit({"leg_ms": leg_ms, "bytes": size}, f"{leg_ms:g} ms for a message of {size:,} bytes")


def _look(config: ServerConfig, plan: str) -> Wait | None:
    """Return what this plan's session waits for now; what passes, if it waits for nobody."""
    try:
        sessions: Any = ask(config, {"type": "status"})["sessions"]
    except IsonomyError:
        return None
    for row in sessions:
        if row["plan"] == plan:
            text, since = awaited(row["parties"])
            detail = f"{row['messages']:,} messages, {row['bytes']:,} bytes"
            if text:
                return Wait(f"Waiting for {text}", since, detail)
            return Wait("Everybody is connected; the session is on", row["since"], detail)
    return None


def _status_in_words(
    config: ServerConfig, current: dict[str, Any] | None, registered: list[str]
) -> str:
    """Return the status in lines of text."""
    lines = [f"{config.name}: {len(registered)} nodes registered ({', '.join(registered)})"]
    if current is None:
        return "\n".join([*lines, "  server    not running (isonomy-server serve)"])
    since, nodes = _moment(current["since"]), ", ".join(current["nodes"]) or "none"
    lines.append(f"  server    process {current['pid']}, port {current['port']}, since {since}")
    lines.append(f"  connected {nodes}")
    for row in current["sessions"]:
        lines.append(
            f"  session   plan {row['plan'][:12]}…, since {_moment(row['since'])}, "
            f"{row['messages']:,} messages, {row['bytes']:,} bytes"
        )
        lines += [
            f"    {party['name']:<16} {party['state']}, since {_moment(party['since'])}"
            + (f": {party['why']}" if party["why"] else "")
            for party in row["parties"]
        ]
    return "\n".join(lines if current["sessions"] else [*lines, "  session   none is on"])


def _moment(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _in_words(outcome: dict[str, Any]) -> str:
    """Return a session's outcome in lines of text."""
    relay = outcome["relay"]
    ends = ((name, party["code"]) for name, party in outcome["parties"].items())
    return "\n".join(
        [
            f"The session of plan {relay['plan'][:12]}… ended after {outcome['seconds']:.0f} s; "
            f"{relay['envelopes']:,} messages and {relay['bytes']:,} bytes passed.",
            *(f"  {name}: {'done' if not code else help_for(code)}" for name, code in ends),
            f"  head of the relay's chain: {relay['chain_head']}",
        ]
    )


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
