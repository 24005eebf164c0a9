"""How the officer's commands reach the ledger: through the daemon if it runs, else directly.

Only one process holds the ledger. A command that needs it asks the daemon on the officer's socket.
If no daemon runs, the command takes the ledger itself for as long as it needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from isonomy.common.base.errors import IsonomyError
from isonomy.common.base.exit_codes import code_of
from isonomy.common.base.logs import logger
from isonomy.common.node.bridge import DaemonAbsent, DaemonFailed, Message, call
from isonomy.regulator.config.acts import remember
from isonomy.regulator.config.config import RegulatorConfig
from isonomy.regulator.config.officers import acting_officer
from isonomy.regulator.vault.vault import Vault


def ask(
    config: RegulatorConfig, request: Message, open_vault: Callable[[], Vault] | None = None
) -> Message:
    """Have a request of the acting officer done and return the reply.

    `open_vault` is called only if no daemon runs that could do it.
    """
    request = {**request, "officer": acting_officer(config.officers)}
    log = logger("officer", least="warning")
    try:
        log.debug("asks the daemon", request=request["type"])
        return call(config.officer_socket, request)
    except DaemonAbsent:
        log.debug("no daemon runs; takes the ledger itself", request=request["type"])
        from isonomy.regulator.serving.daemon import Daemon  # needs the encryption library

        with Daemon(config, open_vault() if open_vault else None, least="warning") as daemon:
            return daemon.officer(request)
    except DaemonFailed as error:
        raise _original(error) from None


def note(config: RegulatorConfig, kind: str, event: Mapping[str, str | int]) -> None:
    """Write into the ledger what was done and which officer did it; before it exists, for it."""
    if config.ledger_path.exists():
        ask(config, {"type": "note", "kind": kind, "event": dict(event)})
    else:
        remember(config, kind, event)


def daemon_status(config: RegulatorConfig) -> Message | None:
    """Return what a running daemon says of itself, or None if none runs."""
    try:
        return call(config.officer_socket, {"type": "status"})
    except DaemonAbsent:
        return None


def _original(error: DaemonFailed) -> IsonomyError:
    """Return the daemon's error under its own class, so that the exit code is the same."""
    for kind in _descendants(IsonomyError):
        if kind.__init__ is Exception.__init__ and code_of(kind("")) == error.code:
            return kind(str(error))
    return error


def _descendants(kind: type[IsonomyError]) -> Iterator[type[IsonomyError]]:
    for child in kind.__subclasses__():
        yield child
        yield from _descendants(child)
