"""What a run waits for: one line per party, since when and why, for the operator's eyes.

Everything here is known to the server anyway: names of the plan, who is connected, the numbers
with which nodes replied. A number's fixed line is all that is told about a party's trouble.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from isonomy.common.agreements.agreement import PlanPublic
from isonomy.common.node.bridge import Message

State = Literal["no node", "ready", "awaited", "connected", "ended"]  # ready: has a node


@dataclass
class _Line:
    role: str
    state: State = "no node"
    why: str = ""
    since: int = field(default_factory=lambda: int(time.time()))


class Overview:
    """Where each party of one run stands. The run writes here, the operator's desk reads."""

    def __init__(self, plan: PlanPublic) -> None:
        self.began = int(time.time())
        self._plan, self._lock = plan, threading.Lock()
        roles = [(card.name, "company") for card in plan.companies]
        roles.append((plan.regulator.name, "regulator"))
        self._lines = {name: _Line(role) for name, role in roles}
        self._passed = (0, 0)

    def note(self, name: str, state: State, why: str = "") -> None:
        """Say how a party stands; the clock starts anew when that changes."""
        with self._lock:
            line = self._lines[name]
            if line.state != state:
                line.state, line.since = state, int(time.time())
            line.why = why

    def count(self, messages: int, size: int) -> None:
        """Say how many messages and bytes have passed."""
        with self._lock:
            self._passed = messages, size

    def row(self) -> Message:
        """Return the run as `status` shows it."""
        with self._lock:
            messages, size = self._passed
            return {
                "plan": self._plan.hash.hex(),
                "since": self.began,
                "messages": messages,
                "bytes": size,
                "parties": [{"name": name, **vars(line)} for name, line in self._lines.items()],
            }


def awaited(parties: Iterable[dict[str, object]]) -> tuple[str, int]:
    """Return whom a run waits for, and since when; empty if everybody is there or has ended."""
    missing = [party for party in parties if party["state"] in ("no node", "awaited")]
    lines = [f"{party['name']} ({party['why']})" for party in missing]
    return ", ".join(lines), min((int(str(party["since"])) for party in missing), default=0)
