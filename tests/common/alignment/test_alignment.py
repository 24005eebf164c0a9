"""Private set intersection: the mathematics, the session, and what a liar gets."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import joblib
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from session_kit import FAST, RELAY_NAME, Federation

from isonomy.common.agreements.approvals import PlanNotApproved
from isonomy.common.alignment import alignment
from isonomy.common.alignment.alignment import DOMAIN, Aligner, AlignmentPlan, checked_ids
from isonomy.common.alignment.session import _Talk, align
from isonomy.common.alignment.store import AlignmentDone, Alignments
from isonomy.common.base.errors import (
    ConfigError,
    DataError,
    ProtocolError,
    SessionClosed,
    VerificationError,
)
from isonomy.common.crypto.curve25519 import _coordinate, blind, multiply, random_secret
from isonomy.common.crypto.params import DEFAULT_PARAMETERS
from isonomy.common.crypto.ristretto import POINT_BYTES, hash_to_point
from isonomy.common.keys.identity import Identity
from isonomy.common.keys.party import PartyKeys
from isonomy.common.people.cohort import Cohort
from isonomy.common.session.connection import Session
from isonomy.common.session.sealed_links import Parcel
from isonomy.common.session.tickets import Ticket
from isonomy.server.relay.relay import RelayServer


def make_plan(federation: Federation, most: int = 1000) -> AlignmentPlan:
    return AlignmentPlan.of(
        {
            "name": "customers",
            "companies": [federation.plan.companies[0]],
            "regulator": federation.plan.regulator,
            "relay_name": RELAY_NAME,
            "parameters": DEFAULT_PARAMETERS.name,
            "company_people": most,
            "regulator_people": most,
        }
    )


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Federation:
    return Federation.create(tmp_path_factory.mktemp("align"), size=4)


@pytest.fixture(scope="module")
def plan(federation: Federation) -> AlignmentPlan:
    return make_plan(federation)


def points_of(*texts: str) -> bytes:
    """Points that nobody else has."""
    return blind(random_secret(), b"x", texts)


def exchange(plan: AlignmentPlan, company: list[str], regulator: list[str]) -> list[Cohort]:
    """Both sides by hand, in one process."""
    c, r = (
        Aligner(plan, checked_ids(company), random_secret()),
        Aligner(plan, checked_ids(regulator), random_secret()),
    )
    blinded_c, blinded_r = c.blinded(), r.blinded()
    double_c, double_r = r.double(blinded_c), c.double(blinded_r)
    return [c.finish(double_c, double_r), r.finish(double_r, double_c)]


class TestMathematics:
    @settings(max_examples=15, deadline=None)
    @given(
        st.lists(st.integers(0, 60), min_size=1, max_size=30, unique=True),
        st.lists(st.integers(0, 60), min_size=1, max_size=30, unique=True),
    )
    def test_both_find_the_intersection_in_one_order(
        self, plan: AlignmentPlan, left: list[int], right: list[int]
    ) -> None:
        company = [f"Ö-{n:03d}" for n in [*left, 99]]
        regulator = [f"Ö-{n:03d}" for n in [*right, 99]]
        first, second = exchange(plan, company, regulator)
        assert first == second
        assert set(first.ids) == set(company) & set(regulator)

    def test_the_order_says_nothing(self, plan: AlignmentPlan) -> None:
        """Neither alphabetical nor the list's own: a fresh one each time."""
        ids = [f"{n:04d}" for n in range(200)]
        orders = {exchange(plan, ids, ids)[0].ids for _ in range(3)}
        assert len(orders) == 3
        assert all(list(order) != sorted(order) for order in orders)

    def test_blinded_lists_are_in_random_order_and_fresh(self, plan: AlignmentPlan) -> None:
        """Same ids twice: no point in common, so two alignments cannot be joined."""
        cohort = checked_ids([str(n) for n in range(100)])
        first, second = (Aligner(plan, cohort, random_secret()).blinded() for _ in range(2))
        points = [{own[i : i + 32] for i in range(0, 3200, 32)} for own in (first, second)]
        assert not points[0] & points[1]

    def test_the_list_s_own_order_is_hidden(self, plan: AlignmentPlan) -> None:
        """With the secret known, the positions of the ids in what was sent are shuffled."""
        ids = [f"{n:03d}" for n in range(100)]
        side = Aligner(plan, checked_ids(ids), random_secret())
        sent = side.blinded()
        straight = blind(side._secret, side._domain, ids)
        assert sorted(sent[i : i + 32] for i in range(0, 3200, 32)) == sorted(
            straight[i : i + 32] for i in range(0, 3200, 32)
        )
        assert sent != straight

    def test_another_alignment_gives_other_points(self, federation: Federation) -> None:
        one, two = make_plan(federation, 10), make_plan(federation, 11)
        assert one.hash != two.hash
        secret = random_secret()
        cohort = checked_ids(["a"])
        assert Aligner(one, cohort, secret).blinded() != Aligner(two, cohort, secret).blinded()


