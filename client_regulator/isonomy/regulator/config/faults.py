"""What can go wrong in a regulator's home, sorted as in isonomy.common.base.errors.

IsonomyError
├── ConfigError
│   ├── VaultLocked          the passphrase or unlock file is wrong or missing
│   └── DataError
│       └── AlreadyEnrolled  people of the file are enrolled, perhaps under another value
└── VerificationError
    ├── VaultTampered        the vault does not decrypt as it was written
    └── RollbackRefused      an older ledger or vault would come back
"""

from __future__ import annotations

from isonomy.common.base.errors import ConfigError, DataError, VerificationError


class VaultLocked(ConfigError):  # noqa: N818  (they read as the events they are)
    """The vault's passphrase or unlock file is wrong or missing."""


class AlreadyEnrolled(DataError):  # noqa: N818
    """People of the file are enrolled already. Nothing was changed."""


class VaultTampered(VerificationError):  # noqa: N818
    """A sealed file does not decrypt as it was written."""


class RollbackRefused(VerificationError):  # noqa: N818
    """A ledger or vault that is older than what is known would come back. Nothing was changed."""
