"""Companies, a regulator or a relay that misbehave where several companies ask together."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pooled_kit import ROWS, SHARE, SIZE, Table, channel_of, pooled_oracle, query, table
from session_kit import FAST, Federation

from isonomy.common.base.errors import (
    AttemptLost,
    OversizedMessage,
    PartyTimeout,
    ProtocolError,
    SessionClosed,
    VerificationError,
)
from isonomy.common.crypto.blinding import expand_mask
from isonomy.common.crypto.he import QueryKey
from isonomy.common.crypto.params import DEFAULT_PARAMETERS, centre
from isonomy.common.ledger.ledger import verify_ledger
from isonomy.common.pooled._masks import (
    MaskKey,
    pair_key,
)
from isonomy.common.pooled._requests import Reply
from isonomy.common.pooled.half import MAX_WAITING
from isonomy.common.pooled.serving import _Table
from isonomy.common.pooled.store import PooledStore
from isonomy.common.privacy.queries import MAX_ANSWERS, pack_positions
from isonomy.common.session.sealed_links import Parcel
from isonomy.common.sums.openings import MemoryOpenings
from isonomy.common.sums.oracle import GroupOracle, Release
from isonomy.common.sums.pool_masks import PooledReply, PooledTotals
from isonomy.common.wire.envelopes import Data, Envelope, parse
from isonomy.common.wire.messages import (
    Refusal,
    SumHeader,
    SumPart,
    decode,
    encode,
    frame_hash,
)
from isonomy.server.relay import _sums as relay_sums
from isonomy.server.relay._sums import SumCollector


def once(oracle: GroupOracle, own: slice) -> list[Release]:
    return [oracle.blind_sum(ROWS[own], norm=2.0, share=SHARE)]


def zeroed(frame: bytes) -> bytes:
    part = decode(frame, SumPart)
    return encode(SumPart(part.index, bytes(len(part.ciphertext))))


def crossed(
    joint: Table, change: Callable[[Any, PooledTotals, Sequence[bytes]], Any]
) -> tuple[BaseException | None, BaseException | None]:
    """Both companies ask once; `change` sends the second one's request. What each of them got."""

    def cheat(oracle: GroupOracle, own: slice) -> list[Release]:
        channel = channel_of(oracle)
        send = channel._ask
        channel._ask = lambda totals, frames: change(send, totals, frames)  # type: ignore[method-assign]
        return once(oracle, own)

    with ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(joint.company, *job) for job in (("first", once), ("second", cheat))]
        return jobs[0].exception(60), jobs[1].exception(60)


# --- What was committed to is what was sent -----------------------------------------------------


def other_parts(send: Any, totals: PooledTotals, frames: Sequence[bytes]) -> Any:
    return send(totals, [frames[0], zeroed(frames[1]), *frames[2:]])


def fewer_parts(send: Any, totals: PooledTotals, frames: Sequence[bytes]) -> Any:
    return send(totals, frames[:-1])


def more_parts(send: Any, totals: PooledTotals, frames: Sequence[bytes]) -> Any:
    return send(totals, [*frames, frames[-1]])


@pytest.mark.parametrize("change", [other_parts, fewer_parts, more_parts])
def test_honest_header_with_other_ciphertexts(tmp_path: Path, change: Any) -> None:
    with (
        table(tmp_path, "first", "second") as joint,
        pytest.raises(SessionClosed, match="second ended the session: ProtocolError"),
        joint.regulator(tmp_path),
    ):
        honest, cheat = crossed(joint, change)
    assert isinstance(cheat, ProtocolError)
    assert "binds" in str(cheat) or "ciphertexts and has" in str(cheat)
    assert isinstance(honest, SessionClosed)
    assert verify_ledger(tmp_path / "joint-ledger.jsonl").debits == 0, "nothing was answered"
    assert not list((tmp_path / "joint").iterdir())


def test_other_ciphertexts_first_then_the_honest_ones(tmp_path: Path) -> None:
    """The relay must not keep a total of the first ones when the regulator hears of the second."""

    def twice(send: Any, totals: PooledTotals, frames: Sequence[bytes]) -> Any:
        with pytest.raises(ProtocolError):
            other_parts(send, totals, frames)
        return send(totals, frames)

    with (
        table(tmp_path, "first", "second") as joint,
        pytest.raises(PartyTimeout, match="second did not come back"),  # the relay ended its stream
        joint.regulator(tmp_path, replace(FAST, absence_s=1.0)),
    ):
        _, cheat = crossed(joint, twice)
    assert isinstance(cheat, ProtocolError)
    assert "replaces a ciphertext" in str(cheat)
    assert verify_ledger(tmp_path / "joint-ledger.jsonl").debits == 0


