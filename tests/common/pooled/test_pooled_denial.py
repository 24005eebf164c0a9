"""A company that sends other frames than agreed, where several ask: nothing is answered."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pooled_kit import ROWS, SHARE, SIZE, Table, channel_of, table
from session_kit import Federation

from isonomy.common.base.errors import ProtocolError, SessionClosed
from isonomy.common.crypto.params import DEFAULT_PARAMETERS
from isonomy.common.ledger.ledger import verify_ledger
from isonomy.common.pooled._masks import MaskKey, agree_mask_key
from isonomy.common.remote.exchanges import RemoteRegulator
from isonomy.common.session.sealed_links import Parcel
from isonomy.common.sums.oracle import GroupOracle, Release
from isonomy.common.sums.pool_masks import PooledTotals
from isonomy.common.wire.messages import SumHeader, SumPart, decode, decode_any, encode

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
        channel = channel_of(oracle)
        answer = channel._ask

        def later(totals: PooledTotals, frames: Sequence[bytes]) -> Any:
            assert self._sent.wait(20)
            return answer(totals, frames)

        channel._ask = later  # type: ignore[method-assign]
        (release,) = once(oracle, own)
        self.receipt = release.receipt.query_id
        return [release]

    def _cheat(self, oracle: GroupOracle, own: slice) -> list[Release]:
        channel = channel_of(oracle)
        port = channel._port

        def crafted(totals: PooledTotals, frames: Sequence[bytes]) -> Any:
            request = [("joint", totals.query_id, totals.dump())]
            request += [("sum", totals.query_id, frame) for frame in frames]
            self._send(port, request)
            self._sent.set()
            parcel = port.session.receive("regulator")
            while parcel.exchange != 1000:  # the rest of an exchange that was given up
                parcel = port.session.receive("regulator")
            raise PermissionError(decode_any(parcel.payload))  # once is enough

        channel._ask = crafted  # type: ignore[method-assign]
        return once(oracle, own)


def transmit(port: RemoteRegulator, sent: Sent, exchange: int, *, ends: bool = True) -> None:
    for index, (purpose, query_id, payload) in enumerate(sent):
        last = ends and index == len(sent) - 1
        frame = Parcel("regulator", purpose, query_id, exchange, index, last, payload)  # type: ignore[arg-type]
        port.session.send("regulator", frame)


# --- What was added ----------------------------------------------------------------------------


def shifted(frame: bytes) -> bytes:
    """A ciphertext of a sum that is larger by a million in its first coefficient."""
    part, params = decode(frame, SumPart), DEFAULT_PARAMETERS
    words = np.frombuffer(part.ciphertext, "<u8").copy()
    words[0] = (int(words[0]) + 10**6 * (params.primes[0] // params.plain_modulus)) % params.primes[
        0
    ]
    return encode(SumPart(part.index, words.tobytes()))


def test_what_was_added_is_what_was_signed(tmp_path: Path) -> None:
    """A second header voids the first one at the relay; the regulator has heard of the first."""

    def swap(port: RemoteRegulator, request: Sent) -> None:
        transmit(port, request, 1000)
        header = decode(request[1][2], SumHeader)
        other = encode(SumHeader(**{**vars(header), "commitment": bytes(32)}))
        parts = [("sum", query_id, shifted(frame)) for _, query_id, frame in request[2:]]
        transmit(port, [request[0], ("sum", header.query_id, other), *parts], 1001, ends=False)
        deadline = time.monotonic() + 10
        while not taken(header.query_id):
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def taken(query_id: str) -> bool:
        """Does the relay hold what came under the second header?"""
        assert joint.relay._state._sums is not None
        query = joint.relay._state._sums._queries.get(query_id)
        header = query and query.headers.get("second")
        return bool(query and header and not any(header.commitment) and query.parts["second"])

    with table(tmp_path, "first", "second") as joint:
        cheat = Cheat(joint, swap)
        with suppress(SessionClosed), joint.regulator(tmp_path):
            errors = cheat.run()
    assert verify_ledger(tmp_path / "joint-ledger.jsonl").debits == 0, "answered what nobody signed"
    assert "other ciphertexts than were signed" in str(errors[1])


# --- Totals, which no ciphertext holds ---------------------------------------------------------


def test_other_totals_than_the_header_binds(tmp_path: Path) -> None:
    """A false total moves the last group's sum of everybody: it needs a signature, too."""

    def lie(port: RemoteRegulator, request: Sent) -> None:
        totals = PooledTotals.parse(request[0][2])
        false = replace(totals, masked=totals.masked + np.uint64(10**6))
        transmit(port, [("joint", totals.query_id, false.dump()), *request[1:]], 1000)

    with table(tmp_path, "first", "second") as joint:
        cheat = Cheat(joint, lie)
        with suppress(SessionClosed), joint.regulator(tmp_path):
            _, error = cheat.run()
    assert "totals and parts are not those" in str(error)
    assert verify_ledger(tmp_path / "joint-ledger.jsonl").debits == 0


# --- The companies' key ------------------------------------------------------------------------


class Keys:
    """A session of one company in which the others say what they like."""

    def __init__(self, federation: Federation, name: str, said: dict[str, bytes]) -> None:
        self.plan, self.keys, self._said = federation.plan, federation.keys(name), said
        self.told: dict[str, bytes] = {}

    def receive(self, name: str) -> Parcel:
        return Parcel(name, "joint", "", 0, 0, True, self._said[name])

    def greet(self, name: str, frame: Parcel) -> None:
        self.told[name] = frame.payload


def test_no_company_hands_out_a_key_of_its_own(tmp_path: Path) -> None:
    federation = Federation.create(tmp_path, size=SIZE, companies=("one", "two", "three"))
    said = {}
    for name in ("one", "two"):
        session = Keys(federation, name, {})
        agree_mask_key(session)  # type: ignore[arg-type]
        said[name] = session.told["three"]
    key = agree_mask_key(Keys(federation, "three", said))  # type: ignore[arg-type]
    other = MaskKey(said["one"], 3)
    assert key.masks("q", b"a" * 16).seeds() == other.masks("q", b"a" * 16).seeds()
    for liar in said:
        with pytest.raises(ProtocolError, match="different keys"):
            agree_mask_key(Keys(federation, "three", {**said, liar: bytes(32)}))  # type: ignore[arg-type]


# --- Signatures --------------------------------------------------------------------------------


def test_parts_in_envelopes_of_another_query_are_refused(tmp_path: Path) -> None:
    """Parts in envelopes of another query: the relay adds those of an exchange that never ended."""

    def misplace(port: RemoteRegulator, request: Sent) -> None:
        transmit(port, request, 999, ends=False)
        elsewhere = [("sum", "elsewhere", frame) for _, _, frame in request[2:]]
        transmit(port, [*request[:2], *elsewhere], 1000)

    with table(tmp_path, "first", "second") as joint:
        cheat = Cheat(joint, misplace)
        with suppress(SessionClosed), joint.regulator(tmp_path):
            _, error = cheat.run()
    assert "frames of different queries" in str(error)
    assert verify_ledger(tmp_path / "joint-ledger.jsonl").debits == 0
