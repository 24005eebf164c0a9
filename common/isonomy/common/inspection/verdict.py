"""What an auditor found, signed, and the folder where a regulator keeps such things.

The checks themselves are in inspection_audit.py. This module needs no encryption library.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from isonomy.common.agreements.plan import Plan
from isonomy.common.base.canonical import canonical_json, hash_bytes, parse_canonical
from isonomy.common.base.errors import ConfigError, ProtocolError, VerificationError
from isonomy.common.base.private_files import write_private
from isonomy.common.keys.identity import Identity, verify_signature
from isonomy.common.ledger.ledger import Ledger
from isonomy.common.sums.sealed_opening import SealedOpening

VERDICT_DOMAIN = "isonomy/inspection-verdict/v1"
MAX_VERDICT_BYTES = 4096
_SCHEMA = 1


@dataclass(frozen=True)
class Verdict:
    """What an auditor found about one request, signed. Holds nothing of what it saw."""

    plan: bytes
    query_id: str
    request_hash: bytes
    passed: bool
    reason: str = ""
    signature: bytes = b""

    @property
    def step(self) -> str:
        """How the ledger calls it."""
        return "passed" if self.passed else "failed"

    def signed_bytes(self) -> bytes:
        return canonical_json(
            {
                "schema": _SCHEMA,
                "plan": self.plan.hex(),
                "query_id": self.query_id,
                "request_hash": self.request_hash.hex(),
                "passed": self.passed,
                "reason": self.reason,
            }
        )

    def sign(self, identity: Identity) -> Verdict:
        return replace(self, signature=identity.sign(VERDICT_DOMAIN, self.signed_bytes()))

    def check(self, plan: Plan) -> None:
        """VerificationError unless the plan's auditor signed this about the plan."""
        if self.plan != plan.hash:
            raise VerificationError("the verdict is about another plan")
        signer = plan.regulator.ed25519 if plan.regulator_audits else plan.auditor_signing
        verify_signature(bytes.fromhex(signer), VERDICT_DOMAIN, self.signed_bytes(), self.signature)

    def to_json(self) -> bytes:
        body: Any = parse_canonical(self.signed_bytes(), max_bytes=MAX_VERDICT_BYTES)
        return canonical_json({**body, "signature": self.signature.hex()})

    @classmethod
    def from_json(cls, data: bytes) -> Verdict:
        """Total: whatever the bytes are, a verdict (to be checked) or a ConfigError."""
        try:
            raw: Any = parse_canonical(data.strip(), max_bytes=MAX_VERDICT_BYTES)
            found = cls(
                plan=bytes.fromhex(raw["plan"]),
                query_id=str(raw["query_id"]),
                request_hash=bytes.fromhex(raw["request_hash"]),
                passed=raw["passed"] is True,
                reason=str(raw["reason"]),
                signature=bytes.fromhex(raw["signature"]),
            )
        except (ProtocolError, KeyError, TypeError, ValueError):
            raise ConfigError("not an inspection's verdict") from None
        if found.to_json() != data.strip():
            raise ConfigError("not an inspection's verdict, or from another version")
        return found


class InspectionFolder:
    """Openings for an auditor to fetch, and the verdicts that came back. One folder per plan."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        self._folder, self._plan = folder, plan
        self._known: dict[tuple[str, int, int], Verdict] = {}  # by file, as it was when checked

    def file(self, sealed: SealedOpening) -> Path:
        """Keep a sealed opening until its auditor fetches it; on disk when this returns."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = self._folder / file_name(sealed.query_id, sealed.request_hash, "opening")
        sealed.save(path)
        return path

    def take(self, verdict: Verdict, ledger: Ledger) -> None:
        """Keep a verdict that the plan's auditor signed; VerificationError for any other.

        In the ledger first: the file is evidence, and losing it must not revive a plan. A verdict
        about a request that was neither demanded nor answered is a VerificationError, too.
        """
        verdict.check(self._plan)
        ledger.note_inspection(
            self._plan.hash, verdict.query_id, verdict.request_hash, verdict.step
        )
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        name = file_name(verdict.query_id, verdict.request_hash, "verdict")
        write_private(self._folder / name, verdict.to_json())

    def openings(self) -> list[Path]:
        """Openings whose verdict is not here yet."""
        found = sorted(self._folder.glob("*.opening"))
        return [path for path in found if not path.with_suffix(".verdict").exists()]

    def verdicts(self) -> list[Verdict]:
        """All verdicts. Signatures are checked: files may have been put here by hand."""
        found = []
        for path in sorted(self._folder.glob("*.verdict")):
            state = path.stat()
            place = (path.name, state.st_mtime_ns, state.st_size)
            if place not in self._known:
                with path.open("rb") as file:
                    verdict = Verdict.from_json(file.read(MAX_VERDICT_BYTES + 1))
                verdict.check(self._plan)
                self._known[place] = verdict
            found.append(self._known[place])
        return found


def file_name(query_id: str, request_hash: bytes, kind: str) -> str:
    """How openings and verdicts are called in the regulator's folder."""
    digest = hash_bytes("isonomy/inspection-file/v1", query_id.encode(), request_hash).hex()
    return f"{digest[:32]}.{kind}"
