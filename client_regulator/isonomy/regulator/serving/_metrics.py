"""What the daemon counts: sessions, answers, refusals, bytes, seconds, and budgets as a share.

Labels are words of the protocol. Nothing here is about a person, a group or a single plan: every
user of this machine may read it, the Flower node's too.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from isonomy.common.base.metrics import Meters
from isonomy.common.ledger.ledger import Ledger
from isonomy.common.session.connection import Session

MOST_OPEN = 1000


class RegulatorMetrics(Meters):
    """The numbers of `isonomy-regulator serve`, in a registry of their own."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger, self._received = ledger, dict[str, float]()
        super().__init__()
        self._sessions = self.gauge("isonomy_regulator_sessions", "Sessions that are on.")
        self._ended = self.counter(
            "isonomy_regulator_sessions_ended", "Sessions that ended.", "outcome"
        )
        self._answers = self.counter("isonomy_regulator_answers", "Questions that were answered.")
        self._refusals = self.counter(
            "isonomy_regulator_refusals", "Questions that were refused, by kind.", "kind"
        )
        self._seconds = self.seconds(
            "isonomy_regulator_answer_seconds",
            "From columns that left, or rows that came in, to the answer.",
        )
        self._bytes = self.counter(
            "isonomy_regulator_bytes", "Bytes of messages sent and received."
        )
        left = self.gauge(
            "isonomy_regulator_budget_left_ratio",
            "Least part of its budget that an open plan has left; 1 without open plans.",
        )
        left.set_function(self._left)
        for outcome in ("done", "broken off"):
            self._ended.labels(outcome)

    @contextmanager
    def session(self, session: Session) -> Iterator[None]:
        """Count a session and its bytes, however it ends."""
        outcome = "broken off"
        self._sessions.inc()
        try:
            yield
            outcome = "done"
        finally:
            self._sessions.dec()
            self._ended.labels(outcome).inc()
            self._bytes.inc(session.bytes)

    def event(self, kind: str, query_id: str, reason: str) -> None:
        """Count what came from a company and what left; a refusal's reason begins with its kind."""
        if kind in ("columns", "rows"):
            if len(self._received) >= MOST_OPEN:  # asked about, and never asked
                self._received.clear()
            self._received[query_id] = time.monotonic()
        elif kind == "answer":
            self._answers.inc()
            began = self._received.pop(query_id, None)
            if began is not None:
                self._seconds.observe(time.monotonic() - began)
        elif kind == "refusal":
            self._refusals.labels(reason.partition(":")[0]).inc()
            self._received.pop(query_id, None)

    def _left(self) -> float:
        """Leave out plans with an individual filter: what they spent depends on people's rows."""
        plans = [p for p in self._ledger.plans() if p.is_open and p.units and not p.individual]
        return min((1 - plan.spent_units / plan.units for plan in plans), default=1.0)
