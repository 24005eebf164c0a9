"""The command `node` of both parties: start a Flower node beside the party's process."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from isonomy.common.node._process import run_node
from isonomy.common.node.node import flower_environment, supernode_command


def node(
    superlink: Annotated[str, typer.Option(help="HOST:PORT of the server's SuperLink.")],
    socket: Annotated[Path, typer.Option(help="The local socket of this party's process.")],
    folder: Annotated[Path, typer.Option(help="Folder with node.key, and for Flower's files.")],
    ca: Annotated[Path, typer.Option(help="The server's ca.pem.")],
    port: Annotated[int, typer.Option(help="A free local port for Flower's own use.")] = 9094,
) -> None:
    """Start the Flower node (SuperNode), in the foreground, as a user without access to the home.

    Code that arrives with a run executes here. It sees the socket, and no data.

    \b
    Examples:
    isonomy-regulator node --superlink server.example.org:9093 --ca /srv/node/ca.pem \\
        --folder /srv/node --socket /srv/regulator/run/daemon.sock
    isonomy-company node --superlink server.example.org:9093 --ca /srv/node/ca.pem \\
        --folder /srv/node --socket /srv/company/run/company.sock
    """
    command = supernode_command(
        superlink=superlink, ca=ca, key=folder / "node.key", daemon_socket=socket, port=port
    )
    run_node(command, flower_environment(folder / "flower"))
