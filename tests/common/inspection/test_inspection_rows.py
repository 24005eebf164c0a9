"""Inspection by rows, under plans by pads: who is drawn, who is caught, who is never accused."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from inspection_kit import ROWS, SIZE, World, ask, other_rows, unclipped_rows
from scipy.stats import binom

from isonomy.common.agreements.plan import MILLION
from isonomy.common.base.errors import (
    ConfigError,
    InspectionFailed,
    InspectionPending,
    ProtocolError,
    StorageError,
    VerificationError,
)
from isonomy.common.inspection.audit import audit
from isonomy.common.keys.party import PartyKeys
from isonomy.common.ledger.ledger import verify_ledger
from isonomy.common.pads import company as company_side
from isonomy.common.pads import opening as opening_side
from isonomy.common.pads.company import PadRows
from isonomy.common.pads.draw import RowDraw, drawn_slices, most_drawn
from isonomy.common.pads.key_store import place_of
from isonomy.common.pads.opening import show_request
from isonomy.common.pads.stream import Pads, message_key, part_slices
from isonomy.common.people.cohort import AttributeTable, Cohort
from isonomy.common.sums.company_half import EncryptedChannel
from isonomy.common.sums.oracle import GroupOracle, RepeatedPeopleWarning
from isonomy.common.sums.sealed_opening import DEMAND_DOMAIN, SealedOpening, Shown, seal_opening
from isonomy.common.wire.messages import OpeningDemand, SumHeader, decode, encode

HALF = MILLION // 2


def pads_world(folder: Path, rate: int = HALF, **changes: Any) -> World:
    return World.create(folder, rate=rate, carrier="pads", **changes)


def two_attributes(cohort: Cohort) -> AttributeTable:
    number = np.arange(len(cohort))
    values = {
        "a": ["wxyz"[n] for n in number * 7 % 4],
        "b": ["fm"[n] for n in number * 5 % 3 % 2],
    }
    return AttributeTable(cohort, values, {"a": tuple("wxyz"), "b": ("f", "m")})


# --- The draw ------------------------------------------------------------------------------------


def test_people_are_drawn_with_the_plans_chance_each_for_themselves() -> None:
    draws = [RowDraw(bytes([n]) * 32, 100_000).people(10_000) for n in range(40)]
    sizes = [len(draw) for draw in draws]
    assert abs(np.mean(sizes) - 1000) < 5 * 30 / np.sqrt(40)
    often = np.bincount(np.concatenate(draws), minlength=10_000)
    assert abs(np.var(often) - 40 * 0.09) < 0.3  # a binomial's variance: nobody is favoured
    assert len(RowDraw(bytes(32), MILLION).people(7)) == 7
    assert len(RowDraw(bytes(32), 1).people(1000)) == 0


@pytest.mark.parametrize(("people", "columns"), [(1, 1), (40, 3), (5000, 300), (30_000, 1)])
def test_drawn_people_fall_into_the_parts_of_their_rows(people: int, columns: int) -> None:
    drawn = RowDraw(b"s" * 32, 300_000).people(people)
    parts, slices = part_slices(people, columns, tagged=True), drawn_slices(drawn, people, columns)
    for part, some in zip(parts, slices, strict=True):
        here = drawn[(drawn >= part.start) & (drawn < part.stop)]
        np.testing.assert_array_equal(drawn[some], here)


def test_row_keys_tell_nothing_of_the_keys_and_differ_in_every_message() -> None:
    keys = np.random.default_rng(0).integers(0, 2**63, (50, 2), dtype=np.uint64)
    seen = set()
    for message in (b"first", b"second"):
        pads = Pads(message_key(message), 4)
        row_keys = pads.row_keys(keys)
        blocks = [keys, row_keys, pads.tags(row_keys), pads.words(row_keys)[:, :2]]
        seen |= {row.tobytes() for block in blocks[1:] for row in block}
        assert not {row.tobytes() for row in keys} & seen
    assert len(seen) == 2 * 3 * 50


# --- An honest company ---------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [1, 30_000, HALF, MILLION])
def test_an_honest_company_is_never_accused(tmp_path: Path, rate: int) -> None:
    """Groups, weights, several attributes, intersections, chunks, repeated people, every kind."""
    world = pads_world(tmp_path, rate, table_of=two_attributes)
    oracle, share = world.company(), 0.01
    oracle.counts(share=share, attribute="b")
    oracle.counts(epsilon=0.5, attribute="a")
    oracle.blind_sum(ROWS, norm=3, share=share, attribute=["a", "b"])
    oracle.open_sum(ROWS, norm=3, share=share, attribute="a*b")
    oracle.weighted_sum(ROWS, [1.0, 2, -3, 0.5], norm=3, share=share, attribute="a")
    for start in range(0, SIZE, 8):
        some = np.arange(start, start + 8)
        oracle.blind_sum(ROWS[some], people=some, norm=3, share=share, attribute="b")
    with pytest.warns(RepeatedPeopleWarning):
        oracle.blind_sum(ROWS[:4], people=[7, 3, 30, 3], norm=3, share=share, attribute="b")
    answers = verify_ledger(world.ledger._path).debits
    assert answers == 11
    assert set(world.steps()) <= {"passed"}
    assert rate < MILLION or len(world.steps()) == answers
    assert not list((tmp_path / "inspections").glob("*.demand"))  # each was met


def test_inspection_does_not_change_the_answer(tmp_path: Path) -> None:
    for rate in (0, HALF):
        (tmp_path / str(rate)).mkdir()
        world = pads_world(tmp_path / str(rate), rate)
        release = ask(world.company())
        true = [ROWS[np.arange(SIZE) % 3 > 0].sum(axis=0), ROWS[::3].sum(axis=0)]
        assert np.abs(release.values - true).max() < 8 * release.deviation.max()
        assert world.steps() == (["passed"] if rate else [])


def test_a_query_of_which_nobody_is_drawn_is_answered_at_once(tmp_path: Path) -> None:
    world = pads_world(tmp_path, 1)
    ask(world.company())
    assert world.steps() == []
    assert world.answered()


def test_nobody_opens_more_people_than_the_plan_says(tmp_path: Path) -> None:
    """A policy that became stricter draws no more; a regulator that does gets nothing."""
    assert most_drawn(SIZE, HALF) == SIZE  # so few people can all be drawn by chance
    world = pads_world(tmp_path, 10_000, size=200)
    world.rate = MILLION
    world.restart_regulator()
    desk = world.port.half._inspector
    assert desk.sample("query", 200).millionths == 10_000
    desk._rate = MILLION  # a regulator that does not keep to the plan
    opened = list[Any]()
    world.port.change_opening = opened.append
    with pytest.raises(ProtocolError, match="the rows of 200 of 200 people, more than"):
        ask(world.company(), np.ones((200, 3)))
    assert not opened


def test_an_honest_draw_is_never_called_too_large() -> None:
    for people, rate in ((10, HALF), (256, 50_000), (36_000, 10_000), (1_000_000, 1)):
        most = most_drawn(people, rate)
        assert binom.sf(most, people, rate / MILLION) < 1e-9
        assert most <= people


def test_keys_lost_after_a_demand_accuse_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new vault secret: the old request is opened, then keys go over again and a new one is."""
    world = pads_world(tmp_path)
    refuse(world, monkeypatch)
    for path in (tmp_path / "theirs").iterdir():
        path.unlink()
    world.restart_regulator()
    assert ask(world.company()).receipt is not None
    assert world.steps() == ["passed", "passed"]


