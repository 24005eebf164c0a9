"""Progress in one line of a terminal; elsewhere one line per stage."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.markup import escape

from isonomy.company.fair.tilt.releases import AUDITS

# counts, moments, the strategy's audits (fewer if the model is fair already), two for the report
EXPECTED_EXCHANGES = 2 + AUDITS + 2

# Stage → seconds on two idle cores. Only the proportions matter, for the time that is left.
STAGES = {
    "making keys, certificates, data and plan": 5.0,
    "starting the server and the parties": 4.0,
    "opening the session": 4.0,
    "training": 6.0,
    "ending the run": 5.0,
    "writing the report": 6.0,
}


class Display:
    """What is going on: stage, round, ε spent, violation, bytes, time left."""

    def __init__(self, console: Console, epsilon_cap: str) -> None:
        self._console, self._cap = console, epsilon_cap
        self._status = console.status("")
        self._began = time.monotonic()
        self._stage, self._round, self._purpose = "", 0, ""
        self._epsilon, self._bytes = 0.0, 0
        self._violation: float | None = None

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._status.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._status.stop()

    def stage(self, name: str) -> None:
        """Show the next stage."""
        self._stage = name
        if not self._console.is_terminal:
            self._console.print(f"{self._elapsed:6.1f} s  {name}", highlight=False)
        self.tick()

    def event(self, event: dict[str, Any]) -> None:
        """Show an event of the company's script."""
        if event["event"] == "session":
            self.stage("training")
        if event["event"] == "exchange":
            self._round, self._purpose = int(event["number"]), str(event["purpose"])
            self._epsilon, self._bytes = float(event["epsilon"]), self._bytes + int(event["bytes"])
        if event["event"] == "trained":
            self._violation = float(event["violation"])
        self.tick()

    def tick(self) -> None:
        """Draw."""
        if self._console.is_terminal:
            self._status.update(escape(self._line()))

    @property
    def _elapsed(self) -> float:
        return time.monotonic() - self._began

    def _remaining(self) -> float:
        names = list(STAGES)
        done = sum(STAGES[n] for n in names[: names.index(self._stage)]) if self._stage else 0.0
        rest = sum(STAGES.values()) - done
        if self._stage == "training":
            rest -= STAGES["training"] * min(1.0, self._round / EXPECTED_EXCHANGES)
        return rest * max(1.0, self._elapsed / max(done, 1.0)) if done else rest

    def _line(self) -> str:
        parts = [self._stage]
        if self._round:
            parts += [
                f"round {self._round} of at most {EXPECTED_EXCHANGES} ({self._purpose})",
                f"ε spent {self._epsilon:.3f} of {self._cap}, {self._bytes / 1e6:.1f} MB",
            ]
        if self._violation is not None:
            parts.append(f"violation about {self._violation:.3f}")
        parts.append(f"{self._elapsed:.0f} s, about {self._remaining():.0f} s left")
        return " · ".join(parts)
