"""What an open ledger can be asked. Nothing here writes; ledger.Ledger adds that."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from isonomy.common.ledger.file import opening_of
from isonomy.common.ledger.records import DebitRecord, Inspection
from isonomy.common.ledger.state import LedgerState, PlanSummary


class LedgerQuestions(ABC):
    """Answers from the state that was read and written so far, one caller at a time."""

    _mutex: threading.RLock

    @abstractmethod
    def _ready(self) -> LedgerState:
        """The state; raises if the ledger is closed or cannot be trusted any more."""

    @property
    def head(self) -> bytes:
        return self._ready().head

    @property
    def cap_units(self) -> int:
        return opening_of(self._ready()).cap_units

    @property
    def delta(self) -> float:
        return float(opening_of(self._ready()).delta)

    @property
    def records(self) -> int:
        return self._ready().records

    @property
    def ledger_id(self) -> bytes:
        return opening_of(self._ready()).ledger_id

    @property
    def last_time(self) -> int:
        """When the last record was written, in Unix seconds."""
        return self._ready().time

    def members(self, root: bytes) -> int:
        """Count the people of a root."""
        with self._mutex:
            return self._ready().members(root)

    def find(self, query_id: str) -> DebitRecord | None:
        """Return what was answered under that query id, if anything was."""
        with self._mutex:
            return self._ready().find(query_id)

    def debits_of(self, plan: bytes) -> list[DebitRecord]:
        """List a plan's debits in the order in which they were written."""
        with self._mutex:
            return self._ready().debits_of(plan)

    def inspections(self, plan: bytes) -> tuple[Inspection, ...]:
        """List a plan's inspected requests by time of demand, each with its last step."""
        with self._mutex:
            return self._ready().inspections(plan)

    def check(
        self, plan: bytes, root: bytes, units: int, among: NDArray[np.integer] | None = None
    ) -> None:
        """Raise BudgetExceeded exactly if a new debit (of some people of `root`) would."""
        with self._mutex:
            self._ready().check_debit(plan, root, units, among)

    def spent_units(self, plan: bytes) -> int:
        """Return the most that a person spent under a plan (individual: its reservation)."""
        with self._mutex:
            return self._ready().spent_units(plan)

    def answers(self, plan: bytes) -> int:
        """Count the queries that were answered under a plan."""
        with self._mutex:
            return self._ready().answers(plan)

    def remaining_units(self, plan: bytes, root: bytes) -> int:
        """Return the largest debit that everybody of `root` can bear (0: closed, individual)."""
        with self._mutex:
            return self._ready().remaining_units(plan, root)

    def person_units(self, member: bytes) -> int:
        """Return a person's debits over all plans; individual plans count as reserved."""
        with self._mutex:
            return self._ready().person_units(member)

    def held_units(self, members: Sequence[bytes]) -> int:
        """Return the most that one of these people has set aside or spent, over all plans."""
        with self._mutex:
            return self._ready().held_units(members)

    def plans(self) -> tuple[PlanSummary, ...]:
        """List all plans in the order of their reservation."""
        with self._mutex:
            return self._ready().plans()
