"""Key files that a passphrase seals: of no use to whoever copies the disk.

    plain    32 bytes                   sealed   "ISK1" ‖ salt (16) ‖ AES-256-GCM of the 32 bytes
    key-encryption key = scrypt(passphrase, salt), 128 MiB and a third of a second for each guess

The passphrase comes from the file that ISONOMY_KEY_PASSPHRASE_FILE names (a daemon's credential),
else from the terminal, once for a process.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from isonomy.common.base.command_line import prompt
from isonomy.common.base.errors import ConfigError
from isonomy.common.base.private_files import read_private, read_secret, write_private

KEY_BYTES, SALT_BYTES, TAG_BYTES = 32, 16, 16
VARIABLE = "ISONOMY_KEY_PASSPHRASE_FILE"
MIN_PASSPHRASE_CHARS = 12
_MAGIC = b"ISK1"
_SEALED_BYTES = len(_MAGIC) + SALT_BYTES + KEY_BYTES + TAG_BYTES
_NONCE = bytes(12)  # each salt, and so each key-encryption key, is used once
_passphrases: list[str] = []  # what was typed in this process


def read_key(path: Path) -> bytes:
    """Return the 32 bytes of a key file, sealed or not; ConfigError if it does not open."""
    if not is_sealed(path):
        return read_private(path, KEY_BYTES)
    data = read_private(path, _SEALED_BYTES)
    salt, box = data[len(_MAGIC) :][:SALT_BYTES], data[len(_MAGIC) + SALT_BYTES :]
    try:
        return _cipher(_passphrase(), salt).decrypt(_NONCE, box, _MAGIC)
    except InvalidTag:
        # A typing error must not be tried again for every further key of this process.
        _passphrases.clear()
        raise ConfigError(f"{path} does not open with this passphrase") from None


def is_sealed(path: Path) -> bool:
    """Say whether a passphrase is needed; False for a file that is not there."""
    try:
        with path.open("rb") as file:
            # Both: a plain key may begin with these bytes by chance, but it has 32 of them in all.
            return file.read(len(_MAGIC)) == _MAGIC and path.stat().st_size == _SEALED_BYTES
    except OSError:
        return False


def seal_key(path: Path, passphrase: str) -> None:
    """Put the sealed form in place of a key file, in one step."""
    if len(passphrase) < MIN_PASSPHRASE_CHARS:
        raise ConfigError(f"a passphrase has at least {MIN_PASSPHRASE_CHARS} characters")
    key, salt = read_key(path), os.urandom(SALT_BYTES)
    write_private(path, _MAGIC + salt + _cipher(passphrase, salt).encrypt(_NONCE, key, _MAGIC))


def _cipher(passphrase: str, salt: bytes) -> AESGCM:
    # As strong as the vault (regulator/vault/unlock.py): the same disk is stolen with both.
    return AESGCM(Scrypt(salt, 32, n=1 << 17, r=8, p=1).derive(passphrase.encode()))


def _passphrase() -> str:
    file = os.environ.get(VARIABLE)
    if file:
        return read_secret(Path(file))
    if not _passphrases:
        if not sys.stdin.isatty():
            raise ConfigError(
                "the passphrase of the keys is needed and there is no terminal to ask at; name a "
                f"file with it in {VARIABLE}"
            )
        _passphrases.append(prompt("Passphrase of the keys", hide_input=True))
    return _passphrases[0]
