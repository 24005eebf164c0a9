"""End-to-end sealing between two parties whose keys the plan pins. The relay carries, never reads.

For a pair of parties A, B with pinned keys (a, b) and fresh keys of this incarnation (x, y):

    link     = H(plan, A, X, B, Y)                                    names the pair of fresh keys
    key_A→B  = HKDF-SHA256(DH(a, b) ‖ DH(x, y), salt = H(X, Y), info = plan ‖ link ‖ A ‖ B)
    sealed   = AES-256-GCM(key_A→B, nonce = sequence number, payload, header)

Formal guarantees (each has a test in tests/common/keys/test_sealing.py):
    * Only the holder of a or b can make or read a sealed payload: DH(a, b) is in every key.
    * What was sealed stays secret when a and b leak later: DH(x, y) is in every key too, and x, y
      live in memory only.
    * No nonce occurs twice under a key: sequence numbers only rise, and a link whose peer key was
      seen before is never derived again (links.py).
    * A payload opens only in its own place: direction, plan, link and sequence are in key and
      nonce, the rest of the header is authenticated with it.
"""

from __future__ import annotations

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from isonomy.common.base.canonical import hash_bytes
from isonomy.common.base.errors import ProtocolError, VerificationError
from isonomy.common.keys.party import Card, PartyKeys

LINK_BYTES, KEY_BYTES, TAG_BYTES, NONCE_BYTES = 16, 32, 16, 12
_SEAL_INFO, _BOX_INFO = "isonomy/seal/v1", "isonomy/box/v1"


class LinkKeys:
    """The two keys of a link, one per direction. Makes each nonce once, in rising order."""

    def __init__(self, link: bytes, outgoing: bytes, incoming: bytes) -> None:
        self.link = link
        self._outgoing, self._incoming = AESGCM(outgoing), AESGCM(incoming)
        self._sealed = 0

    def seal(self, sequence: int, header: bytes, payload: bytes | memoryview) -> bytes:
        # Two payloads under one nonce would reveal both, so a number is never used again, not even
        # for the same payload: for repetitions the sealed bytes are stored.
        if sequence <= self._sealed:
            raise ProtocolError("a sequence number was about to be used twice")
        self._sealed = sequence
        return self._outgoing.encrypt(_nonce(sequence), payload, header)

    def open(self, sequence: int, header: bytes, sealed: bytes | memoryview) -> bytes:
        try:
            return self._incoming.decrypt(_nonce(sequence), sealed, header)
        except InvalidTag:
            raise VerificationError(
                "a sealed message does not open: it was changed on the way, or it belongs elsewhere"
            ) from None


def derive_link(
    party: PartyKeys, fresh: X25519PrivateKey, peer: Card, peer_fresh: bytes, plan: bytes
) -> LinkKeys:
    """Return the keys of a link. Both sides derive the same ones, each from its private halves."""
    party_fresh = fresh.public_key().public_bytes_raw()
    link = link_name(plan, (party.name, party_fresh), (peer.name, peer_fresh))
    secret = _shared(party.sealing, peer.sealing_key) + _shared(fresh, peer_fresh)
    salt = hash_bytes("isonomy/seal-salt/v1", *sorted((party_fresh, peer_fresh)))

    def key(sender: str, recipient: str) -> bytes:
        info = hash_bytes(_SEAL_INFO, plan, link, sender.encode(), recipient.encode())
        return HKDF(SHA256(), KEY_BYTES, salt, info).derive(secret)

    return LinkKeys(link, key(party.name, peer.name), key(peer.name, party.name))


def link_name(plan: bytes, one: tuple[str, bytes], other: tuple[str, bytes]) -> bytes:
    """Return the link's name, the same for both sides: parties in the order of their names."""
    (first, first_key), (second, second_key) = sorted((one, other))
    parts = (plan, first.encode(), first_key, second.encode(), second_key)
    return hash_bytes("isonomy/link/v1", *parts)[:LINK_BYTES]


# --- To somebody who is not in the session (the auditor) -----------------------------------------


def seal_to(recipient: bytes, context: bytes, payload: bytes) -> bytes:
    """Fresh public key ‖ AES-256-GCM: readable by the holder of `recipient` (X25519) only.

    The key is fresh for each box, so the constant nonce is used once under it.
    """
    fresh = X25519PrivateKey.generate()
    public = fresh.public_key().public_bytes_raw()
    key = _box_key(_shared(fresh, recipient), public, recipient)
    return public + AESGCM(key).encrypt(bytes(NONCE_BYTES), payload, context)


def open_box(private: X25519PrivateKey, context: bytes, box: bytes) -> bytes:
    """Return what `seal_to` sealed for this key and context."""
    if len(box) < KEY_BYTES + TAG_BYTES:
        raise ProtocolError("a sealed box is shorter than its own head")
    sender, recipient = box[:KEY_BYTES], private.public_key().public_bytes_raw()
    key = _box_key(_shared(private, sender), sender, recipient)
    try:
        return AESGCM(key).decrypt(bytes(NONCE_BYTES), box[KEY_BYTES:], context)
    except InvalidTag:
        raise VerificationError("a sealed box does not open with this key and context") from None


def _box_key(secret: bytes, sender: bytes, recipient: bytes) -> bytes:
    info = hash_bytes(_BOX_INFO, sender, recipient)
    return HKDF(SHA256(), KEY_BYTES, None, info).derive(secret)


def _shared(private: X25519PrivateKey, public: bytes) -> bytes:
    try:
        return private.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:  # wrong length, or a point of small order, which would give a known secret
        raise ProtocolError("a party's X25519 key cannot be used") from None


def _nonce(sequence: int) -> bytes:
    return sequence.to_bytes(NONCE_BYTES, "big")
