"""The operator's end of the desk: what the commands of `isonomy-server` ask the running server."""

from __future__ import annotations

from isonomy.common.base.errors import TransportError
from isonomy.common.node.bridge import DaemonAbsent, Message, call
from isonomy.server.config import ServerConfig


class RunFailed(TransportError):  # noqa: N818  (reads as the event it is)
    """The Flower run ended without a completed session."""


def ask(config: ServerConfig, request: Message) -> Message:
    """Return the running server's answer, as soon as it has one; RunFailed with its reason if not.

    Requests are in `serve.Desk`.
    """
    try:
        return call(config.socket, request)
    except DaemonAbsent:
        raise RunFailed(
            f"no server answers on {config.socket}; start `isonomy-server serve` there, as the "
            "same user"
        ) from None
    except TransportError as error:  # also what the server itself says
        raise RunFailed(str(error)) from None
