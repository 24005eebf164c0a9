"""The company's home folder: where its keys, approvals and openings are.

keys/      identity and sealing key, card.json      plans/     what its owner approved
tls/       from the server's operator               openings/  rows, seeds and pads' keys, per plan,
node/      the Flower node's key and files                     until the inspection deadline
run/       the local socket                         state/     how far a session got
alignments/  approved alignments and the people found    few-shot/  approved few-shot plans
runs/      what each process did or does
"""

from __future__ import annotations

from datetime import date
from pathlib import Path

from isonomy.common.agreements.agreement import Agreement
from isonomy.common.agreements.approvals import Approvals, ApprovalStore
from isonomy.common.agreements.few_shot_plan import FewShotPlan
from isonomy.common.agreements.plan import Plan
from isonomy.common.alignment.store import Alignments
from isonomy.common.base.errors import ConfigError
from isonomy.common.base.private_files import private_folder
from isonomy.common.keys.certificates import TlsFiles
from isonomy.common.keys.party import PartyKeys
from isonomy.common.pads.key_store import KeyStore
from isonomy.common.sums.openings import FolderOpenings, delete_openings


class Home:
    """Paths below one folder; nothing is made before it is needed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.keys_folder = folder / "keys"
        self.socket = folder / "run" / "company.sock"
        self.runs = folder / "runs"
        self.tls = TlsFiles.of(folder / "tls")
        self.approvals = Approvals(folder / "plans")
        self.alignments = Alignments(folder / "alignments")
        self.few_shot = ApprovalStore(folder / "few-shot", FewShotPlan)

    @property
    def group(self) -> str | None:
        """The group that a kit has opened run/ to: the Flower node's user is in it."""
        try:
            home, run = self.folder.stat(), self.socket.parent.stat()
        except FileNotFoundError:
            return None
        is_opened = run.st_mode & 0o011 == 0o010 and run.st_gid != home.st_gid
        return str(run.st_gid) if is_opened else None

    def require(self, agreement_hash: bytes) -> Agreement:
        """The approved plan, alignment or few-shot plan of that hash, or PlanNotApproved."""
        if self.few_shot.approved(agreement_hash):
            return self.few_shot.require(agreement_hash)
        if self.alignments.approved(agreement_hash):
            return self.alignments.require(agreement_hash)
        plan, _ = self.approvals.require(agreement_hash)
        return plan

    def keys(self) -> PartyKeys:
        return PartyKeys.load(self.keys_folder)

    def openings(self, plan: Plan) -> FolderOpenings:
        """What is kept of each query; rows and columns only for an auditor to see."""
        folder = self.folder / "openings" / plan.hash.hex()
        return FolderOpenings(folder, inspected=bool(plan.auditor))

    def key_store(self, plan: Plan, keys: PartyKeys) -> KeyStore:
        """The keys of a plan by pads, beside its openings: they are deleted with them."""
        sealing = keys.sealing.private_bytes_raw()
        folder = self.folder / "openings" / plan.hash.hex()
        return KeyStore(plan.cohort_size, company=True, folder=folder, sealing=sealing)

    def delete_openings(self, today: date, *, keep: bytes = b"") -> list[str]:
        """Delete rows, seeds and columns of plans whose inspection deadline has passed.

        Returns the hashes of those plans. The plan `keep` is left alone: it is about to run.
        """
        done = []
        for folder in sorted((self.folder / "openings").glob("*")):
            try:
                plan, _ = self.approvals.require(bytes.fromhex(folder.name))
            except (ConfigError, ValueError):
                continue  # without the plan nobody knows its deadline
            over = date.fromisoformat(plan.inspection_deadline) < today
            if over and plan.hash != keep and delete_openings(folder):
                done.append(folder.name)
        return done

    def state(self, plan: Agreement) -> Path:
        folder = self.folder / "state" / plan.hash.hex()
        private_folder(folder)
        return folder
