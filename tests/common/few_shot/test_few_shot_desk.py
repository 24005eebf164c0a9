"""The regulator's desk: one contribution per round, on disk and paid for before it leaves."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from round_kit import (
    MEMBERS,
    SAMPLES,
    SIZE,
    UNITS,
    Regulator,
    few_shot_settings,
    make_federation,
)

from isonomy.common.agreements.about import About
from isonomy.common.agreements.few_shot_plan import FewShotPlan
from isonomy.common.base.errors import (
    BudgetExceeded,
    CapacityError,
    ConfigError,
    DataError,
    PolicyRefused,
    ProtocolError,
    ReplayRefused,
    StorageError,
    VerificationError,
)
from isonomy.common.few_shot.rounds import desk as round_desk
from isonomy.common.few_shot.rounds.desk import RoundDesk, StoredContribution
from isonomy.common.ledger.ledger import Ledger
from isonomy.common.privacy.accounting import units_for
from isonomy.common.privacy.noise import SystemNoise

THETA = np.linspace(-1, 1, SIZE, dtype=np.float32)


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> FewShotPlan:
    return make_federation(tmp_path_factory.mktemp("federation")).plan  # type: ignore[return-value]


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    cap = units_for(300.0, 1e-5)
    with Ledger.create(tmp_path / "ledger.jsonl", cap_units=cap, delta=1e-5) as opened:
        yield opened


def desk(plan: FewShotPlan, ledger: Ledger, folder: Path, learner: Any = None) -> RoundDesk:
    """With real noise, unless a learner is given: what is equal is equal because it was kept."""
    make = (lambda: Regulator(SystemNoise())) if learner is None else (lambda: learner)
    return RoundDesk(plan, make, ledger, folder / "desk", members=MEMBERS, member_key_tag=b"t" * 32)


def test_the_budget_is_set_aside_once_for_every_sample(plan: Any, ledger: Any, tmp_path: Path):
    desk(plan, ledger, tmp_path)
    desk(plan, ledger, tmp_path)
    (entry,) = ledger.plans()
    assert (entry.people, entry.units, entry.individual) == (SAMPLES, 4 * plan.cap_units, True)
    assert ledger.held_units(MEMBERS) == 4 * plan.cap_units, "a sample exchanged, not left out"


def test_one_total_for_queries_and_samples(plan: Any, tmp_path: Path):
    """Half of the total by queries and half by rounds: together too much for one attribute."""
    cap = 2 * plan.cap_units
    with Ledger.create(tmp_path / "half.jsonl", cap_units=cap, delta=1e-5) as half:
        half.bind_key(b"t" * 32)
        half.reserve(b"q" * 32, half.add_people(MEMBERS), plan.cap_units)
        with pytest.raises(BudgetExceeded):
            desk(plan, half, tmp_path)


def test_a_round_is_one_record_that_names_what_left(plan: Any, ledger: Any, tmp_path: Path):
    values, record = desk(plan, ledger, tmp_path).contribute(0, THETA)
    assert record.answer == hashlib.sha256(values.astype("<i8").tobytes()).digest()
    assert (record.adjacency, record.event["round"]) == ("sample", 0)
    # What the samples really lost depends on them, and a ledger is shown to others.
    assert record.units == 4 * plan.round_units == 12 * 10**12
    assert record.units > UNITS
    assert ledger.head == record.hash
    stored = tmp_path / "desk" / "contribution"
    assert stored.stat().st_mode & 0o077 == 0
    assert (StoredContribution.parse(stored.read_bytes()).values == values).all()


def test_the_same_round_and_parameters_get_the_same_bits(plan: Any, ledger: Any, tmp_path: Path):
    rounds = desk(plan, ledger, tmp_path)
    first, record = rounds.contribute(0, THETA)
    again, same = rounds.contribute(0, THETA.copy())
    restarted, third = desk(plan, ledger, tmp_path).contribute(0, THETA)
    assert (first == again).all()
    assert (first == restarted).all()
    assert record == same == third
    assert ledger.answers(plan.hash) == 1


def test_other_parameters_older_and_later_rounds_are_refused(
    plan: Any, ledger: Any, tmp_path: Path
):
    rounds = desk(plan, ledger, tmp_path)
    rounds.contribute(0, THETA)
    with pytest.raises(ReplayRefused, match="one answer"):
        rounds.contribute(0, np.nextafter(THETA, np.float32(2)))
    with pytest.raises(ReplayRefused):
        rounds.contribute(2, THETA)
    rounds.contribute(1, THETA)
    with pytest.raises(ReplayRefused):
        rounds.contribute(0, THETA)
    assert ledger.answers(plan.hash) == 2


def test_after_the_plan_s_last_day_only_the_answer_that_was_given_comes_again(
    plan: Any, ledger: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    words = About(valid_until="2099-12-31")
    rounds = desk(plan.model_copy(update={"about": words}), ledger, tmp_path)
    _, record = rounds.contribute(0, THETA)
    monkeypatch.setattr(FewShotPlan, "has_ended", lambda *_: True)
    with pytest.raises(PolicyRefused, match="valid until 2099-12-31"):
        rounds.contribute(1, THETA)
    assert rounds.contribute(0, THETA)[1] == record == ledger.find(record.query_id)


def test_killed_between_file_and_record_there_is_no_fresh_noise(
    plan: Any, ledger: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    rounds = desk(plan, ledger, tmp_path)
    rounds.contribute(0, THETA)

    def full(*arguments: object, **options: object) -> None:
        raise StorageError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "debit", full)
        with pytest.raises(StorageError):
            rounds.contribute(1, THETA)
    on_disk = StoredContribution.parse((tmp_path / "desk" / "contribution").read_bytes())
    assert (on_disk.number, ledger.answers(plan.hash)) == (1, 1)
    restarted = desk(plan, ledger, tmp_path)
    with pytest.raises(ReplayRefused):  # not even for a round that has no record yet
        restarted.contribute(1, THETA + 1)
    values, _ = restarted.contribute(1, THETA)
    assert (values == on_disk.values).all()
    assert ledger.answers(plan.hash) == 2


def test_a_disk_that_is_full_loses_nothing(
    plan: Any, ledger: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    rounds = desk(plan, ledger, tmp_path)
    rounds.contribute(0, THETA)

    def full(path: Path, data: bytes) -> None:
        raise StorageError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(round_desk, "write_private", full)
        for _ in range(3):
            with pytest.raises(StorageError):
                rounds.contribute(1, THETA)
    rounds.contribute(1, THETA)
    stored = StoredContribution.parse((tmp_path / "desk" / "contribution").read_bytes())
    assert stored.spent.tolist() == [2 * UNITS] * SAMPLES  # attempts that failed cost nothing
    assert ledger.answers(plan.hash) == 2


@pytest.mark.parametrize("damage", ["missing", "older", "changed"])
def test_without_its_newest_contribution_no_round_is_answered(
    plan: Any, ledger: Any, tmp_path: Path, damage: str
):
    rounds, path = desk(plan, ledger, tmp_path), tmp_path / "desk" / "contribution"
    rounds.contribute(0, THETA)
    older = path.read_bytes()
    rounds.contribute(1, THETA)
    if damage == "missing":
        path.unlink()
    elif damage == "older":
        path.write_bytes(older)
    else:
        raw = bytearray(path.read_bytes())
        raw[5_000] ^= 1
        path.write_bytes(raw)
    with pytest.raises(VerificationError):
        desk(plan, ledger, tmp_path)
    assert ledger.answers(plan.hash) == 2


def test_a_contribution_swapped_for_another_is_noticed(plan: Any, ledger: Any, tmp_path: Path):
    rounds, path = desk(plan, ledger, tmp_path), tmp_path / "desk" / "contribution"
    rounds.contribute(0, THETA)
    stored = StoredContribution.parse(path.read_bytes())
    path.write_bytes(replace(stored, values=stored.values + 1).dump())
    with pytest.raises(VerificationError, match="another answer"):
        desk(plan, ledger, tmp_path).contribute(0, THETA)


def test_a_sample_above_its_cap_stops_the_round(plan: Any, ledger: Any, tmp_path: Path):
    class Greedy(Regulator):
        def contribute(self, number: int, theta: Any) -> Any:
            self._spent = self._spent + plan.cap_units
            return super().contribute(number, theta)

    rounds = desk(plan, ledger, tmp_path, Greedy())
    with pytest.raises(BudgetExceeded, match="cap"):
        rounds.contribute(0, THETA)
    assert ledger.answers(plan.hash) == 0


def test_a_learner_that_charges_more_than_its_settings_can_cost(
    plan: Any, ledger: Any, tmp_path: Path
):
    large = few_shot_settings(epsilon=50_000_000)  # so that a round is far below the cap
    wide = FewShotPlan.of({**plan.model_dump(mode="json"), "settings": large})
    assert wide.cap_units > 4 * wide.round_units

    class Dear(Regulator):
        def contribute(self, number: int, theta: Any) -> Any:
            spent = np.full(SAMPLES, wide.round_units * (number + 1) + number)
            return replace(super().contribute(number, theta), spent=spent)

    costly = desk(wide, ledger, tmp_path, Dear())
    costly.contribute(0, THETA)  # exactly what a round can cost
    with pytest.raises(ConfigError, match="can cost"):
        costly.contribute(1, THETA)  # one unit more
    assert ledger.answers(wide.hash) == 1


def test_a_learner_that_fails_is_not_asked_for_ever(plan: Any, ledger: Any, tmp_path: Path):
    """Whether it fails may tell something, at no cost: so only a few times."""

    class Failing(Regulator):
        def contribute(self, number: int, theta: Any) -> Any:
            self.learned.append(number)
            raise CapacityError("too large")

    learner = Failing()
    rounds = desk(plan, ledger, tmp_path, learner)
    for attempt in range(10):
        expected = CapacityError if attempt < round_desk.MAX_FAILURES else ProtocolError
        with pytest.raises(expected):
            rounds.contribute(0, THETA + attempt)
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
    cap = plan.held_units - 1
    with Ledger.create(tmp_path / "small.jsonl", cap_units=cap, delta=1e-5) as small:
        with pytest.raises(BudgetExceeded):
            desk(plan, small, tmp_path)
        assert not small.plans()


@pytest.mark.parametrize("length", [0, 10, 200, 100_000])
def test_whatever_lies_there_is_read_or_refused(length: int):
    with pytest.raises(VerificationError):
        StoredContribution.parse(bytes(length))
