"""Several companies with disjoint people get what one company with all of them would get."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pooled_kit import ROWS, SHARE, SIZE, Table, alone, channel_of, pooled_oracle, table
from session_kit import FAST, Federation, people

from isonomy.common.base.errors import (
    ConfigError,
    IsonomyError,
    PartyTimeout,
    ProtocolError,
    SessionClosed,
)
from isonomy.common.ledger.ledger import verify_ledger
from isonomy.common.pooled._masks import (
    MaskKey,
    add_masked,
    pair_key,
)
from isonomy.common.pooled.people import share_slices
from isonomy.common.sums.openings import MemoryOpenings
from isonomy.common.sums.oracle import GroupOracle, Release
from isonomy.common.sums.pool_masks import PooledReply, PooledTotals


def script(oracle: GroupOracle, own: slice) -> list[Release]:
    everybody = np.arange(own.start, own.stop)
    some = everybody[everybody % 3 != 0]
    return [
        oracle.counts(share=SHARE),
        oracle.blind_sum(ROWS[own], norm=2.3, share=SHARE),
        oracle.open_sum(ROWS[own] / 7, norm=0.7, share=SHARE),
        oracle.blind_sum(ROWS[some], norm=1.1, people=some - own.start, share=SHARE),
        oracle.counts((everybody % 4), share=SHARE),
    ]


@pytest.mark.parametrize("names", [("first", "second"), ("first", "second", "third")])
def test_bit_for_bit_what_one_company_would_get(tmp_path: Path, names: tuple[str, ...]) -> None:
    with table(tmp_path, *names) as joint:
        with joint.regulator(tmp_path):
            results = joint.all_companies(script)
        expected = alone(tmp_path, joint.federation, script)
        passed = joint.relay.summary()["by_purpose"]
    for releases in results:
        for got, wanted in zip(releases, expected, strict=True):
            assert np.array_equal(got.values, wanted.values)
            assert np.array_equal(got.deviation, wanted.deviation)
            assert got.receipt.units == wanted.receipt.units
    assert verify_ledger(tmp_path / "joint-ledger.jsonl").debits == len(expected)
    assert passed["joint"] > 0


def test_weighted_sum(tmp_path: Path) -> None:
    def weighted(oracle: GroupOracle, own: slice) -> list[Release]:
        return [oracle.weighted_sum(ROWS[own], [0.3, -1.0], norm=2.0, share=SHARE)]

    with table(tmp_path, "first", "second") as joint:
        with joint.regulator(tmp_path):
            (one,), (two,) = joint.all_companies(weighted)
        (wanted,) = alone(tmp_path, joint.federation, weighted)
    np.testing.assert_array_equal(one.values, two.values)
    np.testing.assert_allclose(one.values, wanted.values, rtol=0, atol=1e-9)

    linked = threading.Barrier(2)

    def equal(oracle: GroupOracle, own: slice) -> list[Release]:
        channel_of(oracle)._port.session.generation("regulator")
        linked.wait(10)
        return [oracle.weighted_sum(ROWS[own], [1.0, 1.0], norm=2.0, share=SHARE)]

    folder = tmp_path / "equal"
    with (
        table(folder, "first", "second") as joint,
        pytest.raises(SessionClosed, match="ConfigError: The caller's arguments"),
        joint.regulator(folder),
        pytest.raises(ConfigError, match="weights that differ"),
    ):
        joint.all_companies(equal)


def test_stored_answers_after_every_restart(tmp_path: Path) -> None:
    """All processes begin anew and run the same script: same answers, nothing debited."""
    stores = {name: MemoryOpenings() for name in ("first", "second")}
    seen = []
    with table(tmp_path, "first", "second") as joint:
        for _ in range(2):
            with joint.regulator(tmp_path), ThreadPoolExecutor(2) as pool:
                jobs = [pool.submit(joint.company, n, script, stores[n]) for n in joint.names]
                seen.append([job.result(60) for job in jobs])
    for before, after in zip(*seen, strict=True):
        for one, two in zip(before, after, strict=True):
            assert np.array_equal(one.values, two.values)
            assert one.receipt == two.receipt
    assert verify_ledger(tmp_path / "joint-ledger.jsonl").debits == 5


class Interrupted(Exception):  # noqa: N818
    """Stands for kill −9 of a company."""


@pytest.mark.parametrize("moment", ["before saving", "after saving", "before acknowledging"])
def test_company_that_dies_in_the_middle(tmp_path: Path, moment: str) -> None:
    """It comes back, begins its script anew, and both go on; each query is debited once."""

    class Dying(MemoryOpenings):
        saves = acknowledged = 0
        armed = True

        def die(self) -> None:
            if self.armed:
                self.armed = False
                raise Interrupted

        def save(self, query_id: str, request: Any) -> None:
            self.saves += 1
            if self.saves == 2 and moment == "before saving":
                self.die()
            super().save(query_id, request)
            if self.saves == 2 and moment == "after saving":
                self.die()

        def acknowledge(self, query_id: str, request: Any, answer: bytes) -> None:
            self.acknowledged += 1
            if self.acknowledged == 2 and moment == "before acknowledging":
                self.die()
            super().acknowledge(query_id, request, answer)

    dying = Dying()

    def killed_once(joint: Table) -> list[Release]:
        """A process that is killed says nothing: no Close, its stream just ends."""
        ticket = joint.relay.issue_ticket("company", "second")
        place = share_slices(joint.federation.plan)[1]
        session = joint.federation.session(ticket).start()
        with pytest.raises(Interrupted):
            script(pooled_oracle(session, joint.cohorts()["second"], openings=dying), place)
        session._ending = True
        session._stream.stop()
        return joint.company("second", script, dying)

    with (
        table(tmp_path, "first", "second") as joint,
        joint.regulator(tmp_path),
        ThreadPoolExecutor(2) as pool,
    ):
        steady = pool.submit(joint.company, "first", script)
        again = pool.submit(killed_once, joint)
        results = [steady.result(60), again.result(60)]
    for one, two in zip(*results, strict=True):
        assert np.array_equal(one.values, two.values)
    assert verify_ledger(tmp_path / "joint-ledger.jsonl").debits == 5


def test_relay_that_loses_what_it_held(tmp_path: Path) -> None:
    """Without a total the regulator refuses, and the companies ask again: one answer, one debit."""
    with table(tmp_path, "first", "second") as joint:
        sums = joint.relay._state._sums
        assert sums is not None
        original, lost = sums._add, []

        def forgetful(envelope, body, part):
            if not lost:
                lost.append(part.index)
                sums._queries.clear()  # as after a kill
            return original(envelope, body, part)

        sums._add = forgetful  # type: ignore[method-assign]
        with joint.regulator(tmp_path):
            results = joint.all_companies(script)
    assert lost
    assert all(np.array_equal(a.values, b.values) for a, b in zip(*results, strict=True))
    assert verify_ledger(tmp_path / "joint-ledger.jsonl").debits == 5


def test_company_that_never_comes_back(tmp_path: Path) -> None:
    """The regulator gives up, and tells the company that waits for the other one."""
    impatient = replace(FAST, absence_s=1.0)
    with (
        table(tmp_path, "first", "second") as joint,
        pytest.raises(PartyTimeout, match="second did not come back"),
        joint.regulator(tmp_path, impatient),
        pytest.raises(SessionClosed, match="PartyTimeout: second did not come back"),
    ):
        joint.company("first", script)


def test_company_that_is_there_and_silent(tmp_path: Path) -> None:
    """It does not hold the others for ever."""
    impatient = replace(FAST, absence_s=1.0)
    with (
        table(tmp_path, "first", "second") as joint,
        pytest.raises(PartyTimeout, match="the others wait for second"),
        joint.federation.session(joint.relay.issue_ticket("company", "second")),
        joint.regulator(tmp_path, impatient),
        pytest.raises(SessionClosed, match="PartyTimeout: the others wait for second"),
    ):
        joint.company("first", script)


def test_companies_that_ask_different_things(tmp_path: Path) -> None:
    def different(oracle: GroupOracle, own: slice) -> list[Release]:
        return [oracle.counts(share=0.1 if own.start else 0.2)]

    with (
        table(tmp_path, "first", "second") as joint,
        pytest.raises(SessionClosed, match="ask different things"),  # the regulator is told, too
        joint.regulator(tmp_path),
        ThreadPoolExecutor(2) as pool,
    ):
        jobs = [pool.submit(joint.company, name, different) for name in joint.names]
    errors = [job.exception(60) for job in jobs]
    assert all(isinstance(error, ProtocolError | SessionClosed) for error in errors)
    assert any("ask different things" in str(error) for error in errors)


def test_shared_key_is_the_companies_own(tmp_path: Path) -> None:
    federation = Federation.create(tmp_path, size=SIZE, companies=("first", "second"))
    one, two = federation.keys("first"), federation.keys("second")
    key = pair_key(one, federation.plan, 1)
    assert key == pair_key(two, federation.plan, 0)
    assert key != pair_key(federation.keys("regulator"), federation.plan, 1)


def test_masked_totals() -> None:
    key = MaskKey(b"k" * 32, 3)
    totals = [np.array([1, -5, 2**40]), np.array([7, 0, -(2**41)]), np.array([-1, 2, 3])]
    masks, later = key.masks("q", b"a" * 16), key.masks("q", b"b" * 16)
    masked = [masks.mask_totals(t, j) for j, t in enumerate(totals)]
    assert not any((m.view(np.int64) == t).any() for m, t in zip(masked, totals, strict=True))
    assert np.array_equal(masks.unmask_totals(add_masked(masked)), sum(totals))
    assert not np.array_equal(later.unmask_totals(add_masked(masked)), sum(totals))
    seeds = {*masks.seeds(), *later.seeds()}
    assert len(seeds) == 6, "each company and each attempt has its own mask"


def test_wire_forms_are_total() -> None:
    totals = PooledTotals("q", b"a" * 16, np.array([1, 2], dtype=np.uint64), bytes(32))
    reply = PooledReply((b"h" * 32, b"i" * 32), np.array([3], dtype=np.uint64), 64, b"t" * 32)
    assert PooledTotals.parse(totals.dump()).masked.tolist() == [1, 2]
    assert PooledReply.parse(reply.dump()).request_hash() == reply.request_hash()
    assert replace(reply, totals_hash=bytes(32)).request_hash() != reply.request_hash()
    for raw in (b"", b"junk", totals.dump()[:-1], reply.dump() + b"x", bytes(2 << 20)):
        for parser in (PooledTotals.parse, PooledReply.parse):
            with pytest.raises(IsonomyError):
                parser(raw)


def test_people_and_plan_must_fit(tmp_path: Path) -> None:
    with table(tmp_path, "first", "second") as joint:
        ticket = joint.relay.issue_ticket("company", "first")
        with (
            joint.federation.session(ticket) as session,
            pytest.raises(ConfigError, match="not this company's"),
        ):
            pooled_oracle(session, people(SIZE))
