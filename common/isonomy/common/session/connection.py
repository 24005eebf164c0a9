"""`Session`: a party's links to the others over one stream to the relay.

Callers block in `send` and `receive`. Order, keys and repetition are decided in links.py, the
stream is kept by stream.py; here they are joined, with one lock and the waiting.

What ends a session: `close`; the other party's Close; a refusal by the relay; a message that breaks
the protocol; or somebody who stays away longer than `Timing.absence_s`. A broken stream does not.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from isonomy.common.agreements.agreement import Agreement
from isonomy.common.agreements.plan import Plan
from isonomy.common.base.errors import (
    ConfigError,
    IsonomyError,
    PartyTimeout,
    PeerRestarted,
    SessionClosed,
    error_from_wire,
    wire_code,
    wire_text,
)
from isonomy.common.base.malloc import reuse_freed_memory
from isonomy.common.keys.certificates import TlsFiles
from isonomy.common.keys.party import PartyKeys
from isonomy.common.session.core import SessionCore, check_ticket, frame_cost
from isonomy.common.session.links import WINDOW_BYTES, Parcel, Peer, chunk_count
from isonomy.common.session.tickets import Ticket
from isonomy.common.wire.envelopes import (
    Close,
    dump_dual,
)

DONE = "done"


class Session(SessionCore):
    """A party in a session. Use as a context manager, or `Session.open(…)` and `close(…)`."""

    @property
    def plan(self) -> Plan:
        """The plan that is asked under. Other sessions (alignment, few-shot) ask no questions."""
        if not isinstance(self.agreement, Plan):
            raise ConfigError(
                "this session aligns records or meta-trains; questions need an approved plan"
            )
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
        self.close(wire_code(error), wire_text(error))

    def renew(self, ticket: Ticket) -> None:
        """A new ticket, perhaps to another address: the relay may have been started anew.

        Anybody's code may hand one over. So while the stream lives, it is only kept for later; and
        the ticket that worked is tried again if the new one does not.
        """
        check_ticket(ticket, self.keys, self.agreement)
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

    def greet(self, recipient: str, frame: Parcel) -> None:
        """Send this small frame first to every incarnation of a peer, present and future."""
        peer = self._peer(recipient)
        with self._changed:
            self._greetings[recipient] = frame
            if peer.generation:
                self._put(peer.pack_chunk(frame, 0), peer)

    def send(self, recipient: str, frame: Parcel, *, generation: int | None = None) -> None:
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
    ) -> Parcel:
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
            self._count(name, -frame_cost(frame))
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


def _closed_error(peer: str | None, closed: Close | None) -> IsonomyError:
    if closed is None or closed.code == DONE:
        return SessionClosed(f"{peer or 'everybody'} ended the session: done", done=True)
    found = error_from_wire(closed.code, closed.text)
    return SessionClosed(f"{peer} ended the session: {type(found).__name__}: {found}")
