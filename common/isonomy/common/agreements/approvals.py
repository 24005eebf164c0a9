"""What a party's owner has approved: agreements by hash, and the people of a run plan.

    folder/<hash>.json      the agreement, byte for byte as it was approved
    folder/<hash>.people    of a run plan: the ids of its cohort in the agreed order, one per line

A daemon joins a session only for a hash that it finds here. The bytes are hashed again each time,
so a file that was changed after its approval counts as not approved.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Generic, TypeVar

from isonomy.common.agreements.agreement import Agreement
from isonomy.common.agreements.plan import MILLION, Plan
from isonomy.common.base.documents import kind_of_content, read_bounded
from isonomy.common.base.errors import ConfigError, DataError, VerificationError
from isonomy.common.base.private_files import private_folder, write_private, write_whole
from isonomy.common.keys.identity import verify_signature
from isonomy.common.keys.party import Card, PartyKeys
from isonomy.common.people.cohort import Cohort

MAX_PEOPLE_BYTES = 1 << 30
SIGNATURE_DOMAIN = "isonomy/plan-approval/v1"
MAX_SIGNATURE_BYTES = 256

A = TypeVar("A", bound=Agreement)


class PlanNotApproved(ConfigError):  # noqa: N818  (reads as the event it is)
    """A session was offered for a plan that this party's owner has not approved."""


class ApprovalStore(Generic[A]):
    """A folder of approved agreements of one kind."""

    def __init__(self, folder: Path, kind: type[A]) -> None:
        self.folder, self._kind = folder, kind

    def approve(self, agreement: A, keys: PartyKeys) -> None:
        """Store the agreement as approved by the owner of these keys."""
        check_card(agreement, keys)
        private_folder(self.folder)
        write_private(self.path(agreement.hash), agreement.to_json())

    def approved(self, agreement_hash: bytes) -> bool:
        return self.path(agreement_hash).exists()

    def require(self, agreement_hash: bytes) -> A:
        """Return an approved agreement, or raise PlanNotApproved."""
        path, word = self.path(agreement_hash), self._kind.word
        if not path.exists():
            raise PlanNotApproved(
                f"{word} {agreement_hash.hex()[:16]}… is not approved on this side. Compare the "
                f"hash with the other owners, read the {word}, then run `approve`"
            )
        agreement = self._kind.load(path)
        if agreement.hash != agreement_hash:
            raise PlanNotApproved(f"{path} was changed after its approval; approve it again")
        return agreement

    def withdraw(self, agreement_hash: bytes) -> None:
        """Take an approval back, if there is one. What was spent or found under it stays."""
        self.path(agreement_hash).unlink(missing_ok=True)

    def hashes(self) -> list[bytes]:
        """List the approved agreements."""
        return [bytes.fromhex(path.stem) for path in sorted(self.folder.glob("*.json"))]

    def all(self) -> list[A]:
        """Every approved agreement."""
        return [self.require(agreement_hash) for agreement_hash in self.hashes()]

    def path(self, agreement_hash: bytes, suffix: str = "json") -> Path:
        return self.folder / f"{agreement_hash.hex()}.{suffix}"


class Approvals:
    """A folder of approved run plans, each with its people."""

    def __init__(self, folder: Path) -> None:
        self._store = ApprovalStore(folder, Plan)

    def approve(self, plan: Plan, cohort: Cohort, keys: PartyKeys) -> None:
        """Store the plan as approved, after the checks that need no other party."""
        check_card(plan, keys)
        check_people(plan, cohort, keys.name)
        check_promises(plan)
        private_folder(self._store.folder)
        write_people(self._store.path(plan.hash, "people"), cohort)
        self._store.approve(plan, keys)  # last, because this file is what counts as the approval

    def require(self, plan_hash: bytes) -> tuple[Plan, Cohort]:
        """Return an approved plan and its people, or raise PlanNotApproved."""
        plan = self._store.require(plan_hash)
        path = self._store.path(plan_hash, "people")
        cohort = read_people(path)
        roots = {plan.cohort_root, *(share.cohort_root for share in plan.shares)}
        if cohort.root.hex() not in roots:
            raise PlanNotApproved(
                f"the list of people {path} was changed after its approval; approve the plan again"
            )
        return plan, cohort

    def hashes(self) -> list[bytes]:
        """List the approved plans."""
        return self._store.hashes()


def check_card(agreement: Agreement, keys: PartyKeys) -> None:
    """Raise ConfigError unless the agreement names this party with these keys."""
    if agreement.card(keys.name) != keys.card():
        raise ConfigError(
            f"the {agreement.word} names {keys.name!r} with other keys than ours; hand over the "
            "card again"
        )