# --- The shared mask seeds open the declared sums, and nothing else ------------------------------


def test_mask_seeds_do_not_open_the_garbage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decrypted: list[Any] = []
    original = QueryKey.decrypt

    def decrypt(key: QueryKey, part: bytes) -> Any:
        decrypted.append(original(key, part))
        return decrypted[-1]

    attempts: list[bytes] = []

    def noting(oracle: GroupOracle, own: slice) -> list[Release]:
        releases = once(oracle, own)
        request = channel_of(oracle).half.openings.find(releases[0].receipt.query_id)
        attempts.append(request.header.attempt)
        return releases

    monkeypatch.setattr(QueryKey, "decrypt", decrypt)
    with table(tmp_path, "first", "second") as joint, joint.regulator(tmp_path):
        (release,), _ = joint.all_companies(noting)
        reply = PooledStore(tmp_path / "joint").load(release.receipt.query_id)
    assert reply is not None
    plan = joint.federation.plan
    masks = MaskKey(pair_key(joint.federation.keys("first"), plan, 1), 2)
    seeds = masks.masks(release.receipt.query_id, attempts[0]).seeds()
    (coefficients,), t = decrypted, DEFAULT_PARAMETERS.plain_modulus
    opened = coefficients.astype(np.int64)
    for seed in seeds:
        opened = opened - expand_mask(DEFAULT_PARAMETERS, seed, 0).astype(np.int64)
    opened = centre(opened % t, t)
    block = reply.block
    declared = np.arange(ROWS.shape[1]) * block + block - 1
    # A sum of at most 150 rows below 2^20; what is still masked is that small once in 2^15.
    small = np.abs(opened) < 1 << 28
    assert small[declared].all()
    assert np.delete(small, declared).mean() < 0.01


# --- A company that is done early ----------------------------------------------------------------


def asking(times: int) -> Callable[[GroupOracle, Any], list[Release]]:
    return lambda oracle, own: [oracle.counts(share=SHARE) for _ in range(times)]


def unequal(joint: Table, longer: Any, gone: threading.Event) -> BaseException | None:
    """The second company asks once and is done; what the first one got."""
    with ThreadPoolExecutor(2) as pool:
        waiting = pool.submit(joint.company, "first", longer)
        pool.submit(joint.company, "second", asking(1)).result(20)
        gone.set()
        return waiting.exception(10)


@pytest.mark.parametrize("late", [False, True])
def test_company_that_is_done_early(tmp_path: Path, late: bool) -> None:
    """The other one is refused, soon, with a text that says why. It had its first answer."""
    gone = threading.Event()

    def longer(oracle: GroupOracle, own: Any) -> list[Release]:
        first = oracle.counts(share=SHARE)
        assert not late or gone.wait(20)
        return [first, oracle.counts(share=SHARE)]

    with (
        table(tmp_path, "first", "second") as joint,
        pytest.raises(SessionClosed, match="first ended the session: ProtocolError"),
        joint.regulator(tmp_path),
    ):
        error = unequal(joint, longer, gone)
    assert isinstance(error, ProtocolError)
    assert "second has ended its part of the session" in str(error)
    assert verify_ledger(tmp_path / "joint-ledger.jsonl").debits == 1


def test_who_is_done_and_comes_back_is_waited_for(tmp_path: Path) -> None:
    federation = Federation.create(tmp_path, size=SIZE, companies=("first", "second"))
    half, ledger = Table(federation, None, ("first", "second")).half(tmp_path)  # type: ignore[arg-type]
    frame = encode(query(federation))
    with ledger:
        assert list(half.on_query("first", 1, frame)) == []
        (refusal,) = half.departed("second")
        assert (refusal.company, refusal.exchange, refusal.purpose) == ("first", 1, "columns")
        assert "second has ended" in text_of(refusal)
        assert not half.awaited
        assert "second has ended" in text_of(*half.on_query("first", 2, frame))
        half.restarted("second")
        assert list(half.on_query("first", 3, frame)) == []
        assert {reply.company for reply in half.on_query("second", 1, frame)} == {"first", "second"}
        assert half.awaited
        assert list(half.departed("second")) == [], "nobody had sent a request yet"
        assert not half.awaited


