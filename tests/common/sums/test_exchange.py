"""The exchange under a hostile or broken network, crashes on either side, and bad input."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from federation import PLAN, Federation, federation, labels

from isonomy.common.base.errors import (
    BudgetExceeded,
    ConfigError,
    DataError,
    IsonomyError,
    LedgerTampered,
    ProtocolError,
    ReplayRefused,
    StorageError,
    VerificationError,
)
from isonomy.common.crypto.params import DEFAULT_PARAMETERS as P
from isonomy.common.keys.identity import Identity
from isonomy.common.ledger.ledger import Ledger, verify_ledger
from isonomy.common.privacy.queries import Query, pack_positions
from isonomy.common.sums.noise_and_budget import Custodian
from isonomy.common.sums.openings import (
    FolderOpenings,
    answers_in,
    cut_chunks,
    delete_openings,
    join_chunks,
)
from isonomy.common.sums.oracle import RepeatedPeopleWarning
from isonomy.common.wire.messages import (
    Answer,
    Column,
    ColumnsHeader,
    Refusal,
    SumHeader,
    SumPart,
    decode,
    encode,
)

ROWS = np.random.default_rng(0).normal(size=(40, 3))


@pytest.fixture
def fed(tmp_path: Path) -> Federation:
    codes = np.random.default_rng(1).integers(0, 2, 40)
    return federation(tmp_path, {"a": labels(codes, "xy")}, {"a": "xy"})


def ask(fed: Federation) -> np.ndarray:
    return fed.company().blind_sum(ROWS, norm=3.0, share=0.2).values


def flip(frame: bytes, position: int) -> bytes:
    changed = bytearray(frame)
    changed[position] ^= 1
    return bytes(changed)


# --- A network that changes things ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f[:-1], "ends after|truncated|empty|not ours"),
        (lambda f: [*f, f[-1]], "came after the last"),
        (lambda f: [f[0], *f[:0:-1], *[]][: len(f)] if len(f) > 2 else [f[0]], "ends after"),
        (lambda f: [f[0][:-3], *f[1:]], "parsed|canonical"),
        (lambda f: f[1:], "expected a frame of type sum_header"),
        (lambda f: [f[0], encode(SumPart(5, decode(f[1], SumPart).ciphertext))], "expected part 0"),
        (lambda f: [f[0], encode(SumPart(0, bytes(10)))], "has 131072 bytes"),
        (lambda f: [f[0], encode(SumPart(0, b"\xff" * P.answer_bytes))], "not below q0"),
        (lambda f: [f[0], encode(SumPart(0, bytes(P.answer_bytes)))], "not those that"),
        (lambda f: [b"\x00" * (1 << 26) + b"1", *f[1:]], "at most"),
        (lambda f: [], "parsed|empty"),
    ],
)
def test_a_changed_request_is_refused_and_costs_nothing(
    fed: Federation, change: object, message: str
) -> None:
    fed.port.change_request = change  # type: ignore[assignment]
    before = fed.ledger.records
    with pytest.raises(ProtocolError, match=message):
        ask(fed)
    assert fed.ledger.records == before
    fed.port.change_request = lambda frames: frames
    assert np.isfinite(ask(fed)).all()  # and nothing is lost: the same id is asked again


def changed_header(**changes: object) -> object:
    return lambda f: [encode(dataclasses.replace(decode(f[0], SumHeader), **changes)), *f[1:]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attempt": b"\x01" * 16}, "no key is open"),
        ({"query_id": f"{PLAN.hex()[:16]}-999999"}, "no key is open"),
        ({"query_id": f"{PLAN.hex()[:16]}-unknowns-sex"}, "six digits"),
        ({"query_id": "other"}, "begins with"),
        ({"query_hash": b"\x02" * 32}, "another query"),
        ({"columns_hash": b"\x03" * 32}, "not made from the columns"),
        ({"parts": 2}, "announces 2"),
        ({"parts_hash": b"\x04" * 32}, "not those that"),
    ],
)
def test_a_header_binds_everything(
    fed: Federation, changes: dict[str, object], message: str
) -> None:
    fed.port.change_request = changed_header(**changes)  # type: ignore[assignment]
    with pytest.raises(ProtocolError, match=message):
        ask(fed)


def other_block(frames: list[bytes]) -> list[bytes]:
    column = decode(frames[1], Column)
    return [frames[0], encode(dataclasses.replace(column, block=3))]


def too_large_residue(frames: list[bytes]) -> list[bytes]:
    column = decode(frames[1], Column)
    large = dataclasses.replace(column.column, body=b"\xff" * P.column_bytes)
    return [frames[0], encode(dataclasses.replace(column, column=large))]


def other_layout(frames: list[bytes]) -> list[bytes]:
    header = decode(frames[0], ColumnsHeader)
    return [encode(dataclasses.replace(header, block=header.block * 2)), *frames[1:]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f[:-1], "parsed|empty"),
        (lambda f: [*f, f[-1]], "came after the last"),
        (lambda f: f[1:], "expected a frame of type columns_header"),
        (other_block, "expected column 0 of block 0"),
        (too_large_residue, "not below its prime"),
        (other_layout, "other blocks"),
    ],
)
def test_changed_columns_are_refused(fed: Federation, change: object, message: str) -> None:
    fed.port.change_columns = change  # type: ignore[assignment]
    with pytest.raises(ProtocolError, match=message):
        ask(fed)


def test_columns_with_one_flipped_bit_are_not_answered(fed: Federation) -> None:
    fed.port.change_columns = lambda f: [f[0], flip(f[1], 1000)]
    with pytest.raises(ProtocolError, match="not made from the columns"):
        ask(fed)


def test_a_changed_answer_is_refused(fed: Federation) -> None:
    def other_values(frame: bytes) -> bytes:
        answer = decode(frame, Answer)
        return encode(dataclasses.replace(answer, values=answer.values + 1))

    fed.port.change_answer = other_values
    with pytest.raises(VerificationError, match="signature"):
        ask(fed)


def test_an_answer_under_a_foreign_key_is_refused(fed: Federation) -> None:
    company = fed.company()
    company.channel.half._regulator_key = Identity.generate().public
    with pytest.raises(VerificationError, match="signature"):
        company.blind_sum(ROWS, norm=3.0, share=0.2)


def test_an_old_answer_is_refused(fed: Federation) -> None:
    company = fed.company()
    company.blind_sum(ROWS, norm=3.0, share=0.2)
    old = fed.port.answer_seen
    fed.port.change_answer = lambda _: old
    with pytest.raises(ProtocolError, match="another query"):
        company.blind_sum(ROWS, norm=3.0, share=0.2)


# --- Queries that the regulator must refuse ------------------------------------------------------

QUERY = Query(
    query_id=f"{PLAN.hex()[:16]}-900000",
    plan=PLAN,
    purpose="test",
    kind="blind",
    shape="groups",
    attributes=("a",),
    columns=3,
    mechanism="gaussian",
    noise=1 << 22,
    norm=1.0,
)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"plan": b"\x09" * 32}, "another plan"),
        ({"query_id": "0000000000000000-1"}, "begins with"),
        ({"noise": 100}, "σ ≥"),
        ({"attributes": ("b",)}, "unknown or repeated"),
        ({"attributes": ("a", "a")}, "named twice"),
        ({"attributes": ("a*a",)}, "unknown or repeated"),
        ({"positions": pack_positions((3, 99))}, "outside the cohort"),
        ({"weights": (1.0, 2.0)}, "expected 0 weights"),
        ({"shape": "weighted"}, "expected 2 weights"),
        ({"shape": "weighted", "weights": (0.0, 1.0), "kind": "open"}, "weighted sums are blind"),
        ({"columns": 1 << 17}, "columns in one query"),
        ({"noise": 1 << 41}, "exact range"),
    ],
)
def test_bad_queries_are_refused(fed: Federation, changes: dict[str, object], message: str) -> None:
    (frame,) = fed.port.asked(encode(dataclasses.replace(QUERY, **changes)))
    refusal = decode(frame, Refusal)
    assert message in refusal.text
    with pytest.raises(IsonomyError):
        decode(frame, ColumnsHeader)


def test_a_query_above_the_budget_is_refused_by_both_sides(tmp_path: Path) -> None:
    fed = federation(tmp_path, {"a": list("xy" * 20)}, {"a": "xy"}, epsilon=0.5)
    frames = list(fed.port.asked(encode(dataclasses.replace(QUERY, noise=1 << 20))))
    assert len(frames) == 1
    with pytest.raises(BudgetExceeded):
        decode(frames[0], ColumnsHeader)
    company = fed.company()
    for _ in range(4):
        company.blind_sum(ROWS, norm=3.0, share=0.25)
    with pytest.raises(BudgetExceeded, match="Nothing was asked"):
        company.blind_sum(ROWS, norm=3.0, share=0.01)
    assert company.budget.spent_epsilon <= 0.5
    assert company.budget.spent_units <= fed.cap_units


def test_a_cap_of_zero_answers_nothing(tmp_path: Path) -> None:
    fed = federation(tmp_path, {"a": list("xy" * 20)}, {"a": "xy"}, epsilon=0.0)
    with pytest.raises(BudgetExceeded):
        fed.company().blind_sum(ROWS, norm=3.0, share=1.0)
    with pytest.raises(BudgetExceeded):
        fed.company().blind_sum(ROWS, norm=3.0, sigma=100.0)


# --- Crashes -------------------------------------------------------------------------------------


def test_the_company_restarts_and_gets_the_same_answers(fed: Federation, tmp_path: Path) -> None:
    store = FolderOpenings(tmp_path / "openings")

    def script() -> list[np.ndarray]:
        company = fed.company(FolderOpenings(tmp_path / "openings"))
        return [company.blind_sum(ROWS * i, norm=3.0, share=0.1).values for i in (1, 2, 3)]

    first = script()
    spent, records = fed.ledger.spent_units(PLAN), fed.ledger.records
    again = script()
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert (fed.ledger.spent_units(PLAN), fed.ledger.records) == (spent, records)
    assert store.find("unknown") is None


def test_the_company_dies_between_sending_and_the_answer(fed: Federation, tmp_path: Path) -> None:
    folder = tmp_path / "openings"

    def lost(frame: bytes) -> bytes:
        raise KeyboardInterrupt  # the answer was given, but never arrived

    fed.port.change_answer = lost
    with pytest.raises(KeyboardInterrupt):
        fed.company(FolderOpenings(folder)).blind_sum(ROWS, norm=3.0, share=0.1)
    given = decode(fed.port.answer_seen, Answer)
    fed.port.change_answer = lambda frame: frame
    spent = fed.ledger.spent_units(PLAN)
    release = fed.company(FolderOpenings(folder)).blind_sum(ROWS, norm=3.0, share=0.1)
    assert fed.ledger.spent_units(PLAN) == spent
    assert release.receipt is not None
    assert release.receipt.sequence == given.sequence


def test_the_regulator_dies_before_it_answers(fed: Federation, tmp_path: Path) -> None:
    def dies(frames: list[bytes]) -> list[bytes]:
        fed.restart_regulator()
        return frames

    fed.port.change_request = dies
    company = fed.company(FolderOpenings(tmp_path / "openings"))
    with pytest.raises(ProtocolError, match="no key is open"):
        company.blind_sum(ROWS, norm=3.0, share=0.1)
    assert fed.ledger.spent_units(PLAN) == 0
    fed.port.change_request = lambda frames: frames
    # The stored request belongs to a lost key: a new attempt replaces it under the same id.
    assert np.isfinite(company.blind_sum(ROWS, norm=3.0, share=0.1).values).all()
    assert verify_ledger(fed.ledger._path).debits == 1


def test_the_regulator_restarts_and_repeats_its_answer(fed: Federation, tmp_path: Path) -> None:
    folder = tmp_path / "openings"
    first = fed.company(FolderOpenings(folder)).blind_sum(ROWS, norm=3.0, share=0.1)
    fed.restart_regulator()
    again = fed.company(FolderOpenings(folder)).blind_sum(ROWS, norm=3.0, share=0.1)
    assert np.array_equal(first.values, again.values)


def test_a_resumed_run_that_asks_something_else_is_refused(fed: Federation, tmp_path: Path) -> None:
    folder = tmp_path / "openings"
    fed.company(FolderOpenings(folder)).blind_sum(ROWS, norm=3.0, share=0.1)
    with pytest.raises(ReplayRefused, match="same questions"):
        fed.company(FolderOpenings(folder)).blind_sum(ROWS + 1, norm=3.0, share=0.1)
    with pytest.raises(ReplayRefused, match="answered before"):
        fed.company().blind_sum(ROWS, norm=3.0, share=0.1)  # the openings were lost


def test_a_rolled_back_ledger_shows(fed: Federation, tmp_path: Path) -> None:
    folder, path = tmp_path / "openings", fed.ledger._path
    early = path.read_bytes()
    with fed.company(FolderOpenings(folder)) as company:
        company.blind_sum(ROWS, norm=3.0, share=0.1)
    fed.ledger.close()
    path.write_bytes(early)
    fed.ledger = Ledger.open(path)
    fed.restart_regulator()
    with pytest.raises(VerificationError, match="ledger went back"):
        fed.company(FolderOpenings(folder)).blind_sum(ROWS, norm=3.0, share=0.1)


@pytest.mark.parametrize("inspected", [True, False])
def test_a_changed_opening_on_disk_is_noticed(
    fed: Federation, tmp_path: Path, inspected: bool
) -> None:
    store = FolderOpenings(tmp_path / "openings", inspected=inspected)
    fed.company(store).blind_sum(ROWS, norm=3.0, share=0.1)
    (path,) = (tmp_path / "openings").glob("*.opening")
    assert path.stat().st_mode & 0o077 == 0
    store.settle()
    chunks = cut_chunks(path.read_bytes())
    place = 2 if inspected else 1  # the rows, or seeds and nonce
    chunks[place] = flip(chunks[place], -1)
    path.write_bytes(join_chunks(chunks))
    # Without rows the stored commitment only shows that it is not about the rows of this run.
    error = VerificationError if inspected else ReplayRefused
    with pytest.raises(error, match="changed on disk" if inspected else "same questions"):
        fed.company(store).blind_sum(ROWS, norm=3.0, share=0.1)


def test_rows_are_kept_for_an_auditor_only(fed: Federation, tmp_path: Path) -> None:
    for number, inspected in enumerate((False, True)):
        folder = tmp_path / f"openings-{number}"
        company = fed.company(FolderOpenings(folder, inspected=inspected))
        company.go_on_from(number, company.position[1])
        company.blind_sum(ROWS, norm=3.0, share=0.1)
        (path,) = folder.glob("*.opening")
        _, _, rows, *_ = cut_chunks(path.read_bytes())
        assert len(rows) == inspected * 4 * ROWS.size


@pytest.mark.parametrize("call", ["pwrite", "fsync"])
def test_an_answer_that_cannot_be_kept_stops_the_next_query(
    fed: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """The caller has the answer while it is written; nothing more leaves until it is on disk."""
    store = FolderOpenings(tmp_path / "openings")
    company = fed.company(store)
    real = getattr(os, call)

    def full(fd: int, *rest: Any) -> int:
        if Path(f"/proc/self/fd/{fd}").readlink().name == "answers":
            raise OSError(28, "No space left on device")
        return real(fd, *rest)

    monkeypatch.setattr(os, call, full)
    first = company.blind_sum(ROWS, norm=3.0, share=0.1)
    sent = len(fed.port.request_seen)
    with pytest.raises(StorageError, match="fetched again"):
        company.blind_sum(ROWS + 1, norm=4.0, share=0.1)
    assert len(fed.port.request_seen) == sent
    monkeypatch.undo()
    again = fed.company(FolderOpenings(tmp_path / "openings"))
    assert np.array_equal(again.blind_sum(ROWS, norm=3.0, share=0.1).values, first.values)
    assert verify_ledger(fed.ledger._path).debits == 1


def test_ciphertexts_go_when_the_answer_is_on_disk_and_the_answer_stays(
    fed: Federation, tmp_path: Path
) -> None:
    store = FolderOpenings(tmp_path / "openings")
    with fed.company(store) as company:
        company.blind_sum(ROWS, norm=3.0, share=0.1)
    (opening,) = (tmp_path / "openings").glob("*.opening")
    *_, header = cut_chunks(opening.read_bytes())  # the last thing that is left
    assert delete_openings(tmp_path / "openings")
    assert [path.name for path in (tmp_path / "openings").iterdir()] == ["answers"]
    assert list(answers_in(tmp_path / "openings")) == [(header, fed.port.answer_seen)]


def test_a_full_disk_at_the_company_sends_nothing(
    fed: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FolderOpenings(tmp_path / "openings")

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match="nothing was sent"):
        fed.company(store).blind_sum(ROWS, norm=3.0, share=0.1)
    monkeypatch.undo()
    assert fed.port.request_seen == []
    assert np.isfinite(fed.company(store).blind_sum(ROWS, norm=3.0, share=0.1).values).all()


def test_a_full_disk_at_the_regulator_answers_nothing(
    fed: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    company = fed.company()
    real = os.pwrite

    def full(fd: int, data: bytes, offset: int) -> int:
        if fd == fed.ledger._fd:
            raise OSError(28, "No space left on device")
        return real(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(StorageError, match="debited once") as caught:
        company.blind_sum(ROWS, norm=3.0, share=0.1)
    assert str(fed.ledger._path) not in str(caught.value)  # whose disk is full is not our affair
    monkeypatch.undo()
    assert fed.ledger.spent_units(PLAN) == 0
    assert np.isfinite(company.blind_sum(ROWS, norm=3.0, share=0.1).values).all()
    assert verify_ledger(fed.ledger._path).debits == 1


def test_a_tampered_ledger_is_not_opened(fed: Federation) -> None:
    ask(fed)
    path = fed.ledger._path
    fed.ledger.close()
    path.write_bytes(path.read_bytes().replace(b'"units":', b'"unitz":', 1))
    with pytest.raises(LedgerTampered):
        Ledger.open(path)


def test_a_break_between_the_two_files_of_an_attempt_counts_as_nothing(
    fed: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Old rows and seeds with new ciphertexts would take off the wrong mask, and cost a budget."""
    folder = tmp_path / "openings"
    fed.port.change_request = lambda frames: frames[:1]  # the first attempt is stored, not answered
    with pytest.raises(ProtocolError):
        fed.company(FolderOpenings(folder)).blind_sum(ROWS, norm=3.0, share=0.1)
    real = FolderOpenings._write

    def dies(self: FolderOpenings, query_id: str, kind: str, *rest: object) -> None:
        if kind == "opening":
            raise KeyboardInterrupt
        real(self, query_id, kind, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(FolderOpenings, "_write", dies)
    with pytest.raises(KeyboardInterrupt):
        fed.company(FolderOpenings(folder)).blind_sum(ROWS, norm=3.0, share=0.1)
    monkeypatch.undo()
    fed.port.change_request = lambda frames: frames
    release = fed.company(FolderOpenings(folder)).blind_sum(ROWS, norm=3.0, share=0.1)
    assert np.abs(release.values.sum(axis=0) - ROWS.sum(axis=0)).max() < 1e-3
    assert np.abs(release.values).max() < 40 * 3 + 12 * release.deviation.max()


@pytest.mark.parametrize("name", ["*.opening", "answers"])
@pytest.mark.parametrize("damage", ["empty", "cut", "gone", "flipped"])
def test_damaged_openings_are_a_typed_error(
    fed: Federation, tmp_path: Path, name: str, damage: str
) -> None:
    folder = tmp_path / "openings"
    with fed.company(FolderOpenings(folder)) as company:
        first = company.blind_sum(ROWS, norm=3.0, share=0.1)
    (path,) = folder.glob(name)
    raw = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes({"empty": b"", "cut": raw[:-20], "flipped": flip(raw, -20)}[damage])
    again = fed.company(FolderOpenings(folder))
    if (name, damage) == ("answers", "flipped"):
        with pytest.raises(VerificationError, match="damaged"):
            again.blind_sum(ROWS, norm=3.0, share=0.1)
        return
    if name == "answers":  # the answer is fetched again, and what was left of it put aside
        assert np.array_equal(again.blind_sum(ROWS, norm=3.0, share=0.1).values, first.values)
        assert [path.name for path in folder.glob("*.torn-1")] == ["answers.torn-1"] * (
            damage == "cut"
        )
        return
    lost = ReplayRefused if damage == "gone" else VerificationError
    with pytest.raises(lost):
        again.blind_sum(ROWS, norm=3.0, share=0.1)


def test_the_regulator_is_held_to_its_first_answer(fed: Federation, tmp_path: Path) -> None:
    folder = tmp_path / "openings"
    with fed.company(FolderOpenings(folder)) as company:
        company.blind_sum(ROWS, norm=3.0, share=0.1)
    answer = decode(fed.port.answer_seen, Answer)
    other = dataclasses.replace(answer, values=answer.values + 1)
    signature = fed.identity.sign("isonomy/answer/v1", other.signed_bytes())
    fed.port.change_answer = lambda _: encode(dataclasses.replace(other, signature=signature))
    with pytest.raises(VerificationError, match="differently than before"):
        fed.company(FolderOpenings(folder)).blind_sum(ROWS, norm=3.0, share=0.1)


def test_a_newer_attempt_ends_an_older_one_cleanly(fed: Federation) -> None:
    frame = encode(QUERY)
    older = fed.port.asked(frame)
    first = decode(next(older), ColumnsHeader)
    newer = list(fed.port.asked(frame))
    with pytest.raises(ProtocolError, match="replaced by a newer one"):
        decode(next(older), Column)
    # A stale header does not cost the newer attempt its key.
    stale = SumHeader(QUERY.query_id, first.attempt, *[bytes(32)] * 4, parts=1)
    with pytest.raises(ProtocolError, match="no key is open"):
        decode(fed.port.answered([encode(stale)]), Answer)
    fresh = dataclasses.replace(stale, attempt=decode(newer[0], ColumnsHeader).attempt)
    with pytest.raises(ProtocolError, match="another query"):
        decode(fed.port.answered([encode(fresh)]), Answer)


def test_refused_chunks_leave_no_trace_in_the_ledger(tmp_path: Path) -> None:
    fed = federation(tmp_path, {"a": list("xy" * 20)}, {"a": "xy"}, epsilon=0.1)
    before = fed.ledger.records
    for start in range(5):
        some = pack_positions((start, start + 1))
        query = dataclasses.replace(QUERY, noise=1 << 20, positions=some)
        with pytest.raises(BudgetExceeded):
            decode(next(iter(fed.port.asked(encode(query)))), ColumnsHeader)
    assert fed.ledger.records == before


def test_another_member_key_does_not_reset_budgets(fed: Federation) -> None:
    with pytest.raises(ConfigError, match="second budget"):
        Custodian(fed.table, fed.ledger, plan=PLAN, member_key=b"n" * 32)


def test_a_huge_intersection_is_refused_before_it_is_built(tmp_path: Path) -> None:
    names = [f"g{i}" for i in range(64)]
    groups = dict.fromkeys("abcdefgh", names)
    fed = federation(tmp_path, {letter: ["g0"] * 3 for letter in groups}, groups)
    query = dataclasses.replace(QUERY, attributes=("*".join(groups),))
    with pytest.raises(ProtocolError, match="one query carries"):
        decode(next(iter(fed.port.asked(encode(query)))), ColumnsHeader)


# --- The caller's bad input ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"rows": ROWS[:7]}, DataError, "40 people were named, but 7 rows"),
        ({"rows": np.full((40, 3), np.nan)}, DataError, "40 rows hold NaN"),
        ({"norm": 0.0}, DataError, "positive number"),
        ({"norm": np.inf}, DataError, "positive number"),
        ({"share": None}, ConfigError, "exactly one"),
        ({"sigma": 3.0}, ConfigError, "exactly one"),
        ({"share": -1.0}, ConfigError, "exactly one positive"),
        ({"share": 2.0}, ConfigError, "at most 1"),
        ({"share": None, "sigma": 1e-9}, ConfigError, "sigma must be between"),
        ({"people": np.array([], dtype=int)}, DataError, "non-empty"),
        ({"people": np.array([0.5])}, DataError, "positions in the cohort"),
        ({"people": np.array([40]), "rows": ROWS[:1]}, DataError, "between 0 and 39"),
        ({"attribute": "b"}, ConfigError, "unknown or repeated"),
        ({"attribute": ()}, ConfigError, "at least one attribute"),
        ({"rows": np.zeros((40, 0))}, DataError, "at least 1"),
        ({"norm": "three"}, DataError, "positive number"),
        ({"norm": 5e-324}, DataError, "positive number"),
        ({"share": "half"}, ConfigError, "exactly one positive"),
        ({"share": None, "epsilon": 5e-324}, ConfigError, "more noise"),
        ({"purpose": "\ud800"}, ConfigError, "printable"),
        ({"purpose": "\x1b[31m"}, ConfigError, "printable"),
    ],
)
def test_bad_arguments_cost_nothing(
    fed: Federation, arguments: dict[str, object], error: type[Exception], message: str
) -> None:
    given: dict[str, object] = {"rows": ROWS, "norm": 3.0, "share": 0.1, **arguments}
    company, before = fed.company(), fed.ledger.records
    with pytest.raises(error, match=message):
        company.blind_sum(given.pop("rows"), **given)  # type: ignore[arg-type]
    assert fed.ledger.records == before
    assert company.budget.spent_units == 0


