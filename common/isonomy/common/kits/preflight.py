"""`isonomy preflight`: what will fail on this machine, before it fails, and how to mend it.

Nothing is changed and no secret is printed. A finding is `ok`, `warn` or `fail`.
"""

from __future__ import annotations

import grp
import os
import pwd
import shutil
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Literal

from cryptography import x509

from isonomy.common.base.documents import parse_toml
from isonomy.common.base.errors import ConfigError, IsonomyError
from isonomy.common.keys.certificates import TlsFiles, read_issued
from isonomy.common.kits import users
from isonomy.common.kits.access import program_fault, witness_fix, write_fault
from isonomy.common.kits.declared import Declared
from isonomy.common.kits.install import UNITS, installed_facts
from isonomy.common.kits.services import SOCKETS
from isonomy.common.node.node import check_port

LEAST_FREE_BYTES = 1 << 30
SOON = timedelta(days=30)
CLOCK_S = 60.0
CONNECT_S = 5.0
MAX_ANSWER_BYTES = 1 << 16
_PROXIES = ("https_proxy", "http_proxy", "all_proxy", "grpc_proxy")


class ProblemsFound(ConfigError):  # noqa: N818  (reads as the event it is)
    """The set-up has faults that must be fixed before it can be used."""


@dataclass(frozen=True)
class Finding:
    """One line: what was looked at, what was found, what to do."""

    check: str
    level: Literal["ok", "warn", "fail"]
    text: str
    fix: str = ""


Findings = Iterator[Finding]


@dataclass(frozen=True)
class Machine:
    """The folders of one party or of the server."""

    home: Path
    node: Path | None

    @property
    def role(self) -> str:
        if (self.home / "server.toml").exists():
            return "server"
        return "regulator" if (self.home / "regulator.toml").exists() else "company"


def examine(home: Path, node: Path | None) -> list[Finding]:
    """Return the findings of all checks, in order. A check that cannot be made has failed."""
    machine = Machine(home.resolve(), node.resolve() if node else None)
    if not home.is_dir():
        raise ConfigError(f"{home} is not a folder")
    if machine.role == "company" and not (home / "keys" / "card.json").exists():
        raise ConfigError(f"{home} is no home of a company, a regulator or a server")
    checks: Sequence[Callable[[Machine], Findings]] = (
        *(_versions, _programs, _permissions, _group, _certificates, _witness, _disk),
        *((_ports,) if machine.role == "server" else (_proxy, _server, _socket, _node)),
    )
    findings: list[Finding] = []
    for check in checks:
        name = check.__name__.strip("_")
        try:
            results = list(check(machine))
            bad = any(finding.level == "fail" for finding in results)
            findings += [finding for finding in results if finding.level != "ok" or not bad]
        except IsonomyError as error:
            findings.append(Finding(name, "fail", str(error)))
        except OSError as error:
            text = f"{error.filename or name}: {error.strerror or error}"
            findings.append(Finding(name, "fail", text, "run this command as root"))
    return findings


def _versions(machine: Machine) -> Findings:
    here, facts = version("isonomy"), installed_facts(machine.home)
    versions = sorted(facts.versions.items()) if facts else []
    names = ", ".join(f"{name} has {text}" for name, text in versions if text != here)
    if names:
        yield Finding(
            "versions", "warn", f"isonomy {here} here; {names}", "install one version everywhere"
        )
    else:
        yield Finding("versions", "ok", f"isonomy {here}")
    if facts is None and machine.role != "server":
        yield Finding(
            *("versions", "warn", "no kit is installed in this home"),
            f"isonomy-{machine.role} install NAME.kit.zip",
        )


def _programs(machine: Machine) -> Findings:
    folders = [machine.home, *([machine.node] if machine.node else [])]
    for user in sorted({folder.stat().st_uid for folder in folders}):
        if fault := program_fault(machine.role, user):
            yield Finding("programs", "fail", fault)
    yield Finding("programs", "ok", "the services' users can run them")


def _witness(machine: Machine) -> Findings:
    """The daemon can write the copies of its witness, in its sandbox too."""
    copies = Declared.of(machine.home).witnesses
    owner = machine.home.stat().st_uid
    unit = UNITS / "isonomy-regulator.service"
    text = unit.read_text() if unit.exists() else None
    for copy in copies:
        if fault := write_fault(copy, owner):
            yield Finding("witness", "fail", fault, witness_fix(copy, owner))
        elif text is not None and str(copy.parent) not in _writable(text):
            yield Finding(
                *("witness", "fail", f"{unit} does not let the daemon write to {copy.parent}"),
                "isonomy-regulator install KIT --start, once more",
            )
        else:
            yield Finding("witness", "ok", f"{copy} can be written")


