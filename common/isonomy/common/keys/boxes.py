"""A sealed box: for the eyes of somebody who is not in the session (the auditor).

    box = fresh public key ‖ AES-256-GCM(HKDF-SHA256(DH(fresh, recipient)), payload, context)

Frames between the parties of a session are sealed in session/sealed_links.py.
"""

from __future__ import annotations

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from isonomy.common.base.canonical import hash_bytes
from isonomy.common.base.errors import ProtocolError, VerificationError

KEY_BYTES, TAG_BYTES, NONCE_BYTES = 32, 16, 12


def seal_to(recipient: bytes, context: bytes, payload: bytes) -> bytes:
    """Fresh public key ‖ AES-256-GCM: readable by the holder of `recipient` (X25519) only.

    The key is fresh for each box, so the constant nonce is used once under it.
    """
    fresh = X25519PrivateKey.generate()
    public = fresh.public_key().public_bytes_raw()
    key = _box_key(shared_secret(fresh, recipient), public, recipient)
    return public + AESGCM(key).encrypt(bytes(NONCE_BYTES), payload, context)


def open_box(private: X25519PrivateKey, context: bytes, box: bytes) -> bytes:
    """Return what `seal_to` sealed for this key and context."""
    if len(box) < KEY_BYTES + TAG_BYTES:
        raise ProtocolError("a sealed box is shorter than its own head")
    sender, recipient = box[:KEY_BYTES], private.public_key().public_bytes_raw()
    key = _box_key(shared_secret(private, sender), sender, recipient)
    try:
        return AESGCM(key).decrypt(bytes(NONCE_BYTES), box[KEY_BYTES:], context)
    except InvalidTag:
        raise VerificationError("a sealed box does not open with this key and context") from None


def _box_key(secret: bytes, sender: bytes, recipient: bytes) -> bytes:
    # Both public keys are in it, so that a box cannot be passed off as one to somebody else.
    info = hash_bytes("isonomy/box/v1", sender, recipient)
    return HKDF(SHA256(), KEY_BYTES, None, info).derive(secret)


def shared_secret(private: X25519PrivateKey, public: bytes) -> bytes:
    """The secret that only the holders of both private keys can compute."""
    try:
        return private.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:  # wrong length, or a point of small order, which would give a known secret
        raise ProtocolError("a party's X25519 key cannot be used") from None