def test_of_a_second_attempt_somebody_is_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However small the plan's share: what was demanded once is not answered unseen."""
    world = pads_world(tmp_path, 1)
    world.port.half._inspector._was_demanded = lambda query_id: True  # it happens once in a million
    refuse(world, monkeypatch)
    world.restart_regulator()
    assert ask(world.company()).receipt is not None
    assert world.steps() == ["passed", "passed"]


# --- What is opened ------------------------------------------------------------------------------


def test_only_drawn_rows_and_no_keys_leave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world, shown = pads_world(tmp_path), list[Shown]()
    real = PadRows.show

    def show(self: PadRows, *place: Any) -> Shown:
        shown.append(real(self, *place))
        return shown[-1]

    monkeypatch.setattr(PadRows, "show", show)
    ask(world.company())
    (contents,) = shown
    stored = world.store.find(world.last_query())
    assert stored is not None
    drawn = [row.tolist() for row in contents.opening.rows]
    assert 5 < len(drawn) < 35
    assert [row for row in stored.opening.rows.tolist() if row in drawn] == drawn
    # Not the nonce: with it the commitment would let an auditor try out the rows of the others.
    assert contents.opening.nonce == bytes(32)
    column = world.key_store().find(place_of(world.plan.hash, world.cohort.root, "sex", 0))
    assert column is not None
    keys = {key.tobytes() for side in column.keys for key in side}
    (chunk,) = contents.columns
    assert len(chunk) == 2 * 16 * len(drawn)
    assert not keys & {chunk[at : at + 16] for at in range(0, len(chunk), 16)}


