"""Small learners without torch, and a few-shot plan with its parties on loopback, for tests."""

from __future__ import annotations

import hashlib
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from federation import CountedNoise
from session_kit import FAST, RELAY_NAME, Federation

from isonomy.common.agreements.few_shot_plan import FewShotPlan
from isonomy.common.agreements.few_shot_settings import FewShotSettings
from isonomy.common.crypto.params import DEFAULT_PARAMETERS
from isonomy.common.few_shot.rounds.desk import RoundDesk
from isonomy.common.few_shot.rounds.serving import serve_rounds
from isonomy.common.few_shot.rounds.session import train
from isonomy.common.few_shot.rounds.sides import FRACTION_BITS, Contribution
from isonomy.common.few_shot.rounds.state import CompanyState
from isonomy.common.ledger.ledger import Ledger
from isonomy.common.privacy.accounting import units_for
from isonomy.common.privacy.noise import NoiseSource, SystemNoise, rounded_gaussian
from isonomy.common.privacy.task_counts import SCALE, TaskCounts
from isonomy.common.session.connection import Session
from isonomy.common.session.stream import Timing
from isonomy.server.relay.relay import RelayServer

SIZE = 20_000  # three ciphertexts
SAMPLES = 30
ROUNDS = 4
FINGERPRINT = hashlib.sha256(b"the kit's model").digest()
UNITS = 10**9
MEMBERS = [hashlib.sha256(b"sample%d" % number).digest()[:16] for number in range(SAMPLES)]


def few_shot_settings(**changes: Any) -> FewShotSettings:
    fields = {"rounds": ROUNDS, "inner_noise": 1_000_000, "query_noise": 1_000_000}
    return FewShotSettings(**{**fields, **changes})


@dataclass
class Company:
    """θ ← θ − (g_c + g_r)/1000, g_c a function of θ and the round."""

    size: int = SIZE
    fingerprint: bytes = FINGERPRINT
    requested: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._theta = np.linspace(-1, 1, self.size, dtype=np.float32)

    def theta(self) -> np.ndarray:
        return self._theta

    def contribute(self, number: int) -> np.ndarray:
        self.requested.append(number)
        wave = np.sin(np.arange(self.size) + number) + self._theta
        return np.rint(wave * 2**FRACTION_BITS).astype(np.int64)

    def step(self, number: int, total: np.ndarray) -> np.ndarray:
        moved = self._theta.astype(np.float64) - total * 2.0**-FRACTION_BITS / 1000
        self._theta = moved.astype(np.float32)
        return self._theta

    def state(self) -> bytes:
        return self._theta.tobytes()

    def restore(self, state: bytes) -> None:
        self._theta = np.frombuffer(state, np.float32).copy()


class Regulator:
    """g_r = θ·2^20 + noise; every sample pays the same. Counts how often it really learned."""

    def __init__(
        self,
        source: NoiseSource | None = None,
        *,
        size: int = SIZE,
        fingerprint: bytes = FINGERPRINT,
        samples: int = SAMPLES,
        spoil: Callable[[np.ndarray], np.ndarray] = lambda values: values,
    ) -> None:
        self.size, self.fingerprint, self.samples = size, fingerprint, samples
        self._source, self._spoil = source, spoil
        self._spent = np.zeros(samples, np.int64)
        self.learned: list[int] = []

    def contribute(self, number: int, theta: np.ndarray) -> Contribution:
        self.learned.append(number)
        self._spent = self._spent + UNITS
        source = self._source or CountedNoise(number)  # so that a restarted one draws the same
        words = np.frombuffer(source.random_bytes(8 * self.size), "<i8")
        noise = words // 2**39  # ±2^24: how it is distributed is not what these tests are about
        values = np.rint(theta * 2.0**FRACTION_BITS).astype(np.int64) + noise
        state = struct.pack("<Q", len(self.learned)) + self._spent.tobytes()
        return Contribution(self._spoil(values), self._spent.copy(), state)

    def measure(self, theta: np.ndarray, sigma: int) -> np.ndarray:
        """Twelve counts, as of 20 tasks with 5 ways and 5 queries, and noise."""
        weighted = TaskCounts(5, 5).weight * 125
        counts = np.array([30, 60, 10, 80, 80, 75, 90, 105, *[weighted] * 4])
        return SCALE * counts + rounded_gaussian(sigma, 12, self._source or SystemNoise())

    def restore(self, state: bytes) -> None:
        self._spent = np.frombuffer(state[8:], np.int64).copy()


