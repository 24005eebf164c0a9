"""The cells of two companies, which meet at a real relay over TLS.

Sums and audits that both ask together must release the same integers to both. A training by tilt
asks together and alone: each company must get the integers and reach the decisions of a rehearsal
of both (pooled/rehearsal.py), with the same noise.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from federation import CountedNoise, custodian_with_noise
from matrix import (
    DELTA,
    MEMBER_KEY,
    PEOPLE,
    SIZES,
    TRAINS,
    Cell,
    Listening,
    Outcome,
    People,
    Trace,
    train,
)
from pooled_kit import Table, noise_by_query
from session_kit import Federation, share_fields

from isonomy.common.agreements.feature_map import PublicFeatures
from isonomy.common.agreements.plan import MILLION
from isonomy.common.base.errors import ConfigError, DataError
from isonomy.common.ledger.ledger import Ledger, verify_ledger
from isonomy.common.people.cohort import Cohort
from isonomy.common.pooled.people import share_slices
from isonomy.common.pooled.rehearsal import meeting_oracles
from isonomy.common.sums.local import LocalChannel
from isonomy.common.sums.oracle import FilteredOracle, GroupOracle

NAMES = ("first", "second")
MAP = PublicFeatures.of(
    {
        "columns": [{"name": name, "low": "-3", "high": "5"} for name in "abc"],
        "seed": 5,
    }
)


def run_pooled(chosen: list[Cell]) -> Iterator[Outcome]:
    """The cells of two companies; those that train have a federation each, for its budget."""
    for cell in chosen:
        if trains_together(cell):
            yield _tilt(cell)
    for groups in SIZES:
        for records in (False, True):
            some = [c for c in chosen if (c.groups, c.records) == (groups, records)]
            some = [cell for cell in some if not trains_together(cell)]
            if some:
                yield from _pooled(some, groups, records)


def trains_together(cell: Cell) -> bool:
    return cell.strategy == "tilt" and not cell.filtered and not cell.records


def _tilt(cell: Cell) -> Outcome:
    people = People.draw(cell.classes, cell.groups)
    attributes, ids = people.table(), people.ids
    halves = {"first": Cohort.of(ids[: PEOPLE // 2]), "second": Cohort.of(ids[PEOPLE // 2 :])}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        federation = Federation.create(
            folder,
            size=PEOPLE,
            companies=NAMES,
            groups=dict(attributes.groups),
            epsilon_millionths=1000 * MILLION,  # the most that a plan may say
            delta=str(DELTA),
            strategy="tilt",
            notion=cell.notion,
            feature_map=MAP,
            **share_fields(halves),
        )
        script = _training(cell, people)
        with federation.relay() as relay:
            table = Table(federation, relay, NAMES, attributes, noise_by_query=True)
            with table.regulator(folder), ThreadPoolExecutor(2) as pool:
                jobs = [pool.submit(table.company, name, script) for name in NAMES]
                session = [job.result(600) for job in jobs]
        debits = verify_ledger(folder / "joint-ledger.jsonl").debits
        rehearsal = _rehearsed(folder, federation, attributes, script)
    texts = {text for text, _ in session}
    if session != rehearsal:
        return Outcome(cell, f"error: other bits than in the rehearsal ({texts})", surprise=True)
    text = texts.pop()
    failed = bool(texts) or text.startswith("error") or (text == TRAINS) != (debits > 0)
    return Outcome(cell, text, surprise=failed)


def _training(cell: Cell, people: People) -> Callable[[GroupOracle, slice], tuple[str, Trace]]:
    def run(oracle: GroupOracle, mine: slice) -> tuple[str, Trace]:
        trace = Trace()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                listening = GroupOracle(Listening(oracle.channel, trace))
                trace.decisions = train(cell, people.some(mine), listening)
        except (ConfigError, DataError) as error:
            return str(error), trace
        except Exception as error:
            return f"error: {type(error).__name__}: {error}", trace
        return TRAINS, trace

    return run


def _rehearsed(folder: Path, federation: Federation, attributes: Any, script: Any) -> list[Any]:
    """The same trainings in one process, without encryption."""
    plan, shares = federation.plan, share_slices(federation.plan)
    units = plan.cap_units
    with Ledger.create(folder / "rehearsal.jsonl", cap_units=units, delta=DELTA) as ledger:
        custodian = custodian_with_noise(
            attributes, ledger, plan=plan.hash, member_key=MEMBER_KEY, source=CountedNoise(0)
        )
        noise_by_query(custodian)
        custodian.reserve(units)
        known = LocalChannel(attributes, custodian, plan=plan.hash, cap_units=units, delta=DELTA)
        oracles = meeting_oracles(known, shares, plan.feature_map)
        with ThreadPoolExecutor(2) as pool:
            return list(pool.map(script, oracles, shares))


def _pooled(chosen: list[Cell], groups: int, records: bool) -> Iterator[Outcome]:
    attributes, names = People.draw(2, groups).table(), NAMES
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        federation = Federation.create(
            folder,
            size=PEOPLE,
            companies=names,
            groups=dict(attributes.groups),
            epsilon_millionths=1000 * MILLION,  # the most that a plan may say
            delta=str(DELTA),
            record_privacy=records,
        )
        with federation.relay() as relay:
            table = Table(federation, relay, names, attributes)
            with table.regulator(folder), ThreadPoolExecutor(2) as pool:
                jobs = [pool.submit(table.company, name, _script(chosen)) for name in names]
                first, second = (job.result(600) for job in jobs)
        debits = verify_ledger(folder / "joint-ledger.jsonl").debits
        if debits != sum(len(trace.integers) for _, trace in first):
            raise AssertionError("the ledger has other debits than the companies have answers")
    for cell, (text, trace), other in zip(chosen, first, second, strict=True):
        yield _judged(cell, text, trace, other)


def _script(chosen: list[Cell]) -> Callable[[GroupOracle, slice], list[tuple[str, Trace]]]:
    """What each company runs: every cell in turn, each with an oracle of its own."""

    def run(oracle: GroupOracle, mine: slice) -> list[tuple[str, Trace]]:
        found, asked = [], 0
        for cell in chosen:
            trace = Trace()
            each = GroupOracle(Listening(oracle.channel, trace), number=asked)
            text = _tried(cell, People.draw(cell.classes, cell.groups).some(mine), each)
            asked += len(trace.integers)
            found.append((text, trace))
        return found

    return run


def _tried(cell: Cell, people: People, oracle: GroupOracle) -> str:
    try:
        train(cell, people, FilteredOracle(oracle) if cell.filtered else oracle)
    except (ConfigError, DataError) as error:
        return str(error)
    except Exception as error:
        return f"error: {type(error).__name__}: {error}"
    return TRAINS


def _judged(cell: Cell, text: str, trace: Trace, other: tuple[str, Trace]) -> Outcome:
    if (text, trace) != other:
        return Outcome(cell, f"error: the companies differ: {text} / {other[0]}", surprise=True)
    spent = bool(trace.integers)
    return Outcome(cell, text, surprise=spent != (text == TRAINS) or text.startswith("error"))
