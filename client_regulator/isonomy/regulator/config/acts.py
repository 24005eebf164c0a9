"""Acts of officers that wait for the ledger: a line for each, in home/acts.jsonl.

Before the first approval there is no ledger, and some commands (seal-keys, install) must not need
what opening it needs. What an officer does then is written here, and whoever opens the ledger next
takes it over as a note, with the time of the act. A kill in between can only make a note twice.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from isonomy.common.base.private_files import open_file
from isonomy.regulator.config.config import RegulatorConfig
from isonomy.regulator.config.officers import acting_officer

FILE_NAME = "acts.jsonl"
KINDS = {  # of notes, and their fields. An approval is none of them: `reserve` alone notes those
    "certificate": {"until"},
    "certificate-request": set[str](),
    "deletion": {"target", "record_sha256"},
    "enrolment": {"vault"},
    "home": {"fingerprint"},
    "keys-sealed": set[str](),
    "kit": set[str](),
    "kit-request": set[str](),
    "ledger-shared": {"sha256"},
    "rejection": {"plan", "record_sha256"},
    "restore": {"backup", "newest"},
    "rotation": {"old", "new"},
    "tasks-added": {"tasks"},
    "tasks-destroyed": {"tasks"},
    "vault-secret": set[str](),
}


def remember(config: RegulatorConfig, kind: str, event: Mapping[str, str | int]) -> None:
    """Write down an act of the acting officer, for the ledger; on disk when this returns."""
    at = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    act = {"kind": kind, "event": {**event, "officer": acting_officer(config.officers), "at": at}}
    fd = open_file(config.home / FILE_NAME, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.write(fd, (json.dumps(act) + "\n").encode())
        os.fsync(fd)
    finally:
        os.close(fd)


def take_over(config: RegulatorConfig, note: Callable[[str, dict[str, Any]], None]) -> None:
    """Have `note` write every act that waits, and forget the list."""
    path = config.home / FILE_NAME
    taken = path.with_suffix(".taken")  # an act that comes meanwhile gets a list of its own
    if path.exists() and not taken.exists():
        path.rename(taken)
    if not taken.exists():
        return
    for line in taken.read_bytes().splitlines():
        try:
            kind, event = (json.loads(line)[name] for name in ("kind", "event"))
            known = event.keys() - {"officer", "at"} == KINDS.get(kind)
        except (ValueError, KeyError, TypeError, AttributeError):
            continue  # a torn line: the command that wrote it failed
        if known:
            note(kind, event)
    taken.unlink()
