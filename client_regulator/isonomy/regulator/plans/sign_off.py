"""Who signed for a plan: the companies that made it, and the officers who approved it.

    approvals/HASH.json    each company's signature, each officer's name, key and signature

There is one record for each plan of any kind. The daemon checks it before it sets a budget aside
and before it joins a session, so a plan runs only if

    (1) every company signed exactly this plan;
    (2) as many officers approved it as the policy demands, all different, known, not revoked;
    (3) each officer signed exactly this plan, if the policy demands two, or if they have a key.

An officer's key is made by `officer-key` and sealed under a passphrase that only they know. Its
public half stands in regulator.toml. Whoever may edit that file can name officers who do not
exist; the approval's note in the ledger therefore holds the keys that signed.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Literal

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pydantic import BaseModel, ConfigDict, Field

from isonomy.common.agreements.agreement import Agreement
from isonomy.common.agreements.approvals import PlanNotApproved, check_signature
from isonomy.common.base.documents import Digest, Document
from isonomy.common.base.errors import PolicyRefused, VerificationError
from isonomy.common.base.private_files import private_folder, write_private
from isonomy.common.keys.identity import Identity, verify_signature
from isonomy.common.keys.rotation import Signature
from isonomy.regulator.config.config import RegulatorConfig
from isonomy.regulator.config.faults import VaultTampered
from isonomy.regulator.config.officers import OfficerName, acting_officer, check_officer
from isonomy.regulator.vault.sealed_file import Header, open_sealed, read_header, write_sealed
from isonomy.regulator.vault.unlock import Derivation, Lock, Secret

DOMAIN = "isonomy/officer-approval/v1"
KEY_LOCK = Lock("the officer's key", "--passphrase-file")
_WHAT, _SCHEMA = "officer's key", 1


class Approver(BaseModel):
    """An officer who approved; without key and signature if the policy lets a name suffice."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: OfficerName
    key: str = ""
    signature: Signature = ""


class SignOff(Document):
    """All signatures for one plan."""

    word: ClassVar[str] = "record of an approval"

    schema_version: Literal[1] = 1
    plan: Digest
    companies: Mapping[str, Signature]
    officers: tuple[Approver, ...] = Field(max_length=2)

    def event(self) -> dict[str, str]:
        """Return what the ledger notes: the plan, who approved it, and with which keys."""
        fields = {"plan": self.plan.hex()}
        for place, officer in zip(("", "second_"), self.officers, strict=False):
            fields |= {f"{place}officer": officer.name}
            fields |= {f"{place}key": officer.key} if officer.key else {}
        return fields


def make_officer_key(path: Path, secret: Secret) -> str:
    """Write a new officer's key, sealed, into a new file. Returns its public half."""
    private = Ed25519PrivateKey.generate()
    public = Identity(private).public.hex()
    derivation = Derivation.fresh(strong_secret=secret.strong)
    header = Header(_WHAT, _SCHEMA, derivation, {"public": public})
    write_sealed(path, private.private_bytes_raw(), header, secret)
    return public


def officer_key_public(path: Path) -> str:
    """Return the public half of an officer's key; no passphrase needed, and nothing proved."""
    return str(read_header(path, _WHAT, _SCHEMA).public.get("public", ""))


def open_officer_key(path: Path, secret: Secret) -> Identity:
    """Return the key in a file that `make_officer_key` wrote."""
    _, raw = open_sealed(path, _WHAT, _SCHEMA, secret)
    try:
        return Identity(Ed25519PrivateKey.from_private_bytes(raw))
    except ValueError:
        raise VaultTampered(f"{path} does not hold an officer's key") from None


