"""Inspections while several companies ask: each opens its part, who cheats is named, others not."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pooled_kit import ROWS, SHARE, Table, alone, channel_of, query, table

from isonomy.common.agreements.plan import MILLION, Plan
from isonomy.common.base.errors import (
    InspectionFailed,
    InspectionPending,
    IsonomyError,
    ProtocolError,
    SessionClosed,
)
from isonomy.common.crypto.blinding import Seeds
from isonomy.common.inspection.audit import audit
from isonomy.common.inspection.verdict import InspectionFolder
from isonomy.common.keys.party import PartyKeys
from isonomy.common.ledger.ledger import Ledger, verify_ledger
from isonomy.common.pooled.alone import ShareColumns
from isonomy.common.pooled.channel import PooledChannel
from isonomy.common.privacy.queries import (
    alone_number,
    asks_alone,
    audit_number,
    pack_positions,
    query_id_prefix,
)
from isonomy.common.sums.joint_opening import load_opening
from isonomy.common.sums.openings import MemoryOpenings
from isonomy.common.sums.oracle import GroupOracle, Release
from isonomy.common.sums.question import Prepared
from isonomy.common.wire.messages import encode
from isonomy.server.relay import _sums as relay_sums

EVERY = {
    "auditor": "regulator",
    "inspection_millionths": MILLION,
    "inspection_deadline": "2100-01-01",
}
NAMES = ("first", "second", "third")


def script(oracle: GroupOracle, share: slice) -> list[Release]:
    return [
        oracle.counts(share=SHARE),
        oracle.blind_sum(ROWS[share], norm=2.0, share=SHARE),
        oracle.open_sum(ROWS[share] / 9, norm=1.0, share=SHARE),
    ]


def inspections(folder: Path, joint: Table) -> list[tuple[str, str]]:
    """Query numbers and steps, of the plan's inspections."""
    with Ledger.open(folder / "joint-ledger.jsonl") as ledger:
        listed = ledger.inspections(joint.federation.plan.hash)
    return [(each.query_id[-6:], each.step) for each in listed]


def test_every_part_of_every_query_is_opened_and_all_are_answered(tmp_path: Path) -> None:
    with table(tmp_path, *NAMES, **EVERY) as joint, joint.regulator(tmp_path):
        found = joint.all_companies(script)
    expected = alone(tmp_path, joint.federation, script)
    for releases in found:
        for release, other in zip(releases, expected, strict=True):
            assert np.array_equal(release.values, other.values)
    steps = inspections(tmp_path, joint)
    assert sorted(steps) == [(f"{n:06d}", "passed") for n in range(3)]


def test_what_a_company_asks_alone_is_about_its_people_and_inspected_too(tmp_path: Path) -> None:
    """The others are not charged, hear nothing of it, and need not ask anything themselves."""

    def some_alone(oracle: GroupOracle, share: slice) -> list[Release]:
        together = oracle.blind_sum(ROWS[share], norm=2.0, share=SHARE)
        if share.start == 0:
            return [together]
        mine = oracle.open_sum(ROWS[share] / 9, norm=1.0, share=SHARE, alone=True)
        assert oracle.budget.spent_units == together.receipt.units + mine.receipt.units
        return [together, mine]

    with table(tmp_path, *NAMES, **EVERY) as joint, joint.regulator(tmp_path):
        first, second, third = joint.all_companies(some_alone)
    assert len(first) == 1
    assert not np.array_equal(second[1].values, third[1].values)
    for releases, name in ((second, "second"), (third, "third")):
        people = joint.cohorts()[name]
        place = joint.names.index(name)
        assert asks_alone(releases[1].receipt.query_id, joint.federation.plan.hash) == place
        rows = ROWS[[int(person.split("-")[1]) for person in people.ids]] / 9
        assert np.allclose(releases[1].values.sum(axis=0), rows.sum(axis=0), atol=1e-4)
    assert verify_ledger(tmp_path / "joint-ledger.jsonl").debits == 3
    assert len(inspections(tmp_path, joint)) == 3


# --- Cheats --------------------------------------------------------------------------------------


def longer(prepared: Prepared) -> Prepared:
    rows = prepared.rows.copy()
    rows[0] *= 64  # one person stands out of the noise
    return replace(prepared, rows=rows)