def _writable(unit: str) -> list[str]:
    """Return the folders that a unit may write to."""
    lines = (line.partition("=") for line in unit.splitlines())
    return [path for name, _, paths in lines if name == "ReadWritePaths" for path in paths.split()]


def _permissions(machine: Machine) -> Findings:
    fail = partial(Finding, "permissions", "fail")
    keys = [*machine.home.rglob("*.key"), *(machine.node.glob("*.key") if machine.node else ())]
    for path in keys:
        if path.is_symlink():
            yield fail(f"{path} is a link, and a key never is", f"look who made it: ls -l {path}")
    keys = [path for path in keys if path.is_file() and not path.is_symlink()]
    for path in keys:
        if path.stat().st_mode & 0o077:
            yield fail(f"{path} is readable by others", f"chmod 600 {path}")
    owner = users.user_of(machine.home)
    for path in keys:
        folder = machine.node if machine.node in path.parents else machine.home
        if folder is not None and path.stat().st_uid != folder.stat().st_uid:
            user = users.user_of(folder)
            yield fail(f"{path} is not {user}'s", f"chown {user} {path}")
    if machine.node and users.user_of(machine.node) == owner:
        yield Finding(
            *(
                "permissions",
                "warn",
                f"home and node are {owner}'s: the node can read the home",
            ),
            "set the party up as root, which makes two users",
        )
    if machine.role != "server" and machine.home.stat().st_mode & 0o066:
        yield fail(f"{machine.home} is readable by others", f"chmod 711 {machine.home}")
    yield Finding("permissions", "ok", f"{len(keys)} keys for their owners only")


def _group(machine: Machine) -> Findings:
    if machine.role == "server" or machine.node is None:
        return
    run = machine.home / "run"
    user, gid = users.user_of(machine.node), run.stat().st_gid
    number = machine.node.stat().st_uid
    try:
        group = grp.getgrgid(gid)
        members = {*group.gr_mem, *(p.pw_name for p in pwd.getpwall() if p.pw_gid == gid)}
    except KeyError:
        members = set()
    reach = (
        run.stat().st_uid == number
        or (user in members and run.stat().st_mode & 0o010)
        or run.stat().st_mode & 0o001
    )
    above = machine.home.stat()
    if not (reach and (above.st_mode & 0o001 or above.st_uid == number)):
        yield Finding(
            *("group", "fail", f"{user} cannot reach the socket in {run}"),
            f"usermod --append --groups {users.GROUP} {user}; chgrp {users.GROUP} {run}; "
            f"chmod 750 {run}; chmod 711 {machine.home}",
        )
    else:
        yield Finding("group", "ok", f"{user} reaches the socket's folder")


def _certificates(machine: Machine) -> Findings:
    folders = [machine.home / "tls", *([machine.node] if machine.node else [])]
    for folder in folders:
        files = TlsFiles.of(folder)
        if not files.cert.exists():
            yield Finding(
                *("certificates", "fail", f"{files.cert} is missing"),
                "install the kit from the operator",
            )
            continue
        _, pem, _ = read_issued(files)  # raises if expired, foreign, or of another key
        certificate = x509.load_pem_x509_certificate(pem)
        left = certificate.not_valid_after_utc - datetime.now(UTC)
        if certificate.not_valid_before_utc > datetime.now(UTC):
            yield Finding(
                *("certificates", "fail", f"{files.cert} is not valid yet"), "check this clock"
            )
        text = f"{files.cert}: {left.days} days left"
        if left < SOON:
            yield Finding("certificates", "warn", text, "have the kit made again, and install it")
        else:
            yield Finding("certificates", "ok", text)


def _disk(machine: Machine) -> Findings:
    free = shutil.disk_usage(machine.home).free
    if free < LEAST_FREE_BYTES:
        text = f"{free / 1e6:.0f} MB free at {machine.home}"
        yield Finding("disk", "fail", text, "make room: at least 1 GB")
    else:
        yield Finding("disk", "ok", f"{free / 1e9:.0f} GB free at {machine.home}")


