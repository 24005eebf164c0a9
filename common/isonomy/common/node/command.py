"""The commands `node` and `node-request` of both parties."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from isonomy.common.base.output import emit
from isonomy.common.keys.certificates import NODE, Request, TlsFiles, make_request

Folder = Annotated[Path, typer.Option(help="The node's folder: tls.key, tls.pem and ca.pem.")]


def node_request(
    folder: Folder,
    name: Annotated[str, typer.Option(help="This party's name, as on its card.")],
) -> None:
    """Make the node's key and a request for the server's operator, as the node's user.

    A key that is there already stays, and the request renews its certificate. If the key was lost
    or stolen, remove tls.key first; the operator registers the new one with --replace.

    \b
    Examples:
    isonomy-company node-request --folder /srv/node --name company
    isonomy-regulator node-request --folder /srv/node --name regulator
    """
    request = make_request(folder, name, NODE)
    fingerprint = Request.load(request).fingerprint
    facts = {"request": request, "fingerprint": fingerprint}
    emit(facts, f"Made {request}; fingerprint {fingerprint}")


def node(
    server: Annotated[str, typer.Option(help="HOST:PORT of the server's door.")],
    socket: Annotated[
        Path,
        typer.Option(
            readable=False,  # the server's operator hears why it is not, once a ticket comes
            help="The local socket of this party's process.",
        ),
    ],
    folder: Folder,
) -> None:
    """Start the Flower node (SuperNode), in the foreground.

    Run it as a user who has no access to the home.

    It hands tickets to the party's process, and listens on no port. It runs no code that comes with
    a Flower run.

    \b
    Examples:
    isonomy-regulator node --server server.example.org:9093 --folder /srv/node \\
        --socket /srv/regulator/run/daemon.sock
    isonomy-company node --server server.example.org:9093 --folder /srv/node \\
        --socket /srv/company/run/company.sock
    """
    from isonomy.common.node._supernode import SuperNode  # seconds of imports

    SuperNode(server, TlsFiles.of(folder), socket).run()
