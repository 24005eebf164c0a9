"""How time, memory and bytes grow with people, phase by phase.

Each phase runs in a process of its own. Its peak is the resident memory above what is there before
it begins: modules, the company's table (twelve columns, labels), and what earlier phases leave
behind and this one needs. Where a phase has a second party, both are in the process.

| phase | what is measured |
|---|---|
| enrolment | `isonomy-regulator enroll` of a CSV, above what enrolling 1,000 people takes |
| plan | from ids to plan, list of people and public part on disk |
| reservation | the regulator's ledger takes the people and sets their budget aside |
| counts | an open query: people per group and cell |
| weighted sum | a blind query of 16 columns, in process |
| audit | rates by group with intervals |
| answers | the second to the eleventh answer about the same half of the people |
| answers, ledger alone | the ledger's part of these: check, record, disk |
| key transfer, sum by pads | both parties' carriers; 16 columns |
| sum by products | the same by homomorphic encryption |
| openings | a request of 16 columns kept, found again, and one row in a hundred opened |
| base model | a logistic model alone: its fit and its five out-of-fold fits, by scikit-learn |
| fit | `FairClassifier` by tilt with that base model, all of these fits included |
"""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.table import Table
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_predict

from isonomy.common.base.errors import ConfigError
from isonomy.common.keys.party import PartyKeys
from isonomy.common.ledger.ledger import Ledger
from isonomy.common.people.cohort import Cohort
from isonomy.common.privacy.accounting import units_for
from isonomy.common.sums.local import LocalOracle, scratch_folder
from isonomy.common.sums.oracle import GroupOracle
from isonomy.company.fair.estimator import FairClassifier
from isonomy.company.federation.auditing import audit
from isonomy.company.federation.planning import make_plan, write_plan
from isonomy.company.speed._enrolment import measure_enrolment
from isonomy.company.speed._memory import reset_peak_mb, status_mb
from isonomy.company.speed._openings import kept_request
from isonomy.company.speed._pads import measure_pads
from isonomy.company.speed.sums import measure_exchange

PEOPLE, SLOW = (10_000, 100_000, 1_000_000), 5_000_000
COLUMNS, TABLE_COLUMNS, ANSWERS, FOLDS = 16, 12, 10, 5
GROUPS = {"sex": ("f", "m")}


def measure(
    on_stage: Callable[[str, int, int], None],
    people: Sequence[int] = PEOPLE,
    phases: Sequence[str] = (),
) -> dict[str, Any]:
    """Return one row per phase and number of people; smallest numbers first."""
    unknown = sorted(set(phases) - set(PHASES))
    if unknown or any(number < 1_000 for number in people):
        raise ConfigError(f"phases are {', '.join(PHASES)}; people are at least 1,000")
    jobs = [(name, number) for number in sorted(people) for name in phases or PHASES]
    rows = []
    for done, (name, number) in enumerate(jobs):
        on_stage(f"{name}, {number:,} people", done, len(jobs))
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            rows.append(pool.submit(_row, name, number).result())
    return {"rows": rows}


def tables(result: dict[str, Any]) -> Iterator[Table]:
    """One table, phase by phase."""
    table = Table("phase", "people", "seconds", "peak bytes/person", "sent or written bytes/person")
    for row in sorted(result["rows"], key=lambda row: list(PHASES).index(row["phase"])):
        sent = "" if row["bytes_per_person"] is None else f"{row['bytes_per_person']:.1f}"
        peak = f"{row['peak_bytes_per_person']:,.0f}"
        table.add_row(row["phase"], f"{row['people']:,}", f"{row['seconds']:.2f}", peak, sent)
    yield table


def _row(name: str, people: int) -> dict[str, Any]:
    """One phase, in this process: `prepare` first, then what is measured."""
    with tempfile.TemporaryDirectory(dir=scratch_folder()) as folder:
        work = PHASES[name](people, Path(folder))
        resident, begin = reset_peak_mb(), time.perf_counter()
        sent = work()
        seconds = time.perf_counter() - begin
    peak = (status_mb("VmHWM") - resident) * 2**20
    cost = sent if isinstance(sent, Cost) else Cost(sent, seconds, peak)
    return {
        "phase": name,
        "people": people,
        "seconds": cost.seconds,
        "peak_bytes_per_person": max(cost.peak, 0.0) / people,
        "bytes_per_person": None if cost.sent is None else cost.sent / people,
    }


class Cost(NamedTuple):
    """Of a phase: bytes that it sent or wrote, seconds, and bytes of memory at its peak."""

    sent: float | None
    seconds: float
    peak: float


Work = Callable[[], float | Cost | None]  # a Cost where the phase measures itself


def _ids(people: int) -> Iterator[str]:
    return (f"customer-{number:09d}" for number in range(people))


def _features(people: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(people, TABLE_COLUMNS))
    return X, (X[:, 0] + rng.normal(size=people) > 0).astype(np.int64)


def _oracle(people: int, folder: Path) -> GroupOracle:
    X, _ = _features(people)
    sex = np.where(X[:, 0] + X[:, 1] > 0, *GROUPS["sex"]).astype(object).tolist()
    return LocalOracle.rehearse(
        _ids(people), {"sex": sex}, epsilon=1.0, delta=1e-5, folder=folder / "rehearsal"
    )


