"""What one party sends to the others and receives from them: a link and an inbox for each.

A mailbox writes to the stream that there is now. Without one, what is sent waits in its link and
goes out when a stream is back. No lock, no clock, no thread: `Session` holds the lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from isonomy.common.agreements.agreement import Agreement
from isonomy.common.base.errors import ConfigError, OrderViolation, OversizedMessage
from isonomy.common.keys.party import PartyKeys
from isonomy.common.session.links import WINDOW_BYTES, Parcel, Peer
from isonomy.common.session.stream import Outbox
from isonomy.common.wire.envelopes import (
    SEQUENCED,
    SERVER,
    Envelope,
    Heartbeat,
    Hello,
    PlanAgreement,
    dump,
)
from isonomy.common.wire.messages import MAX_FRAME_BYTES

# A peer that keeps to the window stays below this: what was here when we stopped to acknowledge,
# what was then under way, and a frame that was still in pieces.
MAX_INBOX_BYTES = 2 * WINDOW_BYTES + MAX_FRAME_BYTES
PARCEL_COST_BYTES = 128  # an empty parcel takes room, too; less than its envelope took on the way


class Mailbox:
    """A party's links with all other parties of an agreement."""

    def __init__(self, keys: PartyKeys, agreement: Agreement, log: Any) -> None:
        self._name, self._plan, self._log = keys.name, agreement.hash, log
        fresh = X25519PrivateKey.generate()  # names this process's incarnation
        self.peers = {
            card.name: Peer(keys, fresh, card, agreement.hash, summing=agreement.summed)
            for card in (*agreement.companies, agreement.regulator)
            if card.name != keys.name
        }
        self._inbox: dict[str, deque[Parcel]] = {name: deque() for name in self.peers}
        self.inbox_bytes = dict.fromkeys(self.peers, 0)
        self._greetings: dict[str, Parcel] = {}
        self._outbox: Outbox | None = None

    def peer(self, name: str) -> Peer:
        """Return the link with a party; ConfigError if it is no other party of the agreement."""
        if name not in self.peers:
            raise ConfigError(f"{name!r} is no other party of this plan")
        return self.peers[name]

    # --- The stream comes and goes ---------------------------------------------------------------

    @property
    def connected(self) -> bool:
        return self._outbox is not None

    def connect(self, outbox: Outbox) -> None:
        """Write to this stream from now on; first the PlanAgreements that each link needs."""
        self._outbox = outbox
        for peer in self.peers.values():
            outbox.put(dump(peer.agreement(reply_wanted=True)))

    def disconnect(self) -> None:
        self._outbox = None
        for peer in self.peers.values():
            peer.stream_lost()

    # --- Out -------------------------------------------------------------------------------------

    def send_chunk(self, recipient: str, parcel: Parcel, chunk: int) -> None:
        peer = self.peers[recipient]
        self._put(peer.pack_chunk(parcel, chunk), peer)

    def send_close(self, code: str, text: str) -> None:
        """Tell everybody who is linked and has not closed that the session ends here."""
        for peer in self.peers.values():
            if peer.generation and peer.closed is None:
                self._put(peer.pack_close(code, text), peer)

    def greet(self, recipient: str, parcel: Parcel) -> None:
        """Send this small parcel first to every incarnation of a peer, present and future."""
        self._greetings[recipient] = parcel
        if self.peers[recipient].generation:
            self.send_chunk(recipient, parcel, 0)

    def acknowledge(self) -> None:
        """Acknowledge whatever has come in."""
        for peer in self.peers.values():
            self._acknowledge(peer, 1)

    def envelope(self, body: Hello | Heartbeat, recipient: str = SERVER) -> Envelope:
        """Return an envelope without a number."""
        return Envelope(self._name, recipient, self._plan, body)

    def _acknowledge(self, peer: Peer, limit: int) -> None:
        if peer.synced and peer.ack_due(limit):
            self._put(dump(peer.ack(self.envelope(Heartbeat(), peer.card.name))), peer)

    def _put(self, raw: bytes, peer: Peer) -> None:
        if self._outbox is not None and peer.synced:
            self._outbox.put(raw)

    # --- In --------------------------------------------------------------------------------------

    def on_envelope(self, envelope: Envelope, size: int) -> None:
        """Take a message of another party; an IsonomyError if the protocol does not allow it."""
        peer, body = self.peers[envelope.sender], envelope.body
        if isinstance(body, PlanAgreement):
            self._on_agreement(peer, envelope, body)
        elif isinstance(body, SEQUENCED):
            parcel = peer.on_sequenced(envelope, size)
            if parcel is not None:
                self._store(parcel)
            # A Close is the other party's last word, and it waits until we acknowledge it.
            self._acknowledge(peer, 1 if peer.closed else WINDOW_BYTES // 4)
        elif isinstance(body, Heartbeat):
            peer.on_ack_only(envelope)
        else:
            raise OrderViolation(f"{envelope.sender} sent a message that does not belong here")

    def _on_agreement(self, peer: Peer, envelope: Envelope, body: PlanAgreement) -> None:
        before, name = peer.generation, peer.card.name
        for raw in peer.on_agreement(envelope, body):
            self._put(raw, peer)
        if peer.generation == before:
            return
        # What an earlier incarnation sent belongs to questions that nobody waits for any more.
        self._inbox[name].clear()
        self._count(name, -self.inbox_bytes[name])
        if name in self._greetings:
            self.send_chunk(name, self._greetings[name], 0)
        self._log.info("peer restarted" if before else "peer joined", peer=name)

    def _store(self, parcel: Parcel) -> None:
        name, cost = parcel.sender, _cost(parcel)
        if self.inbox_bytes[name] + cost > MAX_INBOX_BYTES:
            raise OversizedMessage(f"{name} sent more than the window allows")
        self._count(name, cost)
        self._inbox[name].append(parcel)
        self._log.debug(
            "frame received", peer=name, purpose=parcel.purpose, query=parcel.query_id, bytes=cost
        )

    def waiting(self, names: Iterable[str]) -> str | None:
        """Return the first of these parties that has a parcel in its inbox."""
        return next((name for name in names if self._inbox[name]), None)

    def take(self, name: str) -> Parcel:
        """Take the next parcel of a party: in order, each once."""
        parcel = self._inbox[name].popleft()
        self._count(name, -_cost(parcel))
        self._acknowledge(self.peers[name], WINDOW_BYTES // 4)
        return parcel

    def _count(self, name: str, change: int) -> None:
        """Bytes came into an inbox or left it. Above a window, the other party has to wait."""
        self.inbox_bytes[name] += change
        self.peers[name].inbox_full = self.inbox_bytes[name] > WINDOW_BYTES


def _cost(parcel: Parcel) -> int:
    """Return the bytes that a parcel takes in an inbox."""
    return PARCEL_COST_BYTES + len(parcel.payload) + len(parcel.total)
