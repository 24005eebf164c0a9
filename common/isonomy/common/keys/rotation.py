"""The record of a new identity: whoever trusts one of the two cards can follow to the other.

    {"schema_version", "old": card, "new": card, "time", "officer"}  signed by both identities

The old private keys are destroyed with the rotation, so what they signed before it stays valid.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import Field, StringConstraints

from isonomy.common.base.canonical import canonical_json
from isonomy.common.base.documents import Document
from isonomy.common.keys.identity import verify_signature
from isonomy.common.keys.party import Card, PartyKeys

DOMAIN = "isonomy/rotation/v1"
Signature = Annotated[str, StringConstraints(pattern="^([0-9a-f]{128})?$")]  # empty: not yet


class Rotation(Document):
    """An old and a new card of one party, under the signatures of both."""

    word: ClassVar[str] = "record of a rotation"
    max_bytes: ClassVar[int] = 8192

    schema_version: Literal[1] = 1
    old: Card
    new: Card
    time: int = Field(ge=0)
    officer: str = Field(max_length=128)  # who replaced the identity
    signature_old: Signature
    signature_new: Signature

    @classmethod
    def between(cls, old: PartyKeys, new: PartyKeys, officer: str) -> Rotation:
        """Return the record, signed by both."""
        record = cls(
            old=old.card(),
            new=new.card(),
            time=int(time.time()),
            officer=officer,
            signature_old="",
            signature_new="",
        )
        signatures = {
            "signature_old": old.identity.sign(DOMAIN, record._signed()).hex(),
            "signature_new": new.identity.sign(DOMAIN, record._signed()).hex(),
        }
        return record.model_copy(update=signatures)

    def _signed(self) -> bytes:
        fields = self.model_dump(mode="json", exclude={"signature_old", "signature_new"})
        return canonical_json(fields)

    def check(self) -> None:
        """Raise VerificationError unless both identities signed it."""
        for card, signature in ((self.old, self.signature_old), (self.new, self.signature_new)):
            verify_signature(card.signing_key, DOMAIN, self._signed(), bytes.fromhex(signature))


def retirement(card: Card, old: Card, rotations: Sequence[Rotation]) -> int | None:
    """Follow records back from a trusted card to an old one of the same party.

    Returns when the old card was replaced; None if the records do not lead there.
    """
    for record in rotations:
        record.check()
    # Popped as they are used: records that lead in a circle end the loop.
    steps, current = {record.new: record for record in rotations}, card
    while (step := steps.pop(current, None)) is not None:
        if step.old == old:
            return step.time
        current = step.old
    return None