def _plan(people: int, folder: Path) -> Work:
    company = PartyKeys.generate("bank", "company").card()
    regulator = PartyKeys.generate("office", "regulator").card()

    def work() -> float:
        plan, cohort = make_plan(
            [(company, Cohort.of(_ids(people)))],
            groups=GROUPS,
            tolerance="0.01",
            epsilon="1",
            name="scale",
            regulator=regulator,
            notion="demographic_parity",
            strategy="tilt",
            delta="1e-5",
            relay_name="server.example",
        )
        files = write_plan(plan, cohort, folder / "plan.json")
        return sum(path.stat().st_size for path in (files.plan, files.people, files.public))

    return work


def _reservation(people: int, folder: Path) -> Work:
    def work() -> float:
        _oracle(people, folder)
        return (folder / "rehearsal" / "ledger.jsonl").stat().st_size

    return work


def _counts(people: int, folder: Path) -> Work:
    oracle, (_, y) = _oracle(people, folder), _features(people)
    return lambda: _nothing(oracle.counts(y, attribute="sex", share=0.01))


def _weighted(people: int, folder: Path) -> Work:
    oracle = _oracle(people, folder)
    rows = np.random.default_rng(0).normal(size=(people, COLUMNS)).astype(np.float32)
    return lambda: _nothing(
        oracle.weighted_sum(rows, [1.0, -1.0], norm=4.0, attribute="sex", share=0.01)
    )


def _audit(people: int, folder: Path) -> Work:
    oracle, (X, y) = _oracle(people, folder), _features(people)
    decisions = (X[:, 0] > 0).astype(np.int64)
    return lambda: _nothing(audit(oracle, decisions, y, share=0.1, pos_label=1))


def _answers(people: int, folder: Path) -> Work:
    """What ten further answers about the same part of the people add to the ledger."""
    oracle = _oracle(people, folder)
    some, ledger = np.arange(0, people, 2), folder / "rehearsal" / "ledger.jsonl"

    def ask() -> None:
        oracle.counts(people=some, attribute="sex", share=0.001)

    ask()
    before = ledger.stat().st_size

    def work() -> float:
        for _ in range(ANSWERS):
            ask()
        return ledger.stat().st_size - before

    return work


def _ledger_alone(people: int, folder: Path) -> Work:
    """The ledger's part of the same ten answers."""
    path, plan = folder / "ledger.jsonl", bytes(32)
    cap = units_for(1.0, 1e-5)
    ledger = Ledger.create(path, cap_units=cap, delta=1e-5)
    root = ledger.add_people(Cohort.of(_ids(people)).member_hashes(bytes(32)))
    ledger.reserve(plan, root, cap)
    half = ledger.add_subset(root, np.arange(0, people, 2))

    def answer(number: int) -> None:
        ledger.check(plan, half, cap // 1_000)
        ledger.debit(
            plan=plan,
            query_id=str(number),
            request_hash=bytes(32),
            root=half,
            units=cap // 1_000,
            event={},
            answer=bytes(16),
        )

    answer(0)
    before = path.stat().st_size

    def work() -> float:
        for number in range(1, ANSWERS + 1):
            answer(number)
        return path.stat().st_size - before

    return work


def _pads(people: int, folder: Path) -> Work:
    def work() -> Cost:
        cost = measure_pads(people, COLUMNS, repeats=1, wall=True)
        seconds = people * cost.transfer_us_per_person / 1e6
        seconds += (cost.company_ms + cost.regulator_ms) / 1e3
        sent = cost.transfer_bytes_per_person * people + cost.bytes_up
        return Cost(sent, seconds, cost.peak_mb * 2**20)

    return work


def _products(people: int, folder: Path) -> Work:
    def work() -> Cost:
        cost = measure_exchange(people, COLUMNS, wall=True)
        seconds = (cost.company_ms + cost.regulator_ms) / 1e3
        return Cost(cost.bytes_down + cost.bytes_up, seconds, cost.peak_mb * 2**20)

    return work


def _openings(people: int, folder: Path) -> Work:
    return _held(kept_request(people, COLUMNS, folder))


def _enrolment(people: int, folder: Path) -> Work:
    return lambda: Cost(None, *measure_enrolment(_ids(people), folder))


def _base(people: int, folder: Path) -> Work:
    X, y = _features(people)

    def work() -> None:
        LogisticRegression().fit(X, y)
        cross_val_predict(LogisticRegression(), X, y, cv=FOLDS, method="predict_proba")

    return work


def _fit(people: int, folder: Path) -> Work:
    oracle, (X, y) = _oracle(people, folder), _features(people)
    model = FairClassifier(LogisticRegression(), oracle=oracle, random_state=0)
    return lambda: _nothing(model.fit(X, y))


def _held(block: AbstractContextManager[Work]) -> Work:
    """What a block gives; the block ends with the process."""
    return ExitStack().enter_context(block)


def _nothing(_: object) -> None:
    return None


PHASES: dict[str, Callable[[int, Path], Work]] = {
    "enrolment": _enrolment,
    "plan": _plan,
    "reservation": _reservation,
    "counts": _counts,
    "weighted sum": _weighted,
    "audit": _audit,
    "answers": _answers,
    "answers, ledger alone": _ledger_alone,
    "key transfer, sum by pads": _pads,
    "sum by products": _products,
    "openings": _openings,
    "base model": _base,
    "fit": _fit,
}
