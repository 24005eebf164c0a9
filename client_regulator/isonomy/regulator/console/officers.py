"""Who may act at this console, and the proof that it is they: a passphrase for every single act.

    with officers' keys (--officer-key)   the passphrase of the officer's key, which signs approvals
    without                               the passphrase of the vault; or, where a file unlocks the
                                          vault, the content of that file

Nothing of it is kept after the act.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from isonomy.common.base.errors import ConfigError
from isonomy.common.keys.identity import Identity
from isonomy.regulator.config.config import RegulatorConfig
from isonomy.regulator.config.faults import VaultLocked
from isonomy.regulator.config.officers import acting_officer, check_officer
from isonomy.regulator.plans.sign_off import officer_key_public, open_officer_key
from isonomy.regulator.vault.unlock import Secret, secret_from_file
from isonomy.regulator.vault.vault import Vault


@dataclass(frozen=True)
class Actor:
    """An officer who proved who they are, for one act."""

    name: str
    key: Identity | None
    open_vault: Callable[[], Vault]
    secret: Callable[[], Secret]  # that opens the vault


class Officers:
    """The officers of one console."""

    def __init__(self, config: RegulatorConfig, key_files: Sequence[Path]) -> None:
        """Raises ConfigError for a key that regulator.toml does not know."""
        self._keys: dict[str, Path] = {}
        names = {officer.key: name for name, officer in config.officers.items() if officer.key}
        for path in key_files:
            public = officer_key_public(path)
            if public not in names:
                raise ConfigError(f"{path}: regulator.toml names no officer with this key")
            self._keys[check_officer(config.officers, names[public])] = path
        if not key_files:
            acting_officer(config.officers)  # raises now for somebody who may not act

    @property
    def by_key(self) -> bool:
        """Whether each officer has a key and a passphrase of their own."""
        return bool(self._keys)

    def names(self, config: RegulatorConfig) -> list[str]:
        """Return who may act here."""
        return list(self._keys) or [acting_officer(config.officers)]

    def asks_for_vault(self, config: RegulatorConfig) -> bool:
        """Whether acts that open the vault need its passphrase besides the officer's own."""
        return self.by_key and config.unlock_file is None

    def prove(
        self, config: RegulatorConfig, name: str, passphrase: str, vault_passphrase: str
    ) -> Actor:
        """Return who acts; VaultLocked unless the passphrase is theirs."""
        names = self.names(config)
        name = name or names[0]
        if name not in names:
            raise ConfigError("this officer has no key at this console (--officer-key)")
        if not passphrase:
            raise VaultLocked("type the passphrase; nothing was changed")
        unlock, key = config.unlock_file, None
        if self.by_key:
            key = open_officer_key(self._keys[name], Secret(passphrase.encode()))
        elif unlock is not None:
            secret_from_file(unlock).check_typed(passphrase)
        else:
            Vault(config.vault_path, Secret(passphrase.encode())).check()

        def secret() -> Secret:
            if unlock is not None:
                return secret_from_file(unlock)
            typed = vault_passphrase if self.by_key else passphrase
            if not typed:
                raise VaultLocked("type the vault's passphrase too; nothing was changed")
            return Secret(typed.encode())

        return Actor(name, key, lambda: Vault(config.vault_path, secret()), secret)
