"""The key of the hashes under which the ledger knows people. Without it the ledger names nobody.

If it is lost, nobody's spent budget can be found again, so it is part of every backup.
"""

from __future__ import annotations

import os

from isonomy.common.base.errors import ConfigError
from isonomy.common.base.private_files import create_private, read_private
from isonomy.regulator.config.config import RegulatorConfig

MEMBER_KEY_BYTES = 32
FILE_NAME = "member.key"


def make_member_key(config: RegulatorConfig) -> None:
    """Make the key, once."""
    create_private(config.keys_folder / FILE_NAME, os.urandom(MEMBER_KEY_BYTES))


def member_key(config: RegulatorConfig) -> bytes:
    """Read the key of the ledger's people."""
    path = config.keys_folder / FILE_NAME
    if not path.exists():
        raise ConfigError(
            f"{path} is missing. `isonomy-regulator init` makes it once; if it was lost, restore a "
            "backup, because nobody's spending can be found in the ledger without it"
        )
    return read_private(path, MEMBER_KEY_BYTES)
