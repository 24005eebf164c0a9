"""The privacy ledger: budgets per person over all plans, no second answer, no quiet change."""

from __future__ import annotations

import errno
import io
import os
import random
import resource
import signal
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from isonomy.common.base.canonical import canonical_json, hash_bytes
from isonomy.common.base.errors import (
    BudgetExceeded,
    ConfigError,
    DataError,
    IsonomyError,
    LedgerTampered,
    ReplayRefused,
    StorageError,
)
from isonomy.common.base.merkle import merkle_root
from isonomy.common.ledger.ledger import Ledger, replay_lines, verify_ledger
from isonomy.common.ledger.records import Reserve, Sealed, seal, subset_root, unseal
from isonomy.common.ledger.state import LedgerState

PLAN_A, PLAN_B, PLAN_C = (bytes([letter]) * 32 for letter in b"ABC")
REQUEST = b"r" * 32
BACKWARDS = b"\x03\0\0\0\x01\0\0\0"


def person(number: int) -> bytes:
    return hash_bytes("test/person", number.to_bytes(4, "big"))[:16]


def people(*numbers: int) -> list[bytes]:
    return [person(number) for number in numbers]


ROOT = merkle_root(people(*range(6)))


def ask(ledger: Ledger, query_id: str, root: bytes, units: int, /, **changes):
    given = {
        "plan": PLAN_A,
        "query_id": query_id,
        "request_hash": REQUEST,
        "root": root,
        "units": units,
        "event": {"mechanism": "gaussian", "sigma": "12.5", "columns": 3},
        "answer": b"answer to " + query_id.encode(),
    }
    return ledger.debit(**{**given, **changes})


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "ledger.jsonl"


@pytest.fixture
def ledger(path):
    with Ledger.create(path, cap_units=100, delta=1e-5) as made:
        yield made


@pytest.fixture
def rich(path) -> Path:
    """A closed ledger that holds every type of record."""
    with Ledger.create(path, cap_units=100, delta=1e-5) as made:
        root = made.add_people(people(*range(6)))
        some = made.add_subset(root, np.array([1, 3]))
        made.reserve(PLAN_A, root, 40)
        made.reserve(PLAN_B, some, 10, individual=True)
        ask(made, "q1", root, 5)
        ask(made, "q2 – ü😀", some, 7)
        ask(made, "q3", some, 99, plan=PLAN_B, adjacency="sample")
        made.close_plan(PLAN_A)
    return path


# ---- budgets -----------------------------------------------------------------------------------


def test_a_debit_is_kept_and_found_after_reopening(ledger, path):
    root = ledger.add_people(people(1, 2, 3))
    ledger.reserve(PLAN_A, root, 40)
    written = ask(ledger, "q", root, 7)
    head = ledger.head
    ledger.close()
    with Ledger.open(path) as again:
        assert again.find("q") == written
        assert again.find("other") is None
        assert (again.head, again.records, again.cap_units, again.delta) == (head, 4, 100, 1e-5)
        assert (written.seq, written.hash, written.answer) == (3, head, b"answer to q")
        assert written.event == {"mechanism": "gaussian", "sigma": "12.5", "columns": 3}
        assert (again.spent_units(PLAN_A), again.remaining_units(PLAN_A, root)) == (7, 33)
        assert (again.members(root), again.person_units(person(2))) == (3, 7)
        assert again.person_units(person(9)) == 0


def test_debits_stay_within_the_reservation_and_check_says_the_same(ledger):
    root = ledger.add_people(people(1, 2))
    ledger.reserve(PLAN_A, root, 10)
    ask(ledger, "a", root, 6)
    ledger.check(PLAN_A, root, 4)
    before = ledger.head
    for attempt in (lambda: ledger.check(PLAN_A, root, 5), lambda: ask(ledger, "b", root, 5)):
        with pytest.raises(BudgetExceeded):
            attempt()
    assert (ledger.head, ledger.find("b")) == (before, None)
    ask(ledger, "b", root, 4)
    with pytest.raises(BudgetExceeded):
        ask(ledger, "c", root, 1)
    ask(ledger, "free", root, 0)