class TestBadInput:
    def test_nobody_in_common(self, plan: AlignmentPlan) -> None:
        with pytest.raises(DataError, match="nobody in common"):
            exchange(plan, ["1", "2"], ["01", "02"])

    def test_duplicates(self) -> None:
        with pytest.raises(DataError, match="more than once"):
            checked_ids(["a", "b", "a"])
        with pytest.raises(DataError, match="more than once"):  # NFC makes them one
            checked_ids(["é", "e\u0301"])

    @pytest.mark.parametrize("pair", [("Anna", "ANNA"), ("ﬁ-1", "fi-1"), ("１２", "12")])
    def test_near_duplicates_name_their_lines(self, pair: tuple[str, str]) -> None:
        with pytest.raises(DataError, match="lines 2 and 3"):
            checked_ids(["x", *pair])

    def test_each_side_keeps_its_spelling(self, plan: AlignmentPlan) -> None:
        ours, theirs = exchange(plan, ["Anna", "Bo", "ﬁ-1"], ["ANNA", "fi-1", "Zoe"])
        assert sorted(ours.ids) == ["Anna", "ﬁ-1"]
        assert sorted(theirs.ids) == ["ANNA", "fi-1"]
        assert ours.root == theirs.root

    def test_too_many(self) -> None:
        with pytest.raises(DataError, match="allows 2"):
            checked_ids(["a", "b", "c"], limit=2)

    @pytest.mark.parametrize(
        "points",
        [
            b"\0" * 32,  # order 2
            b"\1" + b"\0" * 31,  # order 4
            b"\0" * 31,
            b"\7" * 33,
        ],
    )
    def test_points_that_are_none(self, plan: AlignmentPlan, points: bytes) -> None:
        with pytest.raises(ProtocolError):
            Aligner(plan, checked_ids(["a"]), random_secret()).double(points)

    def test_one_person_twice(self, plan: AlignmentPlan) -> None:
        point = points_of("a")
        alias = point[:-1] + bytes([point[-1] ^ 0x80])  # X25519 ignores the last bit
        for again in (point, alias):
            with pytest.raises(ProtocolError, match="twice"):
                Aligner(plan, checked_ids(["a"]), random_secret()).double(point + again)

    @pytest.mark.parametrize("returned", [0, 1, 3])
    def test_another_number_comes_back(self, plan: AlignmentPlan, returned: int) -> None:
        side = Aligner(plan, checked_ids(["a", "b"]), random_secret())
        doubled = points_of(*map(str, range(returned)))
        with pytest.raises(ProtocolError, match="another number"):
            side.finish(doubled, doubled)

    def test_one_point_for_two_people(self, plan: AlignmentPlan) -> None:
        side = Aligner(plan, checked_ids(["a", "b"]), random_secret())
        point = points_of("1")
        with pytest.raises(ProtocolError, match="one point for two"):
            side.finish(point + point, point)


# --- Through a relay with TLS -------------------------------------------------------------------


