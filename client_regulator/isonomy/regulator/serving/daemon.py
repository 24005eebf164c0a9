"""The regulator's daemon: attributes, keys and ledger in one long-lived process.

It listens on a local socket for tickets, joins a session only if its owner approved the ticket's
plan, dials the relay itself, and trusts its own CA file only. Everything that it tells the Flower
node next door is how many queries it answered. A second socket is for its own user alone: that is
where the officer's commands (officer.py) reach it, since it holds the ledger.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from decimal import Decimal
from types import FrameType, TracebackType
from typing import Self

from isonomy.common.agreements.agreement import Agreement
from isonomy.common.agreements.approvals import Approvals
from isonomy.common.agreements.plan import MILLION, Plan
from isonomy.common.alignment.alignment import AlignmentPlan
from isonomy.common.base.errors import ConfigError, IsonomyError, ProtocolError
from isonomy.common.base.exit_codes import code_of
from isonomy.common.base.logs import RotatingFile, logger
from isonomy.common.few_shot.rounds.plan import FewShotPlan
from isonomy.common.inspection.desk import InspectionDesk
from isonomy.common.inspection.verdict import InspectionFolder, Verdict
from isonomy.common.keys.party import PartyKeys
from isonomy.common.node.attendance import Attendance
from isonomy.common.node.bridge import Message
from isonomy.common.node.bridge_server import BridgeServer
from isonomy.common.pooled.half import JointHalf
from isonomy.common.pooled.serving import serve_joint
from isonomy.common.pooled.store import JointStore
from isonomy.common.privacy.queries import Query
from isonomy.common.remote.remote import serve_queries
from isonomy.common.session.connection import Session
from isonomy.common.session.stream import Timing
from isonomy.common.session.tickets import Ticket
from isonomy.common.sums.custodian import Custodian, Limits
from isonomy.common.sums.regulator_half import RegulatorHalf
from isonomy.regulator.config.config import RegulatorConfig
from isonomy.regulator.config.faults import VaultLocked
from isonomy.regulator.plans.approval import check_plan
from isonomy.regulator.plans.few_shot_approval import approvals
from isonomy.regulator.plans.plan_files import inspections_folder, named_plan
from isonomy.regulator.serving.aligning import alignments, attend
from isonomy.regulator.serving.few_shot import FewShotRoom
from isonomy.regulator.serving.unknowns import release_all
from isonomy.regulator.serving.witness import open_ledger, write_witness
from isonomy.regulator.vault.attributes import load_table
from isonomy.regulator.vault.member_key import member_key
from isonomy.regulator.vault.vault import Vault, VaultTable

WITNESS_EVERY_S = 5.0


class Daemon:
    """Holds the ledger while the block lasts."""

    def __init__(self, config: RegulatorConfig, vault: Vault | None = None) -> None:
        """Take the ledger. Without the vault it can close plans and take notes, not answer."""
        self._config, self._vault = config, vault
        self._keys = PartyKeys.load(config.keys_folder)
        if (self._keys.name, self._keys.role) != (config.name, "regulator"):
            raise ConfigError(f"the keys in {config.keys_folder} are not those of {config.name}")
        self._member_key = member_key(config)
        self._approvals = Approvals(config.plans_folder)
        self._ledger = open_ledger(config)
        self._few_shot = FewShotRoom(config, self._ledger, vault)
        self._table: tuple[int, VaultTable] | None = None  # by generation
        self._halves: dict[bytes, RegulatorHalf] = {}
        self._sessions: dict[bytes, dict[str, object]] = {}
        self._since, self._witnessed = int(time.time()), time.monotonic()
        self._lock = threading.RLock()
        self._log = logger("regulator", _log_file(config))
        self._attendance = Attendance(self._open, self._attend)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ledger.close()

    def serve(self) -> None:
        """Listen until SIGTERM or SIGINT."""
        self._config.tls_files.read()  # say now what is wrong with them, not in a session
        self._ledger.check_clock()
        self._ledger.migrate()
        self._config.socket.parent.mkdir(parents=True, exist_ok=True)
        stopped = threading.Event()

        def stop(number: int, frame: FrameType | None) -> None:
            stopped.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
        self.reserve_all()
        self.witness()
        bridge = BridgeServer(
            self._config.socket,
            self._handle,
            callers=self._config.bridge_callers,
            on_error=self._note,
        )
        # For this very user only: Callers() names nobody else, whatever groups the file has.
        officer = BridgeServer(self._config.officer_socket, self.officer, on_error=self._note)
        with officer, bridge:
            self._log.info("ready", socket=str(self._config.socket), plans=len(self._halves))
            stopped.wait()
        self._log.info("stopped")

    def reserve_all(self) -> None:
        """Set the budget of every approved plan aside; a plan that cannot have it is logged."""
        for plan_hash in self._approvals.hashes():
            try:
                self._half(plan_hash)
            except IsonomyError as error:
                self._note(error)
        reserved = {own.plan for own in self._ledger.plans()}
        for plan_hash in approvals(self._config).hashes():
            if plan_hash not in reserved:  # else nothing is to be done before a session
                try:
                    self._reserve(plan_hash)
                except IsonomyError as error:
                    self._note(error)

    def _reserve(self, plan_hash: bytes) -> None:
        training = self._few_shot.plan(plan_hash)
        if training is not None:
            self._few_shot.reserve(training)
        else:
            self._half(plan_hash)

    def witness(self) -> None:
        """Write down how far the ledger is; a copy that cannot be written is logged."""
        try:
            write_witness(self._config, self._ledger, self._keys.identity)
        except (IsonomyError, OSError) as error:
            self._note(error)

    def _witness_soon(self) -> None:
        """The same during a session: often enough to notice, seldom enough not to matter."""
        now = time.monotonic()
        if now - self._witnessed >= WITNESS_EVERY_S:
            self._witnessed = now
            self.witness()

    # --- What the officer asks (officer.py) ----------------------------------------------------

    def officer(self, request: Message) -> Message:
        """Do what one of the officer's commands needs the ledger for."""
        match request:
            case {"type": "reserve", "plan": str(plan)}:
                self._reserve(bytes.fromhex(plan))
            case {"type": "close", "plan": str(plan)}:
                self._close(bytes.fromhex(plan))
            case {"type": "note", "kind": str(kind), "event": dict(event)}:
                self._ledger.note(kind, event)
            case {"type": "verdict", "verdict": str(text)}:
                self._verdict(Verdict.from_json(text.encode()))
            case {"type": "unknowns", "plan": str(plan), "share": int(share)}:
                self._unknowns(bytes.fromhex(plan), share)
            case {"type": "clock"}:
                self._ledger.accept_clock()
            case {"type": "witness"}:
                pass  # below
            case {"type": "status"}:
                return self._status()
            case _:
                raise ProtocolError("the officer's request is of no known type")
        self._table = None  # nothing of people who may just have been forgotten stays in memory
        self.witness()
        return {}

    def _close(self, plan: bytes) -> None:
        """No more answers under this plan; what it did not spend is free again."""
        with self._lock:
            self._halves.pop(plan, None)
            self._few_shot.close(plan)
            if plan in {own.plan for own in self._ledger.plans()}:
                self._ledger.release(plan)

    def _verdict(self, verdict: Verdict) -> None:
        """Take an auditor's verdict, in time or later, under an open plan or a closed one."""
        plan = named_plan(self._config, verdict.plan.hex())
        InspectionFolder(inspections_folder(self._config, plan), plan).take(verdict, self._ledger)

    def _unknowns(self, plan_hash: bytes, share: int) -> None:
        """Release, with noise, how many of a plan's people have no value (for its report)."""
        self._half(plan_hash)  # approved, within the policy, its budget set aside
        plan, cohort = self._approvals.require(plan_hash)
        (root,) = [own.root for own in self._ledger.plans() if own.plan == plan_hash]
        release_all(self._ledger, self._people(), plan, cohort, root, share)

    def _status(self) -> Message:
        with self._lock:
            sessions = [{"plan": plan.hex(), **own} for plan, own in self._sessions.items()]
        return {"pid": os.getpid(), "since": self._since, "sessions": sessions}

    # --- What the Flower node asks -------------------------------------------------------------

    def _handle(self, request: Message) -> Message:
        return self._attendance.handle(request)

    def _open(self, ticket: Ticket) -> Session:
        plan = self._agreement(ticket.plan_hash)
        state = self._config.state_folder / plan.hash.hex()
        return Session(
            ticket,
            self._config.tls_files,
            self._keys,
            plan,
            state,
            timing=Timing(absence_s=float(self._config.rejoin_s)),
            on_event=lambda text: self._log.info("session", event_text=text),
        )

    def _agreement(self, agreement_hash: bytes) -> Agreement:
        """The approved plan, alignment or few-shot plan of that hash."""
        training = self._few_shot.plan(agreement_hash)
        if training is not None:
            return training
        store = alignments(self._config)
        if store.approved(agreement_hash):
            return store.require(agreement_hash)
        return self._approvals.require(agreement_hash)[0]

    def _attend(self, session: Session) -> Message:
        if isinstance(session.agreement, AlignmentPlan):
            attend(self._config, session, session.agreement, self._people())
            self._log.info("aligned", alignment=session.agreement.hash.hex()[:16])
            return {}  # not even how many: the node next door runs foreign code
        if isinstance(session.agreement, FewShotPlan):
            return self._meta_train(session, session.agreement)
        answered: set[str] = set()  # several companies get the answer to one query

        shown: dict[str, object] = {"since": int(time.time()), "answered": 0}

        def count(kind: str, query_id: str) -> None:
            if kind == "answer":
                answered.add(query_id)
                shown["answered"] = len(answered)
                self._witness_soon()
            self._log.info(kind, query=query_id)

        half = self._half(session.plan.hash)
        self._sessions[session.plan.hash] = shown
        try:
            with session:
                self._log.info("session began", plan=session.plan.hash.hex()[:16])
                if isinstance(half, JointHalf):
                    serve_joint(session, half, on_event=count)
                else:
                    serve_queries(session, half, on_event=count)
        finally:
            del self._sessions[session.plan.hash]
            self.witness()
        self._log.info("session ended", answered=len(answered))
        return {"answered": len(answered), "reconnects": max(session.reconnects, 0)}

    def _meta_train(self, session: Session, plan: FewShotPlan) -> Message:
        shown = self._sessions[plan.hash] = {}
        try:
            return self._few_shot.attend(session, plan, self._log, shown, self._witness_soon)
        finally:
            del self._sessions[plan.hash]
            self.witness()

    def _half(self, plan_hash: bytes) -> RegulatorHalf:
        """Return what answers for a plan; made once, so that open keys outlive a session."""
        with self._lock:
            if plan_hash not in self._halves:
                plan, cohort = self._approvals.require(plan_hash)
                vault = self._people()
                table = load_table(self._config, vault, plan, cohort)
                check_plan(self._config, self._ledger, plan, cohort, vault, self._member_key)
                custodian = Custodian(
                    table,
                    self._ledger,
                    plan=plan_hash,
                    member_key=self._member_key,
                    dual_required=plan.strategy == "pf_ld",
                )
                custodian.limits = self._limits(plan)
                custodian.reserve(plan.cap_units, individual=plan.individual_filter)
                self._halves[plan_hash] = self._new_half(plan, custodian)
            return self._halves[plan_hash]

    def _people(self) -> VaultTable:
        """The vault's content, decrypted again only if it was changed."""
        if self._vault is None:
            raise VaultLocked("the vault was not opened; it is needed to answer for a plan")
        generation = int(self._vault.header(self._config.vault.path).public["generation"])
        if self._table is None or self._table[0] != generation:
            self._table = (generation, self._vault.read())
        return self._table[1]

    def _limits(self, plan: Plan) -> Limits:
        """The policy, for each query of a plan."""

        def check(query: Query, units: int) -> None:
            self._config.policy.check_query(
                query,
                units,
                people=query.people(plan.cohort_size),
                answered=self._ledger.answers(plan.hash),
                delta=self._config.ledger.delta,
            )

        return check

    def _new_half(self, plan: Plan, custodian: Custodian) -> RegulatorHalf:
        if len(plan.companies) == 1:
            return RegulatorHalf(custodian, self._keys.identity, self._desk(plan, custodian))
        store = JointStore(self._config.state_folder / plan.hash.hex() / "joint")
        return JointHalf(custodian, self._keys.identity, plan, store)

    def _desk(self, plan: Plan, custodian: Custodian) -> InspectionDesk | None:
        """Who inspects a plan's queries; nobody, if the plan names no auditor."""
        if not plan.auditor:
            return None
        folder = inspections_folder(self._config, plan)
        policy = int(Decimal(self._config.policy.inspection_rate) * MILLION)
        return InspectionDesk(plan, custodian, self._keys, folder, policy_millionths=policy)

    def _note(self, error: Exception) -> None:
        """Log an error: ours with its text, a foreign one with its type only."""
        with contextlib.suppress(OSError):
            text = str(error) if isinstance(error, IsonomyError) else type(error).__name__
            self._log.error("refused", code=code_of(error), reason=text)


def _log_file(config: RegulatorConfig) -> RotatingFile | None:
    log = config.log
    if log.file is None:
        return None
    return RotatingFile(log.file, max_bytes=log.max_bytes, kept=log.kept)