def test_what_the_company_hears_does_not_depend_on_attributes(tmp_path: Path) -> None:
    """The demand of an honest request follows from seed and cells: no side, no member in it."""
    world = pads_world(tmp_path)
    ask(world.company())
    refuse_next = pads_world_demand(world)
    fields = {field.name for field in dataclasses.fields(refuse_next)}
    assert fields == {
        *("query_id", "plan", "request_hash", "auditor", "signature"),
        *("seed", "millionths", "cells_hash"),
    }
    assert refuse_next.millionths == HALF


def pads_world_demand(world: World) -> OpeningDemand:
    """The demand that stands after a company went away."""
    with pytest.MonkeyPatch.context() as patch:
        refuse(world, patch, number=1)
    (path,) = (world.folder / "inspections").glob("*.demand")
    return decode(path.read_bytes(), OpeningDemand)


# --- A company that cheats -----------------------------------------------------------------------


def long_rows(monkeypatch: pytest.MonkeyPatch, world: World) -> None:
    """Row 7 is too long, and shown as it is."""
    unclipped_rows(monkeypatch, world)


def long_rows_shown_short(monkeypatch: pytest.MonkeyPatch, world: World) -> None:
    unclipped_rows(monkeypatch, world)
    change_shown(monkeypatch, lambda shown: with_rows(shown, np.clip(shown.opening.rows, -9, 9)))


def unquantised(monkeypatch: pytest.MonkeyPatch, world: World) -> None:
    """Finer units than the query declares: every row is 2^10 times as long."""
    other_rows(monkeypatch, lambda rows: rows << 10)


def another_persons_row(monkeypatch: pytest.MonkeyPatch, world: World) -> None:
    change_shown(monkeypatch, lambda shown: with_rows(shown, shown.opening.rows[::-1]))


def fewer_people(monkeypatch: pytest.MonkeyPatch, world: World) -> None:
    change_shown(monkeypatch, lambda shown: with_rows(shown, shown.opening.rows[:-1]))


def other_row_keys(monkeypatch: pytest.MonkeyPatch, world: World) -> None:
    def change(shown: Shown) -> Shown:
        return dataclasses.replace(shown, columns=[bytes(len(shown.columns[0]))])

    change_shown(monkeypatch, change)


def fewer_row_keys(monkeypatch: pytest.MonkeyPatch, world: World) -> None:
    change_shown(
        monkeypatch,
        lambda shown: dataclasses.replace(shown, columns=[shown.columns[0][:-16]]),
    )


def an_older_query(monkeypatch: pytest.MonkeyPatch, world: World) -> None:
    """What an honest query before was made of, under the demand for this one."""
    seen = list[Shown]()
    real = PadRows.show
    with monkeypatch.context() as patch:
        patch.setattr(PadRows, "show", lambda *place: seen.append(real(*place)) or seen[-1])
        ask(world.company(), ROWS / 2)

    def older(shown: Shown) -> Shown:
        return dataclasses.replace(seen[0], header_frame=shown.header_frame)

    change_shown(monkeypatch, older)