def test_people_pay_only_for_queries_they_are_in(ledger):
    root = ledger.add_people(people(*range(10)))
    odd = ledger.add_subset(root, np.arange(1, 10, 2))
    inner = ledger.add_subset(odd, np.array([0, 4]))  # persons 1 and 9
    ledger.reserve(PLAN_A, root, 10)
    ask(ledger, "a", odd, 6)
    ask(ledger, "b", inner, 3)
    spent = [ledger.person_units(person(each)) for each in range(10)]
    assert spent == [0, 9, 0, 6, 0, 6, 0, 6, 0, 9]
    assert [ledger.remaining_units(PLAN_A, each) for each in (root, odd, inner)] == [1, 1, 1]
    assert ledger.spent_units(PLAN_A) == 9
    even = ledger.add_subset(root, np.arange(0, 10, 2))
    ask(ledger, "c", even, 10)
    with pytest.raises(BudgetExceeded):
        ask(ledger, "d", inner, 2)


def test_the_cap_holds_over_plans_with_overlapping_people(ledger):
    first = ledger.add_people(people(1, 2, 3))
    second = ledger.add_people(people(3, 4))
    ledger.reserve(PLAN_A, first, 60)
    with pytest.raises(BudgetExceeded):
        ledger.reserve(PLAN_B, second, 41)  # person 3 has 40 left
    ledger.reserve(PLAN_B, second, 40)
    ask(ledger, "a", first, 60)
    ask(ledger, "b", second, 40, plan=PLAN_B)
    assert [ledger.person_units(person(each)) for each in (1, 2, 3, 4)] == [60, 60, 100, 40]
    alone = ledger.add_subset(second, np.array([1]))
    ledger.reserve(PLAN_C, alone, 60)  # person 4 still has it
    with pytest.raises(BudgetExceeded):
        ledger.reserve(b"D" * 32, alone, 1)


def test_closing_a_plan_frees_what_each_person_did_not_spend(ledger):
    root = ledger.add_people(people(1, 2))
    one = ledger.add_subset(root, np.array([0]))
    two = ledger.add_subset(root, np.array([1]))
    ledger.reserve(PLAN_A, root, 80)
    ask(ledger, "q", one, 30)
    with pytest.raises(BudgetExceeded):
        ledger.reserve(PLAN_B, one, 70)
    ledger.close_plan(PLAN_A)
    with pytest.raises(BudgetExceeded):
        ledger.reserve(PLAN_B, one, 71)
    ledger.reserve(PLAN_B, one, 70)
    ledger.reserve(PLAN_C, two, 100)
    for attempt in (lambda: ledger.check(PLAN_A, two, 0), lambda: ask(ledger, "late", two, 0)):
        with pytest.raises(BudgetExceeded, match="closed"):
            attempt()
    assert ledger.remaining_units(PLAN_A, root) == 0
    assert ask(ledger, "q", one, 30).answer == b"answer to q"  # the stored answer stays available


def test_closing_and_reserving_again_are_no_ops(ledger):
    root = ledger.add_people(people(1))
    ledger.reserve(PLAN_A, root, 10)
    head = ledger.head
    ledger.reserve(PLAN_A, root, 10)
    assert ledger.head == head
    with pytest.raises(ReplayRefused):
        ledger.reserve(PLAN_A, root, 11)
    with pytest.raises(ReplayRefused):
        ledger.reserve(PLAN_A, root, 10, individual=True)
    ledger.close_plan(PLAN_A)
    head = ledger.head
    ledger.close_plan(PLAN_A)
    ledger.reserve(PLAN_A, root, 10)
    assert ledger.head == head
    with pytest.raises(BudgetExceeded):
        ask(ledger, "q", root, 1)


def test_individual_plans_count_their_whole_reservation_for_ever(ledger):
    root = ledger.add_people(people(1, 2))
    ledger.reserve(PLAN_A, root, 60, individual=True)
    assert ledger.person_units(person(1)) == 60
    ledger.check(PLAN_A, root, 10**6)
    ask(ledger, "q", root, 10**6)  # information: the company's own filter keeps the cap
    assert (ledger.spent_units(PLAN_A), ledger.remaining_units(PLAN_A, root)) == (60, 0)
    ledger.close_plan(PLAN_A)
    assert ledger.person_units(person(1)) == 60
    with pytest.raises(BudgetExceeded):
        ledger.reserve(PLAN_B, root, 41)
    with pytest.raises(BudgetExceeded):
        ask(ledger, "late", root, 0)


