"""`isonomy-server serve`: the door, Flower behind it, and the desk for the operator's commands.

The desk is a local socket that only this process's user can open. No interface of Flower but the
door is served anywhere, and no code but what is installed here runs: a run is a plan that the
operator stored, conducted by this package.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from isonomy.common.agreements.agreement import PlanPublic
from isonomy.common.base.errors import ConfigError, IsonomyError, ProtocolError
from isonomy.common.base.logs import logger
from isonomy.common.node.bridge import Message
from isonomy.common.node.bridge_server import BridgeServer
from isonomy.common.node.node import check_port
from isonomy.server.config import ServerConfig
from isonomy.server.flower._door import Door, DoorServer
from isonomy.server.flower.measure import send_and_time
from isonomy.server.flower.server_app import conduct
from isonomy.server.flower.superlink import SuperLink
from isonomy.server.relay.connections import reserve_descriptors

STOP_S = 10.0


@dataclass
class _Run:
    """A run of this process."""

    plan: bytes
    stopped: threading.Event = field(default_factory=threading.Event)
    thread: threading.Thread | None = None
    reason: str = ""


class Desk:
    """Starts runs and answers what becomes of them."""

    def __init__(self, config: ServerConfig, link: SuperLink, log: Any) -> None:
        self._config, self._link, self._log = config, link, log
        self._runs: dict[int, _Run] = {}
        self._lock = threading.Lock()

    def handle(self, request: Message) -> Message:
        """Answer one request of the operator's commands."""
        match request:
            case {"type": "run", "plan": str(plan_hash)}:
                return {"run": str(self._start(self._config.plan(plan_hash)))}
            case {"type": "status", "run": str(run)}:
                known = self._runs.get(int(run))
                return {
                    "status": self._link.status(int(run)),
                    "reason": known.reason if known else "the server was started anew",
                }
            case {"type": "stop", "run": str(run)} if int(run) in self._runs:
                self._runs[int(run)].stopped.set()
                return {}
            case {"type": "measure", "legs": int(legs), "bytes": int(size)}:
                return self._measure(legs, size)
        raise ProtocolError("the server's desk does not know this request")

    def _start(self, plan: PlanPublic) -> int:
        with self._lock:
            if any(run.plan == plan.hash and run.thread is not None for run in self._runs.values()):
                raise ConfigError("this plan is running already; stop that run, or let it end")
            run_id, run = self._link.start(), _Run(plan.hash)
            self._runs[run_id] = run
            run.thread = threading.Thread(target=self._conduct, args=(run_id, run, plan))
        run.thread.start()
        return run_id

    def _conduct(self, run_id: int, run: _Run, plan: PlanPublic) -> None:
        try:
            work = partial(conduct, config=self._config, plan=plan, stopped=run.stopped)
            self._link.run(run_id, partial(work, log=self._log))
        except IsonomyError as error:
            run.reason = str(error)
            self._log.warning("run failed", run=run_id, reason=run.reason)
        except Exception:
            run.reason = "the server failed; its log shows why"
            self._log.error("run failed", run=run_id, exc_info=True)
        finally:
            run.thread = None

    def _measure(self, legs: int, size: int) -> Message:
        seconds = self._link.run(self._link.start(), partial(send_and_time, legs=legs, size=size))
        return {"leg_us": round(1e6 * seconds)}

    def stop(self) -> None:
        """End every run; their state stays, and the same command resumes them."""
        for run in list(self._runs.values()):
            run.stopped.set()
            if run.thread is not None:
                run.thread.join(STOP_S)


def serve(config: ServerConfig) -> None:
    """Serve until SIGTERM or SIGINT."""
    os.umask(0o077)
    reserve_descriptors()
    check_port(config.door.host, config.door.port)
    config.tls.read()  # a broken certificate is named here, not in uvicorn's log
    log = logger("server")
    link = SuperLink()
    desk = Desk(config, link, log)
    config.socket.parent.mkdir(exist_ok=True, mode=0o700)
    door = Door(link.app, config, link.admit, log)
    with BridgeServer(config.socket, desk.handle):
        DoorServer(door, config, lambda: log.info("ready", port=config.door.port)).run()
        desk.stop()
