"""report.sig: the regulator's signature over report.json, and the companies' countersignatures.

    Ed25519( SHA-256( domain ‖ the exact bytes of report.json ) )

The regulator signs that its ledger says so; a company countersigns that totals, statement and
numbers are as it knows them. Two domains, so that one can never pass for the other.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from isonomy.common.base.canonical import canonical_json, parse_canonical
from isonomy.common.base.errors import ConfigError, ProtocolError, StorageError, VerificationError
from isonomy.common.keys.identity import verify_signature
from isonomy.common.keys.party import Card, Hex32, PartyKeys
from isonomy.common.report.schema import ReportFile

SIGNED: Literal["isonomy/report/v1"] = "isonomy/report/v1"
COUNTERSIGNED: Literal["isonomy/report-countersigned/v1"] = "isonomy/report-countersigned/v1"
MAX_SIGNATURE_BYTES = 1 << 14

_Hex64 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{128}$")]


class Signature(BaseModel):
    """One party's signature."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    domain: Literal["isonomy/report/v1", "isonomy/report-countersigned/v1"]
    name: str
    ed25519: Hex32
    signature: _Hex64


class Signatures(BaseModel):
    """A whole report.sig: the regulator first, then companies, each at most once."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    schema_version: Literal["isonomy/report-signatures/v1"] = "isonomy/report-signatures/v1"
    report_sha256: Hex32
    signatures: tuple[Signature, ...] = Field(min_length=1, max_length=8)

    def to_json(self) -> bytes:
        return canonical_json(self.model_dump(mode="json"))

    @classmethod
    def from_json(cls, data: bytes) -> Signatures:
        """Total: whatever the bytes are, signatures or a ProtocolError."""
        parse_canonical(data, max_bytes=MAX_SIGNATURE_BYTES)
        try:
            return cls.model_validate_json(data)
        except ValidationError:
            raise ProtocolError("not the signatures of a report (report.sig)") from None


def sign_report(report: bytes, keys: PartyKeys) -> Signatures:
    """The regulator's signature over the exact bytes."""
    return Signatures(
        report_sha256=hashlib.sha256(report).hexdigest(),
        signatures=(_sign(report, keys, SIGNED),),
    )


def countersign(report: bytes, signatures: Signatures, keys: PartyKeys) -> Signatures:
    """Add a company's signature. The caller has verified the report before."""
    if any(own.name == keys.name for own in signatures.signatures):
        raise ConfigError(f"{keys.name} has signed this report already")
    added = (*signatures.signatures, _sign(report, keys, COUNTERSIGNED))
    return signatures.model_copy(update={"signatures": added})


def check_signatures(report: bytes, parsed: ReportFile, signatures: Signatures) -> list[str]:
    """Raise unless every signature holds; returns the names of the companies that countersigned.

    Keys are those of the plan's cards as the report states them, never those of the signature file.
    """
    if hashlib.sha256(report).hexdigest() != signatures.report_sha256:
        raise VerificationError("report.sig belongs to another report.json")
    first, *others = signatures.signatures
    _check(report, first, SIGNED, parsed.run.regulator)
    companies = {card.name: card for card in parsed.run.companies}
    for own in others:
        if own.name not in companies:
            raise VerificationError("a signer is no company of the plan, or signed twice")
        _check(report, own, COUNTERSIGNED, companies.pop(own.name))
    return [own.name for own in others]


def save_signatures(signatures: Signatures, path: Path) -> None:
    """Write report.sig, all or nothing."""
    write_whole(path, signatures.to_json())


def write_whole(path: Path, data: bytes) -> None:
    """A reader sees the old file or the new one. Reports are for publication: no secret mode."""
    partial = path.with_name(path.name + ".partial")
    try:
        partial.write_bytes(data)
        partial.replace(path)
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}; nothing was changed") from None


def _sign(report: bytes, keys: PartyKeys, domain: str) -> Signature:
    return Signature.model_validate(
        {
            "domain": domain,
            "name": keys.name,
            "ed25519": keys.identity.public.hex(),
            "signature": keys.identity.sign(domain, report).hex(),
        }
    )


def _check(report: bytes, own: Signature, domain: str, card: Card) -> None:
    if (own.domain, own.name, own.ed25519) != (domain, card.name, card.ed25519):
        raise VerificationError(f"a signature names another party or key than {card.name}'s card")
    verify_signature(card.signing_key, domain, report, bytes.fromhex(own.signature))