def test_a_cap_of_zero_allows_free_queries_only(path):
    with Ledger.create(path, cap_units=0, delta=1e-5) as ledger:
        root = ledger.add_people(people(1))
        with pytest.raises(BudgetExceeded):
            ledger.reserve(PLAN_A, root, 1)
        ledger.reserve(PLAN_A, root, 0)
        ask(ledger, "free", root, 0)
        with pytest.raises(BudgetExceeded):
            ask(ledger, "q", root, 1)


def test_the_largest_units_do_not_overflow(path):
    most = 2**53 - 1
    with Ledger.create(path, cap_units=most, delta=1e-5) as ledger:
        root = ledger.add_people(people(1))
        ledger.reserve(PLAN_A, root, most)
        ask(ledger, "q", root, most)
        for plan in (PLAN_A, PLAN_B):
            with pytest.raises(BudgetExceeded):
                ledger.check(plan, root, 1) if plan is PLAN_A else ledger.reserve(plan, root, most)


def test_a_thousand_subsets(ledger, path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)  # 2,000 of them would test only the disk
    root = ledger.add_people(people(*range(2000)))
    ledger.reserve(PLAN_A, root, 3)
    roots = {ledger.add_subset(root, np.array([2 * each, 2 * each + 1])) for each in range(1000)}
    assert len(roots) == 1000
    for number, each in enumerate(sorted(roots)):
        ask(ledger, f"q{number}", each, 2)
    assert (ledger.spent_units(PLAN_A), ledger.remaining_units(PLAN_A, root)) == (2, 1)
    assert all(ledger.person_units(person(each)) == 2 for each in range(2000))
    ledger.close()
    found = verify_ledger(path)
    assert (found.records, found.debits, found.people) == (2003, 1000, 2000)
    assert found.max_person_units == 2


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_sequence_keeps_everybody_within_the_cap(tmp_path_factory, data):
    """The slow oracle: a dictionary per person beside the arrays, also after reopening."""
    path = tmp_path_factory.mktemp("ledger") / "ledger"
    cap, held, spent, groups, plans = 20, {}, {}, {}, {}
    ledger = Ledger.create(path, cap_units=cap, delta=1e-5)
    for step in range(data.draw(st.integers(1, 12))):
        kind = data.draw(st.sampled_from(["people", "subset", "reserve", "debit", "close"]))
        if kind == "people" or not groups:
            who = data.draw(st.lists(st.integers(0, 7), min_size=1, unique=True))
            root = ledger.add_people(people(*who))
            groups.setdefault(root, (who, {root}))
        elif kind == "subset":
            parent = data.draw(st.sampled_from(sorted(groups)))
            size = len(groups[parent][0])
            at = sorted(data.draw(st.sets(st.integers(0, size - 1), min_size=1)))
            root = ledger.add_subset(parent, np.array(at))
            groups[root] = [groups[parent][0][each] for each in at], groups[parent][1] | {root}
        elif kind == "reserve":
            root, units = data.draw(st.sampled_from(sorted(groups))), data.draw(st.integers(0, 12))
            plan, who = bytes([step]) * 32, groups[root][0]
            if max(held.get(each, 0) for each in who) + units > cap:
                with pytest.raises(BudgetExceeded):
                    ledger.reserve(plan, root, units)
                continue
            ledger.reserve(plan, root, units)
            plans[plan] = {"root": root, "units": units, "spent": dict.fromkeys(who, 0)}
            held.update({each: held.get(each, 0) + units for each in who})
        elif kind == "debit" and plans:
            plan = data.draw(st.sampled_from(sorted(plans)))
            terms = plans[plan]
            inside = sorted(each for each in groups if terms["root"] in groups[each][1])
            root, units = data.draw(st.sampled_from(inside)), data.draw(st.integers(0, 8))
            left = terms["units"] - max(terms["spent"][each] for each in groups[root][0])
            if terms.get("closed") or units > left:
                with pytest.raises(BudgetExceeded):
                    ask(ledger, f"q{step}", root, units, plan=plan)
                continue
            ask(ledger, f"q{step}", root, units, plan=plan)
            for each in groups[root][0]:
                terms["spent"][each] += units
                spent[each] = spent.get(each, 0) + units
        elif kind == "close" and plans:
            plan = data.draw(st.sampled_from(sorted(plans)))
            ledger.close_plan(plan)
            if not plans[plan].get("closed"):
                for each, used in plans[plan]["spent"].items():
                    held[each] -= plans[plan]["units"] - used
            plans[plan]["closed"] = True
    ledger.close()
    with Ledger.open(path) as again:
        assert [again.person_units(person(each)) for each in range(8)] == [
            spent.get(each, 0) for each in range(8)
        ]
        for plan, terms in plans.items():
            assert again.spent_units(plan) == max(terms["spent"].values())
    assert max(spent.values(), default=0) == verify_ledger(path).max_person_units <= cap


