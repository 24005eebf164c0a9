"""Sessions: a ticket is opened only for an approved agreement, then served to its end.

Everything that goes back to the Flower node next door, which runs foreign code, is how many
queries or rounds were answered; after an alignment not even that.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from isonomy.common.agreements.agreement import Agreement
from isonomy.common.agreements.few_shot_plan import FewShotPlan
from isonomy.common.alignment.alignment import AlignmentPlan
from isonomy.common.base.errors import ConfigError, SessionClosed
from isonomy.common.few_shot.rounds.serving import serve_rounds
from isonomy.common.node.bridge import Message
from isonomy.common.pooled.half import PooledHalf
from isonomy.common.pooled.serving import serve_pooled
from isonomy.common.remote.exchanges import serve_queries
from isonomy.common.session.connection import Session
from isonomy.common.session.stream import Timing
from isonomy.common.session.tickets import Ticket
from isonomy.regulator.serving._few_shot import FewShotDesks
from isonomy.regulator.serving._metrics import RegulatorMetrics
from isonomy.regulator.serving._office import Office
from isonomy.regulator.serving._plan_desks import PlanDesks
from isonomy.regulator.serving.aligning import alignments, attend

SHOWN_EVENTS, MAX_REASON_CHARS = 40, 300  # of a session, for the officer's view of it
REJOIN_S = 600.0  # how long a session waits for a party that went away

# What the regulator's loops report, as the log names it.
_EVENTS = {
    "columns": "query received",
    "keys": "keys transferred",
    "demand": "opening demanded",
    "answer": "query answered",
    "refusal": "query refused",
}


@dataclass
class _Listing:
    """One open session: since when, which answers, how many refusals, and what happened last."""

    session: Session
    since: int = field(default_factory=lambda: int(time.time()))
    answered: set[str] = field(default_factory=set)
    refused: int = 0
    events: deque[Message] = field(default_factory=lambda: deque(maxlen=SHOWN_EVENTS))

    def row(self, plan: bytes) -> Message:
        present = self.session.present()
        return {
            "plan": plan.hex(),
            "since": self.since,
            "answered": len(self.answered),
            "refused": self.refused,
            "connected": present is not None,
            "present": sorted(present or ()),
        }


class SessionBoard:
    """The sessions that are open, for the officer: who is there, what was asked, and the stop.

    One thread per session writes here while another one reads, so every access takes the lock.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[bytes, _Listing] = {}

    @contextlib.contextmanager
    def entry(self, plan_hash: bytes, session: Session) -> Iterator[None]:
        """List a session while the block lasts."""
        with self._lock:
            self._open[plan_hash] = _Listing(session)
        try:
            yield
        finally:
            with self._lock:
                del self._open[plan_hash]

    def event(self, plan_hash: bytes, kind: str, query_id: str, reason: str = "") -> int:
        """Note what happened to a query or round. Returns how many are answered in this session."""
        with self._lock:
            listing = self._open[plan_hash]
            event: Message = {"time": int(time.time()), "kind": kind, "query": query_id}
            listing.events.append({**event, "reason": reason[:MAX_REASON_CHARS]})
            if kind == "answer":
                listing.answered.add(query_id)  # several companies share one query
            listing.refused += kind == "refusal"
            return len(listing.answered)

    def rows(self) -> list[Message]:
        """Return the open sessions as `status` shows them."""
        with self._lock:
            return [listing.row(plan) for plan, listing in self._open.items()]

    def details(self, plan_hash: bytes) -> Message:
        """Return one open session with its last events; nothing if the plan has none."""
        with self._lock:
            listing = self._open.get(plan_hash)
            if listing is None:
                return {}
            return {**listing.row(plan_hash), "events": list(listing.events)}

    def stop(self, plan_hash: bytes) -> None:
        """End a session by the officer's will; the company is told. Its plan stays approved."""
        with self._lock:
            listing = self._open.get(plan_hash)
        if listing is None:
            raise ConfigError("this plan has no open session; there is nothing to stop")
        listing.session.fail(SessionClosed("the regulator's officer stopped this session"))