def an_older_attempt(monkeypatch: pytest.MonkeyPatch, world: World) -> None:
    """The row keys of another attempt at the same query."""

    def change(shown: Shown) -> Shown:
        header = decode(shown.header_frame, SumHeader)
        other = dataclasses.replace(header, attempt=bytes(16))
        return dataclasses.replace(shown, header_frame=encode(other))

    real = company_side.shown_rows
    monkeypatch.setattr(company_side, "shown_rows", lambda *place: change(real(*place)))
    honest = company_side.PadRows.show

    def opening(self: EncryptedChannel, query: Any, request: Any, demand: OpeningDemand) -> Any:
        from isonomy.common.sums import sealed_opening as module

        shown = honest(self._carrier, query, request, demand)
        place = module._context(self.terms.plan, query.query_id, demand.request_hash)
        box = module.seal_to(self._auditor, place, module._pack(shown))
        named = (self.terms.plan, query.query_id, demand.request_hash, box, b"", encode(demand))
        sealed = module.SealedOpening(*named)
        signed = module._signed_bytes(sealed.header(), encode(demand))
        signature = world.company_keys.identity.sign(module.OPENING_DOMAIN, signed)
        return module.opening_frames(dataclasses.replace(sealed, signature=signature))

    monkeypatch.setattr(EncryptedChannel, "opening", opening)


def change_shown(monkeypatch: pytest.MonkeyPatch, change: Callable[[Shown], Shown]) -> None:
    real = PadRows.show
    monkeypatch.setattr(PadRows, "show", lambda *place: change(real(*place)))


def with_rows(shown: Shown, rows: np.ndarray) -> Shown:
    rows = np.ascontiguousarray(rows)
    return dataclasses.replace(shown, opening=dataclasses.replace(shown.opening, rows=rows))


@pytest.mark.parametrize(
    ("cheat", "check"),
    [
        (long_rows, "(5)"),
        (long_rows_shown_short, "(6)"),
        (unquantised, "(5)"),
        (another_persons_row, "(6)"),
        (fewer_people, "(4)"),
        (other_row_keys, "(6)"),
        (fewer_row_keys, "(4)"),
        (an_older_query, "(1)"),
        (an_older_attempt, "(0)"),
    ],
    ids=lambda value: value.__name__ if callable(value) else value,
)
def test_a_cheat_is_caught_and_gets_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cheat: Any, check: str
) -> None:
    world = pads_world(tmp_path, MILLION)
    cheat(monkeypatch, world)
    answers = verify_ledger(world.ledger._path).debits
    oracle = world.company()
    oracle._number = answers
    with pytest.raises(InspectionFailed, match="gets no answer") as caught:
        ask(oracle)
    assert check in str(caught.value)
    assert world.steps()[-1] == "failed"
    monkeypatch.undo()
    world.restart_regulator()
    oracle = world.company(forgets=True)
    oracle._number = answers + 1
    with pytest.raises(InspectionFailed, match="no more answers"):
        ask(oracle)
    assert verify_ledger(world.ledger._path).debits == answers


def false_pads(
    monkeypatch: pytest.MonkeyPatch, people: int, side: Callable[[int], int] | None = None
) -> None:
    """The company uses, tags and shows other row keys of one side for the first few people."""
    real = company_side.sides_of
    lies = np.zeros(people, np.int64)

    def sides(columns: Any, asked: Any, drawn: Any) -> Any:
        honest = real(columns, asked, drawn)
        if isinstance(drawn, slice):  # a new message: other lies
            lies[:] = np.random.default_rng().integers(0, 2, people)
        numbers = np.arange(10**6)[asked][drawn] if not isinstance(drawn, slice) else None

        def lying(pads: Pads, number: int, some: slice) -> Any:
            both = [each.copy() for each in honest(pads, number, some)]
            who = np.arange(some.start, some.stop) if numbers is None else numbers[some]
            for place, person in enumerate(who.tolist()):
                if person < people:
                    which = lies[person] if side is None else side(person)
                    both[which][place] ^= np.uint64(1)
            return tuple(both)

        return lying

    for module in (company_side, opening_side):
        monkeypatch.setattr(module, "sides_of", sides)