def long_row(channel: PooledChannel) -> None:
    attempt = channel._attempt
    channel._attempt = lambda prepared, frame: attempt(longer(prepared), frame)  # type: ignore[method-assign]


def other_row_than_committed(channel: PooledChannel) -> None:
    half = channel.half
    multiply = half.multiply
    half.multiply = lambda prepared, *rest: multiply(longer(prepared), *rest)  # type: ignore[method-assign]


def other_mask(channel: PooledChannel) -> None:
    """Shifts everybody's answer, with rows that are short enough."""
    half = channel.half
    store = half.store

    def shifted(prepared: Any, frame: Any, product: Any, seeds: Seeds, hash_parts: Any) -> Any:
        return store(prepared, frame, product, Seeds(seeds.flood, b"x" * 32), hash_parts)

    half.store = shifted  # type: ignore[method-assign]


def other_totals(channel: PooledChannel) -> None:
    """Moves the last group's sum of everybody."""
    totals = channel._totals

    def lie(prepared: Prepared, attempt: bytes) -> Any:
        return totals(replace(prepared, public_total=prepared.public_total + 1000), attempt)

    channel._totals = lie  # type: ignore[method-assign]


def no_masks_in_the_box(channel: PooledChannel) -> None:
    opening = channel._alone.opening

    def bare(query: Any, request: Any, demand: Any, pool: tuple[bytes, bytes]) -> Any:
        return opening(query, request, demand, (pool[0], b""))

    channel._alone.opening = bare  # type: ignore[method-assign]


CHEATS = {
    long_row: r"\(5\)",
    other_row_than_committed: r"\(6\)",
    other_mask: r"\(8\) the ciphertexts do not have the mask",
    other_totals: r"\(8\) the public totals",
    no_masks_in_the_box: r"\(6\)",
}


@pytest.mark.parametrize("cheat", CHEATS, ids=lambda cheat: cheat.__name__)
def test_who_cheats_is_named_and_the_others_are_not(
    tmp_path: Path, cheat: Callable[[PooledChannel], None]
) -> None:
    def ask(oracle: GroupOracle, share: slice) -> list[Release]:
        if oracle.terms.place == 1:
            cheat(channel_of(oracle))
        return [oracle.blind_sum(ROWS[share], norm=2.0, share=SHARE)]

    with table(tmp_path, *NAMES, **EVERY) as joint:
        errors = caught(joint, tmp_path, ask, "second: .*" + CHEATS[cheat])
    assert all(isinstance(error, IsonomyError) for error in errors)
    texts = " ".join(map(str, errors))
    assert "second" in str(errors[1])
    assert "first: (" not in texts
    assert "third: (" not in texts
    assert verify_ledger(tmp_path / "joint-ledger.jsonl").debits == 0, "nothing was answered"
    assert [step for _, step in inspections(tmp_path, joint)].count("failed") == 1
    with suppress(IsonomyError), joint_again(tmp_path, joint) as later, later.regulator(tmp_path):
        later.all_companies(script)
    assert verify_ledger(tmp_path / "joint-ledger.jsonl").debits == 0, "the plan is over"


def caught(joint: Table, folder: Path, ask: Any, match: str) -> list[BaseException | None]:
    """What each company got, in a session that the regulator ends because of a failure."""
    errors: list[BaseException | None] = []

    def run() -> None:
        with joint.regulator(folder), ThreadPoolExecutor(3) as pool:
            jobs = [pool.submit(joint.company, name, ask) for name in NAMES]
            errors.extend(job.exception(60) for job in jobs)

    with pytest.raises(InspectionFailed, match=match):
        run()
    return errors


def joint_again(folder: Path, joint: Table) -> Any:
    """The same parties with a new relay."""

    class Again:
        def __enter__(self) -> Table:
            self.relay = joint.federation.relay()
            return Table(joint.federation, self.relay.__enter__(), joint.names)

        def __exit__(self, *error: Any) -> None:
            self.relay.__exit__(*error)

    return Again()


def test_a_cheat_that_asks_alone_is_named(tmp_path: Path) -> None:
    def ask(oracle: GroupOracle, share: slice) -> list[Release]:
        if oracle.terms.place != 1:
            return []
        other_row_than_committed(channel_of(oracle))
        return [oracle.open_sum(ROWS[share] / 9, norm=1.0, share=SHARE, alone=True)]

    with table(tmp_path, *NAMES, **EVERY) as joint:
        assert isinstance(caught(joint, tmp_path, ask, r"second: \(6\)")[1], InspectionFailed)
    assert verify_ledger(tmp_path / "joint-ledger.jsonl").debits == 0


