"""Who signs: an Ed25519 key per party. Signatures cover exact bytes under a named domain."""

from __future__ import annotations

from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from isonomy.common.base.canonical import hash_bytes
from isonomy.common.base.errors import VerificationError
from isonomy.common.base.private_files import create_private
from isonomy.common.keys.sealed_keys import read_key


class Identity:
    """A party's signing key. Its public half is what plans pin."""

    def __init__(self, private: Ed25519PrivateKey) -> None:
        self._private = private

    @classmethod
    def generate(cls) -> Identity:
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def load(cls, path: Path) -> Identity:
        return cls(Ed25519PrivateKey.from_private_bytes(read_key(path)))

    def save(self, path: Path) -> None:
        create_private(path, self._private.private_bytes_raw())

    @property
    def public(self) -> bytes:
        return self._private.public_key().public_bytes_raw()

    def sign(self, domain: str, message: bytes) -> bytes:
        # The domain is hashed in with lengths: what was signed for one purpose never verifies for
        # another, whatever bytes somebody manages to have signed.
        return self._private.sign(hash_bytes(domain, message))


def verify_signature(public: bytes, domain: str, message: bytes, signature: bytes) -> None:
    """Raise VerificationError unless the owner of `public` signed these bytes in this domain."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, hash_bytes(domain, message))
    # One error for a key that is no point and for a false signature: both mean "not from them".
    except (InvalidSignature, ValueError):
        raise VerificationError(
            f"the {domain} signature does not belong to the key that the plan pins"
        ) from None
