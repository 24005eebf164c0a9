"""What all parts of the daemon share: settings, keys, the open ledger, the vault and the log."""

from __future__ import annotations

import contextlib
import threading
import time

from isonomy.common.base.errors import ConfigError, IsonomyError
from isonomy.common.base.exit_codes import code_of
from isonomy.common.base.logs import RotatingFile, logger
from isonomy.common.keys.party import PartyKeys
from isonomy.regulator.config.acts import take_over
from isonomy.regulator.config.config import RegulatorConfig
from isonomy.regulator.config.faults import VaultLocked
from isonomy.regulator.serving.witness import open_ledger, write_witness
from isonomy.regulator.vault.member_key import member_key
from isonomy.regulator.vault.vault import Vault

WITNESS_EVERY_S = 5.0


class Office:
    """Holds the ledger until `close`. Threads may share it."""

    def __init__(self, config: RegulatorConfig, vault: Vault | None, *, least: str) -> None:
        """`least`: the lowest level that is logged."""
        self.config, self._vault = config, vault
        file = config.log.file and RotatingFile(
            config.home / config.log.file, max_bytes=config.log.max_bytes, backups=config.log.kept
        )
        self.log = logger("regulator", file or None, least=least)
        self.keys = PartyKeys.load(config.keys_folder)
        if (self.keys.name, self.keys.role) != (config.name, "regulator"):
            raise ConfigError(
                f"the keys in {config.keys_folder} are not those of {config.name}. Correct the "
                "name in regulator.toml, or put the right keys back"
            )
        self.member_key = member_key(config)
        self.ledger = open_ledger(config)
        self._witness_lock, self._witnessed = threading.Lock(), time.monotonic()
        self._acts_lock = threading.Lock()

    def close(self) -> None:
        self.ledger.close()

    @property
    def vault(self) -> Vault:
        """The vault; VaultLocked if it was not opened."""
        if self._vault is None:
            raise VaultLocked("the vault was not opened; it is needed to answer for a plan")
        return self._vault

    def note(self, error: Exception) -> None:
        """Log an error: ours with its text, a foreign one with its type only."""
        with contextlib.suppress(OSError):
            text = str(error) if isinstance(error, IsonomyError) else type(error).__name__
            self.log.error("refused", code=code_of(error), reason=text)

    def take_acts(self) -> None:
        """Write into the ledger what officers did while it was not open."""
        with self._acts_lock:
            take_over(self.config, self.ledger.note)

    def write_witness(self) -> None:
        """Write how far the ledger is; StorageError names a copy that cannot be written."""
        # Sessions end in threads of their own: without the lock, two of them would write the
        # same temporary file, and an older witness could replace a newer one.
        with self._witness_lock:
            write_witness(self.config, self.ledger, self.keys.identity)

    def note_progress(self) -> None:
        """Write a witness of what has been done already; a copy that cannot be is logged."""
        try:
            self.write_witness()
        except (IsonomyError, OSError) as error:
            reason = str(error).removesuffix("; nothing was changed")  # but what was asked was done
            with contextlib.suppress(OSError):
                self.log.error("witness not written", code=code_of(error), reason=reason)

    def write_witness_soon(self) -> None:
        """Write a witness during a session, but not with every answer: it costs two fsyncs."""
        now = time.monotonic()
        if now - self._witnessed >= WITNESS_EVERY_S:
            self._witnessed = now
            self.write_witness()
