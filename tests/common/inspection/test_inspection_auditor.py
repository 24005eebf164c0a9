"""An auditor outside the session, openings from files, and what the ledger lets through."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from inspection_kit import World, ask, unclipped_rows

from isonomy.common.base.errors import (
    ConfigError,
    InspectionFailed,
    InspectionPending,
    ProtocolError,
    VerificationError,
)
from isonomy.common.inspection.audit import audit
from isonomy.common.inspection.verdict import Verdict
from isonomy.common.ledger.ledger import Ledger, verify_ledger
from isonomy.common.sums.sealed_opening import SealedOpening, seal_opening, show_columns

# --- An auditor who is nobody's party ------------------------------------------------------------


def verdict_of(world: World, path: Path) -> Verdict:
    return audit(world.plan, SealedOpening.load(path), world.auditor_keys)


def test_an_outside_auditor_sees_the_opening_and_the_regulator_does_not(tmp_path: Path) -> None:
    world = World.create(tmp_path, outside=True)
    with pytest.raises(InspectionPending, match="with the auditor"):
        ask(world.company())
    assert world.steps() == ["opened"]
    assert not world.answered()
    (path,) = world.verdicts.openings()
    sealed = SealedOpening.load(path)
    with pytest.raises(VerificationError):
        sealed.open(world.regulator_keys.sealing)
    stored = world.store.find(world.last_query())
    assert stored is not None
    assert stored.opening.rows.tobytes() not in path.read_bytes()
    with pytest.raises(InspectionPending):  # asking again does not help
        ask(world.company())
    verdict = verdict_of(world, path)
    assert verdict.passed
    world.verdicts.take(verdict, world.ledger)
    assert ask(world.company()).receipt is not None
    assert world.steps() == ["passed"]
    assert world.verdicts.openings() == []


def test_an_outside_auditors_verdict_against_a_company_ends_the_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World.create(tmp_path, outside=True)
    unclipped_rows(monkeypatch, world)
    with pytest.raises(InspectionPending):
        ask(world.company())
    monkeypatch.undo()
    (path,) = world.verdicts.openings()
    verdict = verdict_of(world, path)
    assert (verdict.passed, verdict.reason[:3]) == (False, "(5)")
    world.verdicts.take(verdict, world.ledger)
    with pytest.raises(InspectionFailed):
        world.company(forgets=True).counts(share=0.01)
    assert world.steps() == ["failed"]
    assert not world.answered()


def test_a_plan_may_answer_first_and_look_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World.create(tmp_path, outside=True, waits=False)
    oracle = world.company()
    ask(oracle)
    with monkeypatch.context() as patch:
        unclipped_rows(patch, world)
        ask(oracle)
    assert world.steps() == ["opened", "opened"]
    found = [verdict_of(world, path) for path in world.verdicts.openings()]
    assert sorted(verdict.passed for verdict in found) == [False, True]
    for verdict in found:
        world.verdicts.take(verdict, world.ledger)
    with pytest.raises(InspectionFailed):
        ask(oracle)
    assert sorted(world.steps()) == ["failed", "passed"]
    assert verify_ledger(world.ledger._path).debits == 2  # what was answered stays paid for


@pytest.mark.parametrize("field", ["passed", "query_id", "request_hash", "plan", "reason"])
def test_a_verdict_that_the_auditor_did_not_sign_is_refused(tmp_path: Path, field: str) -> None:
    world = World.create(tmp_path, outside=True)
    with pytest.raises(InspectionPending):
        ask(world.company())
    (path,) = world.verdicts.openings()
    verdict = verdict_of(world, path)
    other: dict[str, Any] = {"passed": False, "query_id": "x", "reason": "y"}
    forged = verdict.model_copy(update={field: other.get(field, bytes(32))})
    assert Verdict.from_json(verdict.to_json()) == verdict
    with pytest.raises(VerificationError):
        world.verdicts.take(forged, world.ledger)
    with pytest.raises(VerificationError):  # a company that signs its own acquittal
        world.verdicts.take(verdict.sign(world.company_keys.identity), world.ledger)
    with pytest.raises(InspectionPending):
        ask(world.company())


def test_nobody_is_accused_by_an_opening_that_it_did_not_sign(tmp_path: Path) -> None:
    world = World.create(tmp_path, outside=True)
    with pytest.raises(InspectionPending):
        ask(world.company())
    (path,) = world.verdicts.openings()
    sealed = SealedOpening.load(path)
    for forged in (
        dataclasses.replace(sealed, box=sealed.box[:-1] + bytes([sealed.box[-1] ^ 1])),
        dataclasses.replace(sealed, request_hash=bytes(32)),
        dataclasses.replace(sealed, demand=b""),
    ):
        with pytest.raises(VerificationError):
            audit(world.plan, forged, world.auditor_keys)


def test_a_damaged_file_accuses_nobody(tmp_path: Path) -> None:
    """Whatever happens to an opening file: a typed error, never a verdict."""
    world = World.create(tmp_path, outside=True)
    with pytest.raises(InspectionPending):
        ask(world.company())
    (path,) = world.verdicts.openings()
    whole = path.read_bytes()
    generator = np.random.default_rng(0)
    for place in [*range(0, 400, 7), *generator.integers(0, len(whole), 60).tolist()]:
        damaged = bytearray(whole)
        damaged[place] ^= 1 << int(generator.integers(8))
        path.write_bytes(damaged if place % 2 else whole[:place])
        with pytest.raises((ConfigError, VerificationError, ProtocolError)):
            audit(world.plan, SealedOpening.load(path), world.auditor_keys)


# --- Later, from the company's file --------------------------------------------------------------


def test_a_query_that_was_not_drawn_can_be_opened_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World.create(tmp_path, outside=True, rate=1)
    oracle = world.company()
    ask(oracle)
    honest = opened_later(world)
    assert audit(world.plan, honest, world.auditor_keys).passed
    with monkeypatch.context() as patch:
        unclipped_rows(patch, world)
        ask(oracle)
    verdict = audit(world.plan, opened_later(world), world.auditor_keys)
    assert (verdict.passed, verdict.reason[:3]) == (False, "(5)")
    world.verdicts.take(verdict, world.ledger)
    with pytest.raises(InspectionFailed):
        ask(oracle)


def test_a_late_verdict_outlives_its_file(tmp_path: Path) -> None:
    """It ends the plan from the moment it is taken, and a restored folder does not revive it."""
    world = World.create(tmp_path, outside=True, rate=1)
    ask(world.company())
    record = world.ledger.find(world.last_query())
    assert record is not None
    place = {
        "plan": world.plan.hash,
        "query_id": record.query_id,
        "request_hash": record.request_hash,
    }
    verdict = Verdict(**place, passed=False, reason="(5)").sign(world.auditor_keys.identity)
    world.verdicts.take(verdict, world.ledger)
    assert world.steps() == ["failed"]
    world.verdicts.take(verdict, world.ledger)  # again: nothing new
    for path in (tmp_path / "inspections").glob("*.verdict"):
        path.unlink()
    world.restart_regulator()
    oracle = world.company(forgets=True)
    oracle._number = 1
    with pytest.raises(InspectionFailed, match="no more answers"):
        ask(oracle)
    passed = Verdict(**place, passed=True).sign(world.auditor_keys.identity)
    with pytest.raises(VerificationError, match="cannot be 'passed'"):
        world.verdicts.take(passed, world.ledger)


def test_a_verdict_file_that_came_by_hand_is_written_down(tmp_path: Path) -> None:
    world = World.create(tmp_path, outside=True, rate=1)
    ask(world.company())
    record = world.ledger.find(world.last_query())
    assert record is not None
    place = {
        "plan": world.plan.hash,
        "query_id": record.query_id,
        "request_hash": record.request_hash,
    }
    file = tmp_path / "inspections" / "x.verdict"
    file.parent.mkdir(exist_ok=True)
    for number, (passed, step) in enumerate(((True, "passed"), (False, "failed")), start=1):
        file.write_bytes(
            Verdict(**place, passed=passed).sign(world.auditor_keys.identity).to_json()
        )
        oracle = world.company(forgets=True)
        oracle._number = number
        if passed:
            ask(oracle)
        else:
            with pytest.raises(InspectionFailed):
                ask(oracle)
        assert world.steps() == [step]


def opened_later(world: World) -> SealedOpening:
    query_id = world.last_query()
    stored = world.store.find(query_id)
    assert stored is not None
    path = world.folder / "later.opening"
    seal_opening(
        bytes.fromhex(world.plan.auditor),
        world.plan.hash,
        query_id,
        show_columns(query_id, stored, world.store.columns(query_id)),
        world.company_keys.identity,
    ).save(path)
    assert path.stat().st_mode & 0o077 == 0
    return SealedOpening.load(path)


def test_the_ledgers_word_stands_in_for_a_missing_answer(tmp_path: Path) -> None:
    world = World.create(tmp_path, outside=True, rate=1)
    ask(world.company())
    stored = world.store.find(world.last_query())
    assert stored is not None
    silent = dataclasses.replace(stored, answer=None)
    sealed = seal_opening(
        bytes.fromhex(world.plan.auditor),
        world.plan.hash,
        world.last_query(),
        show_columns("", silent, world.store.columns(world.last_query())),
        world.company_keys.identity,
    )
    with pytest.raises(VerificationError, match="neither demanded nor answered"):
        audit(world.plan, sealed, world.auditor_keys)
    record = world.ledger.find(world.last_query())
    assert record is not None
    known = record.request_hash
    assert audit(world.plan, sealed, world.auditor_keys, answered=known).passed
    with pytest.raises(VerificationError, match="another request"):
        audit(world.plan, sealed, world.auditor_keys, answered=bytes(32))


# --- What the ledger lets through ----------------------------------------------------------------


def debit(ledger: Ledger, world: World, query_id: str, request_hash: bytes) -> None:
    (plan,) = ledger.plans()
    ledger.debit(
        plan=world.plan.hash,
        query_id=query_id,
        request_hash=request_hash,
        root=plan.root,
        units=1,
        event={},
        answer=b"x",
    )


def test_the_ledger_itself_refuses_answers_to_demanded_requests(tmp_path: Path) -> None:
    world = World.create(tmp_path)
    ledger, plan = world.ledger, world.plan.hash
    first, second = bytes(32), b"\x01" * 32
    ledger.note_inspection(plan, "q", first, "demanded")
    records = ledger.records
    ledger.note_inspection(plan, "q", first, "demanded")  # no-op
    assert ledger.records == records
    with pytest.raises(VerificationError, match="did not pass"):
        debit(ledger, world, "q", first)
    for step, request in (("demanded", second), ("passed", second), ("opened", second)):
        with pytest.raises(VerificationError, match="cannot be"):
            ledger.note_inspection(plan, "q", request, step)
    ledger.note_inspection(plan, "q", first, "passed")
    with pytest.raises(VerificationError, match="did not pass"):
        debit(ledger, world, "q", second)  # another request than the inspected one
    debit(ledger, world, "q", first)
    ledger.note_inspection(plan, "r", first, "demanded")
    ledger.note_inspection(plan, "r", first, "failed")
    for step in ("demanded", "opened", "passed"):
        with pytest.raises(VerificationError, match="cannot be"):
            ledger.note_inspection(plan, "r", first, step)
    with pytest.raises(VerificationError, match="did not pass"):
        debit(ledger, world, "r", first)
    for step in ("opened", "passed", "failed"):  # neither demanded nor answered
        with pytest.raises(VerificationError, match="cannot be"):
            ledger.note_inspection(plan, "s", first, step)
    debit(ledger, world, "s", first)
    for step, request in (("failed", second), ("opened", first), ("demanded", first)):
        with pytest.raises(VerificationError, match="cannot be"):
            ledger.note_inspection(plan, "s", request, step)
    ledger.note_inspection(plan, "s", first, "passed")
    ledger.note_inspection(plan, "s", first, "failed")  # a later look may find more
    with pytest.raises(VerificationError, match="cannot be"):
        ledger.note_inspection(plan, "s", first, "passed")
    world.restart_regulator()
    assert world.steps() == ["passed", "failed", "failed"]
