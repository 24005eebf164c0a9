"""report.sig: the regulator's signature over report.json, and the companies' countersignatures.

    Ed25519( SHA-256( domain ‖ the exact bytes of report.json ) )

The regulator signs that its ledger says so; a company countersigns that totals, statement and
numbers are as it knows them. Two domains, so that one can never pass for the other.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from isonomy.common.base.documents import Document
from isonomy.common.base.errors import ConfigError, VerificationError
from isonomy.common.keys.identity import verify_signature
from isonomy.common.keys.party import Card, Hex32, PartyKeys
from isonomy.common.report.few_shot import AnyReport

SIGNED, COUNTERSIGNED = "isonomy/report/v1", "isonomy/report-countersigned/v1"


class Signature(BaseModel):
    """One party's signature."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: str
    ed25519: Hex32
    signature: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{128}$")]


class Signatures(Document):
    """A whole report.sig: the regulator first, then companies, each at most once."""

    word: ClassVar[str] = "report's signature file (report.sig)"
    max_bytes: ClassVar[int] = 1 << 14

    schema_version: Literal["isonomy/report-signatures/v1"] = "isonomy/report-signatures/v1"
    report_sha256: Hex32
    signatures: tuple[Signature, ...] = Field(min_length=1, max_length=8)


def sign_report(report: bytes, keys: PartyKeys) -> Signatures:
    """The regulator's signature over the exact bytes."""
    return Signatures(
        report_sha256=hashlib.sha256(report).hexdigest(),
        signatures=(_sign(report, keys, SIGNED),),
    )


def countersign(report: bytes, signatures: Signatures, keys: PartyKeys) -> Signatures:
    """Add a company's signature. The caller has verified the report before."""
    if any(signature.name == keys.name for signature in signatures.signatures):
        raise ConfigError(f"{keys.name} has signed this report already")
    added = (*signatures.signatures, _sign(report, keys, COUNTERSIGNED))
    return signatures.model_copy(update={"signatures": added})


def check_regulator(report: AnyReport, signatures: Signatures) -> None:
    """Raise unless the first signature is the regulator's, over exactly this report.

    Keys are those of the plan's cards as the report states them, never those of the signature file.
    """
    data = report.to_json()
    if hashlib.sha256(data).hexdigest() != signatures.report_sha256:
        raise VerificationError("report.sig belongs to another report.json")
    _check(data, signatures.signatures[0], SIGNED, report.plan.regulator)


def check_companies(report: AnyReport, signatures: Signatures) -> list[str]:
    """Raise unless every other signature is a company's; returns their names."""
    data, companies = report.to_json(), {card.name: card for card in report.plan.companies}
    names = []
    for signature in signatures.signatures[1:]:
        if signature.name not in companies:
            raise VerificationError("a signer is no company of the plan, or signed twice")
        _check(data, signature, COUNTERSIGNED, companies.pop(signature.name))
        names.append(signature.name)
    return names


def _sign(report: bytes, keys: PartyKeys, domain: str) -> Signature:
    return Signature(
        name=keys.name,
        ed25519=keys.identity.public.hex(),
        signature=keys.identity.sign(domain, report).hex(),
    )


def _check(report: bytes, signature: Signature, domain: str, card: Card) -> None:
    if (signature.name, signature.ed25519) != (card.name, card.ed25519):
        raise VerificationError(f"a signature names another party or key than {card.name}'s card")
    verify_signature(card.signing_key, domain, report, bytes.fromhex(signature.signature))