def in_memory(rounds: int = ROUNDS) -> np.ndarray:
    """The same run with the vectors added in this process: what the encrypted one must equal."""
    company, regulator = Company(), Regulator()
    for number in range(rounds):
        theta = company.theta()
        total = company.contribute(number) + regulator.contribute(number, theta).values
        company.step(number, total)
    return company.theta()


@dataclass
class Pair:
    """One company, one regulator, one relay on loopback, under a few-shot plan."""

    federation: Federation
    relay: RelayServer
    timing: Timing = FAST

    @property
    def plan(self) -> FewShotPlan:
        return self.federation.plan

    @property
    def folder(self) -> Path:
        return self.federation.folder

    def ledger(self) -> Ledger:
        path = self.folder / "regulator" / "ledger.jsonl"
        if path.exists():
            return Ledger.open(path)
        return Ledger.create(path, cap_units=units_for(100.0, 1e-5), delta=1e-5)

    def desk(self, ledger: Ledger, build: Callable[[], Any] = Regulator) -> RoundDesk:
        folder = self.folder / "regulator" / "few-shot"
        return RoundDesk(
            self.plan, build, ledger, folder, members=MEMBERS, member_key_tag=b"t" * 32
        )

    @contextmanager
    def regulator(self, desk: Any) -> Iterator[Outcome]:
        """A regulator that serves in a thread until the company closes."""
        outcome = Outcome()
        with self.federation.session(self.relay.issue_ticket("regulator", "regulator")) as session:

            def work() -> None:
                try:
                    serve_rounds(session, desk, on_round=outcome.note)
                except Exception as error:
                    outcome.error = error
                    session.fail(error)

            thread = threading.Thread(target=work)
            thread.start()
            try:
                yield outcome
            finally:
                thread.join(30)
                assert not thread.is_alive()

    def company_session(self) -> Session:
        ticket = self.relay.issue_ticket("company", "company")
        return self.federation.session(ticket, timing=self.timing)

    def train(self, side: Any, *, folder: str = "company", on_round: Any = None) -> int:
        state = CompanyState(self.folder / folder)
        with self.company_session() as session:
            return train(session, side, state, on_round=on_round)


@dataclass
class Outcome:
    """What the regulator's loop answered and how it ended."""

    rounds: list[int] = field(default_factory=list)
    measured: list[int] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    error: Exception | None = None

    def note(self, what: str, number: int, refusal: str) -> None:
        if refusal:
            self.refusals.append(refusal)
        elif what == "measurement":
            self.measured.append(number)
        else:
            self.rounds.append(number)


def make_plan(federation: Federation, **changes: Any) -> FewShotPlan:
    fields = {
        "name": "kit",
        "companies": federation.plan.companies,
        "regulator": federation.plan.regulator,
        "relay_name": RELAY_NAME,
        "parameters": DEFAULT_PARAMETERS.name,
        "pool": "digits",
        "samples": SAMPLES,
        "settings": few_shot_settings(),
        "fingerprint": FINGERPRINT.hex(),
        "size": SIZE,
    }
    return FewShotPlan.of({**fields, **changes})


def make_federation(folder: Path, **changes: Any) -> Federation:
    federation = Federation.create(folder)
    federation.plan = make_plan(federation, **changes)
    return federation


@contextmanager
def pair(folder: Path, **changes: Any) -> Iterator[Pair]:
    federation = make_federation(folder, **changes)
    with federation.relay() as relay:
        yield Pair(federation, relay)


__all__ = ["FAST", "Company", "Pair", "Regulator", "in_memory", "make_plan", "pair"]
