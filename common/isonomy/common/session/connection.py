"""`Session`: a party's links to the others over one stream to the relay.

Callers block in `send` and `receive`. Order, keys and repetition are decided in sealed_links.py,
the stream is kept up by stream.py. Here they meet, under one lock. A `Mailbox` has a link with each
other party, and the parcels that came and wait for a caller.

What ends a session: `close`; the other party's Close; a refusal by the relay; a message that breaks
the protocol; or somebody who stays away longer than `Timing.absence_s`. A broken stream does not.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from isonomy.common.agreements.agreement import Agreement
from isonomy.common.agreements.plan import Plan
from isonomy.common.base.errors import (
    RELAY_CODES,
    ConfigError,
    IsonomyError,
    OrderViolation,
    OversizedMessage,
    PartyTimeout,
    PeerRestarted,
    PlanMismatch,
    SessionClosed,
    error_from_wire,
    wire_code,
    wire_text,
)
from isonomy.common.base.logs import logger
from isonomy.common.base.malloc import reuse_freed_memory
from isonomy.common.keys.certificates import TlsFiles
from isonomy.common.keys.party import PartyKeys
from isonomy.common.session.sealed_links import WINDOW_BYTES, Parcel, Peer
from isonomy.common.session.stream import Outbox, RelayStream, Timing
from isonomy.common.session.tickets import Ticket, TicketLine, resume_secret
from isonomy.common.wire.envelopes import (
    CHUNK_BYTES,
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
from isonomy.common.wire.messages import MAX_FRAME_BYTES

DONE = "done"
T = TypeVar("T")
# A peer that keeps to the window stays below this: what was here when we stopped to acknowledge,
# what was then under way, and a frame that was still in pieces.
MAX_INBOX_BYTES = 2 * WINDOW_BYTES + MAX_FRAME_BYTES
PROBE_BYTES = 1 << 17  # the first frame of this size shows how fast the link to the relay is
PARCEL_COST_BYTES = 128  # an empty parcel takes room, too; less than its envelope took on the way


class Session:
    """A party in a session. Use as a context manager, or `start()` and `close(…)`."""

    def __init__(
        self,
        ticket: Ticket,
        tls: TlsFiles,
        keys: PartyKeys,
        plan: Agreement,
        state_dir: Path | None = None,
        *,
        timing: Timing | None = None,
        log: Any = None,
    ) -> None:
        # Before anything is opened: a ticket comes through code that nobody trusts.
        check_ticket(ticket, keys, plan)
        self.agreement, self.keys, self.timing = plan, keys, timing or Timing()
        if log is None:
            log = logger(keys.role, least="warning").bind(plan=plan.hash.hex()[:16])
        self.log = log
        self._tickets, self._ticket = TicketLine(ticket), ticket
        self._tls, self._state_dir = tls, state_dir
        self._mailbox = Mailbox(keys, plan, log)
        # When the relay and each other party were last heard.
        self._heard_at = dict.fromkeys((SERVER, *self._mailbox.peers), time.monotonic())
        self._here: frozenset[str] = frozenset()  # by the relay's last report
        self._changed = threading.Condition()
        self._error: IsonomyError | None = None
        self._started = self._ending = self._admitted = False
        self._stream = RelayStream(self, tls, plan.relay_name, self.timing)
        self.reconnects = -1  # 0 once the relay has let us in
        self.bytes = 0  # of the parcels that were sent and received
        self.megabits = 0.0  # a second, to the relay; 0 until a large frame has shown it
        self._probe: tuple[float, int] | None = None  # since when, and how large a frame
        self._beats = 0  # signs of life that the relay has not answered

    @property
    def plan(self) -> Plan:
        """The plan of the questions. Other sessions (alignment, few-shot) ask no questions."""
        if not isinstance(self.agreement, Plan):
            raise ConfigError(
                "this session aligns records or meta-trains; questions need an approved plan"
            )
        return self.agreement

    # --- Life ------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Connect and wait to be let in. Raises the relay's refusal."""
        if not self._started:
            self._tls.read()  # a missing or wrong file is this side's fault: say so at once
            self._heard_at[SERVER] = time.monotonic()  # its time to answer begins now
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
                self._changed.wait_for(self._all_linked, self.timing.flush_s)
                self._mailbox.send_close(code, text)
                self._changed.wait_for(self._all_acknowledged, self.timing.flush_s)
                self.log.info("session closed", code=code)
            self._ending = True
            self._changed.notify_all()
        if self._started:
            self._stream.stop()

    def _all_linked(self) -> bool:
        """Say whether everybody who is here has a link, and so can be told that we end."""
        peers = self._mailbox.peers
        here = (peers[name] for name in self._here)
        return self._error is not None or all(peer.generation for peer in here)

    def _all_acknowledged(self) -> bool:
        """Say whether everybody who is still in the session has received our last message."""
        peers = self._mailbox.peers.values()
        waiting = (peer for peer in peers if peer.generation and not peer.closed)
        return self._error is not None or all(peer.all_acknowledged for peer in waiting)

    def fail(self, error: Exception) -> None:
        """End the session because of an error on this side; the others learn its kind and text."""
        self.close(wire_code(error), wire_text(error))

    def renew(self, ticket: Ticket) -> None:
        """Take a new ticket, perhaps to another address: the relay may have been started anew.

        It may come from code that nobody trusts. So while the stream lives, it only waits in line;
        and the ticket that worked is tried again if the new one does not.
        """
        check_ticket(ticket, self.keys, self.agreement)
        with self._changed:
            connected = self._mailbox.outbox is not None
            self._tickets.add(ticket, first=not connected)
        if not connected:
            self._stream.interrupt()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: object, value: BaseException | None, traceback: object) -> None:
        if value is None:
            self.close()
        else:  # Ctrl-C is no "done" either
            self.fail(value if isinstance(value, Exception) else SessionClosed("interrupted"))

    # --- Frames ----------------------------------------------------------------------------------

    def generation(self, peer: str) -> int:
        """Return which incarnation of the peer we talk to; wait for the first to appear."""
        link = self._mailbox.peers[peer]
        with self._changed:
            self._wait(link.is_linked, peer)
            return link.generation

    def incarnations(self) -> dict[str, int]:
        """Return which incarnation of each peer we know now; 0 for one that was never here."""
        with self._changed:
            return {name: peer.generation for name, peer in self._mailbox.peers.items()}

    def present(self) -> frozenset[str] | None:
        """Return the other parties that are here; None while the relay is not reached.

        Here is whom the relay reported last, and who has sent something since.
        """
        with self._changed:
            if self._mailbox.outbox is None:
                return None
            since = time.monotonic() - 2 * self.timing.heartbeat_s
            linked = (name for name, peer in self._mailbox.peers.items() if peer.generation)
            return self._here | {name for name in linked if self._heard_at[name] > since}

    def greet(self, recipient: str, parcel: Parcel) -> None:
        """Send this small parcel first to every incarnation of a peer, present and future."""
        with self._changed:
            self._mailbox.greet(recipient, parcel)

    def send(self, recipient: str, parcel: Parcel, *, generation: int | None = None) -> None:
        """Queue a parcel, sealed or signed by its purpose; blocks while the window is full.

        PartyTimeout if the other party takes nothing for as long as it may stay away.
        """
        peer, began = self._mailbox.peers[recipient], time.monotonic()
        chunks = max(1, -(-len(parcel.payload) // CHUNK_BYTES))  # an empty frame has one, too
        for chunk in range(chunks):
            with self._changed:
                timeout_s = self.timing.absence_s
                self._wait(peer.has_room, recipient, generation, timeout_s=timeout_s)
                self._mailbox.put(peer.pack_chunk(parcel, chunk, chunks), peer)
        self._measure(began, len(parcel.payload))
        self.bytes += len(parcel.payload)
        self.log.debug(
            "frame sent",
            peer=recipient,
            purpose=parcel.purpose,
            query=parcel.query_id,
            bytes=len(parcel.payload),
        )

    def _measure(self, began: float, size: int) -> None:
        """Behind the first large frame, send a sign of life: the relay answers when it has both."""
        with self._changed:
            outbox = self._mailbox.outbox
            if size >= PROBE_BYTES and not (self.megabits or self._probe) and outbox is not None:
                self._probe = began, size
                self._beat(outbox)

    def _beat(self, outbox: Outbox) -> None:
        self._beats += 1
        outbox.put(dump(self._mailbox.envelope(Heartbeat())))

    def send_dual(
        self, recipient: str, query_id: str, round_number: int, multipliers: tuple[float, ...]
    ) -> None:
        """Send the multipliers after a dual step, as exact bits."""
        payload = dump_dual(round_number, multipliers)
        self.send(recipient, Parcel(recipient, "dual", query_id, 0, 0, True, payload))

    def receive(
        self,
        sender: str | None = None,
        *,
        generation: int | None = None,
        timeout_s: float | None = None,
    ) -> Parcel:
        """Return the next parcel of one party (or of any): in order, each once."""
        names = list(self._mailbox.peers) if sender is None else [sender]
        with self._changed:
            take = partial(self._mailbox.take, names)
            parcel = self._wait(take, sender, generation, timeout_s=timeout_s)
            self.bytes += len(parcel.payload)
            return parcel

    def _wait(
        self,
        ready: Callable[[], T | None],
        peer: str | None = None,
        generation: int | None = None,
        *,
        timeout_s: float | None = None,
    ) -> T:
        """Wait until `ready` has something, and return it. Holds the condition.

        Raises the error that makes waiting pointless.
        """
        link = None if peer is None else self._mailbox.peers[peer]
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            if generation is not None and link is not None and link.generation != generation:
                raise PeerRestarted(f"{peer} started again; what was under way is asked again")
            if self._error is None and (result := ready()):
                return result
            self._check_alive(peer)
            if deadline is not None and time.monotonic() > deadline:
                raise PartyTimeout(f"nothing came from {peer or 'anybody'} for {timeout_s:g} s")
            # Woken by every message; the time-out only lets absences and deadlines be noticed.
            self._changed.wait(min(0.5, self.timing.heartbeat_s))

    def _check_alive(self, peer: str | None) -> None:
        """Raise if what a caller waits for cannot come any more."""
        if self._error is not None:
            raise self._error
        if self._ending:
            raise SessionClosed("the session was closed on this side")
        peers = self._mailbox.peers
        if peer is None:  # whoever waits for anybody fails when one has failed, or all are done
            failed = (n for n, p in peers.items() if p.closed and p.closed.code != DONE)
            peer = next(failed, None)
        names = [peer] if peer else [n for n, p in peers.items() if p.closed is None]
        closed = peers[peer].closed if peer else None
        if closed is not None or not names:
            raise _closed_error(peer, closed)
        self._check_heard([SERVER])
        if self._mailbox.outbox is not None:  # while we are cut off, we cannot say who else is
            self._check_heard(names)

    def _check_heard(self, names: list[str]) -> None:
        """Raise if one of these stays away longer than it may."""
        now, absence_s = time.monotonic(), self.timing.absence_s
        for name in names:
            if now - self._heard_at[name] > absence_s:
                raise PartyTimeout(
                    f"{'the relay' if name == SERVER else name} did not come back within "
                    f"{absence_s:g} s. State is kept; run again to resume: nothing that was "
                    "answered is asked or paid twice"
                )

    # --- The stream (called from its threads) ----------------------------------------------------

    def on_connecting(self) -> tuple[str, bytes]:
        with self._changed:
            self._admitted = False
            self._check_heard([SERVER])
            self._ticket = ticket = self._tickets.take()
        hello = Hello(ticket.role, ticket.token, resume_secret(self._state_dir, ticket))
        return ticket.relay_address, dump(self._mailbox.envelope(hello))

    def on_idle(self, outbox: Outbox) -> None:
        with self._changed:
            self._beat(outbox)
            self._mailbox.acknowledge()

    def on_lost(self) -> None:
        with self._changed:
            if self._mailbox.outbox is not None and not self._ending:
                self.log.info("stream lost")
            self._mailbox.disconnect()
            self._changed.notify_all()

    def on_end(self, error: IsonomyError) -> bool:
        with self._changed:
            late = isinstance(error, PartyTimeout)
            if not (self._admitted or late) and self._tickets.refused(self._ticket):
                self.log.info("ticket refused", error=type(error).__name__)
                return True
            self.log.warning("session failed", error=type(error).__name__)
            self._error = self._error or error
            self._changed.notify_all()
            return False

    def on_message(self, raw: bytes, outbox: Outbox) -> None:
        envelope, now = parse(raw), time.monotonic()
        with self._changed:
            if envelope.sender == SERVER:
                self._heard_at[SERVER] = now
                self._on_relay(envelope, outbox)
            elif envelope.sender in self._mailbox.peers and envelope.recipient == self.keys.name:
                self._heard_at[SERVER] = self._heard_at[envelope.sender] = now
                self._mailbox.on_envelope(envelope, len(raw))
            else:
                raise OrderViolation("a message came from nobody, or for somebody else")
            self._changed.notify_all()

    def _on_relay(self, envelope: Envelope, outbox: Outbox) -> None:
        """Take a message of the relay. Holds the condition."""
        body = envelope.body
        if isinstance(body, ErrorNote):
            if body.fatal:
                raise error_from_wire(body.code, body.text, RELAY_CODES)
            self.log.warning("note from the relay", text=body.text)
            return
        if isinstance(body, HelloReply):
            self.reconnects += 1
            self._admitted = True
            self._tickets.works(self._ticket)
            # The relay may be new as well as our stream: the others need time to come back.
            self._heard_at = dict.fromkeys(self._heard_at, time.monotonic())
            self._beats, self._probe = 0, None
            self._mailbox.connect(outbox)
            self.log.info("session resumed" if self.reconnects else "session connected")
        elif not isinstance(body, Heartbeat):
            raise OrderViolation("the relay sent a kind of message that only parties may send")
        else:
            self._beats -= 1
            if self._probe is not None and not self._beats:
                (began, size), self._probe = self._probe, None
                self.megabits = 8e-6 * size / (time.monotonic() - began)
        self._here = frozenset(body.present) & self._mailbox.peers.keys()
        self._heard_at |= dict.fromkeys(self._here, time.monotonic())


class Mailbox:
    """A party's links with all other parties of an agreement, and an inbox for each.

    It writes to the stream that there is now. Without one, what is sent waits in its link and goes
    out when a stream is back. No lock, no clock, no thread: `Session` holds the lock.
    """

    def __init__(self, keys: PartyKeys, agreement: Agreement, log: Any) -> None:
        self._name, self._plan, self._log = keys.name, agreement.hash, log
        fresh = X25519PrivateKey.generate()  # names this process's incarnation
        self.peers = {
            card.name: Peer(keys, fresh, card, agreement.hash, summing=agreement.summed)
            for card in (*agreement.companies, agreement.regulator)
            if card.name != keys.name
        }
        self._inbox: dict[str, deque[tuple[Parcel, int]]] = {name: deque() for name in self.peers}
        self.inbox_bytes = dict.fromkeys(self.peers, 0)
        self._greetings: dict[str, Parcel] = {}
        self.outbox: Outbox | None = None  # of the stream, while there is one

    # --- The stream comes and goes ---------------------------------------------------------------

    def connect(self, outbox: Outbox) -> None:
        """Write to this stream from now on; first the PlanAgreements that each link needs."""
        self.outbox = outbox
        for peer in self.peers.values():
            outbox.put(dump(peer.agreement(reply_wanted=True)))

    def disconnect(self) -> None:
        self.outbox = None
        for peer in self.peers.values():
            peer.stream_lost()

    # --- Out -------------------------------------------------------------------------------------

    def put(self, raw: bytes, peer: Peer) -> None:
        """Write to the stream, if there is something, and both the stream and the link are up."""
        if raw and self.outbox is not None and peer.synced:
            self.outbox.put(raw)

    def send_close(self, code: str, text: str) -> None:
        """Tell everybody who is linked and has not closed that the session ends here."""
        for peer in self.peers.values():
            if peer.generation and peer.closed is None:
                self.put(peer.pack_close(code, text), peer)

    def greet(self, recipient: str, parcel: Parcel) -> None:
        """Send this small parcel first to every incarnation of a peer, present and future."""
        self._greetings[recipient] = parcel
        peer = self.peers[recipient]
        if peer.generation:
            self.put(peer.pack_chunk(parcel), peer)

    def acknowledge(self) -> None:
        """Acknowledge whatever has come in."""
        for peer in self.peers.values():
            self.put(peer.ack(1), peer)

    def envelope(self, body: Hello | Heartbeat) -> Envelope:
        """Return an envelope for the relay."""
        return Envelope(self._name, SERVER, self._plan, body)

    # --- In --------------------------------------------------------------------------------------

    def on_envelope(self, envelope: Envelope, size: int) -> None:
        """Take a message of another party; an IsonomyError if the protocol does not allow it."""
        peer, body = self.peers[envelope.sender], envelope.body
        if isinstance(body, PlanAgreement):
            self._on_agreement(peer, envelope, body)
        elif isinstance(body, SEQUENCED):
            parcel = peer.on_sequenced(envelope, size)
            if parcel is not None:
                cost = PARCEL_COST_BYTES + len(parcel.payload) + len(parcel.total)
                self._count(parcel.sender, cost)
                self._inbox[parcel.sender].append((parcel, cost))
                place = {"purpose": parcel.purpose, "query": parcel.query_id, "bytes": cost}
                self._log.debug("frame received", peer=parcel.sender, **place)
            # A Close is the other party's last word, and it waits until we acknowledge it.
            self.put(peer.ack(1 if peer.closed else WINDOW_BYTES // 4), peer)
        elif isinstance(body, Heartbeat):
            peer.on_ack(envelope)
        else:
            raise OrderViolation(f"{envelope.sender} sent a message that does not belong here")

    def _on_agreement(self, peer: Peer, envelope: Envelope, body: PlanAgreement) -> None:
        before, name = peer.generation, peer.card.name
        for raw in peer.on_agreement(envelope, body):
            self.put(raw, peer)
        if peer.generation == before:
            return
        # What an earlier incarnation sent belongs to questions that nobody waits for any more.
        self._inbox[name].clear()
        self._count(name, -self.inbox_bytes[name])
        if name in self._greetings:
            self.put(peer.pack_chunk(self._greetings[name]), peer)
        self._log.info("peer restarted" if before else "peer joined", peer=name)

    def take(self, names: Iterable[str]) -> Parcel | None:
        """Take the next parcel of the first of these parties that has one: in order, each once."""
        for name in names:
            if self._inbox[name]:
                parcel, cost = self._inbox[name].popleft()
                self._count(name, -cost)
                self.put(self.peers[name].ack(WINDOW_BYTES // 4), self.peers[name])
                return parcel
        return None

    def _count(self, name: str, change: int) -> None:
        """Bytes come into an inbox or leave it. Above a window, the other party has to wait."""
        # The window is the other side's promise. Memory must not depend on whether it keeps it.
        if self.inbox_bytes[name] + change > MAX_INBOX_BYTES:
            raise OversizedMessage(f"{name} sent more than the window allows")
        self.inbox_bytes[name] += change
        self.peers[name].inbox_full = self.inbox_bytes[name] > WINDOW_BYTES


def _closed_error(peer: str | None, closed: Close | None) -> IsonomyError:
    if closed is None or closed.code == DONE:
        return SessionClosed(f"{peer or 'everybody'} ended the session: done", done=True)
    error = error_from_wire(closed.code, closed.text)
    return SessionClosed(f"{peer} ended the session: {type(error).__name__}: {error}")


def check_ticket(ticket: Ticket, keys: PartyKeys, plan: Agreement) -> None:
    """Raise unless the ticket is for this plan and its relay, and for the party of these keys."""
    if ticket.plan_hash != plan.hash:
        raise PlanMismatch(
            f"the ticket is for plan {ticket.plan_hash.hex()[:16]}…; the plan approved here "
            f"is {plan.hash.hex()[:16]}…"
        )
    if (ticket.party, ticket.role) != (keys.name, keys.role):
        raise ConfigError(
            f"the ticket is for {ticket.role} {ticket.party!r}, not for {keys.name!r}"
        )
    if plan.card(keys.name) != keys.card():
        raise ConfigError(f"the plan pins other keys for {keys.name!r} than those in use here")
    if ticket.relay_name != plan.relay_name:
        raise PlanMismatch("the ticket leads to another relay than the one the plan names")
