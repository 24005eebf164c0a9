"""The secret that opens the vault: a passphrase from a prompt, or whatever a file holds.

    secret  ──scrypt(salt, n)──►  key-encryption key

There is one derivation for both, so that a passphrase may also come from a file (a mounted
credential), and the content of a key file may be typed in an emergency. A key file that `init`
makes holds 256 random bits, for which the cheapest scrypt is enough; a passphrase costs an attacker
128 MiB and a third of a second per guess.

A new vault refuses a file with fewer than 16 bytes. An existing vault still opens with the secret
that it has (a typed passphrase may have 12 characters); `doctor` names a file that is too short.
"""

from __future__ import annotations

import hmac
import os
import secrets
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from isonomy.common.base.command_line import prompt
from isonomy.common.base.errors import ConfigError
from isonomy.common.base.private_files import create_private, private_folder
from isonomy.regulator.config.faults import VaultLocked

MIN_PASSPHRASE_CHARS = 12
MIN_FILE_BYTES = 16
MAX_SECRET_BYTES = 4096
SALT_BYTES, KEY_BYTES, BLOCK = 16, 32, 8
LOG_N_PASSPHRASE, LOG_N_KEY_FILE = 17, 10


@dataclass(frozen=True)
class Lock:
    """What a secret opens, and how its file is named: by an option, or in another way also."""

    name: str
    option: str
    also: str = ""


VAULT = Lock(
    "the vault", "--unlock-file", ", or as unlock_file in the [vault] table of regulator.toml"
)


@dataclass(frozen=True)
class Derivation:
    """How a secret becomes a key."""

    salt: bytes
    log_n: int

    @classmethod
    def fresh(cls, *, strong_secret: bool) -> Derivation:
        log_n = LOG_N_KEY_FILE if strong_secret else LOG_N_PASSPHRASE
        return cls(os.urandom(SALT_BYTES), log_n)

    def fields(self) -> dict[str, object]:
        return {"name": "scrypt", "salt": self.salt.hex(), "log_n": self.log_n}

    @classmethod
    def of(cls, raw: Any) -> Derivation:
        """Read it from a file; KeyError or TypeError for anything else."""
        salt, log_n = bytes.fromhex(raw["salt"]), raw["log_n"]
        if raw["name"] != "scrypt" or len(salt) != SALT_BYTES or not _is_ours(log_n):
            raise KeyError("kdf")
        return cls(salt, log_n)


def _is_ours(log_n: object) -> bool:
    """Say whether we write this cost: a file from elsewhere must not choose what it costs us."""
    return type(log_n) is int and log_n in (LOG_N_KEY_FILE, LOG_N_PASSPHRASE)


class Secret:
    """The secret in memory. It has no `repr`. Derived keys are cached: deriving one is slow."""

    def __init__(self, raw: bytes, *, strong: bool = False) -> None:
        if not 0 < len(raw) <= MAX_SECRET_BYTES:
            raise VaultLocked(f"a passphrase has 1 to {MAX_SECRET_BYTES} bytes")
        self._raw, self.strong = raw, strong
        self._keys: dict[Derivation, bytes] = {}

    @property
    def size(self) -> int:
        """The number of bytes of the secret."""
        return len(self._raw)

    def check_typed(self, text: str) -> None:
        """Raise VaultLocked unless somebody typed this very secret."""
        if not hmac.compare_digest(text.strip().encode(), self._raw):
            raise VaultLocked("this is not the content of the unlock file; nothing was changed")

    def key(self, derivation: Derivation) -> bytes:
        """The key-encryption key for this salt and cost."""
        if derivation not in self._keys:
            scrypt = Scrypt(derivation.salt, KEY_BYTES, n=1 << derivation.log_n, r=BLOCK, p=1)
            self._keys[derivation] = scrypt.derive(self._raw)
        return self._keys[derivation]


def read_secret(unlock_file: Path | None, of: Lock = VAULT) -> Secret:
    """Return the secret of what exists: from the file, else from a prompt."""
    if unlock_file is not None:
        return secret_from_file(unlock_file)
    if not sys.stdin.isatty():
        raise VaultLocked(
            f"the passphrase of {of.name} is needed and there is no terminal to ask at; name a "
            f"file with {of.option}{of.also}"
        )
    return Secret(_prompt(f"Passphrase of {of.name}").encode())


def new_secret(unlock_file: Path | None, of: Lock = VAULT) -> Secret:
    """Return the secret of something new: a file's content, a new key file or a passphrase."""
    if unlock_file is None:
        if not sys.stdin.isatty():
            raise VaultLocked(
                f"{of.name} needs a passphrase and there is no terminal to ask at; name a file "
                f"with {of.option} (it is made if it does not exist)"
            )
        passphrase = _prompt(
            f"New passphrase for {of.name} ({MIN_PASSPHRASE_CHARS} characters or more)",
            confirm=True,
        )
        if len(passphrase) < MIN_PASSPHRASE_CHARS:
            raise ConfigError(f"a passphrase has at least {MIN_PASSPHRASE_CHARS} characters")
        return Secret(passphrase.encode())
    if unlock_file.exists():
        secret = secret_from_file(unlock_file)
        if secret.size < MIN_FILE_BYTES:
            raise ConfigError(
                f"{unlock_file} holds fewer than {MIN_FILE_BYTES} bytes, which can be guessed; "
                "name a file that does not exist yet, and one with 256 random bits is made"
            )
        return secret
    digits = secrets.token_hex(KEY_BYTES).encode()
    try:
        private_folder(unlock_file.parent)
        create_private(unlock_file, digits + b"\n")
    except OSError as error:
        raise ConfigError(f"cannot write {unlock_file}: {error.strerror}") from None
    return Secret(digits, strong=True)


def secret_from_file(path: Path) -> Secret:
    """Return the content of a file that only its owner may read, without the last line break."""
    try:
        mode, raw = path.stat().st_mode, path.read_bytes()[: MAX_SECRET_BYTES + 2]
    except OSError as error:
        raise VaultLocked(f"cannot read the unlock file {path}: {error.strerror}") from None
    if mode & 0o077:
        raise ConfigError(f"{path} is readable by others; run: chmod 600 {path}")
    raw = raw.rstrip(b"\r\n")
    # 256 random bits cannot be guessed, so they need no slow derivation; a passphrase does.
    is_key_file = len(raw) == 2 * KEY_BYTES and not set(raw) - set(b"0123456789abcdef")
    return Secret(raw, strong=is_key_file)


def _prompt(text: str, *, confirm: bool = False) -> str:
    return prompt(text, hide_input=True, confirmation_prompt=confirm)