def sign_off(
    config: RegulatorConfig, plan: Agreement, companies: Mapping[str, str], key: Identity | None
) -> SignOff:
    """Add the acting officer to the record of a plan. Returns the record, not yet stored.

    Earlier officers who count no longer are left out. PolicyRefused for one who approves alone
    what two must approve.
    """
    earlier = [each for each in _earlier(config, plan) if _fault(config, plan, each) is None]
    name, quorum = acting_officer(config.officers), config.policy.approving_officers
    others = [each for each in earlier if each.name != name]
    if len(others) < len(earlier) < quorum:
        raise PolicyRefused(
            f"{name!r} has approved this {plan.word}; another officer must approve it now"
        )
    public = key.public.hex() if key else ""
    signature = key.sign(DOMAIN, plan.hash).hex() if key else ""
    approver = Approver(name=name, key=public, signature=signature)
    fault = _fault(config, plan, approver)
    if fault is not None:
        raise PolicyRefused(fault)
    officers = (*others, approver)[-quorum:]
    return SignOff(plan=plan.hash, companies=dict(companies), officers=officers)


def missing_officers(config: RegulatorConfig, record: SignOff) -> int:
    """Return how many more officers must approve."""
    return max(config.policy.approving_officers - len(record.officers), 0)


def store(config: RegulatorConfig, record: SignOff) -> None:
    """Keep the record, in place of an earlier one."""
    private_folder(config.approvals_folder)
    write_private(sign_off_path(config, record.plan), record.to_json())


def incomplete(config: RegulatorConfig) -> list[SignOff]:
    """Return the records of plans that wait for another officer."""
    records = [SignOff.load(path) for path in sorted(config.approvals_folder.glob("*.json"))]
    return [record for record in records if missing_officers(config, record)]


def sign_off_path(config: RegulatorConfig, plan_hash: bytes) -> Path:
    """Return where the signatures for a plan are kept."""
    return config.approvals_folder / f"{plan_hash.hex()}.json"


def check_sign_off(config: RegulatorConfig, plan: Agreement) -> SignOff:
    """Return the record of a plan; raises unless rules (1) to (3) hold."""
    path = sign_off_path(config, plan.hash)
    if not path.exists():
        raise PlanNotApproved(
            f"nobody's approval of {plan.word} {plan.hash.hex()[:16]}… is kept here; approve it"
        )
    record = SignOff.load(path)
    if record.plan != plan.hash or record.companies.keys() != {c.name for c in plan.companies}:
        raise VerificationError(f"{path} is about another {plan.word}; approve this one again")
    for card in plan.companies:  # (1)
        check_signature(plan, card, record.companies[card.name])
    for officer in record.officers:  # (2), (3)
        fault = _fault(config, plan, officer)
        if fault is not None:
            raise PolicyRefused(fault)
    distinct = {officer.name for officer in record.officers}
    quorum = config.policy.approving_officers
    if len(distinct) < quorum:
        raise PolicyRefused(
            f"{len(distinct)} of {quorum} officers approved {plan.word} {plan.hash.hex()[:16]}…; "
            "another one must approve it before it can run"
        )
    return record


def _earlier(config: RegulatorConfig, plan: Agreement) -> tuple[Approver, ...]:
    path = sign_off_path(config, plan.hash)
    record = SignOff.load(path) if path.exists() else None
    return record.officers if record is not None and record.plan == plan.hash else ()


def _fault(config: RegulatorConfig, plan: Agreement, officer: Approver) -> str | None:
    """Return why an officer's approval of this plan does not count; None if it does."""
    try:
        name = check_officer(config.officers, officer.name)
    except PolicyRefused as error:
        return str(error)
    listed = config.officers.get(name)
    expected = listed.key if listed else ""
    if not expected and config.policy.approving_officers > 1:
        return (
            f"{officer.name!r} has no key in regulator.toml, and two officers must sign. Make one: "
            "isonomy-regulator officer-key FILE"
        )
    if officer.key != expected:
        how = "another key signed" if officer.key else "name the key's file with --officer-key"
        return f"regulator.toml has a key for {officer.name!r}, and approving needs it: {how}"
    if expected:
        try:
            signature = bytes.fromhex(officer.signature)
            verify_signature(bytes.fromhex(expected), DOMAIN, plan.hash, signature)
        except VerificationError:
            return f"the signature of {officer.name!r} is not over this {plan.word}"
    return None
