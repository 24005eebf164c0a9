"""A company and a regulator under a plan with an auditor, in memory, for tests of inspections."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from federation import TamperingPort
from session_kit import attributes, people, plan_fields

from isonomy.common.agreements.plan import MILLION, Plan
from isonomy.common.inspection.desk import InspectionDesk
from isonomy.common.inspection.verdict import InspectionFolder
from isonomy.common.keys.party import PartyKeys
from isonomy.common.ledger.ledger import Ledger
from isonomy.common.pads.company import PadRows
from isonomy.common.pads.key_store import KeyStore
from isonomy.common.pads.regulator import PadCarrier
from isonomy.common.people.cohort import AttributeTable, Cohort
from isonomy.common.sums.company_half import ColumnProducts, EncryptedChannel
from isonomy.common.sums.noise_and_budget import Custodian
from isonomy.common.sums.openings import FolderOpenings, StoredRequest
from isonomy.common.sums.oracle import GroupOracle
from isonomy.common.sums.question import Terms
from isonomy.common.sums.regulator_half import RegulatorHalf
from isonomy.common.wire.messages import SumHeader, decode

SIZE = 40
ROWS = np.random.default_rng(5).normal(size=(SIZE, 3))


@dataclass
class World:
    """Keys, ledger and openings on disk; the halves joined by a port that a test can change."""

    folder: Path
    plan: Plan
    cohort: Cohort
    company_keys: PartyKeys
    regulator_keys: PartyKeys
    auditor_keys: PartyKeys
    ledger: Ledger
    port: TamperingPort
    rate: int | None = None
    wait_s: float = 0.3
    store_inspected: bool = True
    table_of: Callable[[Cohort], AttributeTable] = attributes
    stores: list[FolderOpenings] = field(default_factory=list)

    @classmethod
    def create(
        cls,
        folder: Path,
        *,
        rate: int = MILLION,
        outside: bool = False,
        waits: bool = True,
        size: int = SIZE,
        table_of: Callable[[Cohort], AttributeTable] = attributes,
        **changes: Any,
    ) -> World:
        company = PartyKeys.generate("company", "company")
        regulator = PartyKeys.generate("regulator", "regulator")
        auditor = PartyKeys.generate("auditor", "auditor") if outside else regulator
        cohort = people(size)
        plan = Plan.of(
            {
                **plan_fields(),
                "companies": [company.card()],
                "regulator": regulator.card(),
                "cohort_root": cohort.root.hex(),
                "cohort_size": size,
                "groups": dict(table_of(cohort).groups),
                "auditor": auditor.card().x25519,
                "auditor_signing": auditor.card().ed25519,
                "auditor_name": auditor.name if outside else "",
                "inspection_millionths": rate,
                "inspection_waits": waits,
                "inspection_deadline": "2100-01-01",
                "epsilon_millionths": 50 * MILLION,
                **changes,
            }
        )
        ledger = Ledger.create(folder / "ledger.jsonl", cap_units=plan.cap_units, delta=1e-6)
        port = TamperingPort.__new__(TamperingPort)
        world = cls(folder, plan, cohort, company, regulator, auditor, ledger, port)
        world.table_of = table_of
        world.port = TamperingPort(world.half())
        return world

    def half(self) -> RegulatorHalf:
        custodian = Custodian(
            self.table_of(self.cohort), self.ledger, plan=self.plan.hash, member_key=b"k" * 32
        )
        custodian.reserve(self.plan.cap_units, individual=self.plan.individual_filter)
        desk = InspectionDesk(
            self.plan,
            custodian,
            self.regulator_keys,
            self.folder / "inspections",
            policy_millionths=self.rate or 0,
        )
        desk.verdict_wait_s = self.wait_s
        carrier = None
        if self.plan.carrier == "pads":
            folder, size = self.folder / "theirs", self.plan.cohort_size
            store = KeyStore(size, company=False, folder=folder, sealing=b"v")
            carrier = PadCarrier(custodian, store, desk.sample)
        return RegulatorHalf(custodian, self.regulator_keys.identity, desk, carrier)

    def restart_regulator(self) -> None:
        """The process died: keys and held sums are gone, the ledger is read again from disk."""
        path = self.ledger._path
        self.ledger.close()
        self.ledger = Ledger.open(path)
        self.port.half = self.half()

    @property
    def store(self) -> FolderOpenings:
        for older in self.stores:  # their processes have ended
            older.settle()
        self.stores.append(FolderOpenings(self.folder / "openings", inspected=self.store_inspected))
        return self.stores[-1]

    @property
    def verdicts(self) -> InspectionFolder:
        return InspectionFolder(self.folder / "inspections", self.plan)

    def company(self, *, forgets: bool = False) -> GroupOracle:
        """A company process: what it knows of earlier ones is on disk, unless it forgets."""
        terms = Terms(self.cohort, self.plan.groups, self.plan.hash, self.plan.cap_units, 1e-6)
        channel = EncryptedChannel(
            self.port,
            terms,
            regulator_key=self.regulator_keys.identity.public,
            openings=None if forgets else self.store,
            auditor=bytes.fromhex(self.plan.auditor),
            inspection_millionths=self.plan.inspection_millionths,
            identity=self.company_keys.identity,
            individual=self.plan.individual_filter,
            carrier=(
                partial(
                    PadRows,
                    store=self.key_store(),
                    tagged=True,
                    millionths=self.plan.inspection_millionths,
                )
                if self.plan.carrier == "pads"
                else ColumnProducts
            ),
        )
        return GroupOracle(channel)

    def key_store(self) -> KeyStore:
        folder, size = self.folder / "openings", self.plan.cohort_size
        return KeyStore(size, company=True, folder=folder, sealing=b"s")

    def steps(self) -> list[str]:
        return [each.step for each in self.ledger.inspections(self.plan.hash)]

    def last_query(self) -> str:
        return decode(self.port.request_seen[0], SumHeader).query_id

    def answered(self) -> bool:
        return self.ledger.find(self.last_query()) is not None


def ask(oracle: GroupOracle, rows: np.ndarray = ROWS) -> Any:
    return oracle.blind_sum(rows, norm=3.0, share=0.02)


def unclipped_rows(monkeypatch: pytest.MonkeyPatch, world: World | None = None) -> None:
    """From now on the company commits to, and sends, a row above the bound."""

    def longer(rows: np.ndarray) -> np.ndarray:
        larger = rows.copy()
        larger[7] *= 64
        return larger

    other_rows(monkeypatch, longer)


def other_rows(monkeypatch: pytest.MonkeyPatch, change: Callable[[np.ndarray], np.ndarray]) -> None:
    """From now on the company commits to, and sends, these rows in place of its own."""
    for carrier in (ColumnProducts, PadRows):
        monkeypatch.setattr(carrier, "attempt", _with_rows(carrier.attempt, change))


def _with_rows(real: Any, change: Callable[[np.ndarray], np.ndarray]) -> Any:
    def attempt(self: Any, prepared: Any, frame: bytes) -> StoredRequest:
        return real(self, dataclasses.replace(prepared, rows=change(prepared.rows)), frame)

    return attempt
