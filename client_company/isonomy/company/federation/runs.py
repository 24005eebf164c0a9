"""What this company's processes did and do: one small file for each, in the home's `runs/`.

A run is a process that joined, or tried to: a training, an audit, an alignment, a few-shot run. Its
file says how far it is and what it waits for. `isonomy-company status` and `runs` read it; no row,
id or answer is in it. A process that was killed leaves a file without an end.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from isonomy.common.base.errors import StorageError
from isonomy.common.base.exit_codes import code_of
from isonomy.common.base.private_files import private_folder, write_private

KEPT = 200  # older files go
WRITE_EVERY_S = 1.0


@dataclass(frozen=True)
class Run:
    """One run, as its file has it. Moments are Unix seconds."""

    plan: str
    name: str
    word: str  # plan, alignment, few-shot plan
    pid: int
    started: str  # when the process was, for the kernel: a number may be used again
    began: int
    stage: str = "waiting"
    since: int = 0  # of this stage
    waits_for: str = ""
    exchanges: int = 0
    bytes: int = 0
    megabits: float = 0.0  # a second, to the relay; 0 if nothing large was sent
    ended: int = 0
    code: int = 0
    reason: str = ""

    @property
    def is_alive(self) -> bool:
        return not self.ended and _started(self.pid) == self.started

    @property
    def state(self) -> str:
        if self.is_alive:
            return self.stage
        if not self.ended:
            return "killed"
        return "failed" if self.code else "done"


@dataclass
class RunFile:
    """The file of the run that this process is."""

    path: Path
    run: Run
    _written: float = field(default=0.0, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @classmethod
    def begin(cls, folder: Path, plan: str, name: str, word: str) -> RunFile:
        """Begin a run; the oldest files go."""
        private_folder(folder)
        for path in sorted(folder.glob("*.json"))[: 1 - KEPT]:
            path.unlink(missing_ok=True)
        pid, moment = os.getpid(), time.time_ns()
        now = moment // 10**9
        run = Run(plan, name, word, pid, _started(pid), began=now, since=now)
        file = cls(folder / f"{moment}-{pid}.json", run)
        file._write()
        return file

    def note(
        self,
        stage: str,
        waits_for: str = "",
        *,
        exchanges: int,
        size: int,
        megabits: float = 0.0,
    ) -> None:
        """Say how far it is. Written when the stage changes, and now and then."""
        far = {"exchanges": exchanges, "bytes": size, "megabits": round(megabits, 1)}
        with self._lock:
            self._note(stage, waits_for, far)

    def _note(self, stage: str, waits_for: str, far: dict[str, Any]) -> None:
        old = self.run
        is_new = (stage, waits_for) != (old.stage, old.waits_for)
        since = int(time.time()) if is_new else old.since
        self.run = replace(old, stage=stage, since=since, waits_for=waits_for, **far)
        if is_new or time.monotonic() - self._written > WRITE_EVERY_S:
            self._write()

    def end(self, error: Exception | None) -> None:
        """Say how it ended. An error's text is this company's own business, and stays here."""
        code, reason = (code_of(error), str(error)) if error else (0, "")
        with self._lock:
            self.run = replace(self.run, ended=int(time.time()), code=code, reason=reason)
            self._write()

    def _write(self) -> None:
        self._written = time.monotonic()
        with suppress(StorageError):  # a full disk must not stop the session
            write_private(self.path, json.dumps(asdict(self.run)).encode(), sync=False)


def read_runs(folder: Path) -> list[Run]:
    """Return all runs, the newest first. Files that cannot be read are left out."""
    return list(_readable(folder))


def measured_link(folder: Path) -> tuple[float | None, str]:
    """Return the Mbit/s to the relay in the newest run that showed them, and where that is from."""
    for run in read_runs(folder):
        if run.megabits > 0:
            day = datetime.fromtimestamp(run.began, UTC).date()
            return run.megabits, f"measured in this company's session of {day}"
    return None, ""


def _readable(folder: Path) -> Iterator[Run]:
    for path in sorted(folder.glob("*.json"), reverse=True):
        with suppress(OSError, ValueError, TypeError):
            yield Run(**json.loads(path.read_text()))


def _started(pid: int) -> str:
    """Return when a process was started, in the kernel's ticks; "" if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""