# ---- replays -----------------------------------------------------------------------------------


def test_a_repeated_query_gets_the_stored_answer_and_nothing_is_written(ledger, path):
    root = ledger.add_people(people(1))
    ledger.reserve(PLAN_A, root, 10)
    first = ask(ledger, "q", root, 6)
    size = path.stat().st_size
    assert ask(ledger, "q", root, 6, answer=b"fresh noise") is first
    assert path.stat().st_size == size
    assert ledger.spent_units(PLAN_A) == 6


@pytest.mark.parametrize("change", [{"request_hash": b"s" * 32}, {"plan": PLAN_B}])
def test_an_old_query_id_with_other_content_is_refused(ledger, path, change):
    root = ledger.add_people(people(1))
    ledger.reserve(PLAN_A, root, 10)
    ledger.reserve(PLAN_B, root, 10)
    ask(ledger, "q", root, 6)
    size = path.stat().st_size
    with pytest.raises(ReplayRefused):
        ask(ledger, "q", root, 1, **change)
    assert path.stat().st_size == size


def test_query_ids_are_unicode_and_compared_exactly(ledger, path):
    root = ledger.add_people(people(1))
    ledger.reserve(PLAN_A, root, 100)
    ids = ["ü", "u\u0308", "😀" * 128, "\n", "\x00", '"\\', "\u2028", " q", "q"]
    for each in ids:
        ask(ledger, each, root, 1)
    ledger.close()
    with Ledger.open(path) as again:
        assert [again.find(each).query_id for each in ids] == ids
        assert again.spent_units(PLAN_A) == len(ids)


def test_adding_people_again_is_a_no_op_and_keeps_their_budget(ledger, path):
    root = ledger.add_people(people(1, 2))
    subset = ledger.add_subset(root, np.array([1]))
    ledger.reserve(PLAN_A, root, 10)
    ask(ledger, "q", root, 10)
    size = path.stat().st_size
    assert ledger.add_people(people(1, 2)) == root == merkle_root(people(1, 2))
    assert ledger.add_subset(root, np.array([1], np.uint8)) == subset
    assert path.stat().st_size == size
    other = ledger.add_people(people(2, 1))
    assert other != root
    assert ledger.person_units(person(1)) == 10


# ---- arguments ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"query_id": ""},
        {"query_id": "q" * 129},
        {"query_id": "\ud800"},
        {"request_hash": b"short"},
        {"units": -1},
        {"units": 1.5},
        {"units": True},
        {"units": 2**53},
        {"adjacency": "nobody"},
        {"event": {"sigma": 1.5}},
        {"event": {"private": True}},
        {"event": {"text": "x" * 300_000}},
        {"event": {1: "x"}},
        {"answer": b""},
        {"answer": "text"},
        {"root": b"?" * 32},
        {"plan": b"?" * 32},
        {"plan": b"?"},
    ],
)
def test_a_wrong_debit_is_refused_and_the_ledger_goes_on(ledger, path, changes):
    root = ledger.add_people(people(1))
    ledger.reserve(PLAN_A, root, 10)
    size = path.stat().st_size
    with pytest.raises(ConfigError):
        ask(ledger, "q", root, 1, **changes)
    assert path.stat().st_size == size
    ask(ledger, "q", root, 1)


def test_people_outside_the_plan_are_refused(ledger):
    root = ledger.add_people(people(1, 2, 3))
    some = ledger.add_subset(root, np.array([0, 1]))
    same_people = ledger.add_people(people(1, 2))
    ledger.reserve(PLAN_A, some, 10)
    for other in (root, same_people):
        with pytest.raises(ConfigError, match="no subset"):
            ask(ledger, "q", other, 1)
        with pytest.raises(ConfigError, match="no subset"):
            ledger.check(PLAN_A, other, 1)


