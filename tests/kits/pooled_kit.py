"""Several companies, a regulator and a relay on loopback, for tests of joint queries."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from federation import CountedNoise, custodian_with_noise
from session_kit import FAST, Federation, attributes

from isonomy.common.inspection.desk import InspectionDesk
from isonomy.common.ledger.ledger import Ledger
from isonomy.common.people.cohort import AttributeTable, Cohort
from isonomy.common.pooled.channel import PooledChannel, pooled_channel
from isonomy.common.pooled.half import PooledHalf
from isonomy.common.pooled.people import share_slices
from isonomy.common.pooled.serving import serve_pooled
from isonomy.common.pooled.store import PooledStore
from isonomy.common.privacy.queries import Query, query_id_prefix
from isonomy.common.session.connection import Session
from isonomy.common.session.stream import Timing
from isonomy.common.sums.local import LocalChannel
from isonomy.common.sums.noise_and_budget import Authorised, Custodian
from isonomy.common.sums.openings import OpeningStore
from isonomy.common.sums.oracle import GroupOracle, Release
from isonomy.server.relay.relay import RelayServer

SIZE = 150
SHARE = 0.05
Script = Callable[[GroupOracle, Any], list[Release]]  # the oracle, and which people it holds


@dataclass
class Table:
    """A federation of several companies with a running relay."""

    federation: Federation
    relay: RelayServer
    names: tuple[str, ...]
    attributes: AttributeTable | None = None  # None: those of session_kit
    noise_by_query: bool = False  # noise that does not depend on who asks first

    def cohorts(self) -> dict[str, Cohort]:
        ids, shares = self.federation.cohort.ids, share_slices(self.federation.plan)
        return {name: Cohort(ids[s]) for name, s in zip(self.names, shares, strict=True)}

    def half(self, folder: Path) -> tuple[PooledHalf, Ledger]:
        path, plan = folder / "joint-ledger.jsonl", self.federation.plan
        opened = path.exists()
        ledger = (
            Ledger.open(path)
            if opened
            else Ledger.create(path, cap_units=plan.cap_units, delta=plan.delta_value)
        )
        custodian = custodian_with_noise(
            self.attributes or attributes(self.federation.cohort),
            ledger,
            plan=plan.hash,
            member_key=b"k" * 32,
            source=CountedNoise(1),
        )
        if self.noise_by_query:
            noise_by_query(custodian)
        custodian.reserve(plan.cap_units)
        keys = self.federation.keys("regulator")
        desks = {}
        for card in plan.companies if plan.auditor else ():
            desk = InspectionDesk(plan, custodian, keys, folder / "inspections", company=card)
            desk.verdict_wait_s = 0.3
            desks[card.name] = desk
        store = PooledStore(folder / "joint")
        return PooledHalf(custodian, keys.identity, plan, store, desks), ledger

    @contextmanager
    def regulator(
        self, folder: Path, timing: Timing = FAST, half: PooledHalf | None = None
    ) -> Iterator[Session]:
        """A regulator that answers in a thread; `half`: of a daemon that goes on after it."""
        books: Any = nullcontext()
        if half is None:
            half, books = self.half(folder)
        failures: list[BaseException] = []
        ticket = self.relay.issue_ticket("regulator", "regulator")
        with books, self.federation.session(ticket, timing=timing) as session:

            def work() -> None:
                try:
                    serve_pooled(session, half)
                except BaseException as error:
                    failures.append(error)
                    session.fail(error if isinstance(error, Exception) else RuntimeError())

            thread = threading.Thread(target=work)
            thread.start()
            yield session
            thread.join(20)
            assert not thread.is_alive()
        if failures:
            raise failures[0]

    def company(self, name: str, script: Script, openings: OpeningStore | None = None) -> Any:
        ticket = self.relay.issue_ticket("company", name)
        place = share_slices(self.federation.plan)[self.names.index(name)]
        with self.federation.session(ticket) as session:
            oracle = pooled_oracle(session, self.cohorts()[name], openings=openings)
            return script(oracle, place)

    def all_companies(self, script: Script) -> list[list[Release]]:
        with ThreadPoolExecutor(len(self.names)) as pool:
            jobs = [pool.submit(self.company, name, script) for name in self.names]
            return [job.result(60) for job in jobs]


def noise_by_query(custodian: Custodian) -> None:
    """The same noise for a question whenever it comes: companies ask alone in any order."""
    release = custodian.release

    def named(authorised: Authorised, *rest: Any, **more: Any) -> Any:
        number = authorised.query.query_id.split("-")[-1]
        custodian.source = CountedNoise(int(number))
        return release(authorised, *rest, **more)

    custodian.release = named  # type: ignore[method-assign]


def pooled_oracle(
    session: Session, cohort: Cohort, *, openings: OpeningStore | None = None
) -> GroupOracle:
    return GroupOracle(pooled_channel(session, cohort, openings=openings))


@contextmanager
def table(folder: Path, *names: str, **changes: object) -> Iterator[Table]:
    federation = Federation.create(folder, size=SIZE, companies=names, **changes)
    with federation.relay() as relay:
        yield Table(federation, relay, names)


def alone(folder: Path, federation: Federation, script: Script) -> list[Release]:
    """The same script at one company that holds everybody, with the same noise."""
    plan = federation.plan
    with Ledger.create(folder / "alone.jsonl", cap_units=plan.cap_units, delta=1e-6) as ledger:
        attribute_table = attributes(federation.cohort)
        custodian = custodian_with_noise(
            attribute_table,
            ledger,
            plan=plan.hash,
            member_key=b"k" * 32,
            source=CountedNoise(1),
        )
        custodian.reserve(plan.cap_units)
        channel = LocalChannel(
            attribute_table, custodian, plan=plan.hash, cap_units=plan.cap_units, delta=1e-6
        )
        return script(GroupOracle(channel), slice(0, SIZE))


def query(federation: Federation, number: int = 0, **changes: Any) -> Query:
    plan = federation.plan.hash
    fields: dict[str, Any] = {
        "query_id": f"{query_id_prefix(plan)}{number:06d}",
        "plan": plan,
        "purpose": "",
        "kind": "blind",
        "shape": "groups",
        "attributes": ("sex",),
        "columns": 2,
        "mechanism": "gaussian",
        "noise": 1 << 26,
        "norm": 1.0,
    }
    return Query(**{**fields, **changes})


ROWS = np.random.default_rng(3).normal(size=(SIZE, 5))


def channel_of(oracle: GroupOracle) -> PooledChannel:
    """The pooled channel within an oracle's wrappers."""
    channel: Any = oracle.channel
    while not isinstance(channel, PooledChannel):
        channel = channel.inner
    return channel
