"""A small federation on loopback for tests: keys, certificates, a plan, people, a relay."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from authority_kit import authority

from isonomy.common.agreements.plan import Plan
from isonomy.common.crypto.params import DEFAULT_PARAMETERS
from isonomy.common.keys.certificates import TlsFiles, issue
from isonomy.common.keys.identity import Identity
from isonomy.common.keys.party import PartyKeys
from isonomy.common.ledger.ledger import Ledger
from isonomy.common.pads.key_store import KeyStore
from isonomy.common.pads.regulator import PadCarrier
from isonomy.common.people.cohort import AttributeTable, Cohort
from isonomy.common.pooled.half import PooledHalf
from isonomy.common.pooled.store import PooledStore
from isonomy.common.remote.exchanges import serve_queries
from isonomy.common.session.connection import Session
from isonomy.common.session.stream import Timing, channel_options
from isonomy.common.session.tickets import Ticket
from isonomy.common.session.tls_channels import client_credentials
from isonomy.common.sums.noise_and_budget import Custodian
from isonomy.common.sums.regulator_half import RegulatorHalf
from isonomy.common.wire.envelopes import SERVICE_METHOD, Envelope, parse
from isonomy.server.relay.relay import RelayServer

RELAY_NAME = "relay.test"
GROUPS = {"sex": ("f", "m")}
FAST = Timing(
    heartbeat_s=0.2, silence_s=5, backoff_s=0.05, max_backoff_s=0.4, absence_s=20, flush_s=2
)


def people(count: int) -> Cohort:
    return Cohort.of([f"person-{number}" for number in range(count)])


def split(cohort: Cohort, companies: Sequence[str]) -> dict[str, Cohort]:
    """Unequal shares of the people, in order."""
    cuts = [len(cohort) * (j * j) // (len(companies) ** 2) for j in range(len(companies) + 1)]
    return {
        name: Cohort(cohort.ids[start:stop])
        for name, start, stop in zip(companies, cuts, cuts[1:], strict=False)
    }


def share_fields(cohorts: dict[str, Cohort]) -> dict[str, Any]:
    """A plan's fields about people, for these companies in this order."""
    joint = Cohort(tuple(person for cohort in cohorts.values() for person in cohort.ids))
    shares = [{"people": len(c), "cohort_root": c.root.hex()} for c in cohorts.values()]
    return {"cohort_root": joint.root.hex(), "cohort_size": len(joint), "shares": shares}


def attributes(cohort: Cohort) -> AttributeTable:
    values = ["f" if int(name.split("-")[1]) % 3 else "m" for name in cohort.ids]
    return AttributeTable(cohort, {"sex": values}, GROUPS)


@dataclass
class Federation:
    """Everything on disk that the parties of one plan need."""

    folder: Path
    plan: Plan
    cohort: Cohort

    @classmethod
    def create(
        cls,
        folder: Path,
        *,
        size: int = 64,
        companies: Sequence[str] = ("company",),
        **changes: object,
    ) -> Federation:
        cards = []
        for name in (*companies, "regulator"):
            role = "regulator" if name == "regulator" else "company"
            cards.append(PartyKeys.create(folder / name / "keys", name, role).card())
            issue(authority(folder / "ca"), folder / name / "tls", name, role)
        ca = authority(folder / "ca")
        issue(ca, folder / "server" / "tls", "server", "server", [RELAY_NAME])
        Identity.generate().save(folder / "server" / "token.key")
        cohort = people(size)
        shares = {"cohort_root": cohort.root.hex(), "cohort_size": size}
        if len(companies) > 1:
            shares = share_fields(split(cohort, companies))
        parties = {"companies": cards[:-1], "regulator": cards[-1]}
        if changes.get("auditor") == "regulator":
            changes["auditor"] = cards[-1].x25519
        fields = {**plan_fields(), **parties, **shares, **changes}
        plan = Plan.of(fields)
        plan.save(folder / "plan.json")
        return cls(folder, plan, cohort)

    @classmethod
    def load(cls, folder: Path) -> Federation:
        plan = Plan.load(folder / "plan.json")
        return cls(folder, plan, people(plan.cohort_size))

    def keys(self, name: str) -> PartyKeys:
        return PartyKeys.load(self.folder / name / "keys")

    def tls(self, name: str) -> TlsFiles:
        return TlsFiles.of(self.folder / name / "tls")

    def relay(self, address: str = "127.0.0.1:0", **options) -> RelayServer:
        key = Identity.load(self.folder / "server" / "token.key")
        state = self.folder / "server" / "state"
        return RelayServer(address, self.tls("server"), self.plan.public(), key, state, **options)

    def session(
        self, ticket: Ticket, *, timing: Timing = FAST, state: bool = True, log: Any = None
    ) -> Session:
        name = ticket.party
        folder = self.folder / name / "state" if state else None
        keys = self.keys(name)
        return Session(ticket, self.tls(name), keys, self.plan, folder, timing=timing, log=log)

    def half(self) -> tuple[RegulatorHalf, Ledger]:
        path = self.folder / "regulator" / "ledger.jsonl"
        if path.exists():
            ledger = Ledger.open(path)
        else:
            ledger = Ledger.create(path, cap_units=self.plan.cap_units, delta=1e-6)
        member_key = self.folder / "regulator" / "member.key"
        if not member_key.exists():
            member_key.write_bytes(os.urandom(32))
        custodian = Custodian(
            attributes(self.cohort),
            ledger,
            plan=self.plan.hash,
            member_key=member_key.read_bytes(),
        )
        custodian.reserve(self.plan.cap_units)
        identity = self.keys("regulator").identity
        if self.plan.shares:
            store = PooledStore(self.folder / "regulator" / "joint")
            return PooledHalf(custodian, identity, self.plan, store), ledger
        if self.plan.carrier == "pads":
            folder, size = self.folder / "regulator" / "pads", len(self.cohort)
            store = KeyStore(size, company=False, folder=folder, sealing=b"vault")
            return RegulatorHalf(custodian, identity, carrier=PadCarrier(custodian, store)), ledger
        return RegulatorHalf(custodian, identity), ledger

    def rows(self, columns: int = 3) -> np.ndarray:
        return np.random.default_rng(5).normal(size=(len(self.cohort), columns))


