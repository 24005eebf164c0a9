"""A party's Flower node: its key, its environment, its command line.

The node (a SuperNode) is the part of a party that Flower talks to. It runs as a user of its own,
has a key that the server's operator registers under the party's name, and knows one thing about the
party: the path of the daemon's local socket.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from isonomy.common.base.errors import ConfigError, PortInUse
from isonomy.common.base.logs import is_verbose
from isonomy.common.base.private_files import create_private, write_whole

SOCKET_KEY = "isonomy-socket"
"""The one entry of a node's configuration: where its daemon listens."""


def make_node_key(path: Path) -> Path:
    """Make the node's key (ECDSA P-384, as Flower wants it) and PATH.pub. Returns PATH.pub.

    It decides who may connect as this party's node, nothing more: no data, answer or report
    depends on it. An existing key is never overwritten.
    """
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    create_private(path, private)
    public_path = path.with_name(path.name + ".pub")
    write_whole(public_path, public + b"\n")
    return public_path


def flower_environment(flower_home: Path) -> dict[str, str]:
    """Return the environment of a Flower process: no telemetry, no downloads, our programs.

    Flower starts its helpers (`flwr-serverapp`, `flwr-clientapp`) by name, so this interpreter's
    folder comes first on PATH.
    """
    flower_home.mkdir(parents=True, exist_ok=True)
    return {
        **os.environ,
        **({"FLWR_LOG_LEVEL": "DEBUG"} if is_verbose() else {}),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
        "FLWR_HOME": str(flower_home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",  # else it runs `uv sync`
    }


def supernode_command(
    *, superlink: str, ca: Path, key: Path, daemon_socket: Path, port: int
) -> Sequence[str]:
    """Return the command line of a party's node; `port` is a free local one for Flower's use."""
    if '"' in str(daemon_socket) or "\\" in str(daemon_socket):
        raise ConfigError("the socket's path must not hold quotes or backslashes")
    return [
        "flower-supernode",
        *("--superlink", superlink),
        *("--root-certificates", str(ca)),
        *("--auth-supernode-private-key", str(key)),
        *("--node-config", f'{SOCKET_KEY}="{daemon_socket}"'),
        *("--host", "127.0.0.1"),
        *("--port", str(port)),
    ]


def free_port(host: str = "127.0.0.1") -> int:
    """Return a port that is free now."""
    with socket.socket() as sock:
        sock.bind((host, 0))
        return int(sock.getsockname()[1])


def check_port(host: str, port: int) -> None:
    """Raise PortInUse if nobody could listen there: better here than in a log of Flower's."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host, port))
        except OSError as error:
            raise PortInUse(
                f"cannot listen on {host}:{port} ({error.strerror}); `ss -ltnp` shows who holds "
                "the port. Stop that process or choose another port"
            ) from None
