"""What a ledger says about one plan, up to one head: all that a report is rebuilt from.

Reading replays and verifies the whole ledger; nothing is locked or changed, so a report can be
written while the daemon serves.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from isonomy.common.agreements.plan import Plan
from isonomy.common.base.errors import ConfigError, VerificationError
from isonomy.common.ledger.ledger import read_ledger
from isonomy.common.ledger.records import DebitRecord, Inspection, Note, Sealed
from isonomy.common.ledger.state import LedgerState
from isonomy.common.privacy.queries import asks_alone


@dataclass(frozen=True)
class PlanHistory:
    """One plan in the ledger, up to `head`. Inspections stand with their last step."""

    ledger_id: bytes
    head: bytes
    records: int
    reserved_units: int
    spent_units: int
    answers: tuple[DebitRecord, ...]
    inspections: tuple[Inspection, ...]
    notes: tuple[tuple[int, Note], ...]
    approved_by: tuple[str, ...]  # the officers
    spent: NDArray[np.int64] = field(  # by person, in the plan's order
        default_factory=lambda: np.zeros(0, np.int64), compare=False, repr=False
    )

    def of_company(self, plan: Plan, name: str) -> PlanHistory:
        """What of it concerns one of several companies: what it asked alone, and what all asked."""
        place = [card.name for card in plan.companies].index(plan.card(name).name)
        start = sum(share.people for share in plan.shares[:place])
        people = slice(start, start + plan.shares[place].people)

        def concerns(each: DebitRecord | Inspection) -> bool:
            return asks_alone(each.query_id, plan.hash) in (None, place)

        return replace(
            self,
            answers=tuple(filter(concerns, self.answers)),
            inspections=tuple(filter(concerns, self.inspections)),
            spent=self.spent[people],
            spent_units=int(self.spent[people].max()),
        )


def plan_history(path: Path, plan: bytes, *, until: bytes | None = None) -> PlanHistory:
    """Verify a ledger and return what it says about a plan, up to the record `until`.

    LedgerTampered if the chain is broken, VerificationError if `until` is not in it.
    """
    notes: list[tuple[int, Note]] = []
    history: PlanHistory | None = None

    def take(sealed: Sealed, state: LedgerState) -> None:
        nonlocal history
        if isinstance(sealed.body, Note):
            notes.append((sealed.time, sealed.body))
        if sealed.hash == until:  # later records are replayed, but no part of this history
            history = _history(path, plan, state, notes)

    state = read_ledger(path, take)
    if until is None:
        return _history(path, plan, state, notes)
    if history is None:
        raise VerificationError(
            f"the ledger {path} does not hold the head {until.hex()[:16]}…: it is another ledger, "
            "or it was rolled back"
        )
    return history


def _history(
    path: Path, plan: bytes, state: LedgerState, notes: list[tuple[int, Note]]
) -> PlanHistory:
    """Return a plan's history from the ledger's state; ConfigError if it has no such plan."""
    terms = next((each for each in state.plans() if each.plan == plan), None)
    if terms is None:
        raise ConfigError(
            f"the ledger {path} knows no plan {plan.hex()[:16]}…; nothing was reserved for it"
        )
    return PlanHistory(
        ledger_id=state.ledger_id,
        head=state.head,
        records=state.records,
        reserved_units=terms.units,
        spent_units=terms.spent_units,
        answers=tuple(state.debits_of(plan)),
        inspections=state.inspections(plan),
        notes=tuple(notes),
        approved_by=_officers(state, plan),
        spent=state.spent_by_person(plan),
    )


def _officers(state: LedgerState, plan: bytes) -> tuple[str, ...]:
    event = state.approval(plan)
    names = (event.get(name) for name in ("officer", "second_officer"))
    return tuple(str(name) for name in names if name)
