"""Every combination at tiny size: it trains with the same bits as its rehearsal, or is refused.

    strategy × notion × classes × groups × channel × filter × record privacy × companies

and, for one company and four groups, two attributes in one fit.

A cell by homomorphic encryption or by pads runs twice, with the same noise: in a rehearsal, and
through every frame of the exchange. All released integers and all decisions must agree. A refusal
must come before the ledger has a debit. Anything else is a surprise, and `make matrix` fails.

Two companies meet at a real relay over TLS (two_companies.py).
"""

from __future__ import annotations

import tempfile
import types
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd
import torch
from federation import CountedNoise, custodian_with_noise
from session_kit import plan_fields
from sklearn.linear_model import LogisticRegression

from isonomy.common.agreements.plan import MILLION, Plan
from isonomy.common.base.errors import ConfigError, DataError
from isonomy.common.crypto.params import centre
from isonomy.common.inspection.desk import InspectionDesk
from isonomy.common.keys.party import Card, PartyKeys
from isonomy.common.ledger.ledger import Ledger
from isonomy.common.pads.company import PadRows
from isonomy.common.pads.key_store import KeyStore
from isonomy.common.pads.regulator import PadCarrier
from isonomy.common.people.cohort import AttributeTable, Cohort
from isonomy.common.privacy.accounting import units_for
from isonomy.common.sums.channel import Channel, Wrapper
from isonomy.common.sums.company_half import EncryptedChannel
from isonomy.common.sums.local import LocalChannel
from isonomy.common.sums.oracle import FilteredOracle, GroupOracle
from isonomy.common.sums.question import Prepared, Released, Terms
from isonomy.common.sums.regulator_half import DirectPort, RegulatorHalf
from isonomy.company.fair.estimator import FairClassifier
from isonomy.company.fair.scores.regressor import FairRegressor
from isonomy.company.federation.auditing import audit
from isonomy.company.gradient.record import privacy as record_privacy
from isonomy.company.gradient.record.privacy import RecordPrivacy
from isonomy.company.gradient.sdk.classifier import GRADIENT_STRATEGIES, GradientFairClassifier
from isonomy.company.rehearsal.base_models import base_model
from isonomy.company.rehearsal.strategies import STRATEGIES, Rehearsal

# So few people in 8 × 8 cells can be counted only with a huge budget: this is about paths, not use.
PEOPLE, EPSILON, DELTA = 480, 3000.0, 1e-5
PLAN, MEMBER_KEY = b"m" * 32, b"k" * 32
NOTIONS = (
    "demographic_parity",
    "equal_opportunity",
    "equal_fpr",
    "equalized_odds",
    "accuracy_parity",
)
GRADIENT = tuple(GRADIENT_STRATEGIES)
PLANNED = ("tilt", "pf_ld", "dp_fermi", "dp_sgda")
COMPARISONS = tuple(name for name in STRATEGIES if name not in ("tilt", "unconstrained", *GRADIENT))
SCORES = "scores"  # FairRegressor: declared as tilt
DIRECT = ("sums", "audit")  # what a company asks without a strategy
SIZES = (2, 4, 8)
TWO_ATTRIBUTES = (
    ("local", False, False),
    ("encrypted", False, False),
    ("pads", False, False),
    ("encrypted", True, False),
    ("encrypted", False, True),
)
TRAINS = "trains"
INSPECTED = "inspected"  # pads, and a regulator that looks at a tenth of the people of every query


@dataclass(frozen=True, order=True)
class Cell:
    """One combination."""

    strategy: str
    notion: str
    classes: int
    groups: int
    carrier: str  # local, encrypted, pads, inspected or pooled
    filtered: bool
    records: bool
    attributes: int = 1


@dataclass(frozen=True)
class Outcome:
    """What became of a cell: "trains", or the reason of the refusal."""

    cell: Cell
    text: str
    surprise: bool = False


@dataclass
class Trace:
    """What a run released and decided."""

    integers: list[bytes] = field(default_factory=list)
    decisions: bytes = b""


class Listening(Wrapper):
    """Keeps every released integer."""

    def __init__(self, inner: Channel, trace: Trace) -> None:
        super().__init__(inner)
        self._trace = trace

    def exchange(self, prepared: Prepared) -> Released:
        released = self.inner.exchange(prepared)
        t = self.terms.params.plain_modulus
        integers = centre(released.integers & (t - 1), t)
        self._trace.integers.append(integers.tobytes())
        return released


# --- The cells ----------------------------------------------------------------------------------


def cells() -> Iterator[Cell]:
    """Every combination, those of one company first."""
    for strategy, notion, classes in _asked():
        for groups in SIZES:
            for carrier in ("local", "encrypted", "pads", "pooled"):
                for filtered in (False, True):
                    for records in (False, True):
                        yield Cell(strategy, notion, classes, groups, carrier, filtered, records)
            yield Cell(strategy, notion, classes, groups, INSPECTED, filtered=False, records=False)
    for strategy in ("tilt", *GRADIENT):
        for notion in NOTIONS:
            for classes in (2, 4):
                for way in TWO_ATTRIBUTES:
                    yield Cell(strategy, notion, classes, 4, *way, attributes=2)


