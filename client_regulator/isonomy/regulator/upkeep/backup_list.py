"""The list of backups, so that a deletion can say which of them still hold the people."""

from __future__ import annotations

import json
import os
from pathlib import Path

from isonomy.regulator.config.config import RegulatorConfig

FILE_NAME = "backups.jsonl"


def add_backup(config: RegulatorConfig, file: Path, file_id: str, now: int) -> None:
    """Add a backup to the list."""
    line = json.dumps({"time": now, "file": str(file), "id": file_id}) + "\n"
    fd = os.open(config.home / FILE_NAME, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(fd, line.encode())
        os.fsync(fd)
    finally:
        os.close(fd)


def backups_made(config: RegulatorConfig) -> list[str]:
    """Return the files of all backups so far, whether they still exist or not."""
    path = config.home / FILE_NAME
    if not path.exists():
        return []
    files = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            files.append(str(json.loads(line)["file"]))
        except (ValueError, KeyError, TypeError):
            continue  # a torn line: the backup that it was about failed too
    return files
