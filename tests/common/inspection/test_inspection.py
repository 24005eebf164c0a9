"""Inspections in the running protocol: who is caught, who gets an answer, what restarts change."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from inspection_kit import ROWS, SIZE, World, ask, unclipped_rows

from isonomy.common.agreements.plan import MILLION
from isonomy.common.base.errors import (
    AttemptLost,
    ConfigError,
    InspectionFailed,
    InspectionPending,
    ProtocolError,
    VerificationError,
)
from isonomy.common.crypto import blinding, he
from isonomy.common.crypto.blinding import Blinding, Seeds
from isonomy.common.crypto.he import SumBuilder
from isonomy.common.crypto.params import DEFAULT_PARAMETERS as P
from isonomy.common.inspection import desk as inspection_desk
from isonomy.common.ledger.ledger import verify_ledger
from isonomy.common.sums.company_half import EncryptedChannel
from isonomy.common.sums.openings import StoredRequest
from isonomy.common.sums.oracle import GroupOracle
from isonomy.common.sums.sealed_opening import (
    OPENING_DOMAIN,
    SealedOpening,
    _signed_bytes,
    opening_frames,
    seal_opening,
    show_columns,
)
from isonomy.common.wire.messages import (
    MAX_OPENING_BYTES,
    Answer,
    OpeningDemand,
    OpeningHeader,
    OpeningPart,
    SumHeader,
    SumPart,
    decode,
    encode,
    frames_hash,
    opening_parts,
)

Ask = Callable[[GroupOracle], Any]


# --- An honest company ---------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["counts", "blind", "open", "weighted", "chunk", "laplace"])
def test_an_honest_company_is_inspected_and_answered(tmp_path: Path, call: str) -> None:
    world = World.create(tmp_path)
    oracle = world.company()
    asked: dict[str, Ask] = {
        "counts": lambda o: o.counts(share=0.02),
        "blind": ask,
        "open": lambda o: o.open_sum(ROWS, norm=3.0, share=0.02),
        "weighted": lambda o: o.weighted_sum(ROWS, [1.0, -2.0], norm=3.0, share=0.02),
        "chunk": lambda o: o.blind_sum(ROWS[5:9], norm=3.0, people=np.arange(5, 9), share=0.02),
        "laplace": lambda o: o.counts(epsilon=0.5),
    }
    release = asked[call](oracle)
    assert np.isfinite(release.values).all()
    assert world.steps() == ["passed"]
    assert verify_ledger(world.ledger._path).debits == 1


def test_inspection_does_not_change_the_answer(tmp_path: Path) -> None:
    """The same sums with and without; noise of this size would not hide a wrong mask."""
    for rate in (0, MILLION):
        (tmp_path / str(rate)).mkdir()
        world = World.create(tmp_path / str(rate), rate=rate)
        release = ask(world.company())
        true = [ROWS[np.arange(SIZE) % 3 > 0].sum(axis=0), ROWS[::3].sum(axis=0)]
        assert np.abs(release.values - true).max() < 8 * release.deviation.max()
        assert world.steps() == (["passed"] if rate else [])


def test_the_coin_falls_at_the_plans_rate(tmp_path: Path) -> None:
    desk = World.create(tmp_path, rate=250_000).port.half._inspector
    noted: list[str] = []
    desk._custodian.note_inspection = lambda *place: noted.append(place[0])  # type: ignore
    desk._custodian.inspections = lambda: ()  # type: ignore
    for number in range(4000):
        desk.draw(f"q{number}", bytes(32), None)
    assert 1000 - 5 * 27.4 < len(noted) < 1000 + 5 * 27.4  # five standard deviations


def test_a_stricter_policy_counts_a_laxer_one_does_not(tmp_path: Path) -> None:
    world = World.create(tmp_path, rate=1)
    world.rate = MILLION
    world.restart_regulator()
    ask(world.company())
    assert world.steps() == ["passed"]
    world.rate = 0
    world.restart_regulator()
    assert world.port.half._inspector._rate == 1


# --- A company that cheats -----------------------------------------------------------------------


def scaled_row(monkeypatch: pytest.MonkeyPatch, world: World) -> None:
    real = SumBuilder.add_block

    def add(self: SumBuilder, index: int, rows: np.ndarray, columns: Any) -> None:
        larger = rows.copy()
        larger[0] *= 64  # one person stands out of the noise
        real(self, index, larger, columns)

    once(monkeypatch, SumBuilder, "add_block", add)


def compensated_mask(monkeypatch: pytest.MonkeyPatch, world: World) -> None:
    real = blinding.expand

    def expand(params: Any, seeds: Seeds, index: int) -> Blinding:
        honest = real(params, seeds, index)
        mask = honest.mask - np.uint64(12345)
        return dataclasses.replace(honest, mask=mask & np.uint64(P.plain_modulus - 1))

    once(monkeypatch, he, "expand", expand)


def once(monkeypatch: pytest.MonkeyPatch, where: Any, name: str, cheat: Any) -> None:
    """Cheat while the request is made; the auditor's recomputation is not the company's to change.

    Both run in this process, so the cheat is taken out when the opening leaves.
    """
    monkeypatch.setattr(where, name, cheat)
    honest = EncryptedChannel.opening

    def opening(self: EncryptedChannel, *place: Any) -> Any:
        monkeypatch.undo()
        return honest(self, *place)

    monkeypatch.setattr(EncryptedChannel, "opening", opening)


def crafted_ciphertext(monkeypatch: pytest.MonkeyPatch, world: World) -> None:
    def change(frames: list[bytes]) -> list[bytes]:
        crafted = encode(SumPart(0, bytes(P.answer_bytes)))
        header = decode(frames[0], SumHeader)
        header = dataclasses.replace(header, parts_hash=frames_hash([crafted]))
        return [encode(header), crafted]

    world.port.change_request = change
    tell_the_company(monkeypatch, change)


def tell_the_company(monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
    """The company's own code would notice that the demand names another request; a cheat's not."""

    def opening(self: EncryptedChannel, query: Any, request: StoredRequest, demand: Any) -> Any:
        sent = dataclasses.replace(request, frames=tuple(change(list(request.frames))))
        place = (self.terms.plan, query.query_id)
        shown = show_columns(query.query_id, sent, self.half.openings.columns(query.query_id))
        assert self._identity is not None
        sealed = seal_opening(self._auditor, *place, shown, self._identity, encode(demand))
        return opening_frames(sealed)

    monkeypatch.setattr(EncryptedChannel, "opening", opening)


def row_changed_afterwards(monkeypatch: pytest.MonkeyPatch, world: World) -> None:
    def change(request: StoredRequest) -> StoredRequest:
        rows = request.opening.rows + np.int32(1)
        return dataclasses.replace(request, opening=dataclasses.replace(request.opening, rows=rows))

    real = EncryptedChannel.opening

    def opening(self: EncryptedChannel, query: Any, request: StoredRequest, demand: Any) -> Any:
        return real(self, query, change(request), demand)

    monkeypatch.setattr(EncryptedChannel, "opening", opening)


def another_query_in_the_box(monkeypatch: pytest.MonkeyPatch, world: World) -> None:
    """The box of an honest older query, sealed for the place of the one that was demanded."""
    ask(world.company(), ROWS / 2)
    older = world.store.find(world.last_query())
    assert older is not None
    older_columns = list(world.store.columns(world.last_query()))

    def opening(self: EncryptedChannel, query: Any, request: StoredRequest, demand: Any) -> Any:
        shown = show_columns(query.query_id, older, older_columns)
        place = (self.terms.plan, query.query_id)
        sealed = seal_opening(self._auditor, *place, shown, self._identity, encode(demand))
        moved = relabel(world, sealed, older, older_columns, demand)
        return opening_frames(moved)

    monkeypatch.setattr(EncryptedChannel, "opening", opening)


def relabel(
    world: World, sealed: SealedOpening, older: StoredRequest, columns: list[bytes], demand: Any
) -> SealedOpening:
    from isonomy.common.sums import sealed_opening as module

    shown = module.Shown(older.frames[0], older.opening, columns)
    place = module._context(world.plan.hash, demand.query_id, demand.request_hash)
    box = module.seal_to(demand.auditor, place, module._pack(shown))
    moved = dataclasses.replace(sealed, request_hash=demand.request_hash, box=box, signature=b"")
    signed = module._signed_bytes(moved.header(), encode(demand))
    signature = world.company_keys.identity.sign(module.OPENING_DOMAIN, signed)
    return dataclasses.replace(moved, signature=signature)


@pytest.mark.parametrize(
    ("cheat", "check"),
    [
        (scaled_row, "(6)"),
        (compensated_mask, "(6)"),
        (crafted_ciphertext, "(6)"),
        (unclipped_rows, "(5)"),
        (row_changed_afterwards, "(2)"),
        (another_query_in_the_box, "(1)"),
    ],
    ids=lambda value: value.__name__ if callable(value) else value,
)
def test_a_cheat_is_caught_and_gets_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cheat: Any, check: str
) -> None:
    world = World.create(tmp_path)
    cheat(monkeypatch, world)
    oracle = world.company()
    oracle._number = len(world.steps())
    with pytest.raises(InspectionFailed, match="gets no answer") as caught:
        ask(oracle)
    assert check in str(caught.value)
    assert not world.answered()
    assert world.steps()[-1] == "failed"
    # The plan is over: for this query, for others, after restarts; the ledger tells anybody.
    monkeypatch.undo()
    world.port.change_request = lambda frames: frames
    world.restart_regulator()
    for number in range(3):
        oracle = world.company(forgets=True)
        oracle._number = len(world.steps()) - 1 + number
        with pytest.raises(InspectionFailed, match="no more answers"):
            ask(oracle)
    debits = verify_ledger(world.ledger._path).debits
    assert debits == (1 if cheat is another_query_in_the_box else 0)


def test_the_same_cheats_pass_unseen_without_inspection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So it is the inspection that catches them, not some other check."""
    world = World.create(tmp_path, rate=0)
    unclipped_rows(monkeypatch, world)
    ask(world.company())
    assert world.answered()


