"""`join`: a company's script or notebook takes part in a session and gets a remote oracle.

    from isonomy.company import join

    with join("plan.json", home="company") as oracle:
        FairClassifier(model, oracle=oracle).fit(X, y, ids=ids)

`join` listens for the ticket that the server sends through this company's Flower node, opens the
session and returns its oracle. Rows, seeds and requests are stored in the home folder before
anything leaves. A script that died is started again as it was: it gets the same answers to the
questions it asked before, at no cost.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from isonomy.common.agreements.agreement import Agreement
from isonomy.common.agreements.plan import Plan
from isonomy.common.base.errors import (
    CertificateError,
    ConfigError,
    IsonomyError,
    PartyTimeout,
    SessionClosed,
    TokenRefused,
    TransportError,
    wire_code,
    wire_text,
)
from isonomy.common.base.logs import logger
from isonomy.common.base.progress import Wait, show_waits, waiting
from isonomy.common.node.attendance import Attendance
from isonomy.common.node.bridge import Message
from isonomy.common.node.bridge_server import BridgeServer, Callers
from isonomy.common.pooled.channel import pooled_channel
from isonomy.common.remote.exchanges import remote_channel
from isonomy.common.session.connection import Session
from isonomy.common.session.stream import Timing
from isonomy.common.session.tickets import Ticket
from isonomy.common.sums.channel import Channel, Wrapper
from isonomy.common.sums.oracle import Budget, GroupOracle
from isonomy.common.sums.question import Prepared, Released
from isonomy.company.federation.home import Home
from isonomy.company.federation.runs import RunFile


@dataclass(frozen=True)
class Exchange:
    """What a progress display shows after each answer."""

    number: int
    purpose: str
    seconds: float
    bytes: int
    budget: Budget


class Attendee:
    """This process at its local socket: waits for a ticket, holds the session, reports its end."""

    def __init__(self, plan: Agreement, home: Home, timing: Timing) -> None:
        self._plan, self._home, self._keys, self._timing = plan, home, home.keys(), timing
        self._opened, self._ended = threading.Event(), threading.Event()
        self._session: Session | None = None
        self._failure: Exception | None = None
        self._bridge: BridgeServer | None = None
        self._log = logger("company", least="warning").bind(plan=plan.hash.hex()[:16])
        self._file: RunFile | None = None
        self._over = threading.Event()  # of the session that is on
        self._trouble, self._since = "", time.time()
        self.exchanges = 0

    def listen(self, other_socket: Path | str | None, group: str | None) -> None:
        """Open the local socket: the home's, for the group that it is open to, unless named."""
        self._home.tls.read()  # wrong files are refused now and not in a session
        socket = Path(other_socket or self._home.socket)
        callers = Callers(group or (None if other_socket else self._home.group))
        socket.parent.mkdir(parents=True, exist_ok=True)
        handler = Attendance(self._open, self._attend).handle
        self._bridge = BridgeServer(socket, handler, callers=callers, on_error=self._note_trouble)
        self._bridge.start()
        plan = self._plan
        self._file = RunFile.begin(self._home.runs, plan.hash.hex(), plan.name, plan.word)
        self._since = time.time()
        self._log.info("waiting for a ticket")

    def begin(self, wait_s: float, *, visible: bool = True) -> Session:
        """Wait for a session with the regulator in it; raises what keeps it from coming.

        A run that ended before, as one without the officer's approval does, is not the last one:
        the next run brings a new ticket.
        """
        deadline = time.monotonic() + wait_s
        while True:
            session = self.session(max(deadline - time.monotonic(), 0.001), visible=visible)
            try:
                with waiting(self.look, visible=visible):
                    session.generation(self._plan.regulator.name)
                return session
            except SessionClosed as error:
                if time.monotonic() > deadline:
                    raise
                self._drop(session, error)

    def _drop(self, session: Session, error: SessionClosed) -> None:
        """Leave a session that never began, and wait for the next ticket."""
        self._note_trouble(error)
        self._session, self._failure = None, error
        self._opened.clear()
        session.close()
        self._over.set()

    def session(self, wait_s: float, *, visible: bool = True) -> Session:
        """Wait for the company's end of the session; raises what keeps it from coming."""
        with waiting(self.look, visible=visible and wait_s > 0):
            opened = self._opened.wait(wait_s)
        if not opened:
            raise self._failure or PartyTimeout(
                f"no ticket came within {wait_s:g} s. Is the Flower node up, does it know this "
                "socket, and was the run started (`isonomy-server run`, or `relay` by hand)?"
            )
        if self._session is None:
            raise self._failure or SessionClosed("the session was closed on this side")
        return self._session

    def look(self) -> Wait | None:
        """Return whom this process waits for, since when and why; None if for nobody."""
        why = self._missing()
        stage = "waiting" if why else "in session"
        if self._file is None or self._ended.is_set():
            return None
        size, megabits = (s.bytes, s.megabits) if (s := self._session) else (0, 0.0)
        far = {"exchanges": self.exchanges, "size": size}
        self._file.note(stage, why, **far, megabits=megabits)
        return Wait(f"Waiting for {why}", self._file.run.since) if why else None

    def _missing(self) -> str:
        """Return who is not there, and what is known about why."""
        if self._session is None:
            trouble = self._trouble or (
                "no ticket came from this company's Flower node; it comes once the nodes of all "
                "parties are connected"
            )
            return f"the server's run, `isonomy-server run` ({trouble})"
        present = self._session.present()
        if present is None:
            return "the server (its relay is not reached; the connection is tried again)"
        everybody = {*(card.name for card in self._plan.companies), self._plan.regulator.name}
        away = sorted(everybody - present - {self._keys.name})
        return f"{', '.join(away)} (not connected to the session)" if away else ""

    def _note_trouble(self, error: Exception) -> None:
        """Keep why a call on the socket came to nothing, to say it while waiting.

        Who only looks whether somebody listens hangs up at once: that is no trouble.
        """
        if isinstance(error, IsonomyError) and type(error) is not TransportError:
            self._trouble = f"the last try failed: {error}"

    def end(self, error: Exception | None = None) -> None:
        """End the session, tell the others why, free the socket. Harmless when repeated."""
        if self._session is not None and not self._ended.is_set():
            reason = "done" if error is None else type(error).__name__
            self._log.info("session closed", exchanges=self.exchanges, reason=reason)
            if error is None:
                self._session.close()
            else:
                self._session.close(wire_code(error), wire_text(error))
        if self._file is not None and not self._ended.is_set():
            self.look()  # the last numbers
            self._file.end(error)
        self._failure = self._failure or error
        self._ended.set()
        self._over.set()
        if self._bridge is not None:
            self._bridge.finish()
            self._bridge = None

    def _open(self, ticket: Ticket) -> Session:
        self._home.require(ticket.plan_hash)
        if ticket.plan_hash != self._plan.hash:
            raise ConfigError("the ticket is for another approved plan than the one joined here")
        state = self._home.state(self._plan)
        tls, keys = self._home.tls, self._keys
        return Session(ticket, tls, keys, self._plan, state, timing=self._timing)

    def _attend(self, session: Session) -> Message:
        """Hold one session until it ends; returns what the Flower node reports to the server."""
        try:
            session.start()
        except (TokenRefused, CertificateError, PartyTimeout, SessionClosed) as error:
            # Code that came with a run may hand over any ticket, for any address. A false one must
            # not end the wait for a good one, nor one of a run that has ended; `session` raises the
            # reason if none comes.
            self._log.warning("ticket refused", reason=type(error).__name__)
            self._failure = error
            self._note_trouble(error)
            raise
        except Exception as error:
            self._log.warning("session failed", reason=type(error).__name__)
            self._failure = error
            self._opened.set()
            raise
        self._log.info("session opened")
        self._failure = None
        over = self._over = threading.Event()
        self._session = session
        self._opened.set()
        if self._ended.is_set():
            over.set()
        over.wait()
        if self._failure is not None:
            raise self._failure
        return {"exchanges": self.exchanges, "reconnects": max(session.reconnects, 0)}


