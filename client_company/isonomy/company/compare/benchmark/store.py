"""Finished cells on disk: `results.jsonl`, one line per cell, written whole or not at all.

A line is appended with one write and fsynced before the next cell counts as finished. A run that
was killed can leave half a line at the end: it is cut off when the file is opened again, and that
cell is run again. Any other damage is refused with the line's number, because to drop results in
silence would be worse.

A cell that failed leaves a line too (`status` "failed", with the reason), but does not count as
finished: the next run tries it again. Of several lines with one key the last one counts.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from isonomy.common.base.errors import ConfigError, StorageError
from isonomy.common.base.private_files import open_file

FILE = "results.jsonl"
_FIELDS = ("key", "status", "cell")


class Store:
    """The results of one folder. A lock keeps a second run out of it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        try:
            folder.mkdir(parents=True, exist_ok=True)
            descriptor = open_file(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            self._file = os.fdopen(descriptor, "ab", buffering=0)
        except OSError as error:
            raise StorageError(f"{self.path} cannot be opened: {error.strerror}") from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._records = _by_key(self.path)
            # Half a line at the end: a run was killed in the middle of it.
            self._file.truncate(self.path.read_bytes().rfind(b"\n") + 1)
        except BaseException as error:
            self._file.close()
            if isinstance(error, BlockingIOError):
                raise ConfigError(
                    f"another benchmark is writing to {folder}; wait for it, or name another --out"
                ) from None
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def finished(self, key: str) -> bool:
        return self._records.get(key, {}).get("status") == "ok"

    def add(self, record: Mapping[str, Any]) -> None:
        """Append and fsync; raises StorageError and leaves no half line behind."""
        # One write of a whole line: a kill leaves it out or cuts it, and never mixes two lines.
        line = json.dumps(record, ensure_ascii=False, allow_nan=False).encode() + b"\n"
        size = os.fstat(self._file.fileno()).st_size
        try:
            if self._file.write(line) != len(line):
                raise OSError(0, "the disk took only a part of the line")
            os.fsync(self._file)
        except OSError as error:
            self._file.truncate(size)
            raise StorageError(f"{self.path} could not be written: {error.strerror}") from None
        self._records[str(record["key"])] = dict(record)


def read_records(folder: Path, made_by: str = "isonomy benchmark") -> list[dict[str, Any]]:
    """Results without locking or mending anything: for figures beside a run that goes on."""
    path = folder / FILE
    if not path.is_file():
        raise ConfigError(f"{path} does not exist; run `{made_by} --out {folder}` first")
    return list(_by_key(path).values())


def _by_key(path: Path) -> dict[str, dict[str, Any]]:
    """Whole lines by key; raises ConfigError with the number of a line that is none of ours."""
    content = path.read_bytes()
    records: dict[str, dict[str, Any]] = {}
    for number, line in enumerate(content[: content.rfind(b"\n") + 1].splitlines(), start=1):
        try:
            record = json.loads(line)
            if not all(name in record for name in _FIELDS):
                raise ValueError
        except (ValueError, TypeError):
            raise ConfigError(
                f"line {number} of {path} is not a benchmark result; delete the line (its cell is "
                "then run again) or name another --out"
            ) from None
        records[str(record["key"])] = record
    return records
