"""The regulator's daemon: attributes, keys and ledger in one long-lived process.

| part | what it does |
|---|---|
| plan_desks, few_shot | what answers for each plan |
| sessions | opens and serves what the Flower node's tickets ask for |
| officer_requests | what the officer's commands need the ledger for |
| witness | writes down how far the ledger is |

It listens on two local sockets. The Flower node brings tickets to the first one. The second one is
for the daemon's own user, whose commands reach the ledger through it (officer.py).
"""

from __future__ import annotations

import contextlib
import signal
import threading
from types import FrameType
from typing import Self

from isonomy.common.base.errors import ConfigError, IsonomyError
from isonomy.common.base.exit_codes import code_of
from isonomy.common.base.logs import RotatingFile, logger
from isonomy.common.keys.party import PartyKeys
from isonomy.common.node.attendance import Attendance
from isonomy.common.node.bridge import Message
from isonomy.common.node.bridge_server import BridgeServer, Callers
from isonomy.regulator.config.config import RegulatorConfig
from isonomy.regulator.plans.plan_files import few_shot_approvals
from isonomy.regulator.serving.few_shot import FewShotDesks
from isonomy.regulator.serving.officer_requests import OfficerRequests
from isonomy.regulator.serving.plan_desks import PlanDesks
from isonomy.regulator.serving.sessions import Sessions
from isonomy.regulator.serving.witness import WitnessWriter, open_ledger
from isonomy.regulator.vault.vault import Vault


class Daemon:
    """Holds the ledger while the block lasts."""

    def __init__(
        self, config: RegulatorConfig, vault: Vault | None = None, *, least: str = "info"
    ) -> None:
        """Take the ledger. Without the vault it can close plans and take notes, not answer.

        `least` is the lowest level that is logged.
        """
        self._config, self._log = config, logger("regulator", _log_file(config), least=least)
        keys = PartyKeys.load(config.keys_folder)
        if (keys.name, keys.role) != (config.name, "regulator"):
            raise ConfigError(f"the keys in {config.keys_folder} are not those of {config.name}")
        self._ledger = open_ledger(config)
        self._witness = WitnessWriter(config, self._ledger, keys.identity, self._note)
        self.plans = PlanDesks(config, keys, self._ledger, vault, self._log)
        few_shot = FewShotDesks(config, self._ledger, vault)
        sessions = Sessions(config, keys, self.plans, few_shot, self._witness, self._log)
        self._attendance = Attendance(sessions.open, sessions.serve)
        self._officer = OfficerRequests(
            config, self._ledger, self.plans, few_shot, sessions.board, self._witness, self._log
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._ledger.close()

    def serve(self) -> None:
        """Listen until SIGTERM or SIGINT."""
        self._config.tls.read()  # a fault in them shows now, not in a session
        self._ledger.check_clock()
        self._config.socket.parent.mkdir(parents=True, exist_ok=True)
        stopped = threading.Event()

        def stop(number: int, frame: FrameType | None) -> None:
            stopped.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
        self.reserve_all()
        self._witness.write()
        bridge = BridgeServer(
            self._config.socket,
            self.node,
            callers=Callers(self._config.group),
            on_error=self._note,
        )
        # For this very user only: Callers() names nobody else, whatever groups the file has.
        officer = BridgeServer(self._config.officer_socket, self.officer, on_error=self._note)
        with officer, bridge:
            self._log.info("ready", socket=str(self._config.socket))
            stopped.wait()
        self._log.info("stopped")

    def reserve_all(self) -> None:
        """Set the budget of every approved plan aside. A plan that cannot have it is logged."""
        reserved = {plan.plan for plan in self._ledger.plans()}
        # A few-shot plan that has its budget needs its tasks and torch only in a session.
        training = [
            plan for plan in few_shot_approvals(self._config).hashes() if plan not in reserved
        ]
        for plan_hash in (*self.plans.approvals.hashes(), *training):
            try:
                self._officer.reserve(plan_hash)
            except IsonomyError as error:
                self._note(error)

    def officer(self, request: Message) -> Message:
        """Do what one of the officer's commands needs the ledger for."""
        return self._officer.handle(request)

    def node(self, request: Message) -> Message:
        """Attend the session of a ticket that the Flower node brings."""
        return self._attendance.handle(request)

    def _note(self, error: Exception) -> None:
        """Log an error: ours with its text, a foreign one with its type only."""
        with contextlib.suppress(OSError):
            text = str(error) if isinstance(error, IsonomyError) else type(error).__name__
            self._log.error("refused", code=code_of(error), reason=text)


def _log_file(config: RegulatorConfig) -> RotatingFile | None:
    log = config.log
    if log.file is None:
        return None
    return RotatingFile(config.home / log.file, max_bytes=log.max_bytes, kept=log.kept)
