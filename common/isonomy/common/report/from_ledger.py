"""What a ledger says about one plan, up to one head: all that a report is rebuilt from.

Reading replays and verifies the whole ledger; nothing is locked or changed, so a report can be
written while the daemon serves.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from isonomy.common.base.errors import ConfigError, VerificationError
from isonomy.common.ledger.file import opening_of, read_ledger, storage_errors
from isonomy.common.ledger.records import Debit, Inspection, Note, Sealed
from isonomy.common.ledger.state import LedgerState


@dataclass(frozen=True)
class Answered:
    """A debit with its place in the chain."""

    sequence: int
    time: int
    debit: Debit


@dataclass(frozen=True)
class PlanHistory:
    """One plan in the ledger, up to `head`."""

    ledger_id: bytes
    head: bytes
    records: int
    delta: float
    reserved_units: int
    spent_units: int
    answers: tuple[Answered, ...]
    inspections: tuple[Inspection, ...]
    notes: tuple[tuple[int, Note], ...]


class _Reader:
    """Follows a replay and keeps what concerns the plan; stands still after `until`."""

    def __init__(self, plan: bytes, until: bytes | None) -> None:
        self._plan, self._until = plan, until
        self.reached = False
        self.head, self.records, self.reserved, self.spent = b"", 0, -1, 0
        self.answers: list[Answered] = []
        self.inspections: dict[tuple[str, bytes], Inspection] = {}
        self.notes: list[tuple[int, Note]] = []

    def __call__(self, sealed: Sealed, state: LedgerState) -> None:
        if self.reached:
            return
        body = sealed.body
        if isinstance(body, Debit) and body.plan == self._plan:
            self.answers.append(Answered(sealed.seq, sealed.time, body))
        elif isinstance(body, Inspection) and body.plan == self._plan:
            self.inspections[body.query_id, body.request_hash] = body  # its last step counts
        elif isinstance(body, Note):
            self.notes.append((sealed.time, body))
        self.head, self.records = sealed.hash, state.records
        self.reached = sealed.hash == self._until
        if self.reached:
            self.settle(state)

    def settle(self, state: LedgerState) -> None:
        """Take the plan's standing over; right after the last record that counts."""
        for own in state.plans():
            if own.plan == self._plan:
                self.reserved, self.spent = own.units, own.spent_units


def plan_history(path: Path, plan: bytes, *, until: bytes | None = None) -> PlanHistory:
    """Verify a ledger and return what it says about a plan, up to the record `until`.

    LedgerTampered if the chain is broken, VerificationError if `until` is not in it.
    """
    reader = _Reader(plan, until)
    with storage_errors(path), path.open("rb") as file:
        found = read_ledger(path, file, on_record=reader)
    if until is None:
        reader.settle(found.state)
    elif not reader.reached:
        raise VerificationError(
            f"the ledger {path} does not hold the head {until.hex()[:16]}…: it is another ledger, "
            "or it was rolled back"
        )
    if reader.reserved < 0:
        raise ConfigError(
            f"the ledger {path} knows no plan {plan.hex()[:16]}…; nothing was reserved for it"
        )
    opening = opening_of(found.state)
    return PlanHistory(
        ledger_id=opening.ledger_id,
        head=reader.head,
        records=reader.records,
        delta=float(opening.delta),
        reserved_units=reader.reserved,
        spent_units=reader.spent,
        answers=tuple(reader.answers),
        inspections=tuple(reader.inspections.values()),
        notes=tuple(reader.notes),
    )