def test_a_server_that_adds_wrongly_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One company's ciphertext counted twice would halve the noise for its people."""
    honest = relay_sums.add_answers

    def twice(params: Any, ciphertexts: list[bytes]) -> bytes:
        return honest(params, [*ciphertexts, ciphertexts[0]])

    def ask(oracle: GroupOracle, share: slice) -> list[Release]:
        return [oracle.blind_sum(ROWS[share], norm=2.0, share=SHARE)]

    monkeypatch.setattr(relay_sums, "add_answers", twice)
    with table(tmp_path, *NAMES, **EVERY) as joint:
        errors = caught(joint, tmp_path, ask, r"relay.test: \(9\) the server did not add")
    assert not any(name in str(error) for name in ("first: ", "second: ") for error in errors)
    assert verify_ledger(tmp_path / "joint-ledger.jsonl").debits == 0


def test_masks_that_differ_are_refused_before_anything_is_decrypted(tmp_path: Path) -> None:
    def ask(oracle: GroupOracle, share: slice) -> list[Release]:
        channel = channel_of(oracle)
        totals = channel._totals
        if oracle.terms.place == 1:
            channel._totals = lambda *ask: replace(totals(*ask), masks_hash=b"x" * 32)  # type: ignore[method-assign]
        return [oracle.blind_sum(ROWS[share], norm=2.0, share=SHARE)]

    with (
        table(tmp_path, "first", "second") as joint,
        suppress(IsonomyError),
        joint.regulator(tmp_path),
        ThreadPoolExecutor(2) as pool,
    ):
        jobs = [pool.submit(joint.company, name, ask) for name in joint.names]
        errors = [job.exception(60) for job in jobs]
    assert any("other masks" in str(error) for error in errors)
    assert verify_ledger(tmp_path / "joint-ledger.jsonl").debits == 0


# --- Restarts, and an auditor elsewhere ----------------------------------------------------------


def test_a_company_that_died_after_the_demand_comes_back_and_opens(tmp_path: Path) -> None:
    stores = {name: MemoryOpenings(inspected=True) for name in NAMES}

    class KilledError(Exception):
        pass

    def dies(oracle: GroupOracle, share: slice) -> list[Release]:
        if oracle.terms.place == 2:

            def opening(*place: Any) -> Any:
                raise KilledError

            channel_of(oracle)._alone.opening = opening  # type: ignore[method-assign]
        return [oracle.blind_sum(ROWS[share], norm=2.0, share=SHARE)]

    def lives(oracle: GroupOracle, share: slice) -> list[Release]:
        return [oracle.blind_sum(ROWS[share], norm=2.0, share=SHARE)]

    with table(tmp_path, *NAMES, **EVERY) as joint:
        with suppress(IsonomyError), joint.regulator(tmp_path), ThreadPoolExecutor(3) as pool:
            jobs = [pool.submit(joint.company, name, dies, stores[name]) for name in NAMES]
            assert all(job.exception(60) is not None for job in jobs)
        assert ("000000", "demanded") in inspections(tmp_path, joint)
        # The regulator has restarted as well: its key is gone, so all ask again, inspected again.
        with (
            joint_again(tmp_path, joint) as later,
            later.regulator(tmp_path),
            ThreadPoolExecutor(3) as pool,
        ):
            jobs = [pool.submit(later.company, name, lives, stores[name]) for name in NAMES]
            (first,), (second,), (third,) = (job.result(60) for job in jobs)
    assert np.array_equal(first.values, second.values)
    assert np.array_equal(first.values, third.values)
    assert verify_ledger(tmp_path / "joint-ledger.jsonl").debits == 1
    assert {step for _, step in inspections(tmp_path, joint)} == {"passed"}