@pytest.mark.parametrize("rate", [0, 1, MILLION])
def test_a_lie_about_a_pad_that_the_regulator_has_is_seen_without_a_draw(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rate: int
) -> None:
    """Of every person, not of those drawn only, and nothing is said about whose it was."""
    world = pads_world(tmp_path, rate)
    false_pads(monkeypatch, 2, side=lambda person: 1)  # person 1 is a member, 0 is not
    with pytest.raises(InspectionFailed, match="not those of the keys") as caught:
        ask(world.company())
    assert "person" not in str(caught.value)
    assert world.steps() == ["failed"]
    assert verify_ledger(world.ledger._path).debits == 0


def test_a_lie_about_the_other_pad_passes_and_says_so_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Person 0 is no member, so nobody has the pad that is lied about: the documented limit."""
    world = pads_world(tmp_path, MILLION)
    false_pads(monkeypatch, 1, side=lambda person: 1)
    ask(world.company())
    assert world.steps() == ["passed"]


# --- A company that does not open, a regulator that lies -----------------------------------------


def refuse(world: World, monkeypatch: pytest.MonkeyPatch, number: int = 0) -> None:
    """The company hears the demand and ends its process."""

    def opening(self: EncryptedChannel, *place: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(EncryptedChannel, "opening", opening)
        oracle = world.company()
        oracle._number = number
        with pytest.raises(KeyboardInterrupt):
            ask(oracle)


def test_who_stops_after_a_demand_gets_nothing_else_and_failed_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = pads_world(tmp_path)
    refuse(world, monkeypatch)
    for _ in range(2):
        other = world.company()
        other._number = 1
        with pytest.raises(InspectionPending, match="nothing else is answered"):
            ask(other)
        world.restart_regulator()
    world.port.half._inspector._today = lambda: date(2100, 1, 2)
    with pytest.raises(InspectionFailed, match="not opened in time"):
        ask(world.company())
    assert world.steps() == ["overdue"]


def test_neither_side_can_have_the_people_drawn_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = pads_world(tmp_path)
    refuse(world, monkeypatch)
    first = world.port.answer_seen
    world.restart_regulator()
    refuse(world, monkeypatch)
    assert world.port.answer_seen == first
    (path,) = (tmp_path / "inspections").glob("*.demand")
    path.unlink()  # not without its file, either
    with pytest.raises(Exception, match="reason on the regulator's side"):
        ask(world.company())
    desk = world.port.half._inspector
    with pytest.raises(StorageError, match="missing or damaged"):
        desk.check_request(world.last_query(), decode(first, OpeningDemand).request_hash)


def resigned(world: World, frame: bytes, **changes: Any) -> bytes:
    """A demand with other content, signed by the regulator."""
    unsigned = dataclasses.replace(decode(frame, OpeningDemand), **changes, signature=b"")
    signature = world.regulator_keys.identity.sign(DEMAND_DOMAIN, unsigned.signed_bytes())
    return encode(dataclasses.replace(unsigned, signature=signature))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cells_hash": bytes(32)}, "cells that were not sent"),
        ({"seed": bytes(32)}, "cells that were not sent"),
        ({"request_hash": bytes(32)}, "another request"),
        ({"query_id": "other"}, "another request"),
        ({"auditor": b"k" * 32}, "a key that is not in the plan"),
    ],
)
def test_an_honest_company_opens_nothing_under_a_false_demand(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    world = pads_world(tmp_path)
    opened = list[Any]()
    world.port.change_answer = lambda frame: resigned(world, frame, **changes)
    world.port.change_opening = opened.append
    with pytest.raises(ProtocolError, match=message):
        ask(world.company())
    assert not opened


def test_a_replayed_demand_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of an earlier query, and of the same query in another plan."""
    world = pads_world(tmp_path)
    seen = list[bytes]()
    world.port.change_answer = lambda frame: seen.append(frame) or frame
    ask(world.company())
    oracle = world.company()
    oracle._number = 1
    world.port.change_answer = lambda frame: seen[0]
    with pytest.raises(ProtocolError, match="another request"):
        ask(oracle)


