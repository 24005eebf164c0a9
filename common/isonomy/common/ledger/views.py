"""What the ledger shows of itself: an answered query, a plan's standing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class DebitRecord:
    """A debit as it stands in the ledger; `answer` is what left, byte for byte."""

    seq: int
    query_id: str
    plan: bytes
    request_hash: bytes
    root: bytes
    units: int
    event: Mapping[str, str | int]
    answer: bytes = field(repr=False)
    hash: bytes
    adjacency: str = "attribute"


@dataclass(frozen=True)
class PlanSummary:
    """Where a plan stands. `spent_units` is the largest over its people."""

    plan: bytes
    root: bytes
    people: int
    units: int
    spent_units: int
    individual: bool
    is_open: bool
    answers: int
