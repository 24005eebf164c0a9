"""`Session`: a party's links to the others over one stream to the relay.

Callers block in `send` and `receive`. Order, keys and repetition are decided in links.py, the
stream is kept by stream.py; here they are joined, with one lock and the waiting.

What ends a session: `close`; the other party's Close; a refusal by the relay; a message that breaks
the protocol; or somebody who stays away longer than `Timing.absence_s`. A broken stream does not.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from isonomy.common.agreement import Agreement
from isonomy.common.certificates import TlsFiles
from isonomy.common.envelopes import (
    SEQUENCED,
    SERVER,
    Close,
    Envelope,
    ErrorNote,
    Heartbeat,
    Hello,
    HelloReply,
    PlanAgreement,
    dump,
    dump_dual,
    parse,
)
from isonomy.common.errors import ConfigError, IsonomyError
from isonomy.common.links import WINDOW_BYTES, Frame, Peer, chunk_count
from isonomy.common.memory import reuse_freed_memory
from isonomy.common.messages import MAX_FRAME_BYTES
from isonomy.common.party import PartyKeys
from isonomy.common.plan import Plan
from isonomy.common.presence import Presence
from isonomy.common.resume import resume_secret
from isonomy.common.session_errors import (
    OrderViolation,
    OversizedMessage,
    PartyTimeout,
    PeerRestarted,
    PlanMismatch,
    SessionClosed,
    error_code,
    error_from_note,
    error_from_relay,
    error_text,
)
from isonomy.common.stream import Outbox, RelayStream, Timing
from isonomy.common.tickets import Ticket, TicketLine

DONE = "done"
# Who keeps to the window stays below: what we had when we stopped to acknowledge, what was then
# under way, and a frame that was still in pieces.
MAX_INBOX_BYTES = 2 * WINDOW_BYTES + MAX_FRAME_BYTES
FRAME_COST_BYTES = 128  # an empty frame takes room, too; less than its envelope took on the way


class Session:
    """A party in a session. Use as a context manager, or `Session.open(…)` and `close(…)`."""

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
        _check(ticket, keys, plan)
        self.agreement, self.keys, self.timing = plan, keys, timing or Timing()
        self._tickets, self._trying = TicketLine(ticket), ticket
        self._tls, self._state_dir = tls, state_dir
        self._on_event = on_event or (lambda text: None)
        fresh = X25519PrivateKey.generate()  # names this process's incarnation
        summing = len(plan.companies) > 1
        self._peers = {
            card.name: Peer(keys, fresh, card, plan.hash, summing=summing)
            for card in (*plan.companies, plan.regulator)
            if card.name != keys.name
        }
        self._inbox: dict[str, deque[Frame]] = {name: deque() for name in self._peers}
        self._waiting = dict.fromkeys(self._peers, 0)  # bytes in each inbox
        self._greetings: dict[str, Frame] = {}
        self._presence = Presence(self._peers, self.timing.absence_s, time.monotonic())
        self._changed = threading.Condition()
        self._outbox: Outbox | None = None  # set while a stream is let in
        self._error: IsonomyError | None = None
        self._started = self._ending = self._let_in = False
        self._stream = RelayStream(self, tls, plan.relay_name, self.timing)
        self.reconnects = -1  # 0 once the relay has let us in

    @property
    def plan(self) -> Plan:
        """The plan that is asked under. A session that aligns records has none, and asks none."""
        if not isinstance(self.agreement, Plan):
            raise ConfigError("this session aligns records; questions need an approved plan")
        return self.agreement

    # --- Life ------------------------------------------------------------------------------------

    @classmethod
    def open(
        cls,
        ticket: Ticket,
        tls: TlsFiles,
        keys: PartyKeys,
        plan: Agreement,
        state_dir: Path | None = None,
        **options: Any,
    ) -> Self:
        return cls(ticket, tls, keys, plan, state_dir, **options).start()

    def start(self) -> Self:
        """Connect and wait to be let in. Raises the relay's refusal."""
        if not self._started:
            self._tls.read()  # a missing or wrong file is this side's fault: say so at once
            self._presence.heard_relay(time.monotonic())  # its time to answer begins now
            self._started = True
            reuse_freed_memory()
            self._stream.start()
        with self._changed:
            self._wait(lambda: self.reconnects >= 0)
        return self

    def close(self, code: str = DONE, text: str = "") -> None:
        """End the session and tell the others why. Harmless if it has ended already."""
        with self._changed:
            if self._started and self._error is None and not self._ending:
                self._changed.wait_for(self._introduced, self.timing.flush_s)
                for peer in self._peers.values():
                    if peer.generation and peer.closed is None:
                        self._put(peer.pack_close(code, text), peer)
                self._changed.wait_for(self._flushed, self.timing.flush_s)
            self._ending = True
            self._changed.notify_all()
        if self._started:
            self._stream.stop()

    def _introduced(self) -> bool:
        """Are we linked with everybody who is here? Who ends at once must be able to say so."""
        here = (peer for name, peer in self._peers.items() if name in self._presence.here)
        return self._error is not None or all(peer.generation for peer in here)

    def _flushed(self) -> bool:
        """Has everybody who is still in the session heard our last word?"""
        waiting = (peer for peer in self._peers.values() if peer.generation and not peer.closed)
        return self._error is not None or all(peer.all_acknowledged for peer in waiting)

    def fail(self, error: Exception) -> None:
        """End the session because of an error on this side; the others learn its kind and text."""
        self.close(error_code(error), error_text(error))

    def renew(self, ticket: Ticket) -> None:
        """A new ticket, perhaps to another address: the relay may have been started anew.

        Anybody's code may hand one over. So while the stream lives, it is only kept for later; and
        the ticket that worked is tried again if the new one does not.
        """
        _check(ticket, self.keys, self.plan)
        with self._changed:
            connected = self._outbox is not None
            self._tickets.add(ticket, first=not connected)
        if not connected:
            self._stream.interrupt()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if value is None:
            self.close()
        else:  # Ctrl-C is no "done" either
            self.fail(value if isinstance(value, Exception) else SessionClosed("interrupted"))

    # --- Frames ----------------------------------------------------------------------------------

    def generation(self, peer: str) -> int:
        """Which incarnation of the peer we talk to; waits for the first to appear."""
        found = self._peer(peer)
        with self._changed:
            self._wait(lambda: found.generation > 0 and found.synced, peer)
            return found.generation

    def incarnations(self) -> dict[str, int]:
        """Which incarnation of each peer is known now; 0 for one that was never here."""
        with self._changed:
            return {name: peer.generation for name, peer in self._peers.items()}

    def greet(self, recipient: str, frame: Frame) -> None:
        """Send this small frame first to every incarnation of a peer, present and future."""
        peer = self._peer(recipient)
        with self._changed:
            self._greetings[recipient] = frame
            if peer.generation:
                self._put(peer.pack_chunk(frame, 0), peer)

    def send(self, recipient: str, frame: Frame, *, generation: int | None = None) -> None:
        """Queue a frame, sealed or signed by its purpose; blocks while the window is full."""
        peer = self._peer(recipient)
        for chunk in range(chunk_count(len(frame.payload))):
            with self._changed:
                self._wait(lambda: peer.has_room, recipient, generation)
                self._put(peer.pack_chunk(frame, chunk), peer)

    def send_dual(
        self, recipient: str, query_id: str, round_number: int, multipliers: tuple[float, ...]
    ) -> None:
        """The multipliers after a dual step, as exact bits."""
        peer = self._peer(recipient)
        with self._changed:
            self._wait(lambda: peer.has_room, recipient)
            self._put(peer.pack_dual(query_id, dump_dual(round_number, multipliers)), peer)

    def receive(
        self,
        sender: str | None = None,
        *,
        generation: int | None = None,
        timeout_s: float | None = None,
    ) -> Frame:
        """The next frame of one party (or of any): in order, each once."""
        names = [sender] if sender is not None else list(self._peers)
        with self._changed:
            self._wait(
                lambda: any(self._inbox[name] for name in names),
                sender,
                generation,
                timeout_s=timeout_s,
            )
            name = next(name for name in names if self._inbox[name])
            frame = self._inbox[name].popleft()
            self._waiting[name] -= _cost(frame)
            self._acknowledge(self._peers[name], WINDOW_BYTES // 4)
            return frame

    def _peer(self, name: str) -> Peer:
        if name not in self._peers:
            raise ConfigError(f"{name!r} is no other party of this plan")
        return self._peers[name]

    def _wait(
        self,
        ready: Callable[[], bool],
        peer: str | None = None,
        generation: int | None = None,
        *,
        timeout_s: float | None = None,
    ) -> None:
        """Until ready, or the error that makes waiting pointless. Holds the condition."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            if generation is not None and peer and self._peers[peer].generation != generation:
                raise PeerRestarted(f"{peer} began anew; what was under way is asked again")
            if ready() and self._error is None:
                return
            self._check_alive(peer)
            if deadline is not None and time.monotonic() > deadline:
                raise PartyTimeout(f"nothing came from {peer or 'anybody'} for {timeout_s:g} s")
            self._changed.wait(min(0.5, self.timing.heartbeat_s))

    def _check_alive(self, peer: str | None) -> None:
        if self._error is not None:
            raise self._error
        if self._ending:
            raise SessionClosed("the session was closed on this side")
        if peer is None:  # who waits for anybody fails when one has failed, or all are done
            failed = (n for n, p in self._peers.items() if p.closed and p.closed.code != DONE)
            peer = next(failed, None)
        names = [peer] if peer else [n for n, p in self._peers.items() if p.closed is None]
        closed = self._peers[peer].closed if peer else None
        if closed is not None or not names:
            raise _closed_error(peer, closed)
        self._presence.check_relay(time.monotonic())
        if self._outbox is not None:  # cut off ourselves, we cannot say anything about the others
            self._presence.check(names, time.monotonic())

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
                raise error_from_relay(body.code, body.text)
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
                self._waiting[peer.card.name] = 0
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

    def _store(self, name: str, frame: Frame) -> None:
        if self._waiting[name] + _cost(frame) > MAX_INBOX_BYTES:
            raise OversizedMessage(f"{name} sent more than the window allows")
        self._waiting[name] += _cost(frame)
        self._inbox[name].append(frame)

    def _acknowledge(self, peer: Peer, limit: int) -> None:
        hold = self._waiting[peer.card.name] > WINDOW_BYTES
        if peer.synced and peer.ack_due(limit, hold=hold):
            self._put(dump(peer.ack(self._to(peer.card.name, Heartbeat()))), peer)

    def _put(self, raw: bytes, peer: Peer) -> None:
        """Onto the stream if there is one; else it waits among the unacknowledged."""
        if self._outbox is not None and peer.synced:
            self._outbox.put(raw)

    def _to(self, recipient: str, body: Hello | Heartbeat) -> Envelope:
        return Envelope(self.keys.name, recipient, self.agreement.hash, body)


def _cost(frame: Frame) -> int:
    return FRAME_COST_BYTES + len(frame.payload) + len(frame.total)


def _check(ticket: Ticket, keys: PartyKeys, plan: Agreement) -> None:
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


def _closed_error(peer: str | None, closed: Close | None) -> IsonomyError:
    if closed is None or closed.code == DONE:
        return SessionClosed(f"{peer or 'everybody'} ended the session: done", done=True)
    found = error_from_note(closed.code, closed.text)
    return SessionClosed(f"{peer} ended the session: {type(found).__name__}: {closed.text}")