def test_a_demand_for_a_whole_request_is_refused_by_pads_and_for_rows_without(
    tmp_path: Path,
) -> None:
    world = pads_world(tmp_path)
    world.port.change_answer = lambda frame: resigned(
        world, frame, seed=b"", millionths=0, cells_hash=b""
    )
    with pytest.raises(ProtocolError, match="whole request"):
        ask(world.company())
    (tmp_path / "bfv").mkdir()
    other = World.create(tmp_path / "bfv")
    other.port.change_answer = lambda frame: resigned(
        other, frame, seed=bytes(32), millionths=1, cells_hash=bytes(32)
    )
    with pytest.raises(ProtocolError, match="opens whole requests"):
        ask(other.company())


# --- An auditor who is no party ------------------------------------------------------------------


def filed(world: World) -> SealedOpening:
    with pytest.raises(InspectionPending, match="with the auditor"):
        ask(world.company())
    (path,) = world.verdicts.openings()
    return SealedOpening.load(path)


def test_an_outside_auditor_checks_and_the_regulator_sees_no_row(tmp_path: Path) -> None:
    world = pads_world(tmp_path, outside=True)
    sealed = filed(world)
    with pytest.raises(VerificationError):
        sealed.open(world.regulator_keys.sealing)
    world.verdicts.take(audit(world.plan, sealed, world.auditor_keys), world.ledger)
    assert ask(world.company()).receipt is not None
    assert world.steps() == ["passed"]


def test_answers_may_come_first_if_the_plan_says_so(tmp_path: Path) -> None:
    world = pads_world(tmp_path, outside=True, waits=False)
    assert ask(world.company()).receipt is not None
    assert world.steps() == ["opened"]
    (path,) = world.verdicts.openings()
    verdict = audit(world.plan, SealedOpening.load(path), world.auditor_keys)
    world.verdicts.take(verdict, world.ledger)
    assert world.steps() == ["passed"]


def test_an_outside_auditor_finds_a_long_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = pads_world(tmp_path, MILLION, outside=True)
    unclipped_rows(monkeypatch, world)
    verdict = audit(world.plan, filed(world), world.auditor_keys)
    assert not verdict.passed
    assert "(5)" in verdict.reason
    world.verdicts.take(verdict, world.ledger)
    with pytest.raises(InspectionFailed):
        ask(world.company(forgets=True))


def test_a_wrong_auditors_key_accuses_nobody(tmp_path: Path) -> None:
    world = pads_world(tmp_path, outside=True)
    sealed = filed(world)
    with pytest.raises(ConfigError, match="another auditor's key"):
        audit(world.plan, sealed, PartyKeys.generate("other", "auditor"))
    assert world.steps() == ["opened"]


@pytest.mark.parametrize("change", ["cells_hash", "seed"])
def test_a_regulator_cannot_put_another_demand_under_an_opening(
    tmp_path: Path, change: str
) -> None:
    """Else an honest company would be convicted of cells that it never sent."""
    world = pads_world(tmp_path, outside=True)
    sealed = filed(world)
    swapped = resigned(world, sealed.demand, **{change: bytes(32)})
    with pytest.raises(VerificationError, match="opening"):
        audit(world.plan, dataclasses.replace(sealed, demand=swapped), world.auditor_keys)
    with pytest.raises(VerificationError):  # nor leave it out
        audit(world.plan, dataclasses.replace(sealed, demand=b""), world.auditor_keys)
    assert audit(world.plan, sealed, world.auditor_keys).passed


def opened_later(world: World) -> SealedOpening:
    query_id = world.last_query()
    stored = world.store.find(query_id)
    assert stored is not None
    shown = show_request(world.plan, stored, world.key_store())
    place = (bytes.fromhex(world.plan.auditor), world.plan.hash, query_id)
    return seal_opening(*place, shown, world.company_keys.identity)