# --- Limits --------------------------------------------------------------------------------------


def text_of(reply: Reply) -> str:
    (frame,) = reply.frames
    return decode(frame, Refusal).text


def test_waiting_queries_are_limited_per_company(tmp_path: Path) -> None:
    federation = Federation.create(tmp_path, size=SIZE, companies=("first", "second"))
    half, ledger = Table(federation, None, ("first", "second")).half(tmp_path)  # type: ignore[arg-type]
    with ledger:
        (foreign,) = half.on_query("first", 1, encode(query(federation, query_id="other-000001")))
        assert "begins with" in text_of(foreign)
        for number in range(MAX_WAITING):
            assert list(half.on_query("first", number, encode(query(federation, number)))) == []
        (refusal,) = half.on_query("first", 9, encode(query(federation, MAX_WAITING)))
        assert "wait for the other companies already" in text_of(refusal)
        assert len(half._waiting) == MAX_WAITING
        assert list(half.on_query("first", 10, encode(query(federation, 0)))) == [], "once more"
        assert list(half.on_query("second", 1, encode(query(federation, MAX_WAITING)))) == []
        half.restarted("first")
        assert len(half._waiting) == 1


def test_a_query_about_the_other_companys_people_does_not_wait(tmp_path: Path) -> None:
    """Four million positions take 16 MB of memory: what cannot be answered is not kept."""
    federation = Federation.create(tmp_path, size=SIZE, companies=("first", "second"))
    half, ledger = Table(federation, None, ("first", "second")).half(tmp_path)  # type: ignore[arg-type]
    own = federation.plan.shares[0].people
    with ledger:
        within = query(federation, positions=pack_positions((0, own - 1)))
        assert list(half.on_query("first", 1, encode(within))) == []
        beyond = query(federation, 1, positions=pack_positions((0, own)))
        (refusal,) = half.on_query("first", 2, encode(beyond))
        assert "outside its own people" in text_of(refusal)
        assert set(half._waiting) == {within.query_id}


class StubSession:
    """Frames for the loop, without a network."""

    def __init__(self, federation: Federation) -> None:
        self.plan = federation.plan

    def incarnations(self) -> dict[str, int]:
        return {card.name: 1 for card in self.plan.companies}


def test_frames_of_a_request(tmp_path: Path) -> None:
    federation = Federation.create(tmp_path, size=SIZE, companies=("first", "second"))
    half, ledger = Table(federation, None, ("first", "second")).half(tmp_path)  # type: ignore[arg-type]
    loop = _Table(StubSession(federation), half, lambda *event: None)  # type: ignore[arg-type]

    def frame(index: int, exchange: int = 1) -> Parcel:
        purpose = "sum" if index else "joint"
        return Parcel("first", purpose, "q", exchange, index, False, b"")  # type: ignore[arg-type]

    with ledger:
        assert list(loop._on_frame(frame(5))) == [], "the end of something that began elsewhere"
        list(loop._on_frame(frame(0)))
        with pytest.raises(ProtocolError, match="expected frame 1"):
            list(loop._on_frame(frame(2)))
        with pytest.raises(ProtocolError, match="mixed"):
            list(loop._on_frame(frame(1, exchange=2)))
        for index in range(1, MAX_ANSWERS + 2):
            list(loop._on_frame(frame(index)))
        with pytest.raises(ProtocolError, match="at most 4096"):
            list(loop._on_frame(frame(MAX_ANSWERS + 2)))


@pytest.mark.parametrize(
    ("index", "purpose", "size"),
    [(0, "joint", 1 << 21), (1, "joint", 8), (1, "sum", 1 << 16), (2, "sum", 1 << 17)],
)
def test_a_request_is_not_collected_without_end(
    tmp_path: Path, index: int, purpose: Any, size: int
) -> None:
    """A sealed frame may have 64 MiB and a request 4,098 frames: that would be 256 GiB."""
    federation = Federation.create(tmp_path, size=SIZE, companies=("first", "second"))
    half, ledger = Table(federation, None, ("first", "second")).half(tmp_path)  # type: ignore[arg-type]
    loop = _Table(StubSession(federation), half, lambda *event: None)  # type: ignore[arg-type]
    with ledger:
        for place, good in enumerate(("joint", "sum")[:index]):
            list(loop._on_frame(Parcel("first", good, "q", 1, place, False, b"")))  # type: ignore[arg-type]
        with pytest.raises(ProtocolError, match="joint request"):
            list(loop._on_frame(Parcel("first", purpose, "q", 1, index, False, bytes(size))))
        assert len(loop._partial["first"]) == index, "it was not kept"
        for place, good in enumerate(("joint", "sum")[index:], index):
            list(loop._on_frame(Parcel("first", good, "q", 1, place, False, b"")))  # type: ignore[arg-type]
        with pytest.raises(OversizedMessage, match="total is larger"):
            list(
                loop._on_frame(Parcel("first", "sum", "q", 1, 2, False, b"", total=bytes(1 << 18)))
            )


