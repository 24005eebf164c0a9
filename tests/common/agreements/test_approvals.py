"""What a party's owner approved is what its daemon joins, byte for byte, and nothing else."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from isonomy.common.agreements.approvals import Approvals, PlanNotApproved, read_people
from isonomy.common.agreements.plan import Plan
from isonomy.common.base.errors import ConfigError, DataError, OverlappingPeople
from isonomy.common.keys.party import PartyKeys
from isonomy.common.people.cohort import Cohort
from isonomy.company.federation.joining import join
from isonomy.company.federation.planning import PlanFiles, make_plan, millionths, write_plan

KEYS = PartyKeys.generate("company", "company")
REGULATOR = PartyKeys.generate("regulator", "regulator")
PEOPLE = Cohort.of(["ann", "bo", "cy"])


def plan(companies: list[tuple[PartyKeys, Cohort]] | None = None, **changes: str) -> Plan:
    settings = {"tolerance": "0.01", "epsilon": "1", "delta": "1e-6", **changes}
    made, _ = make_plan(
        name="test",
        companies=[(keys.card(), people) for keys, people in companies or [(KEYS, PEOPLE)]],
        regulator=REGULATOR.card(),
        relay_name="localhost",
        groups={"sex": ["female", "male"]},
        notion="demographic_parity",
        strategy="tilt",
        **settings,
    )
    return made


@pytest.fixture
def approvals(tmp_path: Path) -> Approvals:
    return Approvals(tmp_path / "plans")


def test_an_approved_plan_comes_back_with_its_people(approvals: Approvals) -> None:
    approvals.approve(plan(), PEOPLE, KEYS)
    found, people = approvals.require(plan().hash)
    assert (found, people) == (plan(), PEOPLE)
    assert approvals.hashes() == [plan().hash]


def test_any_other_plan_is_refused(approvals: Approvals) -> None:
    approvals.approve(plan(), PEOPLE, KEYS)
    with pytest.raises(PlanNotApproved, match="not approved"):
        approvals.require(plan(epsilon="1.000001").hash)


def test_a_file_changed_after_its_approval_counts_no_more(
    approvals: Approvals, tmp_path: Path
) -> None:
    approvals.approve(plan(), PEOPLE, KEYS)
    path = tmp_path / "plans" / f"{plan().hash.hex()}.json"
    path.write_bytes(plan(epsilon="100").to_json())
    with pytest.raises(PlanNotApproved, match="changed"):
        approvals.require(plan().hash)


@pytest.mark.parametrize("ids", [["ann", "bo"], ["bo", "ann", "cy"], ["ann", "bo", "eve"]])
def test_other_people_or_another_order_are_refused(approvals: Approvals, ids: list[str]) -> None:
    with pytest.raises(DataError, match="root"):
        approvals.approve(plan(), Cohort.of(ids), KEYS)
    assert approvals.hashes() == []


def test_a_plan_that_names_us_with_other_keys_is_refused(approvals: Approvals) -> None:
    with pytest.raises(ConfigError, match="other keys"):
        approvals.approve(plan(), PEOPLE, PartyKeys.generate("company", "company"))


def test_join_needs_an_approval(tmp_path: Path) -> None:
    with pytest.raises(PlanNotApproved):
        join(plan(), home=tmp_path)


def test_each_of_several_companies_approves_its_own_people(approvals: Approvals) -> None:
    other, theirs = PartyKeys.generate("other", "company"), Cohort.of(["dan"])
    shared = plan([(KEYS, PEOPLE), (other, theirs)])
    approvals.approve(shared, theirs, other)
    approvals.approve(shared, Cohort.of([*PEOPLE.ids, *theirs.ids]), REGULATOR)
    with pytest.raises(DataError):
        approvals.approve(shared, PEOPLE, other)


def test_a_person_of_two_companies_is_counted_never_named() -> None:
    other = PartyKeys.generate("other", "company")
    with pytest.raises(OverlappingPeople, match="1 people") as caught:
        plan([(KEYS, PEOPLE), (other, Cohort.of(["bo"]))])
    assert "bo" not in str(caught.value).split()


def test_the_three_files_of_a_plan(tmp_path: Path) -> None:
    files = write_plan(plan(), PEOPLE, tmp_path / "plan.json")
    assert files == PlanFiles.beside(tmp_path / "plan.json")
    assert Plan.load(files.plan) == plan()
    assert read_people(files.people) == PEOPLE
    public = files.public.read_text()
    assert "demographic_parity" not in public  # the server is told no purpose
    assert PEOPLE.root.hex() not in public


@pytest.mark.parametrize(("text", "value"), [("1", 1_000_000), ("0.05", 50_000), ("1e-6", 1)])
def test_decimal_numbers_are_kept_exactly(text: str, value: int) -> None:
    assert millionths("epsilon", text) == value


@pytest.mark.parametrize("text", ["0.0000001", "many", "nan", "inf", ""])
def test_what_a_plan_cannot_hold_exactly_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="epsilon"):
        millionths("epsilon", text)


def test_the_list_of_people_is_for_the_owners_eyes_only(tmp_path: Path) -> None:
    path = tmp_path / "plan.people"
    path.touch(0o644)  # as an older version left it
    files = write_plan(plan(), PEOPLE, tmp_path / "plan.json")
    assert files.people == path
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_people(path) == PEOPLE
    assert sorted(tmp_path.iterdir()) == sorted([files.plan, files.people, files.public])


def test_an_approval_survives_a_power_cut(
    approvals: Approvals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new name is made durable after the rename, not only the file's bytes."""
    named: list[str] = []

    def fsync_folder(path: Path) -> None:
        assert path.exists()
        named.append(path.suffix)

    monkeypatch.setattr("isonomy.common.base.private_files.fsync_folder", fsync_folder)
    approvals.approve(plan(), PEOPLE, KEYS)
    assert named == [".people", ".json"]