@pytest.mark.parametrize(
    "positions",
    [[], [0, 0], [1, 0], [0, 3], [-1, 1], [2**32], [[0, 1]], [0.0, 1.0], [True, False]],
)
def test_wrong_subsets_are_refused(ledger, positions):
    root = ledger.add_people(people(1, 2, 3))
    with pytest.raises(DataError):
        ledger.add_subset(root, np.array(positions))


@pytest.mark.parametrize("members", [[], [b"short"], [person(1), person(1)], [b"x" * 32]])
def test_wrong_people_are_refused(ledger, members):
    with pytest.raises(DataError):
        ledger.add_people(members)


@pytest.mark.parametrize("delta", [0, 1, -1e-5, float("nan"), float("inf")])
def test_delta_lies_between_zero_and_one(path, delta):
    with pytest.raises(ConfigError):
        Ledger.create(path, cap_units=1, delta=delta)
    assert not path.exists()


def test_unknown_plans_and_roots(ledger):
    for question in (
        lambda: ledger.close_plan(PLAN_A),
        lambda: ledger.spent_units(PLAN_A),
        lambda: ledger.reserve(PLAN_A, b"?" * 32, 1),
        lambda: ledger.members(b"?" * 32),
        lambda: ledger.add_subset(b"?" * 32, np.array([0])),
    ):
        with pytest.raises(ConfigError):
            question()


def test_errors_and_reprs_hold_neither_members_nor_answers(ledger):
    root = ledger.add_people(people(1))
    ledger.reserve(PLAN_A, root, 1)
    record = ask(ledger, "q", root, 1, answer=b"SECRET-ANSWER")
    texts = [repr(record)]
    for attempt in (
        lambda: ask(ledger, "r", root, 1, answer=b"SECRET-ANSWER"),
        lambda: ask(ledger, "q", root, 1, answer=b"SECRET-ANSWER", request_hash=b"s" * 32),
        lambda: ledger.reserve(PLAN_B, root, 101),
        lambda: ledger.add_people(people(1, 1)),
    ):
        with pytest.raises(IsonomyError) as caught:
            attempt()
        texts.append(str(caught.value))
    for text in texts:
        assert "SECRET" not in text
        assert person(1).hex() not in text
        assert repr(person(1)) not in text


# ---- file, lock and life -----------------------------------------------------------------------


def test_the_file_is_private_and_never_overwritten(ledger, path):
    assert path.stat().st_mode & 0o777 == 0o600
    before = path.read_bytes()
    with pytest.raises(ConfigError, match="never overwritten"):
        Ledger.create(path, cap_units=5, delta=1e-5)
    assert path.read_bytes() == before
    assert [each.name for each in path.parent.iterdir()] == [path.name]  # nothing left beside it


def test_a_second_opener_is_told_who_may_hold_it(ledger, path):
    with pytest.raises(ConfigError, match="isonomy-regulator serve"):
        Ledger.open(path)
    ledger.close()
    with Ledger.open(path), pytest.raises(ConfigError, match="held by another"):
        Ledger.open(path)
    Ledger.open(path).close()


def test_a_closed_ledger_says_so(ledger):
    ledger.close()
    ledger.close()
    for use in (
        lambda: ledger.head,
        lambda: ledger.add_people(people(1)),
        lambda: ledger.find("q"),
    ):
        with pytest.raises(ConfigError, match="closed"):
            use()


def test_missing_and_unusable_files(tmp_path):
    for use in (Ledger.open, verify_ledger):
        with pytest.raises(ConfigError, match="does not exist"):
            use(tmp_path / "none")
        with pytest.raises(ConfigError):
            use(tmp_path)
        (tmp_path / "empty").touch()
        with pytest.raises(LedgerTampered, match="line 1"):
            use(tmp_path / "empty")
    with pytest.raises(ConfigError):
        Ledger.create(tmp_path / "no" / "folder", cap_units=1, delta=1e-5)


def test_a_forked_child_cannot_use_the_parents_ledger(ledger):
    child = os.fork()
    if child == 0:
        code = 1
        try:
            ledger.add_people(people(1))
        except ConfigError:
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert ledger.records == 1


def test_threads_share_one_ledger(ledger, path):
    root = ledger.add_people(people(1))
    ledger.reserve(PLAN_A, root, 100)
    refused = []

    def work(name: int) -> None:
        for each in range(40):
            try:
                ask(ledger, f"{name}-{each}", root, 1)
            except BudgetExceeded:
                refused.append(name)

    threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (ledger.spent_units(PLAN_A), len(refused)) == (100, 60)
    ledger.close()
    assert verify_ledger(path).debits == 100


