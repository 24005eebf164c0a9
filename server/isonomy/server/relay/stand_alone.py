"""A relay without Flower: started by hand, tickets as files."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from types import FrameType

from isonomy.common.agreements.agreement import PlanPublic
from isonomy.common.base.logs import logger
from isonomy.common.base.metrics import served
from isonomy.common.base.private_files import private_folder, write_private
from isonomy.common.session.tickets import Ticket
from isonomy.server.config import ServerConfig
from isonomy.server.relay.metrics import RelayMetrics
from isonomy.server.relay.relay import RelayServer


def serve(config: ServerConfig, plan: PlanPublic, tickets: Path, metrics_port: int = 0) -> None:
    """Write one ticket per party and relay until SIGTERM or SIGINT."""
    stopped = threading.Event()

    def stop(number: int, frame: FrameType | None) -> None:
        stopped.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    log, metrics, ready = logger("server"), RelayMetrics(), threading.Event()
    endpoint = served(metrics_port, metrics.registry, ready.is_set)
    with endpoint, RelayServer.of(config, plan, log, metrics=metrics) as relay:
        private_folder(tickets)
        for card in plan.companies:
            _write_ticket(tickets, relay.issue_ticket("company", card.name))
        _write_ticket(tickets, relay.issue_ticket("regulator", plan.regulator.name))
        ready.set()
        log.info("ready", port=relay.port)
        stopped.wait()


def _write_ticket(folder: Path, ticket: Ticket) -> None:
    write_private(folder / f"{ticket.party}.ticket", ticket.to_json())
