"""`isonomy-server serve`: the door, Flower behind it, and the desk for the operator's commands.

The desk is a local socket that only this process's user can open. No interface of Flower but the
door is served anywhere, and no code but what is installed here runs: a run is a plan that the
operator stored, conducted by this package.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
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


class Desk:
    """Does what the operator's commands ask for. A run goes on if its command is killed."""

    def __init__(self, config: ServerConfig, link: SuperLink, log: Any) -> None:
        self._config, self._link, self._log = config, link, log
        self._stops: dict[str, threading.Event] = {}  # by plan, of the runs that are on
        self._lock = threading.Lock()

    def handle(self, request: Message) -> Message:
        """Answer one request, in a thread of its own."""
        match request:
            case {"type": "run", "plan": str(plan_hash)}:
                self._run(self._config.plan(plan_hash))
                return {}
            case {"type": "stop", "plan": str(plan_hash)} if plan_hash in self._stops:
                self._stops[plan_hash].set()
                return {}
            case {"type": "measure", "legs": int(legs), "bytes": int(size)}:
                seconds = self._link.run(partial(send_and_time, legs=legs, size=size))
                return {"leg_us": round(1e6 * seconds)}
        raise ProtocolError("the server's desk does not know this request")

    def _run(self, plan: PlanPublic) -> None:
        name, stop = plan.hash.hex(), threading.Event()
        with self._lock:
            if name in self._stops:
                raise ConfigError("this plan is running already; `isonomy-server stop` ends it")
            self._stops[name] = stop
        try:
            work = partial(conduct, config=self._config, plan=plan, stop=stop, log=self._log)
            self._link.run(work)
        finally:
            del self._stops[name]


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

    def failed(error: Exception) -> None:
        typed = isinstance(error, IsonomyError)
        log.warning("command failed", reason=str(error), exc_info=not typed)

    server = DoorServer(door, config, lambda: log.info("ready", port=config.door.port))
    with BridgeServer(config.socket, desk.handle, on_error=failed), suppress(KeyboardInterrupt):
        server.run()
    # As after a kill: no party hears that its session ended, so it comes back to the next process.
    os._exit(0 if server.started else 1)
