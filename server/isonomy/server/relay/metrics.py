"""What a relay counts. Labels are words of the protocol, never names of parties or plans."""

from __future__ import annotations

from isonomy.common.base.metrics import Meters


class RelayMetrics(Meters):
    """The relay's numbers, in a registry of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.messages = self.counter(
            "isonomy_relay_messages", "Messages that passed, by purpose.", "purpose"
        )
        self.bytes = self.counter(
            "isonomy_relay_bytes", "Bytes that passed, by purpose.", "purpose"
        )
        self.refusals = self.counter(
            "isonomy_relay_refusals", "Streams that were refused or cut off.", "code"
        )
        self.joined = self.counter("isonomy_relay_joined", "Times a party joined or came back.")
        self.connected = self.gauge("isonomy_relay_parties_connected", "Parties connected now.")
        self.strangers = self.counter(
            "isonomy_relay_strangers", "Connections without a handshake, hung up on."
        )

    def passed(self, purpose: str, size: int) -> None:
        """Count a message. The purpose is one of the protocol's: others do not get this far."""
        self.messages.labels(purpose or "link").inc()
        self.bytes.labels(purpose or "link").inc(size)
