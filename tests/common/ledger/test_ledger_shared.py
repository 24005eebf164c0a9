"""Copies of a ledger for others: they verify, and say who was drawn of nobody."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from federation import federation

from isonomy.common.base.errors import BudgetExceeded, ConfigError, LedgerTampered
from isonomy.common.ledger.ledger import Ledger, verify_ledger, write_shared

PLAN, OTHER, CAP = b"p" * 32, b"o" * 32, 100
MEMBERS = [bytes([number]) * 16 for number in range(10)]


def debit(ledger: Ledger, number: int, root: bytes, units: int) -> None:
    hashes = {"plan": PLAN, "request_hash": b"r" * 32, "root": root}
    event = {"kind": "blind", "people": 10}
    ledger.debit(query_id=f"q{number}", units=units, event=event, answer=b"12345678", **hashes)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    made = Ledger.create(tmp_path / "ledger.jsonl", cap_units=CAP, delta=1e-6)
    root = made.add_people(MEMBERS)
    made.reserve(PLAN, root, 60)
    for number, drawn in enumerate(([1, 3, 5], [2, 3], [3, 9])):
        debit(made, number, made.add_subset(root, np.array(drawn), secret=True), 15)
    return made


def share(ledger: Ledger, tmp_path: Path) -> Path:
    copy = tmp_path / "copy.jsonl"
    write_shared(tmp_path / "ledger.jsonl", copy)
    return copy


def test_a_shared_ledger_does_not_say_who_was_drawn(ledger: Ledger, tmp_path: Path) -> None:
    text = share(ledger, tmp_path).read_text()
    assert '"positions":""' in text
    assert text.count('"positions":""') == text.count('"salt":""') == 3
    again = ledger.add_subset(
        verify_ledger(tmp_path / "ledger.jsonl").plans()[0].root, np.array([1, 3, 5]), secret=True
    )
    assert again.hex() not in text, "the same people under another salt: no guess can be tested"


def test_it_holds_and_says_the_same(ledger: Ledger, tmp_path: Path) -> None:
    ledger.close_plan(PLAN)
    real, copy = (
        verify_ledger(path) for path in (tmp_path / "ledger.jsonl", share(ledger, tmp_path))
    )
    assert copy.head == real.head == ledger.head
    assert copy.plans() == real.plans()
    assert (copy.max_person_units, copy.max_held_units) == (60, 60), "the cap, not what was spent"
    assert (real.max_person_units, real.max_held_units) == (60, 60)


def test_everybody_is_held_to_the_reservation_all_the_same(ledger: Ledger) -> None:
    root = ledger.plans()[0].root
    often = ledger.add_subset(root, np.array([3]), secret=True)  # was in all three
    with pytest.raises(BudgetExceeded):
        debit(ledger, 9, often, 16)
    debit(ledger, 9, often, 15)


def test_a_copy_is_not_taken_for_the_ledger(ledger: Ledger, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="copy for others"):
        Ledger.open(share(ledger, tmp_path))


def test_withheld_people_cannot_be_exchanged(ledger: Ledger, tmp_path: Path) -> None:
    copy = share(ledger, tmp_path)
    lines = (tmp_path / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    subset = next(number for number, line in enumerate(lines) if b'"salt":"' in line)
    lines[subset] = lines[subset].replace(b'"positions":"AQAA', b'"positions":"AgAA')
    copy.write_bytes(b"".join(lines))
    with pytest.raises(LedgerTampered, match="positions"):
        verify_ledger(copy)


def test_a_record_private_plan_writes_commitments(tmp_path: Path) -> None:
    fed = federation(tmp_path, {"sex": list("fm" * 20)}, {"sex": "fm"})
    fed.custodian._record_private = True
    fed.local().blind_sum(np.ones((3, 1)), norm=1.0, people=[1, 5, 7], share=0.1)
    text = share(None, tmp_path).read_text()  # type: ignore[arg-type]
    assert '"positions":""' in text
    assert '"people":40' in text, "drawn from, not drawn"