# --- A company that does not open ----------------------------------------------------------------


def refuse(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The company hears the demand and ends its process."""

    def opening(self: EncryptedChannel, *place: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(EncryptedChannel, "opening", opening)
        with pytest.raises(KeyboardInterrupt):
            ask(world.company())


def test_who_does_not_open_gets_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World.create(tmp_path)
    refuse(world, monkeypatch)
    demanded = world.last_query()
    assert world.steps() == ["demanded"]
    for _ in range(2):
        other = world.company()
        other._number = 1  # asks under the next id, as if the first query had never been
        with pytest.raises(InspectionPending, match="nothing else is answered"):
            ask(other)
        world.restart_regulator()
    assert world.ledger.find(demanded) is None
    assert verify_ledger(world.ledger._path).debits == 0


def test_a_demand_that_is_never_answered_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World.create(tmp_path)
    refuse(world, monkeypatch)
    monkeypatch.undo()
    world.restart_regulator()
    world.port.half._inspector._today = lambda: date(2100, 1, 2)
    with pytest.raises(InspectionFailed, match="not opened in time"):
        ask(world.company())  # it would open now: too late
    assert world.steps() == ["overdue"]
    world.restart_regulator()  # the ledger knows it, whatever day it is
    with pytest.raises(InspectionFailed):
        ask(world.company())
    assert verify_ledger(world.ledger._path).debits == 0


def test_an_interrupted_company_comes_back_and_opens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World.create(tmp_path)
    refuse(world, monkeypatch)
    first = world.port.request_seen
    release = ask(world.company())  # a new process with the same disk
    assert world.port.request_seen == first
    assert release.receipt is not None
    assert world.steps() == ["passed"]


def test_both_sides_come_back_and_the_next_attempt_is_inspected_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The regulator lost the sums: the old request is opened first, then a new one is made."""
    world = World.create(tmp_path, rate=1)  # a coin that never falls by itself
    always = pytest.MonkeyPatch()
    always.setattr(inspection_desk.secrets, "randbelow", lambda limit: 0)
    refuse(world, monkeypatch)
    always.undo()
    world.restart_regulator()
    release = ask(world.company())
    assert release.receipt is not None
    assert world.steps() == ["passed", "passed"]
    assert verify_ledger(world.ledger._path).debits == 1


def test_a_restart_does_not_redraw_the_coin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cheat who hears the demand cannot swap its request for an honest one."""
    world = World.create(tmp_path)
    unclipped_rows(monkeypatch, world)
    refuse(world, monkeypatch)
    monkeypatch.undo()
    for path in (tmp_path / "openings").iterdir():
        path.unlink()  # forget what was sent, and ask again, honestly
    for _ in range(3):
        with pytest.raises(InspectionPending, match="was demanded and has not come"):
            ask(world.company())
        world.restart_regulator()
    assert world.steps() == ["demanded"]
    assert not world.answered()


def test_opening_what_was_not_demanded_gets_nothing(tmp_path: Path) -> None:
    world = World.create(tmp_path, rate=0)
    fresh = OpeningHeader(f"{world.plan.hash.hex()[:16]}-000000", bytes(32), 1, 1, *[bytes(32)] * 2)
    fresh = dataclasses.replace(fresh, signature=bytes(64))
    reply = encode(world.port.half.open([encode(fresh)]))
    with pytest.raises(ProtocolError, match="no opening of this request"):
        decode(reply, Answer)


def test_a_cut_or_unsigned_opening_proves_nothing_and_gets_nothing(tmp_path: Path) -> None:
    world = World.create(tmp_path)
    world.port.change_opening = lambda frames: frames[:-1]
    with pytest.raises(ProtocolError):
        ask(world.company())
    assert world.steps() == ["demanded"]

    def forge(frames: list[bytes]) -> list[bytes]:
        header = decode(frames[0], OpeningHeader)
        return [encode(dataclasses.replace(header, signature=bytes(64))), *frames[1:]]

    world.port.change_opening = forge
    with pytest.raises(VerificationError):
        ask(world.company())
    assert world.steps() == ["demanded"]
    world.port.change_opening = lambda frames: frames
    assert ask(world.company()).receipt is not None


@pytest.mark.parametrize("signed", [False, True])
def test_a_huge_opening_is_refused_before_it_is_read(tmp_path: Path, signed: bool) -> None:
    """2 GiB for a query of some KB: its header says so, and says who signed it."""
    world = World.create(tmp_path)
    read: list[int] = []

    def enormous(frames: list[bytes]) -> Any:
        honest = decode(frames[0], OpeningHeader)
        size = MAX_OPENING_BYTES
        header = dataclasses.replace(honest, size=size, parts=opening_parts(size))
        if signed:
            signed_bytes = _signed_bytes(header, world.port.answer_seen)
            signature = world.company_keys.identity.sign(OPENING_DOMAIN, signed_bytes)
            header = dataclasses.replace(header, signature=signature)
        yield encode(header)
        for index in range(header.parts):
            read.append(index)
            yield encode(OpeningPart(index, bytes(1)))

    world.port.change_opening = enormous
    kind, text = (ProtocolError, "at most") if signed else (VerificationError, "could not be")
    with pytest.raises(kind, match=text):
        ask(world.company())
    assert read == []
    assert world.steps() == ["demanded"]
    world.port.change_opening = lambda frames: frames
    assert ask(world.company()).receipt is not None


@pytest.mark.parametrize("rows", [1, 300])
def test_an_honest_opening_is_never_too_large(tmp_path: Path, rows: int) -> None:
    world, sizes = World.create(tmp_path), list[tuple[int, int]]()
    real = inspection_desk.InspectionDesk.judge

    def judge(self: Any, header: OpeningHeader, frames: Any, max_bytes: int) -> None:
        sizes.append((header.size, max_bytes))
        real(self, header, frames, max_bytes)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inspection_desk.InspectionDesk, "judge", judge)
        ask(world.company(), np.ones((SIZE, rows)))
    ((size, limit),) = sizes
    assert size <= limit < size + (2 << 20)


def test_a_lost_answer_is_fetched_again(tmp_path: Path) -> None:
    world = World.create(tmp_path)
    lost: list[bytes] = []

    def lose(frame: bytes) -> bytes:
        if not lost and not isinstance(decode_or_none(frame), OpeningDemand):
            lost.append(frame)
            raise AttemptLost("the line broke")  # after the regulator answered
        return frame

    world.port.change_answer = lose
    with pytest.raises(ProtocolError):
        ask(world.company())
    world.port.change_answer = lambda frame: frame
    release = ask(world.company())
    assert release.receipt is not None
    assert world.port.answer_seen == lost[0]
    assert world.steps() == ["passed"]


def decode_or_none(frame: bytes) -> OpeningDemand | None:
    try:
        return decode(frame, OpeningDemand)
    except ProtocolError:
        return None


# --- What a company refuses ----------------------------------------------------------------------


@pytest.mark.parametrize("change", ["auditor", "request_hash", "signature"])
def test_a_company_opens_to_its_own_plans_auditor_only(tmp_path: Path, change: str) -> None:
    world = World.create(tmp_path)
    sent: list[bytes] = []
    world.port.change_opening = lambda frames: sent.extend(frames) or frames  # type: ignore

    def forge(frame: bytes) -> bytes:
        demand = decode(frame, OpeningDemand)
        forged = dataclasses.replace(demand, **{change: bytes(len(getattr(demand, change)))})
        if change == "signature":
            return encode(forged)
        signature = world.regulator_keys.identity.sign(
            "isonomy/opening-demand/v1", forged.signed_bytes()
        )
        return encode(dataclasses.replace(forged, signature=signature))

    world.port.change_answer = forge
    with pytest.raises((ProtocolError, VerificationError)):
        ask(world.company())
    assert sent == []


def test_a_plan_at_rate_0_is_never_opened_on_demand(tmp_path: Path) -> None:
    """Its owner read that no query is inspected while it runs."""
    world = World.create(tmp_path, rate=0)
    world.rate = MILLION  # the regulator's own policy, changed after the approval
    world.restart_regulator()
    ask(world.company())
    assert world.steps() == []
    sent: list[bytes] = []
    world.port.change_opening = lambda frames: sent.extend(frames) or frames  # type: ignore
    world.port.half._inspector._rate = MILLION  # a regulator with other code
    oracle = world.company()
    oracle._number = 1
    with pytest.raises(ProtocolError, match="rate is 0"):
        ask(oracle)
    assert sent == []


def test_a_store_without_columns_is_refused_before_anything_is_asked(tmp_path: Path) -> None:
    world = World.create(tmp_path)
    world.store_inspected = False
    with pytest.raises(ConfigError, match="inspected=True"):
        world.company()


def test_after_the_deadline_nothing_new_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World.create(tmp_path)
    ask(world.company())
    world.port.half._inspector._today = lambda: date(2100, 1, 2)
    oracle = world.company()
    ask(oracle)  # the old answer again
    with pytest.raises(ProtocolError, match="inspections ended on 2100-01-01"):
        ask(oracle)
