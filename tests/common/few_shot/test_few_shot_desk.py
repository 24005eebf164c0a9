"""The regulator's desk: one contribution per round, on disk and paid for before it leaves."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from round_kit import MEMBERS, SAMPLES, SIZE, UNITS, Regulator, make_federation

from isonomy.common.base.errors import (
    BudgetExceeded,
    CapacityError,
    ConfigError,
    DataError,
    ProtocolError,
    ReplayRefused,
    StorageError,
    VerificationError,
)
from isonomy.common.few_shot.rounds import desk as round_desk
from isonomy.common.few_shot.rounds.desk import RoundDesk, Stored
from isonomy.common.few_shot.rounds.plan import FewShotPlan
from isonomy.common.ledger.ledger import Ledger
from isonomy.common.privacy.accounting import units_for
from isonomy.common.privacy.noise import SystemNoise

THETA = np.linspace(-1, 1, SIZE, dtype=np.float32)


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> FewShotPlan:
    return make_federation(tmp_path_factory.mktemp("federation")).plan  # type: ignore[return-value]


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    cap = units_for(100.0, 1e-5)
    with Ledger.create(tmp_path / "ledger.jsonl", cap_units=cap, delta=1e-5) as made:
        yield made


def desk(plan: FewShotPlan, ledger: Ledger, folder: Path, learner: Any = None) -> RoundDesk:
    """With real noise, unless a learner is given: what is equal is equal because it was kept."""
    make = (lambda: Regulator(SystemNoise())) if learner is None else (lambda: learner)
    return RoundDesk(plan, make, ledger, folder / "desk", members=MEMBERS, member_key_tag=b"t" * 32)


def test_the_budget_is_set_aside_once_for_every_sample(plan: Any, ledger: Any, tmp_path: Path):
    desk(plan, ledger, tmp_path)
    desk(plan, ledger, tmp_path)
    (own,) = ledger.plans()
    assert (own.people, own.units, own.individual) == (SAMPLES, plan.cap_units, True)
    assert ledger.held_units(MEMBERS) == plan.cap_units


def test_a_round_is_one_record_that_names_what_left(plan: Any, ledger: Any, tmp_path: Path):
    values, record = desk(plan, ledger, tmp_path).contribute(0, THETA)
    assert record.answer == hashlib.sha256(values.astype("<i8").tobytes()).digest()
    assert (record.adjacency, record.event["round"]) == ("sample", 0)
    # What the samples really lost depends on them, and a ledger is shown to others.
    assert record.units == plan.round_units == 3 * 10**12
    assert record.units > UNITS
    assert ledger.head == record.hash
    stored = tmp_path / "desk" / "contribution"
    assert stored.stat().st_mode & 0o077 == 0
    assert (Stored.parse(stored.read_bytes()).values == values).all()


def test_the_same_round_and_parameters_get_the_same_bits(plan: Any, ledger: Any, tmp_path: Path):
    own = desk(plan, ledger, tmp_path)
    first, record = own.contribute(0, THETA)
    again, same = own.contribute(0, THETA.copy())
    restarted, third = desk(plan, ledger, tmp_path).contribute(0, THETA)
    assert (first == again).all()
    assert (first == restarted).all()
    assert record == same == third
    assert ledger.answers(plan.hash) == 1


def test_other_parameters_older_and_later_rounds_are_refused(
    plan: Any, ledger: Any, tmp_path: Path
):
    own = desk(plan, ledger, tmp_path)
    own.contribute(0, THETA)
    with pytest.raises(ReplayRefused, match="one answer"):
        own.contribute(0, np.nextafter(THETA, np.float32(2)))
    with pytest.raises(ReplayRefused):
        own.contribute(2, THETA)
    own.contribute(1, THETA)
    with pytest.raises(ReplayRefused):
        own.contribute(0, THETA)
    assert ledger.answers(plan.hash) == 2


def test_killed_between_file_and_record_there_is_no_fresh_noise(
    plan: Any, ledger: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    own = desk(plan, ledger, tmp_path)
    own.contribute(0, THETA)

    def full(*given: object, **options: object) -> None:
        raise StorageError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "debit", full)
        with pytest.raises(StorageError):
            own.contribute(1, THETA)
    written = Stored.parse((tmp_path / "desk" / "contribution").read_bytes())
    assert (written.number, ledger.answers(plan.hash)) == (1, 1)
    restarted = desk(plan, ledger, tmp_path)
    with pytest.raises(ReplayRefused):  # not even for a round that has no record yet
        restarted.contribute(1, THETA + 1)
    values, _ = restarted.contribute(1, THETA)
    assert (values == written.values).all()
    assert ledger.answers(plan.hash) == 2


def test_a_disk_that_is_full_loses_nothing(
    plan: Any, ledger: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    own = desk(plan, ledger, tmp_path)
    own.contribute(0, THETA)

    def full(path: Path, data: bytes) -> None:
        raise StorageError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(round_desk, "write_private", full)
        for _ in range(3):
            with pytest.raises(StorageError):
                own.contribute(1, THETA)
    own.contribute(1, THETA)
    stored = Stored.parse((tmp_path / "desk" / "contribution").read_bytes())
    assert stored.spent.tolist() == [2 * UNITS] * SAMPLES  # attempts that failed cost nothing
    assert ledger.answers(plan.hash) == 2


@pytest.mark.parametrize("lost", ["gone", "older", "changed"])
def test_without_its_newest_contribution_no_round_is_answered(
    plan: Any, ledger: Any, tmp_path: Path, lost: str
):
    own, path = desk(plan, ledger, tmp_path), tmp_path / "desk" / "contribution"
    own.contribute(0, THETA)
    older = path.read_bytes()
    own.contribute(1, THETA)
    if lost == "gone":
        path.unlink()
    elif lost == "older":
        path.write_bytes(older)
    else:
        raw = bytearray(path.read_bytes())
        raw[5_000] ^= 1
        path.write_bytes(raw)
    with pytest.raises(VerificationError):
        desk(plan, ledger, tmp_path)
    assert ledger.answers(plan.hash) == 2


def test_a_contribution_swapped_for_another_is_noticed(plan: Any, ledger: Any, tmp_path: Path):
    own, path = desk(plan, ledger, tmp_path), tmp_path / "desk" / "contribution"
    own.contribute(0, THETA)
    stored = Stored.parse(path.read_bytes())
    forged = Stored(
        0, stored.theta_hash, stored.units, stored.values + 1, stored.spent, stored.state
    )
    path.write_bytes(forged.dump())
    with pytest.raises(VerificationError, match="another answer"):
        desk(plan, ledger, tmp_path).contribute(0, THETA)


def test_a_sample_above_its_cap_stops_the_round(plan: Any, ledger: Any, tmp_path: Path):
    class Greedy(Regulator):
        def contribute(self, number: int, theta: Any) -> Any:
            self._spent = self._spent + plan.cap_units
            return super().contribute(number, theta)

    own = desk(plan, ledger, tmp_path, Greedy())
    with pytest.raises(BudgetExceeded, match="cap"):
        own.contribute(0, THETA)
    assert ledger.answers(plan.hash) == 0


def test_a_learner_that_charges_more_than_its_settings_can_cost(
    plan: Any, ledger: Any, tmp_path: Path
):
    class Dear(Regulator):
        def contribute(self, number: int, theta: Any) -> Any:
            return replace(super().contribute(number, theta), units=plan.round_units + 1)

    with pytest.raises(ConfigError, match="can cost"):
        desk(plan, ledger, tmp_path, Dear()).contribute(0, THETA)
    assert ledger.answers(plan.hash) == 0


def test_a_learner_that_fails_is_not_asked_for_ever(plan: Any, ledger: Any, tmp_path: Path):
    """Whether it fails may tell something, at no cost: so only a few times."""

    class Failing(Regulator):
        def contribute(self, number: int, theta: Any) -> Any:
            self.learned.append(number)
            raise CapacityError("too large")

    learner = Failing()
    own = desk(plan, ledger, tmp_path, learner)
    for attempt in range(10):
        expected = CapacityError if attempt < round_desk.MAX_FAILURES else ProtocolError
        with pytest.raises(expected):
            own.contribute(0, THETA + attempt)
    assert len(learner.learned) == round_desk.MAX_FAILURES
    assert ledger.answers(plan.hash) == 0


def test_other_tasks_than_the_plan_s_are_refused(plan: Any, ledger: Any, tmp_path: Path):
    with pytest.raises(DataError):
        RoundDesk(
            plan,
            Regulator,
            ledger,
            tmp_path / "desk",
            members=MEMBERS[:-1],
            member_key_tag=b"t" * 32,
        )
    assert not ledger.plans()


def test_a_ledger_without_room_sets_nothing_aside(plan: Any, tmp_path: Path):
    cap = plan.cap_units - 1
    with Ledger.create(tmp_path / "small.jsonl", cap_units=cap, delta=1e-5) as small:
        with pytest.raises(BudgetExceeded):
            desk(plan, small, tmp_path)
        assert not small.plans()


@pytest.mark.parametrize("length", [0, 10, 200, 100_000])
def test_whatever_lies_there_is_read_or_refused(length: int):
    with pytest.raises(VerificationError):
        Stored.parse(bytes(length))
