"""What one leg of a Flower message takes, measured inside a ServerApp."""

from __future__ import annotations

import os
import time
from statistics import median
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict

from isonomy.common.base.errors import PartyTimeout
from isonomy.common.node.client_app import PAYLOAD

NODE_S = 120.0


def send_and_time(grid: Any, legs: int, size: int) -> float:
    """Send `size` bytes to a node and back, `legs` / 2 times. Returns seconds of a leg, median."""
    deadline = time.monotonic() + NODE_S
    while not (nodes := list(grid.get_node_ids())):
        if time.monotonic() > deadline:
            raise PartyTimeout("no node came online to measure with")
        time.sleep(0.2)
    times = []
    for _ in range(max(1, legs // 2)):
        record = ConfigRecord({"bytes": os.urandom(size)})
        message = Message(
            content=RecordDict({PAYLOAD: record}), dst_node_id=nodes[0], message_type="query.echo"
        )
        began = time.perf_counter()
        (reply,) = grid.send_and_receive([message])
        times.append((time.perf_counter() - began) / 2)
        if reply.has_error():
            raise PartyTimeout("the node did not send the payload back")
    return median(times)
