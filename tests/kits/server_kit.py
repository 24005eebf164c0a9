"""A server's home by its commands, and certificates of parties and nodes below one root."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from authority_kit import PASSPHRASE
from typer.testing import CliRunner

from isonomy.common.keys.certificates import install
from isonomy.common.node.node import free_port
from isonomy.company.cli.company import app as company_app
from isonomy.company.demo.processes import Processes
from isonomy.server.cli import app as server_app


def run(app: Any, *arguments: str) -> None:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 0, f"{arguments[0]}: {result.output} {result.exception!r}"


def signer(root: Path) -> tuple[str, ...]:
    """The options of commands that sign."""
    file = root / "passphrase"
    if not file.exists():
        file.write_text(PASSPHRASE)
        file.chmod(0o600)
    return ("--authority", str(root / "authority"), "--passphrase-file", str(file))


def make_server(root: Path) -> Path:
    """ROOT/server on this machine; returns its configuration."""
    run(
        server_app,
        *("init", str(root / "server"), "--name", "localhost", "--ip", "127.0.0.1"),
        *("--host", "127.0.0.1", "--advertise", "127.0.0.1", *signer(root)),
        *("--door-port", str(free_port()), "--relay-port", str(free_port())),
    )
    return root / "server" / "server.toml"


def certify(root: Path, parties: Sequence[str]) -> None:
    """Sign the requests in ROOT/NAME/tls and of new nodes in ROOT/NAME/node; register the nodes."""
    for name in parties:
        run(company_app, "node-request", "--folder", str(root / name / "node"), "--name", name)
    folders = [root / name / kind for name in parties for kind in ("tls", "node")]
    requests = [str(folder / "tls.csr") for folder in folders]
    run(server_app, "sign", *requests, "-o", str(root / "signed"), "--yes", *signer(root))
    for folder in folders:
        signed = root / "signed" / folder.parent.name / ("node" if folder.name == "node" else "")
        install(folder, signed / "tls.pem", signed / "ca.pem")
    nodes = [str(root / name / "node" / "tls.pem") for name in parties]
    run(server_app, "register", *nodes, "-c", str(root / "server" / "server.toml"))


def start_node(processes: Processes, root: Path, name: str) -> None:
    """The Flower node of a party whose home is ROOT/NAME."""
    port = tomllib.loads((root / "server" / "server.toml").read_text())["door"]["port"]
    kind = "regulator" if name == "regulator" else "company"
    socket = root / name / "run" / ("daemon.sock" if kind == "regulator" else "company.sock")
    processes.start(
        f"{name}-node",
        [
            *(f"isonomy-{kind}", "node", "--server", f"127.0.0.1:{port}"),
            *("--folder", str(root / name / "node"), "--socket", str(socket)),
        ],
    )
