"""The ledger as a story: every record that a reader wants to see, and what remained after it.

Reading recomputes the chain and replays the rules, as verifying does; nothing is shown of a ledger
that does not hold. Needs no key and names nobody.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from isonomy.common.ledger.ledger import read_ledger
from isonomy.common.ledger.records import (
    ClosePlan,
    Debit,
    Inspection,
    Note,
    Open,
    Reserve,
    Sealed,
)
from isonomy.common.ledger.state import LedgerState


@dataclass(frozen=True)
class LedgerEntry:
    """One line of the story. Units are of μ²; `spent` is the most of a person under the plan."""

    seq: int
    time: int
    kind: str  # open, reserve, debit, close, inspection, note
    plan: bytes | None = None
    query_id: str = ""
    people: int = 0
    units: int = 0
    spent_units: int = 0
    left_units: int = 0
    event: Mapping[str, str | int] = field(default_factory=dict)


def read_entries(path: Path) -> list[LedgerEntry]:
    """Read all entries, oldest first; LedgerTampered as `verify_ledger` raises it."""
    entries: list[LedgerEntry | None] = []
    read_ledger(path, lambda sealed, state: entries.append(_entry(sealed, state)))
    return [entry for entry in entries if entry is not None]


def _entry(sealed: Sealed, state: LedgerState) -> LedgerEntry | None:
    """What a reader sees of a record; lists of hashes and keys are nothing to see."""
    at = (sealed.seq, sealed.time, sealed.body.TYPE)
    match sealed.body:
        case Open(_, cap_units, delta):
            return LedgerEntry(*at, units=cap_units, left_units=cap_units, event={"delta": delta})
        case Reserve(plan, root, units):
            remaining = state.remaining_units(plan, root)
            return LedgerEntry(*at, plan, "", state.members(root), units, 0, remaining)
        case ClosePlan(plan, _, officer):
            spent, in_full = state.spent_units(plan), int(state.counts_in_full(plan))
            event = {"in_full": in_full, **_by(officer)}
            return LedgerEntry(*at, plan, spent_units=spent, event=event)
        case Debit() as debit:
            return LedgerEntry(
                *at,
                plan=debit.plan,
                query_id=debit.query_id,
                people=state.members(debit.root),
                units=debit.units,
                spent_units=state.spent_units(debit.plan),
                left_units=state.remaining_units(debit.plan, debit.root),
                event=debit.event,
            )
        case Inspection(plan, query_id, _, step, officer):
            return LedgerEntry(*at, plan, query_id, event={"step": step, **_by(officer)})
        case Note(kind, event):
            return LedgerEntry(*at, event={**event, "kind": kind})
    return None


def _by(officer: str) -> dict[str, str | int]:
    return {"officer": officer} if officer else {}