class Joined(Wrapper):
    """A channel through a session: tells about its progress, and ends it."""

    def __init__(
        self, inner: Channel, attendee: Attendee, on_exchange: Callable[[Exchange], None] | None
    ) -> None:
        super().__init__(inner)
        self._attendee, self._on_exchange = attendee, on_exchange
        self._began = time.time()
        self._hide: Callable[[], None] = lambda: None
        self._spent = np.zeros(len(inner.terms.cohort), dtype=np.int64)

    def show(self) -> None:
        """Show who is missing; at a terminal also how far the budget is used, until the end."""
        self._hide = show_waits(self._look)

    def _look(self) -> Wait | None:
        wait = self._attendee.look()
        if wait is not None or not sys.stderr.isatty():
            return wait
        spent, cap = int(self._spent.max(initial=0)), self.terms.cap_units
        detail = f"{self._attendee.exchanges} answers; thousandths of the plan's budget:"
        return Wait("In session", self._began, detail, 1000 * spent // cap, 1000)

    def exchange(self, prepared: Prepared) -> Released:
        """Ask, and tell the progress display about it."""
        session = self._attendee.session(0.0)
        began, before = time.monotonic(), session.bytes
        released = self.inner.exchange(prepared)
        self._attendee.exchanges += 1
        self._spent[prepared.people] += released.receipt.units
        self._attendee.look()  # for `isonomy-company status`
        if self._on_exchange is not None:
            terms = self.terms
            self._on_exchange(
                Exchange(
                    number=self._attendee.exchanges,
                    purpose=prepared.query.purpose,
                    seconds=time.monotonic() - began,
                    bytes=session.bytes - before,
                    budget=Budget(terms.cap_units, int(self._spent.max()), terms.delta),
                )
            )
        return released

    def close(self, error: BaseException | None = None) -> None:
        """End the session; the others are told the error, if there is one."""
        if error is not None and not isinstance(error, Exception):
            error = SessionClosed("the company's script was interrupted")
        self._hide()
        self._attendee.end(error)
        self.inner.close(error)


def join(
    plan: Plan | Path | str,
    *,
    home: Path | str,
    socket: Path | str | None = None,
    group: str | None = None,
    wait_s: float = 3600.0,
    absence_s: float = 600.0,
    on_exchange: Callable[[Exchange], None] | None = None,
    progress: bool = True,
) -> GroupOracle:
    """Take part in the next session of an approved plan; returns its oracle once it is open.

    | argument | meaning |
    |---|---|
    | plan | the plan, or its file; its hash must be approved in `home` |
    | home | the company's home folder (keys, tls, plans, openings) |
    | socket | where this company's Flower node calls; None: home/run/company.sock |
    | group | a group that the Flower node's user shares; a home from a kit knows it |
    | wait_s | how long to wait for the session |
    | absence_s | how long regulator or relay may stay away before the session is given up |
    | on_exchange | called after each answer, for a progress display of your own |
    | progress | say on stderr who is missing; at a terminal, show how far the budget is used |
    """
    company = Home(Path(home).resolve())
    today = datetime.now(UTC).date()
    if not isinstance(plan, Plan):
        plan = Plan.load(Path(plan))
    approved, cohort = company.approvals.require(plan.hash)
    approved.check_valid()
    company.delete_openings(today, keep=approved.hash)
    attendee = Attendee(approved, company, Timing(absence_s=absence_s))
    try:
        attendee.listen(socket, group)
        session = attendee.begin(wait_s, visible=progress)
        openings = company.openings(approved)
        if len(approved.companies) == 1:
            keys = company.key_store(approved, session.keys)
            channel = remote_channel(session, cohort, openings=openings, keys=keys)
        else:
            channel = pooled_channel(session, cohort, openings=openings)
    except BaseException as error:
        attendee.end(error if isinstance(error, Exception) else SessionClosed("interrupted"))
        raise
    joined = Joined(channel, attendee, on_exchange)
    if progress:
        joined.show()
    return GroupOracle(joined)