def test_an_auditor_elsewhere_gets_every_part_and_its_verdicts_count(tmp_path: Path) -> None:
    auditor = PartyKeys.generate("auditor", "auditor")
    card = auditor.card()
    keys = {"auditor": card.x25519, "auditor_signing": card.ed25519, "auditor_name": card.name}
    stores = {name: MemoryOpenings(inspected=True) for name in NAMES}

    def ask(oracle: GroupOracle, share: slice) -> list[Release]:
        return [oracle.blind_sum(ROWS[share], norm=2.0, share=SHARE)]

    with table(tmp_path, *NAMES, **{**EVERY, **keys}) as joint:
        plan, (half, ledger) = joint.federation.plan, joint.half(tmp_path)
        with (
            suppress(IsonomyError),
            joint.regulator(tmp_path, half=half),
            ThreadPoolExecutor(3) as pool,
        ):
            jobs = [pool.submit(joint.company, name, ask, stores[name]) for name in NAMES]
            errors = [job.exception(60) for job in jobs]
        assert all(isinstance(e, InspectionPending | SessionClosed) for e in errors), errors
        folder = InspectionFolder(tmp_path / "inspections", plan)
        paths = folder.openings()
        assert len(paths) == 1
        damaged_files_accuse_nobody(plan, paths[0], auditor)
        verdict = audit(plan, load_opening(paths[0]), auditor)
        assert verdict.passed, verdict.reason
        folder.take(verdict, ledger)
        # The daemon has kept the sum meanwhile: it is answered without another inspection.
        with (
            ledger,
            joint_again(tmp_path, joint) as later,
            later.regulator(tmp_path, half=half),
            ThreadPoolExecutor(3) as pool,
        ):
            jobs = [pool.submit(later.company, name, ask, stores[name]) for name in NAMES]
            releases = [job.result(60)[0] for job in jobs]
        assert len({release.values.tobytes() for release in releases}) == 1
        assert inspections(tmp_path, joint) == [("000000", "passed")]
    assert verify_ledger(tmp_path / "joint-ledger.jsonl").debits == 1


def damaged_files_accuse_nobody(plan: Plan, path: Path, auditor: PartyKeys) -> None:
    """Neither a cut nor a changed file is evidence against anybody."""
    raw, copy = path.read_bytes(), path.with_suffix(".copy")
    places = [*range(0, 600, 7), *range(600, len(raw), len(raw) // 20)]
    changed = [raw[:p] + bytes([raw[p] ^ 1]) + raw[p + 1 :] for p in places]
    for data in (*changed, *(raw[:p] for p in places), raw + b"x"):
        copy.write_bytes(data)
        with pytest.raises(IsonomyError):
            audit(plan, load_opening(copy), auditor)
    copy.unlink()


# --- What is refused by name ---------------------------------------------------------------------


def test_a_weighted_sum_is_refused_where_it_could_not_be_inspected(tmp_path: Path) -> None:
    def ask(oracle: GroupOracle, share: slice) -> list[Release]:
        with pytest.raises(ProtocolError, match="no inspection can check"):
            oracle.weighted_sum(ROWS[share], [0.0, 1.0], norm=2.0, share=SHARE)
        return []

    with table(tmp_path, "first", "second", **EVERY) as joint, joint.regulator(tmp_path):
        joint.all_companies(ask)
    assert verify_ledger(tmp_path / "joint-ledger.jsonl").debits == 0


def test_who_asks_alone_reaches_nobody_else(tmp_path: Path) -> None:
    """Neither another company's people nor its ids, nor the ids of all."""
    with table(tmp_path, "first", "second") as joint:
        plan = joint.federation.plan
        half, ledger = joint.half(tmp_path)
        carrier = ShareColumns(half._custodian, plan, 1)
        share, prefix = half._shares["second"], query_id_prefix(plan.hash)

        honest = replace(
            query(joint.federation),
            query_id=f"{prefix}{alone_number(0, 1):06d}",
            positions=pack_positions(np.arange(share.start, share.stop)),
        )
        with ledger:
            assert next(carrier.columns(encode(honest), lambda *ask: None))
            for change in (
                {"positions": None},
                {"positions": pack_positions(range(share.start - 1, share.stop))},
                {"positions": pack_positions((0, 1))},
                {"query_id": f"{prefix}{alone_number(0, 0):06d}"},
                {"query_id": f"{prefix}{audit_number('a', 0):06d}"},
                {"query_id": f"{prefix}{audit_number('a'):06d}"},
                {"query_id": f"{prefix}000000"},
            ):
                with pytest.raises(ProtocolError):
                    next(carrier.columns(encode(replace(honest, **change)), lambda *ask: None))
            (refusal,) = half.on_query("second", 1, encode(honest))
            assert "asks alone" in refusal.refusal