@pytest.mark.parametrize(
    "weights", [[1e308, -1e308], [1e-320, 0.0], ["a", "b"], [1.0], [np.nan, 1]]
)
def test_bad_weights_cost_nothing(fed: Federation, weights: list[object]) -> None:
    company, before = fed.company(), fed.ledger.records
    with pytest.raises(DataError, match="weights"):
        company.weighted_sum(ROWS, weights, norm=3.0, share=0.1)
    assert fed.ledger.records == before


def test_too_many_cells(fed: Federation) -> None:
    with pytest.raises(DataError, match="cells must lie"):
        fed.company().counts(np.full(40, 3_000_000), share=0.1)


def test_an_empty_group_looks_like_any_other(tmp_path: Path) -> None:
    fed = federation(tmp_path, {"a": ["x"] * 40}, {"a": "xyz"})
    release = fed.company().counts(share=0.5)
    assert release.groups == ("x", "y", "z")
    assert np.abs(release.values[:, 0] - [40, 0, 0]).max() < 8 * release.deviation.max()


def test_people_with_several_rows_are_clipped_as_one(fed: Federation) -> None:
    company = fed.company()
    people = np.repeat(np.arange(40), 25)
    rows = np.ones((1000, 1))
    with pytest.warns(RepeatedPeopleWarning, match="1000 rows belong to 40 people"):
        release = company.blind_sum(rows, norm=1.0, people=people, share=0.5)
    assert release.clipped == 40
    assert abs(release.values.sum() - 40) < 0.01  # each person adds one, not twenty-five
    with pytest.raises(DataError, match="different cells"):
        company.counts(np.arange(1000) % 2, people=people, share=0.1)


@pytest.mark.parametrize("count", [100, pytest.param(1000, marks=pytest.mark.slow)])
def test_a_thousand_groups(tmp_path: Path, count: int) -> None:
    names = [f"g{i}" for i in range(count)]
    fed = federation(tmp_path, {"a": labels(np.arange(40) % 7, names)}, {"a": names})
    release = fed.company().counts(share=0.5)
    assert release.values.shape == (count, 1)
    assert np.abs(release.values[:-1, 0]).max() < 6 + 8 * release.deviation[0]


def test_chunks_charge_only_the_people_in_them(fed: Federation) -> None:
    company = fed.company()
    for chunk in np.split(np.arange(40), 4):
        company.blind_sum(ROWS[chunk], norm=3.0, people=chunk, share=0.6)
    assert company.budget.spent_units <= 0.6 * fed.cap_units
    with pytest.raises(BudgetExceeded):
        company.blind_sum(ROWS[:10], norm=3.0, people=np.arange(10), share=0.6)
