"""Logs: one JSON object per line, for people with `jq` and for machines.

They go to stderr, or to a file that is rotated by size: FILE, FILE.1 … FILE.n, the oldest dropped.
Only events and counts go in: no ids, attributes, rows, sums, keys, tickets or tokens. Still, the
files are for their owner's eyes only.

A daemon logs what it does (info and above). A library, as the company's `join`, logs warnings only.
`-v` on any command makes both log everything, each frame included.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
from pathlib import Path
from typing import Any

import structlog

from isonomy.common.base.errors import ConfigError
from isonomy.common.base.private_files import open_file

MAX_BYTES, BACKUPS = 10_000_000, 5


class RotatingFile:
    """A text file that starts again when it is full. A line is never cut in two."""

    def __init__(self, path: Path, *, max_bytes: int = MAX_BYTES, backups: int = BACKUPS) -> None:
        self._path, self._max_bytes, self._backups = path, max_bytes, backups
        self._mutex = threading.Lock()
        self._fd = self._open()

    def write(self, text: str) -> int:
        """Append; rotate first if the text would not fit."""
        raw = text.encode("utf-8", "replace")
        with self._mutex, contextlib.suppress(OSError):  # a full disk must not stop the answers
            size = os.fstat(self._fd).st_size
            if size and size + len(raw) > self._max_bytes:
                self._rotate()
            os.write(self._fd, raw)
        return len(text)

    def flush(self) -> None:
        """Nothing is held back."""

    def _rotate(self) -> None:
        os.close(self._fd)
        for number in range(self._backups, 0, -1):
            older = self._numbered(number)
            newer = self._numbered(number - 1) if number > 1 else self._path
            if newer.exists():
                newer.replace(older)
        self._fd = self._open()

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")

    def _open(self) -> int:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            return open_file(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        except OSError as error:
            raise ConfigError(f"cannot write the log {self._path}: {error.strerror}") from None


_verbose = threading.Event()


def be_verbose() -> None:
    """Log everything, in every logger that this process makes from now on."""
    _verbose.set()


def is_verbose() -> bool:
    """Say whether this process logs everything, so that its children can do the same."""
    return _verbose.is_set()


def logger(role: str, file: RotatingFile | None = None, *, least: str = "info") -> Any:
    """Return a logger whose lines carry time, level and role; events below `least` are dropped."""
    return structlog.wrap_logger(
        structlog.WriteLogger(file=file or sys.stderr),  # type: ignore[arg-type]
        wrapper_class=structlog.make_filtering_bound_logger("debug" if is_verbose() else least),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
    ).bind(role=role)


class _Library(logging.Handler):
    """Takes the lines of a library into our log."""

    def __init__(self, log: Any) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        write = self._log.debug if record.levelno < logging.WARNING else self._log.warning
        with contextlib.suppress(OSError):
            write("library", library=record.name.partition(".")[0], text=record.getMessage())


def take_in(library: str, log: Any) -> None:
    """Have what a library logs written as ours is; below a warning with `-v` only."""
    source = logging.getLogger(library)
    source.handlers, source.propagate = [_Library(log)], False
    source.setLevel(logging.DEBUG if is_verbose() else logging.WARNING)