def _asked() -> Iterator[tuple[str, str, int]]:
    for strategy in ("tilt", *GRADIENT):
        for notion in NOTIONS:
            for classes in SIZES:
                yield strategy, notion, classes
    yield SCORES, "score_parity", 2  # of a probability
    for strategy in COMPARISONS:  # their interface has two classes
        for notion in NOTIONS:
            yield strategy, notion, 2
    for strategy in DIRECT:  # no notion and no classes to speak of
        yield strategy, "-", 2


# --- One company ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class People:
    """Features, labels and groups of everybody."""

    ids: list[str]
    features: pd.DataFrame
    labels: np.ndarray
    groups: np.ndarray
    halves: np.ndarray  # a second attribute, of two groups

    @classmethod
    def draw(cls, classes: int, groups: int) -> People:
        rng = np.random.default_rng(100 * classes + groups)
        # Every label with every group equally often: no cell is too small to measure.
        number = np.arange(PEOPLE)
        group, label = number % groups, (number // groups) % classes
        x = rng.normal(size=(PEOPLE, 3)) + label[:, None] * [1.0, 0.0, 0.5]
        x[:, 2] += 0.6 * group
        ids = [f"person-{i}" for i in range(PEOPLE)]
        half = (number // (groups * classes)) % 2
        return cls(ids, pd.DataFrame(x, columns=["a", "b", "c"]), label, group, half)

    def some(self, which: slice) -> People:
        """The people of one company."""
        features = self.features.iloc[which].reset_index(drop=True)
        arrays = (self.labels[which], self.groups[which], self.halves[which])
        return People(self.ids[which], features, *arrays)

    def table(self, attributes: int = 1) -> AttributeTable:
        columns = {"group": self.groups, "half": self.halves}
        codes = {name: columns[name] for name in list(columns)[:attributes]}
        names = {name: [f"g{n}" for n in range(each.max() + 1)] for name, each in codes.items()}
        values = {name: [names[name][n] for n in each] for name, each in codes.items()}
        return AttributeTable(Cohort.of(self.ids), values, names)


@contextmanager
def oracle_of(
    cell: Cell, people: People, trace: Trace
) -> Iterator[tuple[GroupOracle, Ledger, bytes]]:
    """The oracle of a cell with one company, its ledger, and the hash of its plan.

    The noise is the same in every run.
    """
    table, cap_units = people.table(cell.attributes), units_for(EPSILON, DELTA)
    parties = PartyKeys.generate("company", "company"), PartyKeys.generate("bureau", "regulator")
    plan = inspected_plan(table, *(keys.card() for keys in parties))
    plan_hash = plan.hash if cell.carrier == INSPECTED else PLAN
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        path = Path(folder) / "ledger.jsonl"
        with Ledger.create(path, cap_units=cap_units, delta=DELTA) as ledger:
            custodian = custodian_with_noise(
                table,
                ledger,
                plan=plan_hash,
                member_key=MEMBER_KEY,
                source=CountedNoise(3),
                # As the daemon has it from the plan; what asks without a strategy says nothing.
                strategy=cell.strategy if cell.strategy in PLANNED else "",
                notion=cell.notion,
            )
            custodian.reserve(cap_units, individual=cell.filtered)
            settings: dict[str, Any] = {"record_private": cell.records, "individual": cell.filtered}
            channel: Channel
            if cell.carrier == "local":
                channel = LocalChannel(
                    table, custodian, plan=PLAN, cap_units=cap_units, delta=DELTA, **settings
                )
            else:
                identity, carrier, desk = parties[1].identity, None, None
                if cell.carrier == INSPECTED:
                    desk = InspectionDesk(plan, custodian, parties[1], Path(folder))
                    settings["auditor"] = bytes.fromhex(plan.auditor)
                    settings["inspection_millionths"] = plan.inspection_millionths
                    settings["identity"] = parties[0].identity
                if cell.carrier in ("pads", INSPECTED):
                    store, sample = KeyStore(PEOPLE, company=False), desk.sample if desk else None
                    carrier = PadCarrier(custodian, store, sample)
                    keys = KeyStore(PEOPLE, company=True)
                    inspected = (
                        {} if desk is None else {"tagged": True, "millionths": MILLION // 10}
                    )
                    settings["carrier"] = partial(PadRows, store=keys, **inspected)
                port = DirectPort(RegulatorHalf(custodian, identity, desk, carrier))
                terms = Terms(table.cohort, dict(table.groups), plan_hash, cap_units, DELTA)
                channel = EncryptedChannel(port, terms, regulator_key=identity.public, **settings)
            oracle = GroupOracle(Listening(channel, trace))
            filtered = FilteredOracle(oracle, stretch=1.5) if cell.filtered else oracle
            yield filtered, ledger, plan_hash


def inspected_plan(table: AttributeTable, company: Card, regulator: Card) -> Plan:
    """A plan by pads whose regulator inspects a tenth of the people of every query."""
    return Plan.of(
        {
            **plan_fields(),
            "companies": [company],
            "regulator": regulator,
            "cohort_root": table.cohort.root.hex(),
            "cohort_size": len(table.cohort),
            "groups": dict(table.groups),
            "carrier": "pads",
            "auditor": regulator.x25519,
            "inspection_millionths": MILLION // 10,
            "inspection_deadline": "2100-01-01",
        }
    )


def run_cell(cell: Cell) -> Outcome:
    """Run a cell with one company, and its rehearsal where it is encrypted."""
    text, trace, debits = _attempt(cell)
    if text != TRAINS:
        return Outcome(cell, text, surprise=debits > 0 or text.startswith("error"))
    if not debits and cell.strategy not in ("f_ld", *COMPARISONS):
        return Outcome(cell, "error: asked nothing", surprise=True)
    if cell.carrier in ("encrypted", "pads", INSPECTED):
        _, rehearsal, _ = _attempt(replace(cell, carrier="local"))
        if rehearsal != trace:
            return Outcome(cell, "error: other bits than in the rehearsal", surprise=True)
    return Outcome(cell, TRAINS)


def _attempt(cell: Cell) -> tuple[str, Trace, int]:
    """What came of it, what was released and decided, and how many debits the ledger has."""
    people, trace = People.draw(cell.classes, cell.groups), Trace()
    shim = types.SimpleNamespace(urandom=lambda size: b"s" * size)
    with (
        warnings.catch_warnings(),
        patch.object(record_privacy, "os", shim),  # the company's own noise, the same in every run
        oracle_of(cell, people, trace) as (oracle, ledger, plan),
    ):
        warnings.simplefilter("ignore")
        try:
            trace.decisions = train(cell, people, oracle)
            text = TRAINS
        except (ConfigError, DataError) as error:
            text = f"{error}"
        except Exception as error:
            text = f"error: {type(error).__name__}: {error}"
        steps = {each.step for each in ledger.inspections(plan)}
        if text == TRAINS and steps != ({"passed"} if cell.carrier == INSPECTED else set()):
            text = "error: queries were not inspected, or not passed"
        return text, trace, ledger.answers(plan)


def train(cell: Cell, people: People, oracle: GroupOracle) -> bytes:
    """Train, or ask; the decisions as bytes."""
    torch.manual_seed(0)
    if cell.strategy == "tilt":
        base = LogisticRegression()
        model = FairClassifier(
            base,
            notion=cell.notion,
            oracle=oracle,
            attribute=list(oracle.groups),
            pos_label=people.labels.max(),
            cv=2,
            random_state=0,
        )
        model.fit(people.features, people.labels, ids=people.ids)
        return np.asarray(model.predict(people.features)).tobytes()
    if cell.strategy == SCORES:
        regressor = FairRegressor(LogisticRegression(), oracle=oracle, cv=2, random_state=0)
        regressor.fit(people.features, people.labels, ids=people.ids)
        return regressor.predict(people.features).tobytes()
    if cell.strategy in GRADIENT:
        return _gradient(cell, people, oracle)
    if cell.strategy in DIRECT:
        _ask(cell.strategy, people, oracle)
        return b""
    trained = STRATEGIES[cell.strategy](
        Rehearsal(
            estimator=base_model("logistic", 0),
            features=people.features,
            target=people.labels.astype(np.int64),
            ids=people.ids,
            oracle=oracle,
            attribute="group",
            notion=cell.notion,
            tolerance=0.05,
            seed=0,
            keep_selection_rate=False,
        )
    )
    if trained.decide_by_group is not None:
        return trained.decide_by_group(people.features, people.groups).tobytes()
    return trained.decide(people.features).tobytes()


def _gradient(cell: Cell, people: People, oracle: GroupOracle) -> bytes:
    options: dict[str, Any] = {}
    if cell.records:
        options = {"primal_norm": 0.5} if cell.strategy == "pf_ld" else {"clip": 0.7}
    model = GradientFairClassifier(
        "logistic",
        strategy=cell.strategy,
        notion=cell.notion,
        oracle=oracle,
        attribute=list(oracle.groups),
        pos_label=people.labels.max(),
        encoder="passthrough",
        record_privacy=RecordPrivacy(epsilon=40000.0) if cell.records else None,
        strategy_options=options,
        trainer_options={"rounds": 2, "local_steps": 1, "warmup_steps": 1},
        random_state=0,
    )
    model.fit(people.features.to_numpy(np.float32), people.labels, ids=people.ids)
    return np.asarray(model.predict(people.features.to_numpy(np.float32))).tobytes()


def _ask(what: str, people: People, oracle: GroupOracle) -> None:
    """What several companies can ask together, each about its own people."""
    rows = people.features.to_numpy()
    if what == "audit":
        decisions = (rows[:, 0] > 0.5).astype(int)
        audit(oracle, decisions, people.labels, ids=people.ids, share=0.2)
        return
    oracle.counts(share=0.1)
    oracle.blind_sum(rows, norm=2.0, share=0.1)
    oracle.open_sum(rows / 3, norm=1.0, share=0.1)
    groups = len(oracle.labels())
    oracle.weighted_sum(rows, np.linspace(-1.0, 2.0, groups), norm=2.0, share=0.1)
