"""A party's keys and the card it hands over.

A party has one signing key (Ed25519: who says so) and one sealing key (X25519: for whose eyes).
Both public halves stand on its *card*, a small JSON file without secrets that the other owners put
into the plan after comparing fingerprints over the telephone.

    folder/identity.key   0600; a passphrase may seal it     folder/sealing.key   the same
    folder/card.json      to hand over

TLS certificates are apart from this (certificates.py) and can be renewed at any time: identity is
what the plan pins, not what a certificate says.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, Literal

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from pydantic import StringConstraints, ValidationError

from isonomy.common.base.canonical import hash_bytes
from isonomy.common.base.documents import Document
from isonomy.common.base.errors import ConfigError
from isonomy.common.base.private_files import create_private, private_folder
from isonomy.common.keys.identity import Identity
from isonomy.common.keys.sealed_keys import read_key

Role = Literal["company", "regulator", "server", "auditor"]
Hex32 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
# Names stand in certificates, file names and logs, so they are plain.
PARTY_NAME = r"[a-z0-9](?:[a-z0-9._-]{0,61}[a-z0-9])?"
PartyName = Annotated[str, StringConstraints(pattern=f"^{PARTY_NAME}$")]
_FINGERPRINT_CHARS = 32


class Card(Document):
    """A party's public keys under its name."""

    word: ClassVar[str] = "party's card"
    max_bytes: ClassVar[int] = 4096

    name: PartyName
    role: Role
    ed25519: Hex32
    x25519: Hex32

    @property
    def signing_key(self) -> bytes:
        return bytes.fromhex(self.ed25519)

    @property
    def sealing_key(self) -> bytes:
        return bytes.fromhex(self.x25519)


def fingerprint(card: Card) -> str:
    """128 bits to compare by eye or voice: eight groups of four hexadecimal digits."""
    # Half of the hash: nobody can make a second card for it, and people still read it out.
    digest = hash_bytes("isonomy/card/v1", card.to_json()).hex()[:_FINGERPRINT_CHARS]
    return " ".join(digest[i : i + 4] for i in range(0, _FINGERPRINT_CHARS, 4))


class PartyKeys:
    """A party's secret keys. There is no `repr` of them, and no way to print them."""

    def __init__(self, name: str, role: Role, identity: Identity, sealing: X25519PrivateKey):
        self.name, self.role = name, role
        self.identity, self.sealing = identity, sealing
        self._card = _card(name, role, identity, sealing)

    @classmethod
    def generate(cls, name: str, role: Role) -> PartyKeys:
        """Keys in memory only, for tests and rehearsals."""
        return cls(name, role, Identity.generate(), X25519PrivateKey.generate())

    @classmethod
    def create(cls, folder: Path, name: str, role: Role) -> PartyKeys:
        """New keys in a folder that has none. Existing keys are never overwritten."""
        keys = cls.generate(name, role)
        private_folder(folder)
        keys.identity.save(folder / "identity.key")
        create_private(folder / "sealing.key", keys.sealing.private_bytes_raw())
        keys.card().save(folder / "card.json")
        return keys

    @classmethod
    def load(cls, folder: Path) -> PartyKeys:
        card = Card.load(folder / "card.json")
        identity = Identity.load(folder / "identity.key")
        sealing = X25519PrivateKey.from_private_bytes(read_key(folder / "sealing.key"))
        keys = cls(card.name, card.role, identity, sealing)
        # Two homes that were mixed up would sign under a name that no plan pins.
        if keys.card() != card:
            raise ConfigError(f"the keys in {folder} do not belong to its card.json")
        return keys

    def card(self) -> Card:
        return self._card


def _card(name: str, role: Role, identity: Identity, sealing: X25519PrivateKey) -> Card:
    try:
        return Card(
            name=name,
            role=role,
            ed25519=identity.public.hex(),
            x25519=sealing.public_key().public_bytes_raw().hex(),
        )
    except ValidationError:
        raise ConfigError(
            f"{name!r} ({role}) cannot be a party: a name has 1 to 63 lower-case letters, digits, "
            "dots, dashes; a role is company, regulator, server or auditor"
        ) from None