def envelope(plan: bytes, company: str, query_id: str, payload: bytes) -> Envelope:
    data = Data(1, 0, False, 0, 1, payload, digest=frame_hash(payload))
    return Envelope(company, "regulator", plan, data, 1, query_id=query_id, purpose="sum")


class Sums:
    """A relay's collector, fed by hand."""

    def __init__(self, federation: Federation) -> None:
        self.plan = federation.plan
        self.collector = SumCollector(self.plan.public())

    def header(self, company: str, query_id: str = "q", parts: int = 2, mark: bytes = b"") -> None:
        zero = bytes(32)
        frame = encode(
            SumHeader(query_id, b"a" * 16, zero, zero, zero, mark.ljust(32, b"\0"), parts)
        )
        self.collector.take(envelope(self.plan.hash, company, query_id, frame), b"")

    def part(self, company: str, index: int, value: int, query_id: str = "q") -> bytes:
        ciphertext = value.to_bytes(8, "little") * (DEFAULT_PARAMETERS.answer_bytes // 8)
        return self.raw(company, encode(SumPart(index, ciphertext)), query_id)

    def raw(self, company: str, frame: bytes, query_id: str = "q") -> bytes:
        raw = self.collector.take(
            replace(envelope(self.plan.hash, company, query_id, frame), link=bytes(16)), b""
        )
        body = parse(raw).body
        assert isinstance(body, Data)
        return body.total


@pytest.fixture
def sums(tmp_path: Path) -> Sums:
    return Sums(Federation.create(tmp_path, size=SIZE, companies=("first", "second")))


def test_relay_checks_parts_as_they_arrive(sums: Sums) -> None:
    sums.header("first")
    with pytest.raises(ProtocolError, match="bytes"):
        sums.raw("first", encode(SumPart(0, b"short")))
    with pytest.raises(ProtocolError, match="more ciphertexts than its header announces"):
        sums.part("first", 2, 1)
    with pytest.raises(OversizedMessage):
        sums.header("first", parts=MAX_ANSWERS + 1)
    sums.part("first", 0, 1)
    with pytest.raises(ProtocolError, match="replaces a ciphertext"):
        sums.part("first", 0, 2)


def test_relay_forgets_totals_under_another_header(sums: Sums) -> None:
    for company in ("first", "second"):
        sums.header(company)
        total = sums.part(company, 0, 5)
    assert total
    assert sums.part("first", 0, 5) == total, "the same again gets the same total"
    sums.header("first", mark=b"other")
    assert sums.part("first", 0, 6) == b"", "the second's part is gone: no total can be made"


def test_no_company_pushes_the_others_out(sums: Sums, monkeypatch: pytest.MonkeyPatch) -> None:
    sums.header("second")
    sums.part("second", 0, 5)
    for number in range(5):
        sums.header("first", f"q{number}")
        sums.part("first", 0, 1, f"q{number}")
    assert set(sums.collector._queries) == {"q", "q3", "q4"}
    sums.header("first")
    assert sums.part("first", 0, 1), "the second's ciphertext was still there"
    monkeypatch.setattr(relay_sums, "MAX_STORED_BYTES", 4 * DEFAULT_PARAMETERS.answer_bytes)
    with pytest.raises(OversizedMessage, match="of first"):
        sums.part("first", 1, 1, "q4")
    sums.part("second", 1, 5)  # has its own share


# --- A regulator that misbehaves, and its disk ----------------------------------------------------


def test_regulator_chooses_the_block(tmp_path: Path) -> None:
    with table(tmp_path, "first", "second") as joint:
        ticket = joint.relay.issue_ticket("company", "first")
        with joint.federation.session(ticket) as session:
            channel = channel_of(pooled_oracle(session, joint.cohorts()["first"]))
            terms, asked = channel.terms, query(joint.federation)
            assert channel._shapes(asked, 1024).layout.block == 1024
            with pytest.raises(ProtocolError, match="does not exist"):
                channel._shapes(asked, 1000)
            channel.terms = replace(terms, params=replace(terms.params, hiding_bits=90))
            with pytest.raises(ProtocolError, match="would not hide our rows"):
                channel._shapes(asked, 16)
            channel.terms = replace(terms, params=replace(terms.params, hiding_bits=67))
            with pytest.raises(ProtocolError, match="one query holds 4096"):
                channel._shapes(query(joint.federation, columns=5000), 8192)


def test_reply_that_names_too_few_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = PooledReply.parse

    def shortened(raw: bytes) -> PooledReply:
        reply = original(raw)
        return replace(reply, header_hashes=reply.header_hashes[:1])

    monkeypatch.setattr(PooledReply, "parse", shortened)
    with (
        table(tmp_path, "first", "second") as joint,
        pytest.raises(SessionClosed),
        joint.regulator(tmp_path),
    ):
        errors = crossed(joint, lambda send, totals, frames: send(totals, frames))
    assert any("names 1 requests; the plan has 2 companies" in str(error) for error in errors)


def test_stored_reply_that_was_changed(tmp_path: Path) -> None:
    hashes, total = (b"h" * 32, b"i" * 32), np.array([3], dtype=np.uint64)
    reply, store = PooledReply(hashes, total, 64, b"t" * 32), PooledStore(tmp_path)
    store.save("q", reply)
    stored = store.load("q")
    assert stored is not None
    assert stored.request_hash() == reply.request_hash()
    assert store.load("other") is None
    (path,) = tmp_path.iterdir()
    for changed in (b"", b"junk", path.read_bytes()[:-1], path.read_bytes() + b"x"):
        path.write_bytes(changed)
        with pytest.raises(VerificationError, match="changed on disk"):
            store.load("q")


def test_another_reply_under_the_same_name_is_not_believed(tmp_path: Path) -> None:
    """The ledger has the hash of the reply that was answered; a file that says otherwise is old,
    foreign or changed."""
    stores = {name: MemoryOpenings() for name in ("first", "second")}
    with table(tmp_path, "first", "second") as joint:
        with joint.regulator(tmp_path), ThreadPoolExecutor(2) as pool:
            jobs = [pool.submit(joint.company, n, once, stores[n]) for n in joint.names]
            query_id = {job.result(60)[0].receipt.query_id for job in jobs}.pop()
        store = PooledStore(tmp_path / "joint")
        reply = store.load(query_id)
        assert reply is not None
        store.save(query_id, replace(reply, masked_total=reply.masked_total + np.uint64(1)))
        with suppress(SessionClosed), joint.regulator(tmp_path), ThreadPoolExecutor(2) as pool:
            again = [pool.submit(joint.company, n, once, stores[n]) for n in joint.names]
            errors = [job.exception(60) for job in again]
    assert all(error is not None for error in errors)
    assert verify_ledger(tmp_path / "joint-ledger.jsonl").debits == 1


def test_request_for_an_attempt_that_is_gone(tmp_path: Path) -> None:
    """An old request must not cost a newer attempt its key."""
    federation = Federation.create(tmp_path, size=SIZE, companies=("first", "second"))
    half, ledger = Table(federation, None, ("first", "second")).half(tmp_path)  # type: ignore[arg-type]
    asked = query(federation)
    with ledger:
        for company in ("first", "second"):
            list(half.on_query(company, 1, encode(asked)))
        zero, attempt = bytes(32), b"o" * 16
        masked = np.zeros(2, dtype=np.uint64)
        totals = PooledTotals(asked.query_id, attempt, masked, zero).dump()
        header = encode(SumHeader(asked.query_id, attempt, zero, zero, zero, zero, 1))
        frames = [
            Parcel("first", "joint", asked.query_id, 2, 0, False, totals),
            Parcel("first", "sum", asked.query_id, 2, 1, False, header),
            Parcel("first", "sum", asked.query_id, 2, 2, True, b"", bytes(32), True),
        ]
        (refusal,) = half.on_request("first", frames)
        (frame,) = refusal.frames
        assert decode(frame, Refusal).code == AttemptLost.__name__
        assert half.awaited, "the newer attempt is still open"
