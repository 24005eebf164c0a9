"""Sessions: a ticket is opened only for an approved agreement, then served to its end.

Everything that goes back to the Flower node next door, which runs foreign code, is how many
queries or rounds were answered; after an alignment not even that.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Iterator
from typing import Any

from isonomy.common.agreements.agreement import Agreement
from isonomy.common.agreements.few_shot_plan import FewShotPlan
from isonomy.common.alignment.alignment import AlignmentPlan
from isonomy.common.few_shot.rounds.serving import serve_rounds
from isonomy.common.node.bridge import Message
from isonomy.common.pooled.half import PooledHalf
from isonomy.common.pooled.serving import serve_pooled
from isonomy.common.remote.exchanges import serve_queries
from isonomy.common.session.connection import Session
from isonomy.common.session.stream import Timing
from isonomy.common.session.tickets import Ticket
from isonomy.regulator.serving._few_shot import FewShotDesks
from isonomy.regulator.serving._office import Office
from isonomy.regulator.serving._plan_desks import PlanDesks
from isonomy.regulator.serving.aligning import alignments, attend

REJOIN_S = 600.0  # how long a session waits for a party that went away

# What the regulator's loops report, as the log names it.
_EVENTS = {
    "columns": "query received",
    "keys": "keys transferred",
    "demand": "opening demanded",
    "answer": "query answered",
    "refusal": "query refused",
}


class SessionBoard:
    """The sessions that are open, for the officer's `status`.

    One thread per session writes here while another one reads, so every access takes the lock.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[bytes, tuple[int, set[str]]] = {}  # since when, and which answers

    @contextlib.contextmanager
    def entry(self, plan_hash: bytes) -> Iterator[None]:
        """List a session while the block lasts."""
        with self._lock:
            self._open[plan_hash] = int(time.time()), set()
        try:
            yield
        finally:
            with self._lock:
                del self._open[plan_hash]

    def count(self, plan_hash: bytes, query_id: str) -> int:
        """Note an answer. Returns how many there are in this session."""
        with self._lock:
            answered = self._open[plan_hash][1]
            answered.add(query_id)  # several companies share one query
            return len(answered)

    def rows(self) -> list[Message]:
        """Return the open sessions as `status` shows them."""
        with self._lock:
            return [
                {"plan": plan.hex(), "since": since, "answered": len(answered)}
                for plan, (since, answered) in self._open.items()
            ]


class Sessions:
    """Opens and serves the sessions that tickets ask for."""

    def __init__(self, office: Office, plans: PlanDesks, few_shot: FewShotDesks) -> None:
        self._office, self._config = office, office.config
        self._plans, self._few_shot = plans, few_shot
        self.board = SessionBoard()

    def open(self, ticket: Ticket) -> Session:
        """Open the session of a ticket; PlanNotApproved unless the officer approved its plan."""
        agreement = self._agreement(ticket.plan_hash)
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
        half = self._plans.half(plan)  # before the session is listed: the plan may be refused

        def on_event(kind: str, query_id: str, reason: str = "") -> None:
            nonlocal answered
            if kind == "answer":
                answered = self.board.count(plan, query_id)
                self._office.write_witness_soon()
            why = {"reason": reason} if reason else {}
            log.info(_EVENTS.get(kind, kind), query=query_id, **why)

        with self._listed(plan), session:
            log.info("session opened", kind="plan")
            if isinstance(half, PooledHalf):
                serve_pooled(session, half, on_event=on_event)
            else:
                serve_queries(session, half, on_event=on_event)
        return answered

    def _serve_rounds(self, session: Session, plan: FewShotPlan, log: Any) -> int:
        """Serve the rounds of a few-shot plan. Returns how many were answered."""
        answered = 0

        def on_round(number: int, refusal: str) -> None:
            nonlocal answered
            if refusal:
                log.error("round refused", round=number, reason=refusal)
                return
            answered = self.board.count(plan.hash, str(number))
            self._office.write_witness_soon()
            log.info("round answered", round=number)

        desk = self._few_shot.desk(plan)
        with self._listed(plan.hash), session:
            log.info("session opened", kind="few-shot")
            serve_rounds(session, desk, on_round=on_round)
        return answered

    @contextlib.contextmanager
    def _listed(self, plan_hash: bytes) -> Iterator[None]:
        try:
            with self.board.entry(plan_hash):
                yield
        finally:
            self._office.write_witness()
