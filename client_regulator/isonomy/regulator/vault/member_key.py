"""The key under which the ledger knows people. Without it the ledger names nobody.

Lose it and nobody's spent budget can be found again: it is part of every backup.
"""

from __future__ import annotations

import os

from isonomy.common.base.errors import ConfigError
from isonomy.regulator.config.config import RegulatorConfig

MEMBER_KEY_BYTES = 32
FILE_NAME = "member.key"


def make_member_key(config: RegulatorConfig) -> None:
    """Make the key, once."""
    path = config.keys_folder / FILE_NAME
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise ConfigError(f"{path} exists already; a key is never overwritten") from None
    with os.fdopen(fd, "wb") as file:
        file.write(os.urandom(MEMBER_KEY_BYTES))
        file.flush()
        os.fsync(file.fileno())


def member_key(config: RegulatorConfig) -> bytes:
    """Read the key of the ledger's people."""
    path = config.keys_folder / FILE_NAME
    try:
        mode, raw = path.stat().st_mode, path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"cannot read {path}: {error.strerror}. `isonomy-regulator init` makes it once; if it "
            "was lost, restore it from the backup, because the ledger cannot be read without it"
        ) from None
    if mode & 0o077 or len(raw) != MEMBER_KEY_BYTES:
        raise ConfigError(f"{path} must be {MEMBER_KEY_BYTES} bytes that only its owner may read")
    return raw