def _proxy(machine: Machine) -> Findings:
    names = [name for name in _PROXIES if os.environ.get(name) or os.environ.get(name.upper())]
    if names:
        yield Finding(
            *("proxy", "warn", f"{', '.join(names)} set: connections to the server would go there"),
            "name the server in no_proxy; a proxy that opens TLS breaks the certificates",
        )
    else:
        yield Finding("proxy", "ok", "no proxy in the environment")


def _server(machine: Machine) -> Findings:
    """The door answers, knows this node, and its clock is ours."""
    facts = installed_facts(machine.home)
    if facts is None or machine.node is None:
        return
    host, _, port = facts.door.rpartition(":")
    context = ssl.create_default_context(cafile=str(machine.node / "ca.pem"))
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    try:
        context.load_cert_chain(machine.node / "tls.pem", machine.node / "tls.key")
        plain = socket.create_connection((host.strip("[]"), int(port)), CONNECT_S)
        with plain, context.wrap_socket(plain, server_hostname=host.strip("[]")) as door:
            door.sendall(b"GET / HTTP/1.1\r\nHost: preflight\r\nConnection: close\r\n\r\n")
            answer = b""
            while len(answer) < MAX_ANSWER_BYTES and (piece := door.recv(4096)):
                answer += piece
    except ssl.SSLError as error:
        yield Finding(
            *("server", "fail", f"TLS with {facts.door} fails: {error.reason}"),
            "compare the authority's fingerprint with the operator's, and both clocks",
        )
        return
    except OSError as error:
        yield Finding(
            *("server", "fail", f"{facts.door} does not answer: {error.strerror or error}"),
            "check the name, the firewall on the way, and that `isonomy-server serve` runs",
        )
        return
    if answer.split(b" ", 2)[1:2] != [b"204"]:
        yield Finding(
            *("server", "fail", f"{facts.door} refuses this node's certificate"),
            "isonomy-server register tls.pem, on the server; or make the kit again with --replace",
        )
        return
    yield Finding("server", "ok", f"{facts.door} answers, and takes this node's certificate")
    with suppress(IndexError, ValueError, TypeError):
        date = answer.lower().split(b"\r\ndate:")[1].split(b"\r\n")[0].decode()
        seconds = time.time() - parsedate_to_datetime(date.strip()).timestamp()
        if abs(seconds) > CLOCK_S:
            text = f"this clock is {seconds:+.0f} s from the server's"
            yield Finding("clock", "fail", text, "run an NTP service on both machines")
        else:
            yield Finding("clock", "ok", "within a minute of the server's")


def _socket(machine: Machine) -> Findings:
    if _answers(machine.home / SOCKETS[machine.role]):
        yield Finding("socket", "ok", f"this {machine.role} waits for its node")
    elif machine.role == "regulator":
        yield Finding(
            *("socket", "warn", "the daemon does not run"),
            "systemctl start isonomy-regulator; without systemd: "
            f"isonomy-regulator serve --home {machine.home}",
        )


def _node(machine: Machine) -> Findings:
    """A process of this machine is the node of this home."""
    ours = str(machine.home / SOCKETS[machine.role])
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it ended just now
            words = file.read_bytes().decode(errors="replace").split("\0")
            if "node" in words and ours in words:
                yield Finding("node", "ok", "the Flower node runs")
                return
    yield Finding(
        *("node", "warn", f"no Flower node of this home runs here (none names {ours})"),
        f"systemctl start isonomy-node; without systemd: isonomy-{machine.role} node --help",
    )


def _answers(path: Path) -> bool:
    """Whether a process listens on a socket; a file that a killed one left behind does not."""
    with socket.socket(socket.AF_UNIX) as sock, suppress(OSError):
        sock.connect(str(path))
        return True
    return False


def _ports(machine: Machine) -> Findings:
    path = machine.home / "server.toml"
    settings = parse_toml(path.read_bytes(), path)
    serving = _answers(machine.home / "run" / "server.sock")
    for name in ("door", "relay"):
        host, port = settings[name]["host"], int(settings[name]["port"])
        if not serving:
            check_port(host, port)
        state = "the server runs" if serving else "free"
        if name == "relay" and serving:
            state = "open only while a session is on, so not tested"
        yield Finding("ports", "ok", f"{name}: {host}:{port}, {state}")
