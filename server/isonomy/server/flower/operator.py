"""The operator's end of the desk: what the commands of `isonomy-server` ask the running server."""

from __future__ import annotations

from isonomy.common.base.errors import TransportError
from isonomy.common.node.bridge import DaemonAbsent, Message, call
from isonomy.server.config import ServerConfig


class RunFailed(TransportError):  # noqa: N818  (reads as the event it is)
    """The Flower run ended without a completed session."""


class Operator:
    """Asks the server of one home folder."""

    def __init__(self, config: ServerConfig) -> None:
        self._socket = config.socket

    def run(self, plan_hash: str) -> str:
        """Start a run for a stored plan; returns Flower's run id."""
        return str(self._ask({"type": "run", "plan": plan_hash})["run"])

    def status(self, run_id: str) -> tuple[str, str]:
        """Return `running` or `finished:…`, and why it failed."""
        reply = self._ask({"type": "status", "run": run_id})
        return str(reply["status"]), str(reply["reason"])

    def stop(self, run_id: str) -> None:
        """Stop a run: the session ends, the daemons keep their state."""
        self._ask({"type": "stop", "run": run_id})

    def measure(self, legs: int, size: int) -> float:
        """Return the milliseconds of one leg of a Flower message."""
        return int(str(self._ask({"type": "measure", "legs": legs, "bytes": size})["leg_us"])) / 1e3

    def _ask(self, request: Message) -> Message:
        try:
            return call(self._socket, request)
        except DaemonAbsent:
            raise RunFailed(
                f"no server answers on {self._socket}; start `isonomy-server serve` there, as the "
                "same user"
            ) from None
