"""What a session and its stream's threads share: links, inboxes, presence, one lock.

Every message that comes is put where it belongs here; `Session` (connection.py) adds the callers
who wait. Everything below `on_message` holds the lock.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from isonomy.common.agreements.agreement import Agreement
from isonomy.common.base.errors import (
    RELAY_CODES,
    ConfigError,
    IsonomyError,
    OrderViolation,
    OversizedMessage,
    PartyTimeout,
    PlanMismatch,
    error_from_wire,
)
from isonomy.common.keys.certificates import TlsFiles
from isonomy.common.keys.party import PartyKeys
from isonomy.common.session.links import WINDOW_BYTES, Parcel, Peer
from isonomy.common.session.presence import Presence
from isonomy.common.session.resume import resume_secret
from isonomy.common.session.stream import Outbox, RelayStream, Timing
from isonomy.common.session.tickets import Ticket, TicketLine
from isonomy.common.wire.envelopes import (
    SEQUENCED,
    SERVER,
    Envelope,
    ErrorNote,
    Heartbeat,
    Hello,
    HelloReply,
    PlanAgreement,
    dump,
    parse,
)
from isonomy.common.wire.messages import MAX_FRAME_BYTES

# Who keeps to the window stays below: what we had when we stopped to acknowledge, what was then
# under way, and a frame that was still in pieces.
MAX_INBOX_BYTES = 2 * WINDOW_BYTES + MAX_FRAME_BYTES
FRAME_COST_BYTES = 128  # an empty frame takes room, too; less than its envelope took on the way


class SessionCore:
    """A party's state in a session, as its stream's threads see and change it."""

    def __init__(
        self,
        ticket: Ticket,
        tls: TlsFiles,
        keys: PartyKeys,
        plan: Agreement,
        state_dir: Path | None = None,
        *,
        timing: Timing | None = None,
        on_event: Callable[[str], None] | None = None,
    ) -> None:
        check_ticket(ticket, keys, plan)
        self.agreement, self.keys, self.timing = plan, keys, timing or Timing()
        self._tickets, self._trying = TicketLine(ticket), ticket
        self._tls, self._state_dir = tls, state_dir
        self._on_event = on_event or (lambda text: None)
        fresh = X25519PrivateKey.generate()  # names this process's incarnation
        self._peers = {
            card.name: Peer(keys, fresh, card, plan.hash, summing=plan.summed)
            for card in (*plan.companies, plan.regulator)
            if card.name != keys.name
        }
        self._inbox: dict[str, deque[Parcel]] = {name: deque() for name in self._peers}
        self._waiting = dict.fromkeys(self._peers, 0)  # bytes in each inbox
        self._greetings: dict[str, Parcel] = {}
        self._presence = Presence(self._peers, self.timing.absence_s, time.monotonic())
        self._changed = threading.Condition()
        self._outbox: Outbox | None = None  # set while a stream is let in
        self._error: IsonomyError | None = None
        self._started = self._ending = self._let_in = False
        self._stream = RelayStream(self, tls, plan.relay_name, self.timing)
        self.reconnects = -1  # 0 once the relay has let us in

    # --- The stream (called from its threads) -----------------------------------------------------

    def on_connecting(self) -> tuple[str, bytes]:
        with self._changed:
            self._let_in = False
            self._presence.check_relay(time.monotonic())
            self._trying = ticket = self._tickets.take()
        hello = Hello(ticket.role, ticket.token, resume_secret(self._state_dir, ticket))
        return ticket.relay_address, dump(self._to(SERVER, hello))

    def on_idle(self, outbox: Outbox) -> None:
        outbox.put(dump(self._to(SERVER, Heartbeat())))
        with self._changed:
            for peer in self._peers.values():
                self._acknowledge(peer, 1)

    def on_lost(self) -> None:
        with self._changed:
            self._outbox = None
            for peer in self._peers.values():
                peer.stream_lost()
            self._changed.notify_all()

    def on_end(self, error: IsonomyError) -> bool:
        with self._changed:
            late = isinstance(error, PartyTimeout)
            if not (self._let_in or late) and self._tickets.refused(self._trying):
                self._on_event(f"a ticket led nowhere: {type(error).__name__}")
                return True
            self._error = self._error or error
            self._changed.notify_all()
            return False

    def on_message(self, raw: bytes, outbox: Outbox) -> None:
        envelope = parse(raw)
        with self._changed:
            if envelope.sender == SERVER:
                self._presence.heard_relay(time.monotonic())
                self._on_relay(envelope, outbox)
            elif envelope.sender in self._peers and envelope.recipient == self.keys.name:
                self._presence.heard(envelope.sender, time.monotonic())
                self._on_peer(self._peers[envelope.sender], envelope, len(raw))
            else:
                raise OrderViolation("a message came from nobody, or for somebody else")
            self._changed.notify_all()

    def _on_relay(self, envelope: Envelope, outbox: Outbox) -> None:
        body = envelope.body
        if isinstance(body, ErrorNote):
            if body.fatal:
                raise error_from_wire(body.code, body.text, RELAY_CODES)
            self._on_event(body.text)
            return
        if isinstance(body, HelloReply):
            self.reconnects += 1
            self._outbox, self._let_in = outbox, True
            self._tickets.works(self._trying)
            self._presence.connected(time.monotonic())
            for peer in self._peers.values():
                outbox.put(dump(peer.agreement(reply_wanted=True)))
            self._on_event("connected" if self.reconnects == 0 else "connected again")
        elif not isinstance(body, Heartbeat):
            raise OrderViolation("the relay sent a message of a kind that it has no right to")
        self._presence.told(body.present, time.monotonic())

    def _on_peer(self, peer: Peer, envelope: Envelope, size: int) -> None:
        body = envelope.body
        if isinstance(body, PlanAgreement):
            before = peer.generation
            for raw in peer.on_agreement(envelope, body):
                self._put(raw, peer)
            if peer.generation != before:
                self._inbox[peer.card.name].clear()
                self._count(peer.card.name, -self._waiting[peer.card.name])
                if peer.card.name in self._greetings:
                    self._put(peer.pack_chunk(self._greetings[peer.card.name], 0), peer)
                self._on_event(f"{peer.card.name} is here" + (" again" if before else ""))
        elif isinstance(body, SEQUENCED):
            frame = peer.on_sequenced(envelope, size)
            if frame is not None:
                self._store(peer.card.name, frame)
            # A Close is the other's last word: it waits to hear that we heard it.
            self._acknowledge(peer, 1 if peer.closed else WINDOW_BYTES // 4)
        elif isinstance(body, Heartbeat):
            peer.on_ack_only(envelope)
        else:
            raise OrderViolation(f"{peer.card.name} sent a message that does not belong here")

    def _store(self, name: str, frame: Parcel) -> None:
        if self._waiting[name] + frame_cost(frame) > MAX_INBOX_BYTES:
            raise OversizedMessage(f"{name} sent more than the window allows")
        self._count(name, frame_cost(frame))
        self._inbox[name].append(frame)

    def _count(self, name: str, change: int) -> None:
        """Bytes came into an inbox or left it. More than a window: the other has to wait."""
        self._waiting[name] += change
        self._peers[name].hold = self._waiting[name] > WINDOW_BYTES

    def _acknowledge(self, peer: Peer, limit: int) -> None:
        if peer.synced and peer.ack_due(limit):
            self._put(dump(peer.ack(self._to(peer.card.name, Heartbeat()))), peer)

    def _put(self, raw: bytes, peer: Peer) -> None:
        """Onto the stream if there is one; else it waits among the unacknowledged."""
        if self._outbox is not None and peer.synced:
            self._outbox.put(raw)

    def _to(self, recipient: str, body: Hello | Heartbeat) -> Envelope:
        return Envelope(self.keys.name, recipient, self.agreement.hash, body)


def frame_cost(frame: Parcel) -> int:
    """Bytes that a frame takes in an inbox."""
    return FRAME_COST_BYTES + len(frame.payload) + len(frame.total)


def check_ticket(ticket: Ticket, keys: PartyKeys, plan: Agreement) -> None:
    """Is the ticket for this plan, this party with these keys, and the relay of the plan?"""
    if ticket.plan_hash != plan.hash:
        raise PlanMismatch(
            f"the ticket is for plan {ticket.plan_hash.hex()[:16]}…, approved here is "
            f"{plan.hash.hex()[:16]}…"
        )
    if (ticket.party, ticket.role) != (keys.name, keys.role):
        raise ConfigError(
            f"the ticket is for {ticket.role} {ticket.party!r}, not for {keys.name!r}"
        )
    if plan.card(keys.name) != keys.card():
        raise ConfigError(f"the plan pins other keys for {keys.name!r} than those in use here")
    if ticket.relay_name != plan.relay_name:
        raise PlanMismatch("the ticket leads to another relay than the one the plan names")
