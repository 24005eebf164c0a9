"""A relay without Flower: started by hand, tickets as files."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from types import FrameType

from isonomy.common.agreements.agreement import PlanPublic
from isonomy.common.base.logs import logger
from isonomy.common.keys.identity import Identity
from isonomy.common.node.node import free_port
from isonomy.server.config import ServerConfig
from isonomy.server.relay.relay import RelayServer


def serve(config: ServerConfig, plan: PlanPublic, tickets: Path) -> None:
    """Write one ticket per party and relay until SIGTERM or SIGINT."""
    stopped = threading.Event()

    def stop(number: int, frame: FrameType | None) -> None:
        stopped.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    port = config.relay.port or free_port(config.relay.host)
    relay = RelayServer(
        f"{config.relay.host}:{port}",
        config.tls,
        plan,
        Identity.load(config.token_key),
        config.state_folder(plan),
        advertise=f"{config.relay.advertise}:{port}",
    )
    with relay:
        tickets.mkdir(parents=True, exist_ok=True, mode=0o700)
        for card in plan.companies:
            _write(tickets, card.name, relay.issue_ticket("company", card.name).to_json())
        name = plan.regulator.name
        _write(tickets, name, relay.issue_ticket("regulator", name).to_json())
        logger("server").info("ready", port=port)
        stopped.wait()


def _write(folder: Path, party: str, ticket: bytes) -> None:
    partial = folder / f"{party}.partial"
    partial.unlink(missing_ok=True)
    fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)  # who has it can come in
    with os.fdopen(fd, "wb") as file:
        file.write(ticket)
    partial.replace(folder / f"{party}.ticket")