def signature_path(file: Path, company: str) -> Path:
    """Return where a company's signature of an agreement lies, beside the agreement's file."""
    return file.with_suffix(f".{company}.sig")


def sign_agreement(agreement: Agreement, file: Path, keys: PartyKeys) -> Path:
    """Write a company's signature over the agreement's hash. Returns its path."""
    path = signature_path(file, keys.name)
    write_whole(path, keys.identity.sign(SIGNATURE_DOMAIN, agreement.hash).hex().encode())
    return path


def company_signatures(agreement: Agreement, file: Path) -> dict[str, str]:
    """Return each company's signature of exactly this agreement, from the files beside it.

    VerificationError if one is missing, or is of anything else: then nobody may approve it.
    """
    signatures = {}
    for card in agreement.companies:
        path = signature_path(file, card.name)
        if not path.exists():
            raise VerificationError(
                f"{card.name} has not signed this {agreement.word}: there is no {path}. Ask "
                f"{card.name} to run `isonomy-company approve {file.name}` and to send the "
                f"signature {path.name} with the {agreement.word}. Nothing was approved"
            )
        text = read_bounded(path, MAX_SIGNATURE_BYTES).decode("ascii", "replace")
        try:
            check_signature(agreement, card, text)
        except VerificationError:
            raise VerificationError(
                f"{path} is not {card.name}'s signature of this {agreement.word}: the file was "
                "changed after it was signed, or the signature belongs to another one. Ask "
                f"{card.name} for both files again. Nothing was approved"
            ) from None
        signatures[card.name] = text
    return signatures


def check_signature(agreement: Agreement, card: Card, text: str) -> None:
    """Raise VerificationError unless the text is this company's signature of the agreement."""
    is_hex = re.fullmatch("[0-9a-f]{128}", text) is not None
    signature = bytes.fromhex(text) if is_hex else b""
    verify_signature(card.signing_key, SIGNATURE_DOMAIN, agreement.hash, signature)


def check_promises(plan: Plan) -> None:
    """Raise ConfigError for a plan whose guarantee rests on what this version does not enforce.

    An individual filter is kept by the company, and only inspections can enforce it: what a person
    lost is the sum over *all* queries. One inspected query shows that query's rows and says nothing
    about the others, so any rate below 1 would leave the sum on the company's word: approving such
    a plan would approve unlimited answers. And who adds up must be there before each answer.
    """
    if plan.individual_filter and not (
        plan.regulator_audits and plan.inspection_millionths == MILLION
    ):
        raise ConfigError(
            "the plan relies on an individual filter, which is enforced only where the regulator "
            "itself inspects every query (auditor = the regulator, rate 1). Make a plan like that, "
            "or without the filter"
        )
    if plan.individual_filter and len(plan.companies) > 1:
        raise ConfigError(
            "the plan has an individual filter and several companies, whose losses nobody adds up; "
            "make a plan without the filter, or one plan per company"
        )


def check_people(plan: Plan, cohort: Cohort, party: str) -> None:
    """Raise DataError unless these are the people that the plan binds, in its order."""
    size, root = plan.cohort_size, plan.cohort_root
    for card, share in zip(plan.companies, plan.shares, strict=False):
        if card.name == party:
            size, root = share.people, share.cohort_root
    if len(cohort) != size or cohort.root.hex() != root:
        raise DataError(
            f"the plan is about {size} people with root {root[:16]}…; these are {len(cohort)} with "
            f"root {cohort.root.hex()[:16]}…. Use the list of ids that came with the plan, in its "
            "order"
        )


def write_people(path: Path, cohort: Cohort) -> None:
    """Write a cohort, one id per line, for its owner only."""
    write_private(path, cohort.ids.text)


def read_people(path: Path) -> Cohort:
    """Read a cohort, one id per line."""
    return Cohort.of(read_lines(path))


def read_lines(path: Path) -> list[str]:
    """Read a list of ids, one per line, as they stand there."""
    data = read_bounded(path, MAX_PEOPLE_BYTES)
    if len(data) > MAX_PEOPLE_BYTES:
        raise DataError(f"{path} is larger than {MAX_PEOPLE_BYTES} bytes")
    try:
        return data.decode("utf-8-sig").splitlines()  # Excel puts a mark before the first id
    except UnicodeDecodeError:
        kind = kind_of_content(data)
        what = f"is a {kind}, not a list of ids" if kind else "is not text in UTF-8"
        raise DataError(f"{path} {what}; save one id per line as text in UTF-8") from None
