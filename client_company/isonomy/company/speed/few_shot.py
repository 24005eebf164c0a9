"""`isonomy bench few-shot`: a round of Conv-4 through the federation beside the same in plain.

| number | meaning |
|---|---|
| plain_s | both sides learn one after the other in this process; their vectors are added |
| encrypted_s | the same learners in a session: key, encryption, TLS, relay, ledger, decryption |
| ratio | encrypted_s / plain_s |
| plain_cpu_s, encrypted_cpu_s | processor time of the same, all threads and the relay's process |
| cpu_ratio | encrypted_cpu_s / plain_cpu_s: the cost, whatever else the machine does |
| bytes_per_round | frames of a round: θ, the attempt's key, both sides' ciphertexts |
| bytes_per_parameter | the same over d |

Plain and encrypted rounds take turns; the figures are medians. In a session both sides learn at the
same time, so on two cores `ratio` may well be below 1; `cpu_ratio` is the cost. The relay is a
process of its own, the two parties are threads of this one. Images are random, since time does not
depend on them.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import psutil
from threadpoolctl import threadpool_limits

from isonomy.common.agreements.few_shot_plan import FewShotPlan
from isonomy.common.agreements.few_shot_settings import FewShotSettings
from isonomy.common.crypto.params import DEFAULT_PARAMETERS
from isonomy.common.few_shot.learning.learners import CompanyLearner, RegulatorLearner
from isonomy.common.few_shot.learning.models import Network, fingerprint
from isonomy.common.few_shot.learning.tasks import Pool
from isonomy.common.few_shot.rounds.desk import RoundDesk
from isonomy.common.few_shot.rounds.serving import serve_rounds
from isonomy.common.few_shot.rounds.session import RoundSummary, train
from isonomy.common.few_shot.rounds.state import CompanyState
from isonomy.common.ledger.ledger import Ledger
from isonomy.common.privacy.accounting import units_for
from isonomy.company.demo.federation import START_S
from isonomy.company.demo.layout import COMPANY, REGULATOR, DemoSettings, Layout
from isonomy.company.demo.prepare import prepare
from isonomy.company.demo.processes import Processes
from isonomy.company.speed._relay import figures, open_session, party_keys, start_relay

ROUNDS, WARM_UP = 9, 2
CLASSES, EACH = 12, 20  # of the regulator's random images
SETTINGS = FewShotSettings(
    rounds=ROUNDS, method="irdp", inner_noise=2_000_000, query_noise=2_000_000
)


tables = partial(figures, title="A few-shot round, on this machine")


def measure(
    announce: Callable[[str], None], settings: FewShotSettings = SETTINGS
) -> dict[str, float]:
    """Measure everything in one run."""
    announce("rounds of Conv-4, plain and encrypted in turns")
    with (
        tempfile.TemporaryDirectory(prefix="isonomy-bench-") as folder,
        Processes(Path(folder) / "logs") as processes,
        threadpool_limits(1),
    ):
        layout = Layout.make(Path(folder) / "parties")
        prepare(layout, DemoSettings(people=400), processes)  # keys and certificates of all three
        federation = _Federation(layout, settings)
        public = layout.root / "public.json"
        public.write_bytes(federation.plan.public().to_json())
        relay = start_relay(layout, public, processes)
        return _turns(federation, settings, psutil.Process(relay.process.pid))


@dataclass
class _Times:
    """Wall and processor seconds of the rounds of one kind."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def add(self, began: tuple[float, float], ended: tuple[float, float]) -> None:
        self.wall.append(ended[0] - began[0])
        self.cpu.append(ended[1] - began[1])

    def medians(self) -> tuple[float, float]:
        return median(self.wall[WARM_UP:]), median(self.cpu[WARM_UP:])


def _turns(
    federation: _Federation, settings: FewShotSettings, relay: psutil.Process
) -> dict[str, float]:
    """All rounds, each encrypted one followed by a plain one; returns the figures."""
    plain, encrypted, sizes = _Times(), _Times(), list[int]()
    company = CompanyLearner(settings, federation.pool)
    regulator = RegulatorLearner(settings, federation.pool)
    began = [(0.0, 0.0)]

    def now() -> tuple[float, float]:
        spent = relay.cpu_times()
        return time.perf_counter(), time.process_time() + spent.user + spent.system

    def next_turn(summary: RoundSummary) -> None:
        encrypted.add(began[0], now())
        sizes.append(summary.wire_bytes)
        number, start = summary.number - 1, now()
        total = regulator.contribute(number, company.theta()).values + company.contribute(number)
        company.step(number, total)
        plain.add(start, now())
        began[0] = now()

    layout = federation.layout
    with federation.regulator(), open_session(layout, COMPANY, federation.plan) as session:
        session.generation(REGULATOR)
        state = CompanyState(layout.company.folder)
        began[0] = now()
        train(session, CompanyLearner(settings, federation.pool), state, on_round=next_turn)
    (plain_s, plain_cpu), (wall, cpu) = plain.medians(), encrypted.medians()
    return {
        "parameters": federation.plan.size,
        "plain_s": round(plain_s, 3),
        "encrypted_s": round(wall, 3),
        "ratio": round(wall / plain_s, 3),
        "plain_cpu_s": round(plain_cpu, 3),
        "encrypted_cpu_s": round(cpu, 3),
        "cpu_ratio": round(cpu / plain_cpu, 3),
        "bytes_per_round": int(median(sizes)),
        "bytes_per_parameter": round(median(sizes) / federation.plan.size, 1),
    }


class _Federation:
    """The prepared parties under a few-shot plan, with random images on both sides."""

    def __init__(self, layout: Layout, settings: FewShotSettings) -> None:
        self.layout = layout
        images = np.random.default_rng(0).random(
            (CLASSES * EACH, *settings.input_shape), np.float32
        )
        self.pool = Pool(images, np.repeat(np.arange(CLASSES), EACH))
        self.plan = FewShotPlan.of(
            {
                "name": "bench",
                "companies": [party_keys(layout, COMPANY).card()],
                "regulator": party_keys(layout, REGULATOR).card(),
                "relay_name": "localhost",
                "parameters": DEFAULT_PARAMETERS.name,
                "pool": "random",
                "samples": len(self.pool),
                "settings": settings,
                "fingerprint": fingerprint(settings).hex(),
                "size": Network.of(settings).size,
            }
        )

    @contextmanager
    def regulator(self) -> Iterator[None]:
        """A regulator that serves in a thread while the block lasts, with a ledger on disk."""
        thread = threading.Thread(target=self._serve, daemon=True)
        thread.start()
        yield
        thread.join(START_S)

    def _serve(self) -> None:
        """Answer rounds until the company closes the session."""
        plan, folder = self.plan, self.layout.root / "rounds"
        members = [number.to_bytes(16, "big") for number in range(plan.samples)]
        folder.mkdir()
        with Ledger.create(
            folder / "ledger.jsonl", cap_units=units_for(100.0, 1e-5), delta=1e-5
        ) as ledger:
            desk = RoundDesk(
                plan,
                lambda: RegulatorLearner(plan.settings, self.pool),
                ledger,
                folder,
                members=members,
                member_key_tag=bytes(32),
            )
            with open_session(self.layout, REGULATOR, plan) as session:
                serve_rounds(session, desk)
