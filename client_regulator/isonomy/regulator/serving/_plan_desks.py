"""What answers for each approved plan: its people, its limits and its inspections.

A plan's half is made once and kept, so that the key of a question that is under way outlives a
session that breaks off.
"""

from __future__ import annotations

import threading
from decimal import Decimal

import numpy as np

from isonomy.common.agreements.approvals import Approvals
from isonomy.common.agreements.plan import MILLION, Plan
from isonomy.common.base.errors import ConfigError
from isonomy.common.inspection.desk import InspectionDesk
from isonomy.common.keys.party import Card
from isonomy.common.pads.key_store import KeyStore
from isonomy.common.pads.regulator import PadCarrier
from isonomy.common.people.cohort import takes_missing
from isonomy.common.pooled.half import PooledHalf
from isonomy.common.pooled.store import PooledStore
from isonomy.common.privacy.queries import Query
from isonomy.common.report.audit_unknowns import release_unknowns
from isonomy.common.sums.noise_and_budget import Custodian, Limits
from isonomy.common.sums.regulator_half import RegulatorHalf
from isonomy.regulator.plans.approval import check_plan
from isonomy.regulator.plans.plan_files import inspections_folder, keys_folder
from isonomy.regulator.plans.sign_off import check_sign_off
from isonomy.regulator.serving._office import Office
from isonomy.regulator.serving.witness import vault_generation
from isonomy.regulator.vault.attributes import load_table, rows_of
from isonomy.regulator.vault.vault import VaultTable


class PlanDesks:
    """The halves of all plans and the decrypted vault. Threads may share it."""

    def __init__(self, office: Office) -> None:
        self._office, self._config, self._ledger = office, office.config, office.ledger
        self.approvals = Approvals(office.config.plans_folder)
        self._table: tuple[int, VaultTable] | None = None  # with the vault's generation
        self._halves: dict[bytes, RegulatorHalf | PooledHalf] = {}
        self._lock = threading.RLock()

    def half(self, plan_hash: bytes) -> RegulatorHalf | PooledHalf:
        """Return what answers for a plan, after its budget has been set aside."""
        with self._lock:
            if plan_hash not in self._halves:
                plan, cohort = self.approvals.require(plan_hash)
                people = self.people()
                table = load_table(self._config, people, plan, cohort)
                key = self._office.member_key
                check_sign_off(self._config, plan)
                check_plan(self._config, self._ledger, plan, cohort, people, key)
                custodian = Custodian(
                    table,
                    self._ledger,
                    plan=plan_hash,
                    member_key=key,
                    strategy=plan.strategy,
                    notion=plan.notion,
                    record_private=plan.record_privacy,
                    audits=plan.planned_audits,
                )
                custodian.limits = self._limits(plan)
                custodian.reserve(plan.cap_units, individual=plan.individual_filter)
                self._halves[plan_hash] = self._new_half(plan, custodian)
            return self._halves[plan_hash]

    def close(self, plan_hash: bytes, officer: str) -> None:
        """Answer nothing more under this plan, and free what it did not spend."""
        with self._lock:
            self._halves.pop(plan_hash, None)
            if plan_hash in {plan.plan for plan in self._ledger.plans()}:
                self._ledger.close_plan(plan_hash, officer=officer)

    def people(self) -> VaultTable:
        """Return the vault's content. It is decrypted again only if it has changed."""
        with self._lock:
            generation = vault_generation(self._config)
            if self._table is None or self._table[0] != generation:
                self._table = (generation, self._office.vault.read())
            return self._table[1]

    def drop_people(self) -> None:
        """Keep nobody in memory who may just have been forgotten."""
        with self._lock:
            self._table = None

    def release_unknowns(self, plan_hash: bytes, millionths: int, officer: str) -> None:
        """Release, with noise, how many of a plan's people have no value (for its report).

        `millionths` of the plan's budget go to each attribute, but for those of which everybody has
        a value. Missing and unknown count together.
        """
        if not 1 <= millionths <= MILLION:
            raise ConfigError("the share of the budget for unknowns lies between 0 and 1")
        self.half(plan_hash)  # approved, within the policy, its budget set aside
        plan, cohort = self.approvals.require(plan_hash)
        plan.check_valid()
        (root,) = [entry.root for entry in self._ledger.plans() if entry.plan == plan_hash]
        people = self.people()
        rows = rows_of(people, cohort)
        names = [name for name, labels in plan.groups.items() if takes_missing(labels)]
        if not names:
            raise ConfigError("the plan's attributes have no group for people without a value")
        for name in names:
            codes = people.codes[name][rows]
            missing = int(np.count_nonzero(codes >= len(people.groups[name])))
            share = millionths / MILLION
            release_unknowns(self._ledger, plan, root, name, missing, share, officer)

    def _limits(self, plan: Plan) -> Limits:
        """Return the check by which the policy rules each query of a plan."""

        def check(query: Query, units: int) -> None:
            plan.check_valid()  # a session may outlast the plan's last day
            self._config.policy.check_query(
                query,
                units,
                people=query.people(plan.cohort_size),
                answered=self._ledger.answers(plan.hash),
                delta=self._config.ledger.delta,
            )

        return check

    def _new_half(self, plan: Plan, custodian: Custodian) -> RegulatorHalf | PooledHalf:
        identity = self._office.keys.identity
        if plan.carrier == "pads":
            desk = self._desk(plan, custodian)
            sample = desk.sample if desk is not None else None
            carrier = PadCarrier(custodian, self._key_store(plan), sample)
            return RegulatorHalf(custodian, identity, desk, carrier)
        if len(plan.companies) == 1:
            return RegulatorHalf(custodian, identity, self._desk(plan, custodian))
        store = PooledStore(self._config.state_folder / plan.hash.hex() / "joint")
        desks = {card.name: self._desk(plan, custodian, card) for card in plan.companies}
        present = {name: desk for name, desk in desks.items() if desk is not None}
        return PooledHalf(custodian, identity, plan, store, present)

    def _key_store(self, plan: Plan) -> KeyStore:
        """Return the keys of a plan by pads, under the secret that opens the vault."""
        vault = self._office.vault
        sealing = vault.secret.key(vault.header(self._config.vault_path).derivation)
        folder = keys_folder(self._config, plan)
        return KeyStore(plan.cohort_size, company=False, folder=folder, sealing=sealing)

    def _desk(
        self, plan: Plan, custodian: Custodian, company: Card | None = None
    ) -> InspectionDesk | None:
        """Return who inspects a company's queries, or None if the plan names no auditor."""
        if not plan.auditor:
            return None
        folder = inspections_folder(self._config, plan)
        policy = int(Decimal(self._config.policy.inspection_rate) * MILLION)
        office = self._office
        return InspectionDesk(
            plan,
            custodian,
            office.keys,
            folder,
            company=company,
            policy_millionths=policy,
            log=office.log,
        )
