"""Either side dies at any step of an inspected query: answered once, and never uninspected."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from federation import TamperingPort
from inspection_kit import World, ask

from isonomy.common.base.errors import IsonomyError
from isonomy.common.ledger.ledger import verify_ledger
from isonomy.common.sums.company_half import Reply

STEPS = [
    f"{when} {what}"
    for what in ("columns", "answer", "open")
    for when in ("before", "within", "after")
]


class Killed(BaseException):
    """The process is gone; nothing catches this."""


class DyingPort(TamperingPort):
    """Ends the company's process at one step, once."""

    step = ""
    reached = ""

    def _at(self, step: str) -> None:
        if step == self.step:
            self.step, self.reached = "", step
            raise Killed

    def columns(self, query_id: str, query_frame: bytes) -> Iterator[bytes]:
        self._at("before columns")
        frames = super().columns(query_id, query_frame)
        yield next(frames)
        self._at("within columns")
        yield from frames
        self._at("after columns")

    def answer(self, query_id: str, frames: Iterable[bytes]) -> Reply:
        return self._called("answer", query_id, frames)

    def open(self, query_id: str, frames: Iterable[bytes]) -> Reply:
        return self._called("open", query_id, frames)

    def _called(self, name: str, query_id: str, frames: Iterable[bytes]) -> Reply:
        self._at(f"before {name}")
        sent = list(frames)
        if self.step == f"within {name}":  # the first frame arrives, the rest never does
            with contextlib.suppress(IsonomyError):
                getattr(super(), name)(query_id, sent[:1])
            self._at(f"within {name}")
        reply: Reply = getattr(super(), name)(query_id, sent)
        self._at(f"after {name}")
        return reply


@pytest.mark.parametrize("carrier", ["homomorphic", "pads"])
@pytest.mark.parametrize("who", ["company", "both"])
@pytest.mark.parametrize("step", STEPS)
def test_killed_at_any_step(tmp_path: Path, step: str, who: str, carrier: str) -> None:
    world = World.create(tmp_path, carrier=carrier)
    port = world.port = DyingPort(world.port.half)
    port.step = step
    with pytest.raises(Killed):
        ask(world.company())
    assert port.reached == step
    if who == "both":
        world.restart_regulator()
    release = ask(world.company())
    assert release.receipt is not None
    assert verify_ledger(world.ledger._path).debits == 1
    steps = world.steps()
    assert steps
    assert set(steps) == {"passed"}
    record = world.ledger.find(release.receipt.query_id)
    assert record is not None
    inspected = {each.request_hash for each in world.ledger.inspections(world.plan.hash)}
    assert record.request_hash in inspected  # what was answered is what was looked at


@pytest.mark.parametrize("carrier", ["homomorphic", "pads"])
def test_the_regulator_dies_within_its_own_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, carrier: str
) -> None:
    """After the demand is in the ledger but before it left; after "passed" but before the debit.

    By pads a request that passed can be read again.
    """
    for name in ("demanded", "passed"):
        folder = tmp_path / name
        folder.mkdir()
        world = World.create(folder, carrier=carrier)
        custodian = world.port.half._custodian
        real = custodian.note_inspection

        def dies(query_id: str, request_hash: bytes, step: str, name=name, real=real) -> None:
            real(query_id, request_hash, step)
            if step == name:
                raise Killed

        monkeypatch.setattr(custodian, "note_inspection", dies)
        with pytest.raises(Killed):
            ask(world.company())
        assert world.steps() == [name]
        world.restart_regulator()
        assert ask(world.company()).receipt is not None
        again = name == "demanded" or carrier == "homomorphic"
        assert world.steps() == (1 + again) * ["passed"]
        assert verify_ledger(world.ledger._path).debits == 1
