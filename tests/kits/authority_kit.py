"""An authority for tests: made once per folder, and cheap to seal."""

from __future__ import annotations

from pathlib import Path

from isonomy.common.keys import certificates
from isonomy.common.keys.certificates import Authority

PASSPHRASE = "correct horse battery"  # noqa: S105
certificates.SCRYPT_LOG_N = 4


def authority(folder: Path) -> Authority:
    """The authority in this folder; a new one if there is none."""
    if (folder / "ca.key").exists():
        return Authority.open(folder, PASSPHRASE)
    return Authority.create(folder, PASSPHRASE)
