"""An auditor's signed verdict, and the folder where a regulator files openings and verdicts.

The checks themselves are in audit.py. This module needs no encryption library.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from isonomy.common.agreements.plan import Plan
from isonomy.common.base.canonical import canonical_json, hash_bytes
from isonomy.common.base.documents import Digest, Document
from isonomy.common.base.errors import ProtocolError, StorageError, VerificationError
from isonomy.common.base.private_files import private_folder, write_private
from isonomy.common.keys.identity import Identity, verify_signature
from isonomy.common.ledger.ledger import Ledger
from isonomy.common.ledger.records import MAX_QUERY_ID_CHARS
from isonomy.common.sums.joint_opening import JointOpening
from isonomy.common.sums.sealed_opening import SealedOpening
from isonomy.common.wire.messages import OpeningDemand, decode, encode

VERDICT_DOMAIN = "isonomy/inspection-verdict/v1"


class Verdict(Document):
    """What an auditor concluded about one request, signed. Holds nothing of what it saw."""

    word: ClassVar[str] = "verdict"
    max_bytes: ClassVar[int] = 4096

    schema_version: Literal[1] = 1
    plan: Digest
    query_id: Annotated[str, Field(min_length=1, max_length=MAX_QUERY_ID_CHARS)]
    request_hash: Digest
    passed: bool
    reason: Annotated[str, Field(max_length=512)] = ""
    signature: bytes = b""

    @property
    def step(self) -> str:
        """How the ledger calls it."""
        return "passed" if self.passed else "failed"

    def sign(self, identity: Identity) -> Verdict:
        signature = identity.sign(VERDICT_DOMAIN, self._signed_bytes())
        return self.model_copy(update={"signature": signature})

    def check(self, plan: Plan) -> None:
        """VerificationError unless the plan's auditor signed this about the plan."""
        if self.plan != plan.hash:
            raise VerificationError("the verdict is about another plan")
        signer = plan.regulator.ed25519 if plan.regulator_audits else plan.auditor_signing
        key = bytes.fromhex(signer)
        verify_signature(key, VERDICT_DOMAIN, self._signed_bytes(), self.signature)

    def _signed_bytes(self) -> bytes:
        return canonical_json(self.model_dump(mode="json", exclude={"signature"}))


class InspectionFolder:
    """Openings for an auditor to fetch, and the verdicts that came back. One folder per plan."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        self._folder, self._plan = folder, plan
        self._checked: dict[tuple[str, int, int], Verdict] = {}  # by name, time and size of a file

    def file(self, sealed: SealedOpening | JointOpening) -> Path:
        """Store a sealed opening until its auditor fetches it; on disk when this returns."""
        private_folder(self._folder)
        path = self._folder / file_name(sealed.query_id, sealed.request_hash, "opening")
        sealed.save(path)
        return path

    def keep_demand(self, demand: OpeningDemand) -> None:
        """Store a demand for rows, on disk when this returns: nobody can draw the same again."""
        private_folder(self._folder)
        write_private(self._demand_path(demand.query_id, demand.request_hash), encode(demand))

    def demand(self, query_id: str, request_hash: bytes) -> OpeningDemand:
        """The demand that `keep_demand` stored; StorageError if it is not there."""
        try:
            frame = self._demand_path(query_id, request_hash).read_bytes()
            return decode(frame, OpeningDemand)
        except (OSError, ProtocolError):
            raise StorageError(
                f"the demand that stands against query {query_id!r} is missing or damaged on disk; "
                "restore the state folder from a backup. Nothing is answered under this plan before"
            ) from None

    def drop_demand(self, demand: OpeningDemand) -> None:
        """Forget a demand that was met."""
        self._demand_path(demand.query_id, demand.request_hash).unlink(missing_ok=True)

    def _demand_path(self, query_id: str, request_hash: bytes) -> Path:
        return self._folder / file_name(query_id, request_hash, "demand")

    def take(self, verdict: Verdict, ledger: Ledger, officer: str = "") -> None:
        """Store a verdict that the plan's auditor signed; VerificationError for any other.

        In the ledger first: the file is evidence, and losing it must not revive a plan. A verdict
        about a request that was neither demanded nor answered is a VerificationError, too.
        `officer`: who brought it.
        """
        verdict.check(self._plan)
        ledger.note_inspection(
            self._plan.hash, verdict.query_id, verdict.request_hash, verdict.step, officer
        )
        private_folder(self._folder)
        name = file_name(verdict.query_id, verdict.request_hash, "verdict")
        write_private(self._folder / name, verdict.to_json())

    def openings(self) -> list[Path]:
        """Openings whose verdict is not here yet."""
        paths = sorted(self._folder.glob("*.opening"))
        return [path for path in paths if not path.with_suffix(".verdict").exists()]

    def verdicts(self) -> list[Verdict]:
        """All verdicts. Signatures are checked: files may have been put here by hand."""
        verdicts = []
        for path in sorted(self._folder.glob("*.verdict")):
            state = path.stat()
            version = (path.name, state.st_mtime_ns, state.st_size)
            if version not in self._checked:  # with each query: a signature is checked only once
                verdict = Verdict.load(path)
                verdict.check(self._plan)
                self._checked[version] = verdict
            verdicts.append(self._checked[version])
        return verdicts


def file_name(query_id: str, request_hash: bytes, kind: str) -> str:
    """How openings and verdicts are called in the regulator's folder."""
    digest = hash_bytes("isonomy/inspection-file/v1", query_id.encode(), request_hash).hex()
    return f"{digest[:32]}.{kind}"
