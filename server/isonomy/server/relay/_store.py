"""The relay's checkpoint on disk: whom it admitted, what passed. Survives kill −9.

A checkpoint that admits a party is on disk before the party hears of it, so a token that opened a
session is known as used by the next process too. Counters and the chain's head are written at the
same moments, at every end of an exchange, and when the relay stops.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from isonomy.common.base.canonical import canonical_json, parse_canonical
from isonomy.common.base.errors import ConfigError, ProtocolError
from isonomy.common.base.private_files import private_folder, write_private

SCHEMA = 1
MAX_CHECKPOINT_BYTES = 1 << 24


class RelayStore:
    """One folder per plan."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "relay.json"
        try:
            private_folder(folder)
        except OSError as error:
            raise ConfigError(
                f"cannot make the relay's folder {folder}: {error.strerror}"
            ) from None

    def load(self) -> dict[str, Any] | None:
        """Return the last checkpoint, or None if there is none."""
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ConfigError(f"cannot read {self._path}: {error.strerror}") from None
        try:
            checkpoint = parse_canonical(data, max_bytes=MAX_CHECKPOINT_BYTES)
        except ProtocolError:
            checkpoint = None
        if not isinstance(checkpoint, dict) or checkpoint.get("schema") != SCHEMA:
            raise ConfigError(
                f"{self._path} is not a checkpoint of this version; move it away to begin anew "
                "(parties then need new tickets)"
            )
        return checkpoint

    def save(self, state: dict[str, Any], *, sync: bool) -> None:
        """Write all or nothing. `sync`: it must survive a power cut, not only a kill."""
        write_private(self._path, canonical_json({"schema": SCHEMA, **state}), sync=sync)
