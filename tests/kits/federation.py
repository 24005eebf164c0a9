"""One in-memory federation that a test can tamper with."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from isonomy.common.keys.identity import Identity
from isonomy.common.ledger.ledger import Ledger
from isonomy.common.pads.company import PadRows
from isonomy.common.pads.key_store import KeyStore
from isonomy.common.pads.regulator import PadCarrier
from isonomy.common.people.cohort import AttributeTable, Cohort
from isonomy.common.privacy.accounting import units_for
from isonomy.common.sums.company_half import EncryptedChannel, Reply, read_reply
from isonomy.common.sums.local import LocalChannel
from isonomy.common.sums.noise_and_budget import Custodian
from isonomy.common.sums.openings import OpeningStore
from isonomy.common.sums.oracle import GroupOracle
from isonomy.common.sums.question import Terms
from isonomy.common.sums.regulator_half import DirectPort, RegulatorHalf
from isonomy.common.wire.messages import encode

PLAN = hashlib.sha256(b"a plan").digest()
MEMBER_KEY = b"k" * 32
DELTA = 1e-5


class CountedNoise:
    """The same bytes in every run: for comparing two oracles bit by bit."""

    def __init__(self, seed: int = 0) -> None:
        self.seed, self.calls = seed, 0

    def random_bytes(self, n: int) -> bytes:
        self.calls += 1
        return hashlib.shake_256(f"{self.seed}/{self.calls}".encode()).digest(n)


def custodian_with_noise(*arguments: Any, source: Any, **options: Any) -> Custodian:
    """A custodian with another source of noise. No config, plan or command reaches this."""
    custodian = Custodian(*arguments, **options)
    custodian.source = source
    return custodian


@dataclass
class TamperingPort:
    """Passes frames between the halves, keeps them, and changes what a test wants changed."""

    half: RegulatorHalf
    change_columns: Callable[[list[bytes]], list[bytes]] = lambda frames: frames
    change_request: Callable[[list[bytes]], list[bytes]] = lambda frames: frames
    change_answer: Callable[[bytes], bytes] = lambda frame: frame
    change_opening: Callable[[list[bytes]], list[bytes]] = lambda frames: frames
    query: bytes = b""
    columns_seen: list[bytes] = field(default_factory=list)
    request_seen: list[bytes] = field(default_factory=list)
    answer_seen: bytes = b""

    def columns(self, query_id: str, query_frame: bytes) -> Iterator[bytes]:
        self.query = query_frame
        self.columns_seen = list(DirectPort(self.half).columns("", query_frame))
        return iter(self.change_columns(list(self.columns_seen)))

    def answer(self, query_id: str, frames: Iterable[bytes]) -> Reply:
        self.request_seen = list(frames)
        changed = self.change_request(list(self.request_seen))
        self.answer_seen = encode(self.half.answer(changed))
        return read_reply(self.change_answer(self.answer_seen))

    def open(self, query_id: str, frames: Iterable[bytes]) -> Reply:
        self.answer_seen = encode(self.half.open(self.change_opening(list(frames))))
        return read_reply(self.change_answer(self.answer_seen))

    def asked(self, query_frame: bytes) -> Iterator[bytes]:
        """The half's own columns for any frame, as bytes."""
        return DirectPort(self.half).columns("", query_frame)

    def answered(self, frames: Iterable[bytes]) -> bytes:
        """The half's own reply to any frames, as bytes."""
        return encode(self.half.answer(frames))

    def multipliers(self, query_id: str) -> tuple[float, ...] | None:
        state = self.half.multipliers(query_id)
        return None if state is None else state[1]


@dataclass
class Federation:
    """A cohort with its regulator (ledger on disk) and a company that asks."""

    table: AttributeTable
    ledger: Ledger
    custodian: Custodian
    identity: Identity
    port: TamperingPort
    cap_units: int
    individual: bool = False
    records: bool = False
    stores: list[OpeningStore] = field(default_factory=list)

    def company(self, openings: OpeningStore | None = None) -> GroupOracle:
        self._begin(openings)
        terms = Terms(self.table.cohort, self.table.groups, PLAN, self.cap_units, DELTA)
        key = self.identity.public
        return GroupOracle(EncryptedChannel(self.port, terms, regulator_key=key, openings=openings))

    def company_by_pads(
        self,
        openings: OpeningStore | None = None,
        keys: KeyStore | None = None,
        number: int = 0,
    ) -> GroupOracle:
        """A company whose regulator answers by pads (`answer_by_pads`)."""
        self._begin(openings)
        terms = Terms(self.table.cohort, self.table.groups, PLAN, self.cap_units, DELTA)
        channel = EncryptedChannel(
            self.port,
            terms,
            regulator_key=self.identity.public,
            openings=openings,
            carrier=partial(PadRows, store=keys or KeyStore(terms.people, company=True)),
        )
        return GroupOracle(channel, number=number)

    def _begin(self, openings: OpeningStore | None) -> None:
        """A company's process begins when the one before it has ended."""
        for older in self.stores:
            older.settle()
        self.stores += [openings] if openings is not None else []

    def answer_by_pads(self, keys: KeyStore | None = None) -> PadCarrier:
        """From now on the regulator's half answers by pads, with these keys."""
        people = len(self.table.cohort)
        carrier = PadCarrier(self.custodian, keys or KeyStore(people, company=False))
        self.port.half = RegulatorHalf(self.custodian, self.identity, carrier=carrier)
        return carrier

    def local(self) -> GroupOracle:
        channel = LocalChannel(
            self.table,
            self.custodian,
            plan=PLAN,
            cap_units=self.cap_units,
            delta=DELTA,
            record_private=self.records,
            individual=self.individual,
        )
        return GroupOracle(channel)

    def restart_regulator(self) -> None:
        """The process died: the key is gone, the ledger is read again from disk."""
        path = self.ledger._path
        self.ledger.close()
        self.ledger = Ledger.open(path)
        self.custodian = Custodian(self.table, self.ledger, plan=PLAN, member_key=MEMBER_KEY)
        self.port.half = RegulatorHalf(self.custodian, self.identity)


def federation(
    folder: Path,
    attributes: Mapping[str, Sequence[str | None]],
    groups: Mapping[str, Sequence[str]],
    *,
    epsilon: float = 50.0,
    seed: int | None = 0,
    name: str = "ledger",
) -> Federation:
    """A federation over these attributes; `seed=None` for the operating system's noise."""
    people = len(next(iter(attributes.values())))
    table = AttributeTable(Cohort.of([f"person-{i}" for i in range(people)]), attributes, groups)
    cap_units = units_for(epsilon, DELTA)
    ledger = Ledger.create(folder / f"{name}.jsonl", cap_units=cap_units, delta=DELTA)
    if seed is None:
        custodian = Custodian(table, ledger, plan=PLAN, member_key=MEMBER_KEY)
    else:
        custodian = custodian_with_noise(
            table, ledger, plan=PLAN, member_key=MEMBER_KEY, source=CountedNoise(seed)
        )
    custodian.reserve(cap_units)
    identity = Identity.generate()
    port = TamperingPort(RegulatorHalf(custodian, identity))
    return Federation(table, ledger, custodian, identity, port, cap_units)


def labels(codes: np.ndarray, names: Sequence[str]) -> list[str]:
    return [names[code] for code in codes]
