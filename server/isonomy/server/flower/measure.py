"""What one leg of a Flower message takes, measured inside a ServerApp."""

from __future__ import annotations

import json
import os
import time
from statistics import median
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict

from isonomy.common.base.errors import PartyTimeout
from isonomy.server.config import ServerConfig

RESULT_FILE = "flower-legs.json"
NODE_S = 120.0


def send_and_time(grid: Any, legs: int, size: int) -> None:
    """Send `size` bytes to a node and back, `legs` / 2 times; half a round trip is a leg."""
    deadline = time.monotonic() + NODE_S
    while not (nodes := list(grid.get_node_ids())):
        if time.monotonic() > deadline:
            raise PartyTimeout("no node came online to measure with")
        time.sleep(0.2)
    times = []
    for _ in range(max(1, legs // 2)):
        record = ConfigRecord({"payload": os.urandom(size)})
        message = Message(
            content=RecordDict({"bench": record}), dst_node_id=nodes[0], message_type="query.echo"
        )
        began = time.perf_counter()
        (reply,) = grid.send_and_receive([message])
        times.append((time.perf_counter() - began) / 2)
        if reply.has_error():
            raise PartyTimeout("the node did not send the payload back")
    home = ServerConfig.from_environment().home
    (home / RESULT_FILE).write_text(json.dumps({"leg_ms": 1000 * median(times), "bytes": size}))
