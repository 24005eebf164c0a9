"""`isonomy-server serve`: the door, Flower behind it, and the desk for the operator's commands.

The desk is a local socket that only this process's user can open. No interface of Flower but the
door is served anywhere, and no code but what is installed here runs: a run is a plan that the
operator stored, conducted by this package.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from isonomy.common.agreements.agreement import PlanPublic
from isonomy.common.base.errors import ConfigError, IsonomyError, ProtocolError
from isonomy.common.base.logs import logger, take_in
from isonomy.common.base.metrics import served
from isonomy.common.node.bridge import Message
from isonomy.common.node.bridge_server import BridgeServer
from isonomy.common.node.node import check_port
from isonomy.server.config import ServerConfig
from isonomy.server.flower._door import Door, DoorServer
from isonomy.server.flower.measure import send_and_time
from isonomy.server.flower.metrics import ServerMetrics
from isonomy.server.flower.overview import Overview
from isonomy.server.flower.server_app import conduct
from isonomy.server.flower.superlink import SuperLink
from isonomy.server.relay.connections import reserve_descriptors


@dataclass(frozen=True)
class _Run:
    """A run that is on: the switch that stops it, and where its parties stand."""

    overview: Overview
    stop: threading.Event = field(default_factory=threading.Event)


class Desk:
    """Does what the operator's commands ask for. A run ends with the command that started it."""

    def __init__(
        self, config: ServerConfig, link: SuperLink, metrics: ServerMetrics, log: Any
    ) -> None:
        self._config, self._link, self._log = config, link, log
        self._metrics = metrics
        metrics.nodes.set_function(lambda: len(link.online()))
        metrics.sessions.set_function(lambda: len(self._runs))
        self._since = int(time.time())
        self._runs: dict[str, _Run] = {}  # by plan
        self._lock = threading.Lock()

    def handle(self, request: Message) -> Message:
        """Answer one request, in a thread of its own."""
        match request:
            case {"type": "run", "plan": str(plan_hash)}:
                self._run(self._config.plan(plan_hash))
                return {}
            case {"type": "stop", "plan": str(plan_hash)}:
                self._find(plan_hash).stop.set()
                return {}
            case {"type": "status"}:
                return self.status()
            case {"type": "measure", "legs": int(legs), "bytes": int(size)}:
                seconds = self._link.run(partial(send_and_time, legs=legs, size=size))
                return {"leg_us": round(1e6 * seconds)}
        raise ProtocolError("the server's desk does not know this request")

    def status(self) -> Message:
        """Return what runs, and who is connected."""
        with self._lock:
            sessions: list[object] = [run.overview.row() for run in self._runs.values()]
        nodes: list[object] = [*self._link.online()]
        facts: Message = {"pid": os.getpid(), "since": self._since, "port": self._config.door.port}
        return {**facts, "nodes": nodes, "sessions": sessions}

    def _find(self, plan_hash: str) -> _Run:
        with self._lock:
            run = self._runs.get(plan_hash)
        if run is None:
            raise ConfigError("no session of this plan is on; `isonomy-server list` shows them all")
        return run

    def _run(self, plan: PlanPublic) -> None:
        name, run = plan.hash.hex(), _Run(Overview(plan))
        with self._lock:
            if name in self._runs:
                raise ConfigError("this plan is running already; `isonomy-server stop` ends it")
            self._runs[name] = run
        try:
            facts = {"stop": run.stop, "overview": run.overview, "log": self._log}
            facts |= {"config": self._config, "metrics": self._metrics}
            with self._metrics.session():
                self._link.run(partial(conduct, plan=plan, **facts))
        finally:
            with self._lock:
                del self._runs[name]


def serve(config: ServerConfig, metrics_port: int = 0) -> None:
    """Serve until SIGTERM or SIGINT. Metrics and health on loopback, if a port is named."""
    os.umask(0o077)
    reserve_descriptors()
    check_port(config.door.host, config.door.port)
    config.tls.read()  # a broken certificate is named here, not in uvicorn's log
    log = logger("server")
    link = SuperLink(log)
    take_in("uvicorn", log)
    metrics = ServerMetrics()
    desk = Desk(config, link, metrics, log)
    config.socket.parent.mkdir(exist_ok=True, mode=0o700)
    door = Door(link.app, config, link.admit, log, metrics.door_refusals.inc)

    def failed(error: Exception) -> None:
        typed = isinstance(error, IsonomyError)
        log.warning("command failed", reason=str(error), exc_info=not typed)

    server = DoorServer(door, config, lambda: log.info("ready", port=config.door.port))
    endpoint = served(metrics_port, metrics.registry, lambda: server.started)
    bridge = BridgeServer(config.socket, desk.handle, on_error=failed)
    with endpoint, bridge, suppress(KeyboardInterrupt):
        server.run()
    # As after a kill: no party hears that its session ended, so it comes back to the next process.
    os._exit(0 if server.started else 1)