def plan_fields() -> dict[str, object]:
    return {
        "name": "test",
        "relay_name": RELAY_NAME,
        "groups": GROUPS,
        "notion": "demographic_parity",
        "strategy": "tilt",
        "tolerance_millionths": 10_000,
        "epsilon_millionths": 1_000_000,
        "delta": "1e-6",
        "parameters": DEFAULT_PARAMETERS.name,
        "inspection_deadline": "2027-01-31",
    }


@contextmanager
def serving(federation: Federation, ticket: Ticket, *, timing: Timing = FAST) -> Iterator[Session]:
    """A regulator that answers in a thread until the company closes."""
    half, ledger = federation.half()
    session = federation.session(ticket, timing=timing).start()
    failures: list[BaseException] = []

    def work() -> None:
        try:
            serve_queries(session, half)
        except BaseException as error:
            failures.append(error)
        finally:
            session.close()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield session
    finally:
        thread.join(30)
        ledger.close()
    assert not thread.is_alive()
    if failures:
        raise failures[0]


def raw_exchange(
    federation: Federation, party: str, address: str, messages: list[bytes]
) -> list[Envelope]:
    """Send these bytes as a party's stream, and what the relay says until it ends the stream."""
    options = channel_options(RELAY_NAME)
    hold = threading.Event()

    def outgoing() -> Iterator[bytes]:
        yield from messages
        hold.wait(5)

    credentials = client_credentials(federation.tls(party))
    with grpc.secure_channel(address, credentials, options) as channel:
        call = channel.stream_stream(SERVICE_METHOD)(outgoing(), timeout=10)
        replies = [parse(raw) for raw in call]
        hold.set()
    return replies


class CuttableProxy:
    """A TCP proxy on loopback that can play a broken network: `cut` loudly, or `swallow`.

    `megabits`: a second, each way, at most; 0: as fast as it goes.
    """

    megabits = 0.0

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._open: set[socket.socket] = set()
        self._cut = threading.Event()
        self._swallowing, self._dead = False, set[socket.socket]()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Drop every connection; new ones are closed at once."""
        self._cut.set()
        for one in list(self._open):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def swallow(self) -> None:
        """From now on every byte is lost, and nobody is told.

        Connections of this time stay dead for ever, as behind a router that has forgotten them.
        """
        self._swallowing = True
        self._dead |= self._open

    def heal(self) -> None:
        """New connections work again."""
        self._swallowing = False
        self._cut.clear()

    def close(self) -> None:
        self.cut()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            if self._cut.is_set():
                near.close()
                continue
            far = socket.create_connection(self._target)
            self._open |= {near, far}
            if self._swallowing:
                self._dead |= {near, far}
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if self.megabits:  # before it is sent, else the last piece would cost no time
                    time.sleep(8e-6 * len(data) / self.megabits)
                if source not in self._dead:
                    sink.sendall(data)
        for one in (source,) if source in self._dead else (source, sink):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            self._open.discard(one)
            one.close()
