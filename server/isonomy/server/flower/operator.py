"""The operator's end of the desk: what the commands of `isonomy-server` ask the running server.

The desk is a local socket in the server's home, for its own user only: no port, no password.
"""

from __future__ import annotations

from isonomy.common.base.errors import TransportError
from isonomy.common.node.bridge import CallerRefused, DaemonAbsent, Message, call
from isonomy.server.config import ServerConfig


class RunFailed(TransportError):  # noqa: N818  (reads as the event it is)
    """The Flower run ended without a completed session."""


def ask(config: ServerConfig, request: Message) -> Message:
    """Return the running server's answer, as soon as it has one; RunFailed with its reason if not.

    Requests are in `serve.Desk`.
    """
    answer = _answer(config, request)
    if answer is None:
        raise RunFailed(
            f"no server answers on {config.socket}; start `isonomy-server serve` there, as the "
            "same user"
        )
    return answer


def running(config: ServerConfig) -> Message | None:
    """Return the running server's status; None if none runs. RunFailed if it is another user's."""
    return _answer(config, {"type": "status"})


def _answer(config: ServerConfig, request: Message) -> Message | None:
    try:
        return call(config.socket, request)
    except DaemonAbsent:
        return None
    except CallerRefused:
        raise RunFailed(
            f"the server at {config.socket} is another user's; run this command as that user"
        ) from None
    except TransportError as error:  # also what the server itself says
        raise RunFailed(str(error)) from None
