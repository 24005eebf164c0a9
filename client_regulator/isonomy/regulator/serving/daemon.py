"""The regulator's daemon: attributes, keys and ledger in one long-lived process.

| part | what it does |
|---|---|
| plan_desks, few_shot | what answers for each plan |
| sessions | opens and serves what the Flower node's tickets ask for |
| officer_requests | what the officer's commands need the ledger for |
| office | what they share: keys, ledger, vault, log, witness |

It listens on two local sockets. The Flower node brings tickets to the first one. The second one is
for the daemon's own user, whose commands reach the ledger through it (officer.py).
"""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Self

from isonomy.common.base.errors import IsonomyError
from isonomy.common.base.metrics import served
from isonomy.common.node.attendance import Attendance
from isonomy.common.node.bridge import Message
from isonomy.common.node.bridge_server import BridgeServer, Callers
from isonomy.regulator.config.config import RegulatorConfig
from isonomy.regulator.plans.plan_files import few_shot_approvals
from isonomy.regulator.serving._few_shot import FewShotDesks
from isonomy.regulator.serving._office import Office
from isonomy.regulator.serving._officer_requests import OfficerRequests
from isonomy.regulator.serving._plan_desks import PlanDesks
from isonomy.regulator.serving._sessions import Sessions
from isonomy.regulator.vault.vault import Vault


class Daemon:
    """Holds the ledger while the block lasts."""

    def __init__(
        self, config: RegulatorConfig, vault: Vault | None = None, *, least: str = "info"
    ) -> None:
        """Take the ledger. Without the vault it can close plans and take notes, not answer."""
        self._config, self._office = config, Office(config, vault, least=least)
        self.plans, few_shot = PlanDesks(self._office), FewShotDesks(self._office)
        sessions = Sessions(self._office, self.plans, few_shot)
        self._metrics = sessions.metrics
        self._attendance = Attendance(sessions.open, sessions.serve)
        self._officer = OfficerRequests(self._office, self.plans, few_shot, sessions.board)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._office.close()

    def serve(self, metrics_port: int = 0) -> None:
        """Listen until SIGTERM or SIGINT. Metrics and health on loopback, if a port is named."""
        self._config.tls.read()  # a fault in them shows now, not in a session
        self._office.ledger.check_clock()
        self._config.socket.parent.mkdir(parents=True, exist_ok=True)
        stopped = threading.Event()

        def stop(number: int, frame: FrameType | None) -> None:
            stopped.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
        self._office.take_acts()
        self.reserve_all()
        self._office.note_progress()
        bridge = BridgeServer(
            self._config.socket,
            self.node,
            callers=Callers(self._config.group),
            on_error=self._office.note,
        )
        # For this very user only: Callers() names nobody else, whatever groups the file has.
        officer = BridgeServer(
            self._config.officer_socket, self.officer, on_error=self._office.note
        )
        ready = threading.Event()
        with served(metrics_port, self._metrics.registry, ready.is_set), officer, bridge:
            ready.set()
            self._office.log.info("ready", socket=str(self._config.socket))
            stopped.wait()
        self._office.log.info("stopped")

    def reserve_all(self) -> None:
        """Set the budget of every approved plan aside. A plan that cannot have it is logged."""
        reserved = {plan.plan for plan in self._office.ledger.plans()}
        # A few-shot plan that has its budget needs its tasks and torch only in a session.
        training = [
            plan for plan in few_shot_approvals(self._config).hashes() if plan not in reserved
        ]
        for plan_hash in (*self.plans.approvals.hashes(), *training):
            try:
                self._officer.reserve(plan_hash)
            except IsonomyError as error:
                self._office.note(error)

    def officer(self, request: Message) -> Message:
        """Do what one of the officer's commands needs the ledger for."""
        return self._officer.handle(request)

    def node(self, request: Message) -> Message:
        """Attend the session of a ticket that the Flower node brings."""
        return self._attendance.handle(request)