# ---- full disks and failing fsyncs --------------------------------------------------------------


def full(fd, data, offset):
    raise OSError(errno.ENOSPC, "No space left on device")


def short(fd, data, offset, real=os.pwrite):
    return real(fd, data[: len(data) // 2], offset)


@pytest.mark.parametrize("broken", [full, short])
def test_a_full_disk_changes_nothing_and_the_ledger_goes_on(ledger, path, monkeypatch, broken):
    root = ledger.add_people(people(1))
    ledger.reserve(PLAN_A, root, 10)
    before, head = path.read_bytes(), ledger.head
    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", broken)
        with pytest.raises(StorageError, match="nothing was debited"):
            ask(ledger, "q", root, 6)
    assert path.read_bytes() == before
    assert (ledger.head, ledger.find("q"), ledger.spent_units(PLAN_A)) == (head, None, 0)
    ask(ledger, "q", root, 6)
    ledger.close()
    assert verify_ledger(path).debits == 1


def test_a_real_file_size_limit(ledger, path):
    """The kernel itself cuts the write short, as a full disk would."""
    root = ledger.add_people(people(1))
    ledger.reserve(PLAN_A, root, 10)
    before = path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        for room in (0, 100):
            resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + room, limits[1]))
            with pytest.raises(StorageError):
                ask(ledger, "q", root, 6)
            assert path.read_bytes() == before
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    ask(ledger, "q", root, 6)
    ledger.close()
    assert verify_ledger(path).debits == 1


@pytest.mark.parametrize("calls", [("fsync",), ("pwrite", "ftruncate")])
def test_when_the_disk_cannot_be_known_the_ledger_fails_closed(ledger, path, monkeypatch, calls):
    root = ledger.add_people(people(1))
    ledger.reserve(PLAN_A, root, 10)

    def broken(*_):
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        for call in calls:
            patched.setattr(os, call, broken)
        with pytest.raises(StorageError):
            ask(ledger, "q", root, 6)
    for use in (
        lambda: ask(ledger, "r", root, 1),
        lambda: ledger.find("q"),
        lambda: ledger.head,
        lambda: ledger.check(PLAN_A, root, 1),
        lambda: ledger.add_people(people(1)),
    ):
        with pytest.raises(StorageError, match="open it anew"):
            use()
    ledger.close()
    with Ledger.open(path) as again:  # whichever of the two is on disk, it is consistent
        ask(again, "q", root, 6)
        assert again.spent_units(PLAN_A) == 6


