"""What the server counts besides its relay: sessions, nodes, and who was refused at the door."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from isonomy.server.relay.metrics import RelayMetrics


class ServerMetrics(RelayMetrics):
    """The numbers of `isonomy-server serve`."""

    def __init__(self) -> None:
        super().__init__()
        self.sessions = self.gauge("isonomy_server_sessions", "Sessions that are on.")
        self.ended = self.counter(
            "isonomy_server_sessions_ended", "Sessions that ended, by outcome.", "outcome"
        )
        self.took = self.seconds("isonomy_server_session_seconds", "How long sessions took.")
        self.nodes = self.gauge("isonomy_server_nodes_connected", "Parties' nodes online.")
        self.door_refusals = self.counter(
            "isonomy_server_door_refusals", "Requests refused at the door for nodes."
        )
        for outcome in ("done", "broken off"):
            self.ended.labels(outcome)

    @contextmanager
    def session(self) -> Iterator[None]:
        """Count a session and its time, however it ends."""
        began, outcome = time.monotonic(), "broken off"
        try:
            yield
            outcome = "done"
        finally:
            self.ended.labels(outcome).inc()
            self.took.observe(time.monotonic() - began)
