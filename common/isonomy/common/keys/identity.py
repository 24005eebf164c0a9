"""Who signs: an Ed25519 key per party. Signatures cover exact bytes under a named domain."""

from __future__ import annotations

import os
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from isonomy.common.base.canonical import hash_bytes
from isonomy.common.base.errors import ConfigError, VerificationError

KEY_BYTES = 32


class Identity:
    """A party's signing key. Its public half is what plans pin."""

    def __init__(self, private: Ed25519PrivateKey) -> None:
        self._private = private

    @classmethod
    def generate(cls) -> Identity:
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def load(cls, path: Path) -> Identity:
        """The key in a file that only its owner may read."""
        try:
            mode, raw = path.stat().st_mode, path.read_bytes()
        except OSError as error:
            raise ConfigError(f"cannot read the identity key {path}: {error.strerror}") from None
        if mode & 0o077:
            raise ConfigError(f"{path} is readable by others; run: chmod 600 {path}")
        if len(raw) != KEY_BYTES:
            raise ConfigError(f"{path} is not an identity key: {KEY_BYTES} bytes expected")
        return cls(Ed25519PrivateKey.from_private_bytes(raw))

    def save(self, path: Path) -> None:
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            raise ConfigError(f"{path} exists already; an identity is never overwritten") from None
        with os.fdopen(fd, "wb") as file:
            file.write(self._private.private_bytes_raw())
            file.flush()
            os.fsync(file.fileno())

    @property
    def public(self) -> bytes:
        return self._private.public_key().public_bytes_raw()

    def sign(self, domain: str, message: bytes) -> bytes:
        return self._private.sign(hash_bytes(domain, message))


def verify_signature(public: bytes, domain: str, message: bytes, signature: bytes) -> None:
    """Raise VerificationError unless the owner of `public` signed these bytes in this domain."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, hash_bytes(domain, message))
    except (InvalidSignature, ValueError):
        raise VerificationError(
            f"the {domain} signature does not belong to the key that the plan pins"
        ) from None