def test_an_interrupted_write_fails_closed(ledger, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ledger.add_people(people(1))
    monkeypatch.undo()
    with pytest.raises(StorageError, match="interrupted"):
        ledger.add_people(people(2))


def test_open_syncs_before_it_hands_out_a_stored_answer(rich, monkeypatch):
    """The last writer may have died between write and fsync: the answer must not leave earlier."""
    calls = []
    write, sync = os.pwrite, os.fsync
    monkeypatch.setattr(os, "pwrite", lambda *a: (calls.append(("write", a[1])), write(*a))[1])
    monkeypatch.setattr(os, "fsync", lambda fd: (calls.append(("sync", fd)), sync(fd))[1])
    before = rich.read_bytes()
    Ledger.open(rich).close()
    assert [name for name, _ in calls] == ["write", "sync"]
    assert before.endswith(calls[0][1])
    assert calls[0][1].count(b"\n") == 1
    assert rich.read_bytes() == before


def test_a_foreign_write_is_noticed(ledger, path):
    with path.open("ab") as file:
        file.write(b"{}\n")
    with pytest.raises(LedgerTampered):
        ledger.add_people(people(1))
    with pytest.raises(StorageError):
        ledger.add_people(people(1))


# ---- tampering -----------------------------------------------------------------------------------


def assert_tampered(path: Path, data: bytes, line: int | None = None) -> None:
    path.write_bytes(data)
    for use in (verify_ledger, Ledger.open):
        with pytest.raises(LedgerTampered, match="line" if line is None else f"line {line}:"):
            use(path)
    assert path.read_bytes() == data  # a tampered ledger is left as it is, for the inspector


def test_the_summary_of_an_honest_ledger(rich):
    found = verify_ledger(rich)
    assert (found.records, found.people, found.debits, found.torn) == (8 + 1, 6, 3, False)
    assert (found.cap_units, found.delta, found.max_person_units) == (100, 1e-5, 22)
    assert [(each.units, each.spent_units, each.is_open) for each in found.plans()] == [
        (40, 12, False),
        (10, 10, True),
    ]
    with Ledger.open(rich) as ledger:
        assert (ledger.head, ledger.plans()) == (found.head, found.plans())


def test_every_flipped_byte_is_found(rich):
    """All of them, in every line, the last newline included: one random bit each."""
    honest, source = rich.read_bytes(), random.Random(1)
    for at in range(len(honest)):
        changed = bytearray(honest)
        changed[at] ^= 1 << source.randrange(8)
        line = honest[:at].count(b"\n") + 1
        with pytest.raises(LedgerTampered, match=f"line {line}:"):
            replay_lines(rich, io.BytesIO(changed))  # what both open and verify do
        if at % 29 == 0 or at > len(honest) - 5:
            assert_tampered(rich, bytes(changed), line)


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(at=st.integers(0, 2**20), what=st.binary(min_size=1, max_size=40), cut=st.integers(0, 40))
def test_replaced_pieces_are_found(rich, at, what, cut):
    honest = rich.parent / "honest"
    if not honest.exists():
        honest.write_bytes(rich.read_bytes())
    data = honest.read_bytes()
    last = data.rindex(b"\n", 0, -1)
    at %= last
    changed = data[:at] + what + data[min(at + cut, last) :]
    if changed != data:
        assert_tampered(rich, changed)


def test_removed_swapped_repeated_and_inserted_lines_are_found(rich):
    lines = rich.read_bytes().splitlines(keepends=True)
    for at in range(len(lines) - 1):
        assert_tampered(rich, b"".join(lines[:at] + lines[at + 1 :]), line=at + 1)
        swapped = [*lines[:at], lines[at + 1], lines[at], *lines[at + 2 :]]
        assert_tampered(rich, b"".join(swapped), line=at + 1)
    for at in range(len(lines)):
        assert_tampered(rich, b"".join(lines[: at + 1] + lines[at:]), line=at + 2)
        assert_tampered(rich, b"".join([*lines[:at], b"\n", *lines[at:]]), line=at + 1)


def test_a_record_rehashed_alone_breaks_the_chain(rich):
    lines = rich.read_bytes().splitlines(keepends=True)
    for at, line in enumerate(lines[:-1]):
        old = unseal(line[:-1])
        _, later = seal(old.body, seq=old.seq, prev=old.prev, time=old.time + 1)
        assert_tampered(rich, b"".join([*lines[:at], later, *lines[at + 1 :]]), line=at + 2)


def test_a_rollback_shows_against_a_known_head(rich):
    head = verify_ledger(rich).head
    assert verify_ledger(rich, known_head=head).head == head
    lines = rich.read_bytes().splitlines(keepends=True)
    rich.write_bytes(b"".join(lines[:-1]))
    assert verify_ledger(rich).records == len(lines) - 1  # whole records gone: the file is silent
    with pytest.raises(LedgerTampered, match="rolled back"):
        verify_ledger(rich, known_head=head)


def test_every_truncated_tail_is_torn_and_cut_off(rich):
    honest = rich.read_bytes()
    last = honest.rindex(b"\n", 0, -1) + 1
    rest = verify_ledger(rich).records - 1
    lengths = [*range(last + 1, len(honest) - 3, 6), *range(len(honest) - 3, len(honest))]
    for number, length in enumerate(lengths, start=1):
        rich.write_bytes(honest[:length])
        found = verify_ledger(rich)
        assert (found.torn, found.records) == (True, rest)
        assert rich.read_bytes() == honest[:length]  # verifying changes nothing
        with Ledger.open(rich) as ledger:
            assert ledger.records == rest
        assert rich.read_bytes() == honest[:last]
        torn = rich.with_name(f"{rich.name}.torn-{number}")
        assert torn.read_bytes() == honest[last:length]
        assert torn.stat().st_mode & 0o777 == 0o600
    rich.write_bytes(honest[:last])
    assert not verify_ledger(rich).torn


def test_zeros_after_a_power_cut_are_a_torn_tail(rich):
    honest = rich.read_bytes()
    rich.write_bytes(honest + bytes(300))
    assert verify_ledger(rich).torn
    Ledger.open(rich).close()
    assert rich.read_bytes() == honest


def resealed(path: Path, change) -> bytes:
    """What somebody writes who rebuilds the whole chain: only the rules can find it."""
    out, head = b"", bytes(32)
    for seq, line in enumerate(path.read_bytes().splitlines()):
        record = unseal(line)
        body = change(seq, record.body)
        if body is not None:
            sealed, text = seal(body, seq=seq, prev=head, time=record.time)
            out, head = out + text, sealed.hash
    return out


def replace_field(number: int, **changes):
    def change(seq, body):
        if seq == number:
            for name, value in changes.items():
                object.__setattr__(body, name, value)
        return body

    return change


@pytest.mark.parametrize(
    ("number", "changes"),
    [
        (0, {"cap_units": 39}),  # a reservation beyond the cap
        (0, {"delta": "2"}),
        (0, {"cap_units": -1}),
        (1, {"members": b"".join(people(*range(10, 16)))}),  # other people than the root's
        (2, {"positions": b"\x01\0\0\0\x04\0\0\0"}),  # other positions than the root's
        (2, {"root": subset_root(ROOT, BACKWARDS), "positions": BACKWARDS}),
        (3, {"units": 11}),  # debits beyond the reservation
        (3, {"root": b"?" * 32}),
        (4, {"plan": PLAN_A}),  # a plan twice
        (5, {"answer": b""}),
        (5, {"plan": PLAN_C}),
        (5, {"units": 41}),
        (5, {"adjacency": "none"}),
        (6, {"query_id": "q1"}),  # a query answered twice
        (6, {"units": "7"}),
        (7, {"root": b"?" * 32}),
        (8, {"plan": PLAN_C}),
    ],
)
def test_a_forged_chain_still_meets_the_rules(rich, number, changes):
    assert resealed(rich, lambda _, body: body) == rich.read_bytes()
    assert_tampered(rich, resealed(rich, replace_field(number, **changes)))


def test_a_debit_after_the_close_is_found(rich):
    lines = rich.read_bytes().splitlines()
    debit, closed = unseal(lines[5]), unseal(lines[8])
    object.__setattr__(debit.body, "query_id", "late")
    _, late = seal(debit.body, seq=9, prev=closed.hash, time=0)
    assert_tampered(rich, rich.read_bytes() + late, line=10)


def test_an_unknown_schema_is_no_tampering(rich):
    def rewrite(record: dict) -> bytes:
        digest = hash_bytes("isonomy/ledger/record", canonical_json(record))
        return canonical_json({**record, "hash": digest.hex()}) + b"\n"

    base = {"seq": 0, "prev": "0" * 64, "time": 0, "type": "open"}
    rich.write_bytes(rewrite({**base, "schema": 2, "something": "new"}))
    for use in (verify_ledger, Ledger.open):
        with pytest.raises(ConfigError, match="schema"):
            use(rich)
    assert_tampered(rich, rewrite({**base, "type": "party"}), line=1)


def test_the_state_machine_checks_without_changing(rich):
    state = LedgerState()
    for line in rich.read_bytes().splitlines():
        state.replay(unseal(line))
    before = (state.head, state.records, state.plans())
    with pytest.raises(BudgetExceeded):
        state.check(Reserve(PLAN_C, state.plans()[0].root, 101, individual=False))
    with pytest.raises(IsonomyError, match="expected"):
        state.replay(Sealed(3, state.head, 0, bytes(32), Reserve(PLAN_C, PLAN_A, 1, False)))
    assert (state.head, state.records, state.plans()) == before


@pytest.mark.parametrize("clock", [-1, -(10**9), 2**53])
def test_a_clock_that_no_record_can_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: int
) -> None:
    """Nothing is written that could not be read again."""
    path = tmp_path / "ledger.jsonl"
    with Ledger.create(path, cap_units=10, delta=1e-6) as ledger:
        before = path.read_bytes()
        monkeypatch.setattr("time.time", lambda: float(clock))
        with pytest.raises(ConfigError):
            ledger.accept_clock("J. Doe")
        assert path.read_bytes() == before
    with pytest.raises(ConfigError, match="time of the clock"):
        Ledger.create(tmp_path / "other.jsonl", cap_units=10, delta=1e-6)
    assert sorted(tmp_path.iterdir()) == [path]
    assert verify_ledger(path).records == 1
