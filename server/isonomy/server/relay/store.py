"""The relay's checkpoint on disk: whom it let in, what passed. Survives kill −9.

A checkpoint that admits a party is on disk before the party hears of it, so a token that opened a
session is known as used by the next process too. Counters and the chain's head are written at the
same moments, at every end of an exchange, and when the relay stops.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from isonomy.common.base.canonical import canonical_json, parse_canonical
from isonomy.common.base.errors import ConfigError, ProtocolError, StorageError
from isonomy.common.base.private_files import fsync_folder

SCHEMA = 1
MAX_CHECKPOINT_BYTES = 1 << 24


class RelayStore:
    """One folder per plan."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "relay.json"
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise ConfigError(
                f"cannot make the relay's folder {folder}: {error.strerror}"
            ) from None

    def load(self) -> dict[str, Any] | None:
        """The last checkpoint, or None if there is none."""
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ConfigError(f"cannot read {self._path}: {error.strerror}") from None
        try:
            found = parse_canonical(data, max_bytes=MAX_CHECKPOINT_BYTES)
        except ProtocolError:
            found = None
        if not isinstance(found, dict) or found.get("schema") != SCHEMA:
            raise ConfigError(
                f"{self._path} is not a checkpoint of this version; move it away to begin anew "
                "(parties then need new tickets)"
            )
        return found

    def save(self, state: dict[str, Any], *, sync: bool) -> None:
        """All or nothing. `sync` for what must survive a power cut, not only a kill."""
        partial = self._path.with_suffix(".partial")
        try:
            fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(fd, "wb") as file:
                file.write(canonical_json({"schema": SCHEMA, **state}))
                file.flush()
                if sync:
                    os.fsync(file.fileno())
            partial.replace(self._path)
            if sync:
                fsync_folder(self._path)
        except OSError as error:
            raise StorageError(
                f"the relay could not write its checkpoint ({error.strerror}); make room in "
                f"{self._path.parent}"
            ) from None
