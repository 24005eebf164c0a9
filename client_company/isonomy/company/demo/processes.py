"""Real processes, started together and taken down together.

Each runs in a process group of its own, so that Ctrl-C in the terminal reaches the demonstration
only, which then ends them in order; Flower starts helpers of its own, and a group's signal reaches
those too.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from isonomy.common.base.errors import TransportError

STOP_S = 8.0
POLL_S = 0.05


class ProcessEnded(TransportError):  # noqa: N818  (reads as the event it is)
    """A process that the demonstration needs ended early, or did not get ready."""


@dataclass
class Running:
    """A started process and its log."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def says(self, text: str) -> bool:
        return text in self.log.read_text(errors="replace")

    def last_json(self) -> dict[str, Any]:
        """The last line of the log that is a JSON object; an empty one if there is none."""
        lines = [line for line in self.log.read_text().splitlines() if line.startswith("{")]
        return dict(json.loads(lines[-1])) if lines else {}


def program(name: str) -> str:
    """Path of one of our programs: the one installed beside this interpreter."""
    return str(Path(sys.executable).with_name(name))


class Processes:
    """A set of processes with their logs; leaving the block ends them all."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._running: list[Running] = []
        logs.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with _deaf_to_interrupts():
            self.stop()

    def start(
        self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> Running:
        """Start a process; its output goes to LOGS/name.log."""
        log = self._logs / f"{name}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [program(command[0]), *command[1:]],
                env=dict(environment or os.environ),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        running = Running(name, process, log)
        self._running.append(running)
        return running

    def finish(self, running: Running, timeout_s: float = 60.0) -> None:
        """Wait for a process that is meant to end, and to end well."""
        self.until(lambda: running.process.poll() is not None, f"{running.name} to end", timeout_s)
        if running.process.returncode != 0:
            raise self._failure(running)
        self._running.remove(running)

    def run(self, name: str, command: Sequence[str], timeout_s: float = 60.0) -> Running:
        """Start a process, wait for it to end well, and return it with its log."""
        running = self.start(name, command)
        self.finish(running, timeout_s)
        return running

    def until(
        self, ready: Callable[[], bool], what: str, timeout_s: float, *, idle: float = POLL_S
    ) -> None:
        """Wait for something, as long as every process lives."""
        deadline = time.monotonic() + timeout_s
        while not ready():
            self.check()
            if time.monotonic() > deadline:
                raise ProcessEnded(f"waited {timeout_s:.0f} s for {what}; the logs: {self._logs}")
            time.sleep(idle)

    def check(self) -> None:
        """Raise if a process ended with an error."""
        for running in self._running:
            if running.process.poll() not in (None, 0):
                raise self._failure(running)

    def end(self, running: Running) -> None:
        """End one process."""
        _signal(running, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            running.process.wait(STOP_S)
        _signal(running, signal.SIGKILL)
        running.process.wait()
        self._running.remove(running)

    def stop(self) -> None:
        """End every process, the last one first: politely, then for good."""
        for running in reversed(self._running):
            _signal(running, signal.SIGTERM)
        deadline = time.monotonic() + STOP_S
        for running in reversed(self._running):
            with contextlib.suppress(subprocess.TimeoutExpired):
                running.process.wait(max(0.0, deadline - time.monotonic()))
        # Also where the process itself has ended: its group may still have members.
        for running in self._running:
            _signal(running, signal.SIGKILL)  # the group: also helpers that outlived it
            running.process.wait()
        self._running.clear()

    def _failure(self, running: Running) -> ProcessEnded:
        lines = running.log.read_text(errors="replace").strip().splitlines()
        last = next((line for line in reversed(lines) if line.strip()), "nothing")
        return ProcessEnded(
            f"{running.name} ended with code {running.process.returncode}; its last line: "
            f"{last[:300]!r}. All logs: {self._logs}"
        )


def _signal(running: Running, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(running.process.pid, number)


@contextlib.contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    """A second Ctrl-C must not leave processes behind."""
    old = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, old)