class Sessions:
    """Opens and serves the sessions that tickets ask for."""

    def __init__(self, office: Office, plans: PlanDesks, few_shot: FewShotDesks) -> None:
        self._office, self._config = office, office.config
        self._plans, self._few_shot = plans, few_shot
        self.board, self.metrics = SessionBoard(), RegulatorMetrics(office.ledger)

    def open(self, ticket: Ticket) -> Session:
        """Open the session of a ticket, if the officer approved its plan and it has not ended."""
        agreement = self._agreement(ticket.plan_hash)
        agreement.check_valid()
        return Session(
            ticket,
            self._config.tls,
            self._office.keys,
            agreement,
            self._config.state_folder / agreement.hash.hex(),
            timing=Timing(absence_s=REJOIN_S),
            log=self._office.log.bind(plan=agreement.hash.hex()[:16], session=secrets.token_hex(4)),
        )

    def serve(self, session: Session) -> Message:
        """Serve a session to its end. Returns what the Flower node may know of it."""
        with self.metrics.session(session):
            return self._serve(session)

    def _serve(self, session: Session) -> Message:
        agreement, log = session.agreement, session.log
        try:
            if isinstance(agreement, AlignmentPlan):
                log.info("session opened", kind="alignment")
                attend(self._config, session, agreement, self._plans.people())
                reply: Message = {}
            elif isinstance(agreement, FewShotPlan):
                reply = {"rounds": self._serve_rounds(session, agreement, log)}
            else:
                reply = {"answered": self._serve_queries(session, log)}
        except Exception as error:
            log.warning("session broken off", error=type(error).__name__)
            raise
        return {**reply, "reconnects": max(session.reconnects, 0)} if reply else {}

    def _agreement(self, agreement_hash: bytes) -> Agreement:
        """Return the approved plan, alignment or few-shot plan of that hash."""
        training = self._few_shot.plan(agreement_hash)
        if training is not None:
            return training
        store = alignments(self._config)
        if store.approved(agreement_hash):
            return store.require(agreement_hash)
        return self._plans.approvals.require(agreement_hash)[0]

    def _serve_queries(self, session: Session, log: Any) -> int:
        """Serve the queries of a plan. Returns how many were answered."""
        # The last count of the board, because the session is no longer listed at the end.
        plan, answered = session.plan.hash, 0
        self._office.write_witness()  # or nothing is answered
        half = self._plans.half(plan)  # before the session is listed: the plan may be refused

        def on_event(kind: str, query_id: str, reason: str = "") -> None:
            nonlocal answered
            self.metrics.event(kind, query_id, reason)
            if kind == "rows":
                return
            answered = self.board.event(plan, kind, query_id, reason)
            if kind == "answer":
                self._office.write_witness_soon()
            why = {"reason": reason} if reason else {}
            log.info(_EVENTS.get(kind, kind), query=query_id, **why)

        with self._listed(plan, session), session:
            log.info("session opened", kind="plan")
            if isinstance(half, PooledHalf):
                serve_pooled(session, half, on_event=on_event)
            else:
                serve_queries(session, half, on_event=on_event)
        return answered

    def _serve_rounds(self, session: Session, plan: FewShotPlan, log: Any) -> int:
        """Serve the rounds of a few-shot plan. Returns how many were answered."""
        answered = 0

        def on_round(what: str, number: int, refusal: str) -> None:
            nonlocal answered
            kind = "refusal" if refusal else "answer"
            name = str(number) if what == "round" else what
            count = self.board.event(plan.hash, kind, name, refusal)
            answered = count if what == "round" else answered
            self.metrics.event(kind, name, refusal)
            if refusal:
                log.error(f"{what} refused", round=number, reason=refusal)
                return
            self._office.write_witness_soon()
            log.info(f"{what} answered", round=number)

        self._office.write_witness()
        desk = self._few_shot.desk(plan)
        with self._listed(plan.hash, session), session:
            log.info("session opened", kind="few-shot")
            serve_rounds(session, desk, on_round=on_round)
        return answered

    @contextlib.contextmanager
    def _listed(self, plan_hash: bytes, session: Session) -> Iterator[None]:
        try:
            with self.board.entry(plan_hash, session):
                yield
        finally:
            self._office.note_progress()
