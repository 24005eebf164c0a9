"""The regulator's daemon: attributes, keys and ledger in one long-lived process.

It listens on a local socket for tickets, joins a session only if its owner approved the ticket's
plan, dials the relay itself, and trusts its own CA file only. Everything that it tells the Flower
node next door is how many queries it answered.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from types import FrameType, TracebackType
from typing import Self

from isonomy.common.approvals import Approvals
from isonomy.common.attendance import Attendance
from isonomy.common.bridge import Message
from isonomy.common.bridge_server import BridgeServer
from isonomy.common.custodian import Custodian
from isonomy.common.errors import ConfigError, IsonomyError
from isonomy.common.exit_codes import code_of
from isonomy.common.joint_half import JointHalf, serve_joint
from isonomy.common.joint_store import JointStore
from isonomy.common.logs import logger
from isonomy.common.party import PartyKeys
from isonomy.common.plan import Plan
from isonomy.common.regulator_half import RegulatorHalf
from isonomy.common.session import Session, Ticket, Timing, serve_queries
from isonomy.regulator.config import RegulatorConfig
from isonomy.regulator.vault import load_table, member_key, open_ledger


class Daemon:
    """Holds the ledger while the block lasts."""

    def __init__(self, config: RegulatorConfig) -> None:
        self._config = config
        self._keys = PartyKeys.load(config.keys_folder)
        if (self._keys.name, self._keys.role) != (config.name, "regulator"):
            raise ConfigError(f"the keys in {config.keys_folder} are not those of {config.name}")
        self._member_key = member_key(config)
        self._approvals = Approvals(config.plans_folder)
        self._ledger = open_ledger(config)
        self._halves: dict[bytes, RegulatorHalf] = {}
        self._lock = threading.Lock()
        self._log = logger("regulator")
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
        self._config.socket.parent.mkdir(parents=True, exist_ok=True)
        stopped = threading.Event()

        def stop(number: int, frame: FrameType | None) -> None:
            stopped.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
        self.reserve_all()
        bridge = BridgeServer(
            self._config.socket,
            self._handle,
            callers=self._config.bridge_callers,
            on_error=self._note,
        )
        with bridge:
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

    # --- What the Flower node asks -------------------------------------------------------------

    def _handle(self, request: Message) -> Message:
        if request.get("type") == "reload":  # from `approve`: harmless, whoever asks
            for plan_hash in self._approvals.hashes():
                self._half(plan_hash)
            return {}
        return self._attendance.handle(request)

    def _open(self, ticket: Ticket) -> Session:
        plan, _ = self._approvals.require(ticket.plan_hash)
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

    def _attend(self, session: Session) -> Message:
        answered: set[str] = set()  # several companies get the answer to one query

        def count(kind: str, query_id: str) -> None:
            if kind == "answer":
                answered.add(query_id)
            self._log.info(kind, query=query_id)

        half = self._half(session.plan.hash)
        with session:
            self._log.info("session began", plan=session.plan.hash.hex()[:16])
            if isinstance(half, JointHalf):
                serve_joint(session, half, on_event=count)
            else:
                serve_queries(session, half, on_event=count)
        self._log.info("session ended", answered=len(answered))
        return {"answered": len(answered), "reconnects": max(session.reconnects, 0)}

    def _half(self, plan_hash: bytes) -> RegulatorHalf:
        """Return what answers for a plan; made once, so that open keys outlive a session."""
        with self._lock:
            if plan_hash not in self._halves:
                plan, cohort = self._approvals.require(plan_hash)
                table = load_table(self._config, plan, cohort)
                custodian = Custodian(
                    table, self._ledger, plan=plan_hash, member_key=self._member_key
                )
                custodian.reserve(plan.cap_units, individual=plan.individual_filter)
                self._halves[plan_hash] = self._new_half(plan, custodian)
            return self._halves[plan_hash]

    def _new_half(self, plan: Plan, custodian: Custodian) -> RegulatorHalf:
        if len(plan.companies) == 1:
            return RegulatorHalf(custodian, self._keys.identity)
        store = JointStore(self._config.state_folder / plan.hash.hex() / "joint")
        return JointHalf(custodian, self._keys.identity, plan, store)

    def _note(self, error: Exception) -> None:
        """Log an error: ours with its text, a foreign one with its type only."""
        with contextlib.suppress(OSError):
            text = str(error) if isinstance(error, IsonomyError) else type(error).__name__
            self._log.error("refused", code=code_of(error), reason=text)