class Aligned:
    """Two sessions of an alignment; each side's work in a thread of its own."""

    def __init__(self, federation: Federation, plan: AlignmentPlan, folder: Path) -> None:
        self.federation, self.plan = federation, plan
        key = Identity.load(federation.folder / "server" / "token.key")
        tls = federation.tls("server")
        self.relay = RelayServer("127.0.0.1:0", tls, plan.public(), key, folder)

    def run(self, company: Callable[[Session], object], regulator: Callable[[Session], object]):
        results: dict[str, object] = {}

        def work(name: str, role: str, part: Callable[[Session], object]) -> None:
            ticket = self.relay.issue_ticket(role, name)
            session = Session(
                ticket,
                self.federation.tls(name),
                self.federation.keys(name),
                self.plan,
                timing=FAST,
            )
            try:
                with session:
                    results[name] = part(session.start())
            except Exception as error:
                results[name] = error

        with self.relay:
            threads = [
                threading.Thread(target=work, args=(name, name, part))
                for name, part in (("company", company), ("regulator", regulator))
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(150)
                assert not thread.is_alive()
        return results["company"], results["regulator"]


@pytest.fixture
def aligned(federation: Federation, plan: AlignmentPlan, tmp_path: Path) -> Aligned:
    return Aligned(federation, plan, tmp_path)


IDS = [f"id-{n}" for n in range(40)]


def fresh() -> Alignments:
    return Alignments(Path(tempfile.mkdtemp()))


def honest(ids: list[str], store: Alignments | None = None) -> Callable[[Session], object]:
    return lambda session: align(session, checked_ids(ids), store or fresh())


def test_through_a_session(aligned: Aligned) -> None:
    first, second = aligned.run(honest(IDS[:30]), honest(IDS[10:]))
    assert isinstance(first, Cohort)
    assert first == second
    assert set(first.ids) == set(IDS[10:30])


def test_neither_side_sees_the_other_s_ids(aligned: Aligned) -> None:
    """What arrives holds no id and no hash of one: only 32-byte points, and the final root."""
    seen: list[bytes] = []

    def listening(session: Session) -> object:
        receive = session.receive
        session.receive = lambda *a, **k: seen.append((f := receive(*a, **k)).payload) or f  # type: ignore[method-assign]
        return align(session, checked_ids(IDS[:30]), fresh())

    aligned.run(listening, honest(IDS[10:]))
    assert [len(own) // POINT_BYTES for own in seen[:2]] == [30, 30]
    for person in IDS:
        element = hash_to_point(DOMAIN + aligned.plan.hash, person)
        assert all(element not in own and _coordinate(element) not in own for own in seen)


def test_more_people_than_agreed(federation: Federation, tmp_path: Path) -> None:
    small = Aligned(federation, make_plan(federation, 20), tmp_path)
    first, second = small.run(honest(IDS[:30]), honest(IDS[:20]))
    assert isinstance(second, ProtocolError)
    assert "more people" in str(second)
    assert isinstance(first, SessionClosed)
    assert "ProtocolError" in str(first)


def test_a_side_that_returns_other_points_is_found_out(aligned: Aligned) -> None:
    """The regulator hides a common person from the company: the roots differ."""

    def lying(session: Session) -> object:
        send = session.send

        def other(recipient: str, frame: Parcel, **options) -> None:
            if frame.exchange == 3:
                wrong = points_of("other") + frame.payload[POINT_BYTES:]
                frame = replace(frame, payload=wrong)
            send(recipient, frame, **options)

        session.send = other  # type: ignore[method-assign]
        return align(session, checked_ids(IDS), fresh())

    first, second = aligned.run(honest(IDS), lying)
    assert isinstance(second, VerificationError)
    assert "different people" in str(second)
    assert isinstance(first, SessionClosed)
    assert "VerificationError" in str(first)


def test_a_company_that_moves_last_hears_no_root_of_ids_it_never_named(aligned: Aligned) -> None:
    """It calls one of the regulator's blinded people common; the root would be open to guessing."""
    heard: list[bytes] = []

    def guessing(session: Session) -> object:
        talk = _Talk(session, aligned.plan)
        mine = points_of("nobody")
        talk.send(1, mine)
        theirs = talk.receive(2, 1000)
        doubled = talk.receive(3, 1)
        talk.send(4, doubled + theirs[POINT_BYTES:])  # "their first one is my made-up one"
        talk.send(5, bytes(40))
        heard.append(talk.receive(6, 2))
        return None

    first, second = aligned.run(guessing, honest(IDS))
    assert isinstance(second, VerificationError)
    assert isinstance(first, SessionClosed)
    assert not heard


def test_out_of_order(aligned: Aligned) -> None:
    def hasty(session: Session) -> object:
        name = aligned.plan.regulator.name
        session.generation(name)
        session.send(name, Parcel(name, "align", "", 4, 0, True, b"\0" * 32))
        return align(session, checked_ids(IDS), fresh())

    _, second = aligned.run(hasty, honest(IDS))
    assert isinstance(second, ProtocolError)
    assert "step 1" in str(second)


def test_an_alignment_asks_no_questions(aligned: Aligned) -> None:
    first, _ = aligned.run(lambda session: session.plan, lambda session: None)
    assert isinstance(first, ConfigError)
    assert "aligns records" in str(first)


# --- Files ----------------------------------------------------------------------------------------


def test_approval_and_result(federation: Federation, plan: AlignmentPlan, tmp_path: Path) -> None:
    store = Alignments(tmp_path / "alignments")
    with pytest.raises(PlanNotApproved):
        store.require(plan.hash)
    store.approve(plan, federation.keys("company"))
    assert store.require(plan.hash) == plan
    people = Cohort.of(["b", "a"])
    store.save(plan.hash, people)
    assert store.people(plan.hash).stat().st_mode & 0o777 == 0o600
    assert store.find(people.root.hex()) == people
    assert store.find("00" * 32) is None


def breaks_off(session: Session) -> object:
    """Takes part until it has what it wants, the first answer, and then is gone."""
    plan = session.agreement
    talk = _Talk(session, plan)
    talk.send(1, Aligner(plan, checked_ids(["made-up-1", IDS[3]]), random_secret()).blinded())
    talk.receive(2, 1000)
    answer = talk.receive(3, 2)
    raise PermissionError(len(answer))


def test_who_breaks_off_cannot_bring_another_list(aligned: Aligned, tmp_path: Path) -> None:
    """Else each broken run would be another test of so many ids as were approved."""
    store = Alignments(tmp_path)
    first, _ = aligned.run(breaks_off, honest(IDS, store))
    assert isinstance(first, PermissionError)  # one list was answered
    again = Aligned(aligned.federation, aligned.plan, tmp_path / "again")
    first, second = again.run(breaks_off, honest(IDS, store))
    assert isinstance(second, ProtocolError)
    assert "one list of each side" in str(second)
    assert not isinstance(first, PermissionError)


def test_a_run_that_broke_off_is_repeated_byte_for_byte(
    aligned: Aligned, plan: AlignmentPlan, tmp_path: Path
) -> None:
    ours, theirs = fresh(), fresh()

    def dies(session: Session) -> object:
        talk = _Talk(session, plan)
        talk.send(1, Aligner(plan, checked_ids(IDS[:30]), ours.begin(plan.hash)).blinded())
        raise PermissionError

    aligned.run(dies, honest(IDS[10:], theirs))
    again = Aligned(aligned.federation, plan, tmp_path / "again")
    first, second = again.run(honest(IDS[:30], ours), honest(IDS[10:], theirs))
    assert first == second
    with pytest.raises(AlignmentDone, match="is done"):
        ours.begin(plan.hash)
    assert not [*ours.folder.glob("*.secret"), *theirs.folder.glob("*.secret")]


@pytest.mark.parametrize("name", ["a\nspends at most ε = 0.1", "a\x1b[1A", " a", "a\u2028b"])
def test_an_owner_reads_one_line(federation: Federation, name: str) -> None:
    fields = make_plan(federation).model_dump(mode="json")
    with pytest.raises(ConfigError, match="one line"):
        AlignmentPlan.of({**fields, "name": name})


def test_a_changed_file_is_not_approved(
    federation: Federation, plan: AlignmentPlan, tmp_path: Path
) -> None:
    store = Alignments(tmp_path)
    store.approve(plan, federation.keys("company"))
    path = tmp_path / f"{plan.hash.hex()}.json"
    path.write_bytes(make_plan(federation, 999).to_json())
    with pytest.raises(PlanNotApproved, match="changed"):
        store.require(plan.hash)


def test_foreign_keys(federation: Federation, plan: AlignmentPlan, tmp_path: Path) -> None:
    other = PartyKeys.create(tmp_path / "keys", "company", "company")
    with pytest.raises(ConfigError, match="other keys"):
        Alignments(tmp_path).approve(plan, other)


def test_a_plan_is_no_alignment(federation: Federation, plan: AlignmentPlan) -> None:
    with pytest.raises(ConfigError, match="alignment"):
        AlignmentPlan.from_json(federation.plan.to_json())
    with pytest.raises(ConfigError, match="plan"):
        type(federation.plan).from_json(plan.to_json())
    assert "no privacy budget is spent" in plan.describe()


def test_a_new_ticket_renews_an_alignment_too(federation: Federation, plan: AlignmentPlan) -> None:
    """A relay that was started anew sends one; it must not end the session that it is for."""
    first = Ticket("127.0.0.1:1", plan.relay_name, b"1", plan.hash, "company", "company", 5)
    session = Session(first, federation.tls("company"), federation.keys("company"), plan)
    session.renew(replace(first, token=b"2"))
    assert session._tickets.take().token == b"2"


# --- Kills, and dry runs --------------------------------------------------------------------------


def counted(monkeypatch: pytest.MonkeyPatch, *, dies_after: int | None = None) -> list[int]:
    """How many points each batch computes; the one after `dies_after` batches fails."""
    sizes: list[int] = []

    def watch(function: Callable[..., bytes]) -> Callable[..., bytes]:
        def watched(*arguments: Any) -> bytes:
            if dies_after is not None and len(sizes) >= dies_after:
                raise ZeroDivisionError
            points = function(*arguments)
            sizes.append(len(points) // POINT_BYTES)
            return points

        return watched

    monkeypatch.setattr(alignment, "blind", watch(blind))
    monkeypatch.setattr(alignment, "multiply", watch(multiply))
    return sizes


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alignment, "BATCH", 4)


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("stage", ["blinded", "doubled"])
def test_what_was_computed_is_not_computed_again(
    plan: AlignmentPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    secret, cohort, others = random_secret(), checked_ids(IDS), points_of(*IDS)

    def run() -> bytes:
        side = Aligner(plan, cohort, secret, work=tmp_path / "a.work")
        return side.blinded() if stage == "blinded" else side.double(others)

    with monkeypatch.context() as patch, joblib.parallel_config(n_jobs=1):
        first = counted(patch, dies_after=3)
        with pytest.raises(ZeroDivisionError):
            run()
    (file,) = tmp_path.glob("*.partial")
    assert file.stat().st_mode & 0o777 == 0o600
    with file.open("ab") as torn:
        torn.write(b"half a record")
    with monkeypatch.context() as patch:
        rest = counted(patch)
        repeated = run()
    assert sum(first) == 12
    assert sum(rest) == 28
    monkeypatch.setattr(alignment, "BATCH", 1000)
    file.unlink()
    assert run() == repeated


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("change", ["ids", "secret", "byte"])
def test_work_on_something_else_is_not_taken(
    plan: AlignmentPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    secret, work = random_secret(), tmp_path / "a.work"
    Aligner(plan, checked_ids(IDS), secret, work=work).blinded()
    (file,) = tmp_path.glob("*.partial")
    if change == "byte":
        content = bytearray(file.read_bytes())
        content[300] ^= 1
        file.write_bytes(content)
    ids = IDS[::-1] if change == "ids" else IDS
    other = random_secret() if change == "secret" else secret
    sizes = counted(monkeypatch)
    again = Aligner(plan, checked_ids(ids), other, work=work).blinded()
    assert again == Aligner(plan, checked_ids(IDS), other).blinded()
    assert sum(sizes) == 40 + (40 if change != "byte" else 40 - 4)


def test_who_is_killed_comes_back_to_the_same_session(
    aligned: Aligned, plan: AlignmentPlan
) -> None:
    """The company dies when it has sent its list; the regulator waits for it."""
    ours, theirs = fresh(), fresh()
    regulator_done = threading.Event()

    def twice(session: Session) -> object:
        talk = _Talk(session, plan)
        aligner = Aligner(plan, checked_ids(IDS[:30]), ours.begin(plan.hash))
        talk.send(1, aligner.blinded())
        talk.receive(2, 1000)
        session._stream.stop()  # killed: no Close, no further word
        ticket = aligned.relay.issue_ticket("company", "company")
        federation = aligned.federation
        with Session(
            ticket, federation.tls("company"), federation.keys("company"), plan, timing=FAST
        ) as back:
            common = honest(IDS[:30], ours)(back)
            assert regulator_done.wait(30)
            return common

    def regulator(session: Session) -> object:
        common = honest(IDS[10:], theirs)(session)
        regulator_done.set()
        return common

    first, second = aligned.run(twice, regulator)
    assert isinstance(first, Cohort), first
    assert first == second
    assert not [*ours.folder.glob("*.secret"), *theirs.folder.glob("*.partial")]


def test_a_company_that_dies_before_it_has_the_result_can_run_again(
    aligned: Aligned, plan: AlignmentPlan, tmp_path: Path
) -> None:
    """The regulator has agreed and stored; without its secret the company would get nothing."""
    ours, theirs = fresh(), fresh()

    def dies(session: Session) -> object:
        receive = session.receive

        def last(*arguments: Any, **options: Any) -> Parcel:
            frame = receive(*arguments, **options)
            if frame.exchange == 6:
                raise PermissionError
            return frame

        session.receive = last  # type: ignore[method-assign]
        return honest(IDS[:30], ours)(session)

    first, _ = aligned.run(dies, honest(IDS[10:], theirs))
    assert isinstance(first, PermissionError)
    assert theirs.people(plan.hash).exists()
    again = Aligned(aligned.federation, plan, tmp_path / "again")
    first, second = again.run(honest(IDS[:30], ours), honest(IDS[10:], theirs))
    assert isinstance(first, Cohort)
    assert first == second


@pytest.mark.parametrize(("other", "common"), [(IDS[10:], 20), (["nobody"], 0)])
def test_a_dry_run_says_how_many_and_not_who(
    federation: Federation, tmp_path: Path, other: list[str], common: int
) -> None:
    fields = make_plan(federation).model_dump(mode="json")
    dry = AlignmentPlan.of({**fields, "count_only": True})
    assert "a dry run" in dry.describe()
    ours, theirs = fresh(), fresh()
    returned: list[bytes] = []

    def listening(session: Session) -> object:
        receive = session.receive

        def heard(*arguments: Any, **options: Any) -> Parcel:
            frame = receive(*arguments, **options)
            if frame.exchange == 3:
                returned.append(frame.payload)
            return frame

        session.receive = heard  # type: ignore[method-assign]
        return honest(IDS[:30], ours)(session)

    found = Aligned(federation, dry, tmp_path).run(listening, honest(other, theirs))
    assert found == (common, common)
    points = [returned[0][at : at + 32] for at in range(0, 960, 32)]
    assert points == sorted(points), "the order would say who"
    assert not [*ours.folder.glob("*.people"), *theirs.folder.glob("*.people")]
    with pytest.raises(AlignmentDone, match="is done"):
        ours.begin(dry.hash)
