"""The operator's end of the desk: what the commands of `isonomy-server` ask the running server.

The desk is a local socket in the server's home, for its own user only: no port, no password.
"""

from __future__ import annotations

from isonomy.common.base.errors import TransportError
from isonomy.common.base.exit_codes import code_of
from isonomy.common.kits.users import user_of
from isonomy.common.node.bridge import CallerRefused, DaemonAbsent, DaemonFailed, Message, call
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
    """Return the running server's status; None if none runs.

    CallerRefused if it is another user's.
    """
    return _answer(config, {"type": "status"})


def _answer(config: ServerConfig, request: Message) -> Message | None:
    try:
        return call(config.socket, request)
    except DaemonAbsent:
        return None
    except CallerRefused:
        raise _another_users(config) from None
    except DaemonFailed as error:  # what the server itself says
        if error.code == code_of(CallerRefused("")):  # root may open every socket
            raise _another_users(config) from None
        raise RunFailed(str(error)) from None
    except TransportError as error:
        raise RunFailed(str(error)) from None


def _another_users(config: ServerConfig) -> CallerRefused:
    user = user_of(config.home)
    return CallerRefused(f"the server in {config.home} is {user}'s; run this as {user}")
