"""NAME.request: everything that a party asks the server's operator for, in one file.

It holds the party's card and its two requests for certificates, signed by the card's key, so that
nobody can put another's requests beside this card. Nothing in it is secret. It also says where the
party's folders are: the operator writes its units and its README for them.
"""

from __future__ import annotations

import os
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from isonomy.common.base.canonical import hash_bytes
from isonomy.common.base.documents import Document
from isonomy.common.base.errors import ConfigError, VerificationError
from isonomy.common.keys.certificates import NODE, Request, make_request
from isonomy.common.keys.identity import verify_signature
from isonomy.common.keys.party import Card, PartyKeys
from isonomy.common.kits import users
from isonomy.common.kits.declared import Declared

_DOMAIN = "isonomy/kit-request/v2"
# These stand in units and shell lines, so they are plain.
PLAIN_PATH = r"(/[A-Za-z0-9._+-]+)+"
PlainPath = Annotated[str, Field(pattern=f"^{PLAIN_PATH}$", max_length=256)]
Number = Annotated[int, Field(ge=0, lt=1 << 32)]
Pem = Annotated[str, Field(max_length=1 << 14)]
Label = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]+$", max_length=128)]


class KitRequest(Document):
    """A party's card, its requests for certificates, where its folders are, and its groups."""

    word: ClassVar[str] = "request for a kit"
    max_bytes: ClassVar[int] = 1 << 16

    schema_version: Literal["isonomy/kit-request/v2"] = "isonomy/kit-request/v2"
    version: Annotated[str, Field(pattern=r"^[0-9A-Za-z.+]{1,40}$")]
    card: Card
    party_csr: Pem
    node_csr: Pem
    home: PlainPath
    node: PlainPath
    programs: PlainPath  # the folder of the isonomy commands
    data_user: Number
    node_user: Number
    group: Number
    groups: dict[Label, tuple[Label, ...]]  # of a regulator: what it declares
    writes: tuple[PlainPath, ...]  # folders that its daemon writes to besides the home
    signature: Annotated[str, Field(pattern=r"^[0-9a-f]{128}$")]

    def content(self) -> bytes:
        """What the signature is about: all but itself."""
        return self.model_copy(update={"signature": "0" * 128}).to_json()

    @property
    def fingerprint(self) -> str:
        """What the party reads out and the operator compares."""
        digest = hash_bytes(_DOMAIN, self.to_json()).hex()[:32]
        return " ".join(digest[i : i + 4] for i in range(0, 32, 4))

    @property
    def requests(self) -> tuple[Request, Request]:
        """The party's and its node's request, checked to be of this card's name and role."""
        party, node = (
            Request.parse(text.encode(), Path(f"{self.card.name}.request"))
            for text in (self.party_csr, self.node_csr)
        )
        names = {party.name, node.name, self.card.name}
        if len(names) != 1 or (party.role, node.role) != (self.card.role, NODE):
            raise ConfigError("the requests for certificates are not of the party on the card")
        return party, node

    @classmethod
    def load(cls, path: Path) -> KitRequest:
        """Read and check a request; VerificationError if the card's key did not sign it."""
        loaded = super().load(path)
        if loaded.card.role not in ("company", "regulator"):
            raise ConfigError(
                f"{path} is of the {loaded.card.role}; kits are for companies and regulators"
            )
        signature = bytes.fromhex(loaded.signature)
        try:
            verify_signature(loaded.card.signing_key, _DOMAIN, loaded.content(), signature)
        except VerificationError:
            raise VerificationError(f"{path} was not signed by the key on its card") from None
        _ = loaded.requests
        return loaded


def make_request_file(keys: PartyKeys, home: Path, node: Path, output: Path) -> KitRequest:
    """Make the TLS keys of party and node, write NAME.request, and give the folders to their users.

    Returns the request. Keys that are there already stay; the request then leads to a renewal.
    """
    home, node = home.resolve(), node.resolve()
    if node.is_relative_to(home) or home.is_relative_to(node):
        raise ConfigError(
            "the node's folder and the home must not contain each other: they have different owners"
        )
    with users.acting_as_owner(home):
        csr = make_request(home / "tls", keys.name, keys.role)
    with users.acting_as_owner(node):
        node_csr = make_request(node, keys.name, NODE)
    if users.is_root():
        users.make_accounts(users.DATA, users.NODE)
        if home.stat().st_uid == 0:
            users.give_home(home, users.DATA)
        if node.stat().st_uid == 0:
            users.give_folder(node, users.NODE)
    declared = Declared.of(home)
    facts = {
        "version": version("isonomy"),
        "card": keys.card(),
        "party_csr": csr.read_text(),
        "node_csr": node_csr.read_text(),
        "home": str(home),
        "node": str(node),
        "programs": str(Path(sys.executable).parent),
        "data_user": home.stat().st_uid,
        "node_user": node.stat().st_uid,
        "group": (home / "run").stat().st_gid if (home / "run").exists() else os.getgid(),
        "groups": declared.groups,
        "writes": declared.folders,
    }
    unsigned = KitRequest.of({**facts, "signature": "0" * 128})
    signature = keys.identity.sign(_DOMAIN, unsigned.content())
    signed = unsigned.model_copy(update={"signature": signature.hex()})
    signed.save(output)
    return signed