@pytest.mark.parametrize("kind", ["blind", "open", "weighted"])
def test_an_answered_query_can_be_opened_whole_later(tmp_path: Path, kind: str) -> None:
    world = pads_world(tmp_path, 0, outside=True, table_of=two_attributes)
    oracle = world.company()
    if kind == "weighted":
        oracle.weighted_sum(ROWS, [1.0, 2, -3, 0.5], norm=3, share=0.02, attribute="a")
    else:
        getattr(oracle, f"{kind}_sum")(ROWS, norm=3, share=0.02, attribute="a")
    sealed = opened_later(world)
    assert audit(world.plan, sealed, world.auditor_keys).passed
    world.key_store().drop()
    with pytest.raises(VerificationError, match="are not here"):
        opened_later(world)


def test_a_long_row_shows_in_a_later_opening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = pads_world(tmp_path, 0, outside=True)
    unclipped_rows(monkeypatch, world)
    ask(world.company())
    verdict = audit(world.plan, opened_later(world), world.auditor_keys)
    assert "(5)" in verdict.reason


# --- How often -----------------------------------------------------------------------------------


@dataclasses.dataclass
class Trials:
    """Requests of a company that cheats, each in the real exchange, until so many were made."""

    folder: Path
    size: int = 1200
    rate: int = 10_000
    numbers: Any = dataclasses.field(default_factory=itertools.count)

    def world(self) -> tuple[World, GroupOracle]:
        folder = self.folder / str(next(self.numbers))
        folder.mkdir()
        world = pads_world(folder, self.rate, size=self.size)
        return world, world.company(forgets=True)

    def caught(self, trials: int) -> int:
        """How many of the requests were caught; each time the plan ends, and another begins."""
        rows, count = np.ones((self.size, 2)), 0
        world, oracle = self.world()
        for _ in range(trials):
            try:
                oracle.blind_sum(rows, norm=3.0, share=0.001)
            except InspectionFailed:
                count += 1
                world.ledger.close()
                world, oracle = self.world()
        world.ledger.close()
        return count


def long_for(monkeypatch: pytest.MonkeyPatch, people: int) -> None:
    """So many people's rows are 1.4 times as long as allowed."""

    def longer(rows: np.ndarray) -> np.ndarray:
        larger = rows.copy()
        larger[:people] *= 3
        return larger

    other_rows(monkeypatch, longer)


def check_rate(caught: int, trials: int, chance: float) -> None:
    """Within four and a half deviations; a miss by chance comes once in 150,000 runs."""
    margin = 4.5 * np.sqrt(trials * chance * (1 - chance))
    assert abs(caught - trials * chance) <= max(margin, 1.0), f"{caught} of {trials}, not {chance}"


@pytest.mark.parametrize("people", [1, 10, 100, 1000])
def test_who_cheats_on_k_people_is_caught_as_often_as_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, people: int
) -> None:
    long_for(monkeypatch, people)
    trials = {1: 25, 10: 25, 100: 12, 1000: 6}[people]
    check_rate(Trials(tmp_path).caught(trials), trials, 1 - 0.99**people)


@pytest.mark.slow
@pytest.mark.parametrize("people", [1, 10, 100, 1000])
@pytest.mark.parametrize("rate", [10_000, 100_000])
def test_who_cheats_on_k_people_is_caught_as_often_as_said_campaign(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, people: int, rate: int
) -> None:
    """The table of docs/lab/audits.md."""
    long_for(monkeypatch, people)
    trials = 400 if people < 100 else 200
    chance = 1 - (1 - rate / MILLION) ** people
    check_rate(Trials(tmp_path, rate=rate).caught(trials), trials, chance)


@pytest.mark.slow
@pytest.mark.parametrize("people", [1, 10, 100])
def test_who_lies_about_k_pads_is_caught_if_one_of_them_is_the_regulators(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, people: int
) -> None:
    """A side at random: the regulator has it with chance 1/2, and compares everybody's."""
    false_pads(monkeypatch, people)
    trials = 200 if people == 1 else 60
    check_rate(Trials(tmp_path).caught(trials), trials, 1 - 0.5**people)
