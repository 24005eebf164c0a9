"""Several companies, a regulator and a relay on loopback, for tests of joint queries."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from federation import CountedNoise, custodian_with_noise
from session_kit import FAST, Federation, attributes, split

from isonomy.common.ledger.ledger import Ledger
from isonomy.common.people.cohort import AttributeTable, Cohort
from isonomy.common.pooled._masks import share_slices
from isonomy.common.pooled.channel import PooledChannel, pooled_channel
from isonomy.common.pooled.half import PooledHalf
from isonomy.common.pooled.serving import serve_pooled
from isonomy.common.pooled.store import PooledStore
from isonomy.common.session.connection import Session
from isonomy.common.session.stream import Timing
from isonomy.common.sums.local import LocalChannel
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

    def cohorts(self) -> dict[str, Cohort]:
        return split(self.federation.cohort, self.names)

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
        custodian.reserve(plan.cap_units)
        identity = self.federation.keys("regulator").identity
        return PooledHalf(custodian, identity, plan, PooledStore(folder / "joint")), ledger

    @contextmanager
    def regulator(self, folder: Path, timing: Timing = FAST) -> Iterator[Session]:
        half, ledger = self.half(folder)
        failures: list[BaseException] = []
        ticket = self.relay.issue_ticket("regulator", "regulator")
        with ledger, self.federation.session(ticket, timing=timing) as session:

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


def pooled_oracle(
    session: Session, cohort: Cohort, *, openings: OpeningStore | None = None
) -> GroupOracle:
    return GroupOracle(pooled_channel(session, cohort, openings=openings))


@contextmanager
def table(folder: Path, *names: str) -> Iterator[Table]:
    federation = Federation.create(folder, size=SIZE, companies=names)
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


ROWS = np.random.default_rng(3).normal(size=(SIZE, 5))


def channel_of(oracle: GroupOracle) -> PooledChannel:
    """The pooled channel within an oracle's wrappers."""
    channel: Any = oracle.channel
    while not isinstance(channel, PooledChannel):
        channel = channel.inner
    return channel
