"""Progress in one line of a terminal; elsewhere one line per stage."""

from __future__ import annotations

import time
from typing import Any, Self

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from isonomy.company.fair.tilt.releases import AUDITS

# counts, moments, the strategy's audits (fewer if the model is fair already), two for the report
EXPECTED_EXCHANGES = 2 + AUDITS + 2


class Display:
    """What is going on: stage, round, ε spent, bytes, violation, seconds."""

    def __init__(self, console: Console, epsilon_cap: str) -> None:
        text = TextColumn("{task.description}", markup=False)
        columns = (SpinnerColumn(), text, TimeElapsedColumn())
        live = console.is_terminal
        self._bar = Progress(*columns, console=console, transient=True, disable=not live)
        self._task = self._bar.add_task("starting", total=None)
        self._console, self._cap, self._began = console, epsilon_cap, time.monotonic()
        self._stage, self._round, self._violation, self._bytes = "", "", "", 0
        self._starts: list[tuple[str, float]] = []  # stages, and when each began

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def stage(self, name: str) -> None:
        """Show the next stage."""
        self._stage = name
        self._starts.append((name, time.monotonic()))
        if not self._console.is_terminal:
            elapsed = time.monotonic() - self._began
            self._console.print(f"{elapsed:6.1f} s  {name}", highlight=False)
        self._draw()

    def seconds(self) -> dict[str, float]:
        """Return how long each stage took that has ended."""
        pairs = zip(self._starts, self._starts[1:], strict=False)
        return {name: round(end - start, 3) for (name, start), (_, end) in pairs}

    def event(self, event: dict[str, Any]) -> None:
        """Show an event of the company's script."""
        if event["event"] == "session":
            self.stage("training")
        if event["event"] == "exchange":
            self._bytes += int(event["bytes"])
            self._round = (
                f"round {event['number']} of at most {EXPECTED_EXCHANGES} ({event['purpose']}) · "
                f"ε spent {event['epsilon']:.3f} of {self._cap}, {self._bytes / 1e6:.1f} MB"
            )
        if event["event"] == "trained" and event["violation"] is not None:
            self._violation = f"violation about {event['violation']:.3f}"
        self._draw()

    def _draw(self) -> None:
        parts = (self._stage, self._round, self._violation)
        self._bar.update(self._task, description=" · ".join(filter(None, parts)))
