"""`Session`: a party's links to the others over one stream to the relay.

Callers block in `send` and `receive`. Order, keys and repetition are decided in links.py, parcels
wait in mailbox.py, the stream is kept up by stream.py. Here they meet, under one lock.

What ends a session: `close`; the other party's Close; a refusal by the relay; a message that breaks
the protocol; or somebody who stays away longer than `Timing.absence_s`. A broken stream does not.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from isonomy.common.agreements.agreement import Agreement
from isonomy.common.agreements.plan import Plan
from isonomy.common.base.errors import (
    RELAY_CODES,
    ConfigError,
    IsonomyError,
    OrderViolation,
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
from isonomy.common.session._mailbox import Mailbox
from isonomy.common.session._presence import Presence
from isonomy.common.session._resume import resume_secret
from isonomy.common.session.links import Parcel, chunk_count
from isonomy.common.session.stream import Outbox, RelayStream, Timing
from isonomy.common.session.tickets import Ticket, TicketLine
from isonomy.common.wire.envelopes import (
    SERVER,
    Close,
    Envelope,
    ErrorNote,
    Heartbeat,
    Hello,
    HelloReply,
    dump,
    dump_dual,
    parse,
)

DONE = "done"


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
        check_ticket(ticket, keys, plan)
        self.agreement, self.keys, self.timing = plan, keys, timing or Timing()
        if log is None:
            log = logger(keys.role, least="warning").bind(plan=plan.hash.hex()[:16])
        self.log = log
        self._tickets, self._ticket = TicketLine(ticket), ticket
        self._tls, self._state_dir = tls, state_dir
        self._mailbox = Mailbox(keys, plan, log)
        self._presence = Presence(self._mailbox.peers, self.timing.absence_s, time.monotonic())
        self._changed = threading.Condition()
        self._error: IsonomyError | None = None
        self._started = self._ending = self._admitted = False
        self._stream = RelayStream(self, tls, plan.relay_name, self.timing)
        self.reconnects = -1  # 0 once the relay has let us in

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
        here = (peers[name] for name in self._presence.here)
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
            connected = self._mailbox.connected
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
        """Return which incarnation of the peer we talk to; wait for the first to appear."""
        link = self._mailbox.peer(peer)
        with self._changed:
            self._wait(lambda: link.generation > 0 and link.synced, peer)
            return link.generation

    def incarnations(self) -> dict[str, int]:
        """Return which incarnation of each peer we know now; 0 for one that was never here."""
        with self._changed:
            return {name: peer.generation for name, peer in self._mailbox.peers.items()}

    def greet(self, recipient: str, parcel: Parcel) -> None:
        """Send this small parcel first to every incarnation of a peer, present and future."""
        self._mailbox.peer(recipient)
        with self._changed:
            self._mailbox.greet(recipient, parcel)

    def send(self, recipient: str, parcel: Parcel, *, generation: int | None = None) -> None:
        """Queue a parcel, sealed or signed by its purpose; blocks while the window is full.

        PartyTimeout if the other party takes nothing for as long as it may stay away.
        """
        peer = self._mailbox.peer(recipient)
        for chunk in range(chunk_count(len(parcel.payload))):
            with self._changed:
                self._wait(
                    lambda: peer.has_room,
                    recipient,
                    generation,
                    timeout_s=self.timing.absence_s,
                )
                self._mailbox.send_chunk(recipient, parcel, chunk)
        self.log.debug(
            "frame sent",
            peer=recipient,
            purpose=parcel.purpose,
            query=parcel.query_id,
            bytes=len(parcel.payload),
        )

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
        mailbox = self._mailbox
        names = list(mailbox.peers) if sender is None else [mailbox.peer(sender).card.name]
        with self._changed:
            self._wait(
                lambda: mailbox.waiting(names) is not None, sender, generation, timeout_s=timeout_s
            )
            return mailbox.take(mailbox.waiting(names) or names[0])

    def _wait(
        self,
        ready: Callable[[], bool],
        peer: str | None = None,
        generation: int | None = None,
        *,
        timeout_s: float | None = None,
    ) -> None:
        """Wait until ready; raise the error that makes waiting pointless. Holds the condition."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            if generation is not None and peer and self._peer_generation(peer) != generation:
                raise PeerRestarted(f"{peer} began anew; what was under way is asked again")
            if ready() and self._error is None:
                return
            self._check_alive(peer)
            if deadline is not None and time.monotonic() > deadline:
                raise PartyTimeout(f"nothing came from {peer or 'anybody'} for {timeout_s:g} s")
            self._changed.wait(min(0.5, self.timing.heartbeat_s))

    def _peer_generation(self, peer: str) -> int:
        return self._mailbox.peer(peer).generation

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
        self._presence.check_relay(time.monotonic())
        if self._mailbox.connected:  # while we are cut off, we cannot say who else is
            self._presence.check(names, time.monotonic())

    # --- The stream (called from its threads) ----------------------------------------------------

    def on_connecting(self) -> tuple[str, bytes]:
        with self._changed:
            self._admitted = False
            self._presence.check_relay(time.monotonic())
            self._ticket = ticket = self._tickets.take()
        hello = Hello(ticket.role, ticket.token, resume_secret(self._state_dir, ticket))
        return ticket.relay_address, dump(self._mailbox.envelope(hello))

    def on_idle(self, outbox: Outbox) -> None:
        outbox.put(dump(self._mailbox.envelope(Heartbeat())))
        with self._changed:
            self._mailbox.acknowledge()

    def on_lost(self) -> None:
        with self._changed:
            if self._mailbox.connected and not self._ending:
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
        envelope = parse(raw)
        with self._changed:
            if envelope.sender == SERVER:
                self._presence.heard_relay(time.monotonic())
                self._on_relay(envelope, outbox)
            elif envelope.sender in self._mailbox.peers and envelope.recipient == self.keys.name:
                self._presence.heard_party(envelope.sender, time.monotonic())
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
            self._presence.connected(time.monotonic())
            self._mailbox.connect(outbox)
            self.log.info("session resumed" if self.reconnects else "session connected")
        elif not isinstance(body, Heartbeat):
            raise OrderViolation("the relay sent a kind of message that only parties may send")
        self._presence.reported(body.present, time.monotonic())


def _closed_error(peer: str | None, closed: Close | None) -> IsonomyError:
    if closed is None or closed.code == DONE:
        return SessionClosed(f"{peer or 'everybody'} ended the session: done", done=True)
    error = error_from_wire(closed.code, closed.text)
    return SessionClosed(f"{peer} ended the session: {type(error).__name__}: {error}")


def check_ticket(ticket: Ticket, keys: PartyKeys, plan: Agreement) -> None:
    """Raise unless the ticket is for this plan and its relay, and for the party of these keys."""
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
