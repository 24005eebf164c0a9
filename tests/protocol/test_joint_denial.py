"""A company that wants to deny, where several ask together: what counts is what it signed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from joint_kit import ROWS, SHARE, Table, table

from isonomy.common.joint import JointTotals
from isonomy.common.joint_oracle import JointOracle, JointRegulator
from isonomy.common.joint_store import JointStore
from isonomy.common.ledger import verify_ledger
from isonomy.common.links import Frame
from isonomy.common.messages import SumHeader, decode
from isonomy.common.oracle import GroupOracle, Release
from isonomy.common.session_errors import SessionClosed

Sent = list[tuple[str, str, bytes]]  # purpose, query id of the envelope, payload


def once(oracle: GroupOracle, own: slice) -> list[Release]:
    return [oracle.blind_sum(ROWS[own], norm=2.0, share=SHARE)]


class Cheat:
    """The second company, which sends frames of its own choice; the first waits for it."""

    def __init__(self, joint: Table, send: Callable[[Any, Sent], None]) -> None:
        self._joint, self._send, self._sent = joint, send, threading.Event()
        self.receipt = ""

    def run(self) -> tuple[BaseException | None, BaseException | None]:
        """What the honest company and the cheat got."""
        with ThreadPoolExecutor(2) as pool:
            honest = pool.submit(self._joint.company, "first", self._honest)
            cheat = pool.submit(self._joint.company, "second", self._cheat)
            return honest.exception(60), cheat.exception(60)

    def _honest(self, oracle: GroupOracle, own: slice) -> list[Release]:
        assert isinstance(oracle, JointOracle)
        answer = oracle._port.joint_answer

        def later(totals: JointTotals, frames: Sequence[bytes]) -> Any:
            assert self._sent.wait(20)
            return answer(totals, frames)

        oracle._port.joint_answer = later  # type: ignore[method-assign]
        (release,) = once(oracle, own)
        self.receipt = release.receipt.query_id
        return [release]

    def _cheat(self, oracle: GroupOracle, own: slice) -> list[Release]:
        assert isinstance(oracle, JointOracle)
        port = oracle._port

        def crafted(totals: JointTotals, frames: Sequence[bytes]) -> Any:
            request = [("joint", totals.query_id, totals.dump())]
            request += [("sum", totals.query_id, frame) for frame in frames]
            self._send(port, request)
            self._sent.set()
            reply = port._receive(1000, port.session.generation("regulator")).payload
            decode(reply, SumHeader)  # raises what a refusal says
            raise AssertionError("no header comes back")

        port.joint_answer = crafted  # type: ignore[method-assign]
        return once(oracle, own)


def transmit(port: JointRegulator, sent: Sent, exchange: int, *, ends: bool = True) -> None:
    for index, (purpose, query_id, payload) in enumerate(sent):
        last = ends and index == len(sent) - 1
        frame = Frame("regulator", purpose, query_id, exchange, index, last, payload)  # type: ignore[arg-type]
        port.session.send("regulator", frame)


def test_every_answered_request_carries_good_signatures(tmp_path: Path) -> None:
    """Parts in envelopes of another query: the relay adds those of an exchange that never ended."""

    def misplace(port: JointRegulator, request: Sent) -> None:
        transmit(port, request, 999, ends=False)
        elsewhere = [("sum", "elsewhere", frame) for _, _, frame in request[2:]]
        transmit(port, [*request[:2], *elsewhere], 1000)

    with table(tmp_path, "first", "second") as joint:
        cheat = Cheat(joint, misplace)
        with suppress(SessionClosed), joint.regulator(tmp_path):
            _, error = cheat.run()
    if cheat.receipt:
        evidence = JointStore(tmp_path / "joint").load(cheat.receipt)
        assert evidence is not None
        evidence.check_signatures(cheat.receipt, joint.federation.plan)
    assert "not signed in their places" in str(error)
    assert verify_ledger(tmp_path / "joint-ledger.jsonl").debits == 0
