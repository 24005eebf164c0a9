"""Approved alignments and what came of them.

    folder/<hash>.json      the alignment, byte for byte as its owner approved it
    folder/<hash>.people    the common people in the common order, one id per line
    folder/<hash>.count     of a dry run: how many they are
    folder/<hash>.secret    this side's exponent, until the alignment is through
    folder/<hash>.other     SHA-256 of the list that the other side brought
    folder/<hash>.*.partial points that were computed, until the alignment is through

An approval is for one list of each side. A run that broke off is run again with the same bytes, so
the other side learns nothing new from it; another list needs another alignment.

A plan is then made about the people of a result; the other owner finds them here by the Merkle root
that the plan binds, so no list of ids travels with a plan.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from isonomy.common.agreements.approvals import (
    ApprovalStore,
    read_people,
    write_people,
)
from isonomy.common.alignment.alignment import STAGES, AlignmentPlan
from isonomy.common.base.errors import ConfigError, ProtocolError
from isonomy.common.base.private_files import read_private, write_private
from isonomy.common.crypto.curve25519 import random_secret
from isonomy.common.crypto.ristretto import POINT_BYTES
from isonomy.common.people.cohort import Cohort


class AlignmentDone(ConfigError):  # noqa: N818  (reads as the event it is)
    """The alignment was carried out, and is not carried out twice."""


class Alignments(ApprovalStore[AlignmentPlan]):
    """A folder of alignments."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, AlignmentPlan)

    def begin(self, plan_hash: bytes) -> bytes:
        """The secret of this alignment, the same in each run; AlignmentDone if it is through."""
        path = self.path(plan_hash, "secret")
        results = self.people(plan_hash), self.path(plan_hash, "count")
        result = next((each for each in results if each.exists()), None)
        if result is not None and not path.exists():
            raise AlignmentDone(
                f"alignment {plan_hash.hex()[:16]}… is done; its result is in {result}. To "
                "align again, agree on a new one"
            )
        if not path.exists():
            write_private(path, random_secret())
        return read_private(path, POINT_BYTES)

    def bind(self, plan_hash: bytes, points: bytes) -> None:
        """Take the other side's list, on disk before anything is made of it; refuse a second one.

        Each list tests so many ids against ours. Who could break a run off and come back with
        another list would have more tests than were approved.
        """
        path, digest = self.path(plan_hash, "other"), hashlib.sha256(points).hexdigest().encode()
        if path.exists() and path.read_bytes() != digest:
            raise ProtocolError(
                "the other side brings other people than in the run that broke off; an alignment "
                "is for one list of each side. Agree on a new one"
            )
        write_private(path, digest)

    def people(self, plan_hash: bytes) -> Path:
        """Where the people that an alignment found are stored."""
        return self.path(plan_hash, "people")

    def save(self, plan_hash: bytes, common: Cohort | int) -> None:
        """Store the common people, or how many they are; the file is for its owner only."""
        if isinstance(common, int):
            write_private(self.path(plan_hash, "count"), str(common).encode())
        else:
            write_people(self.people(plan_hash), common)

    def finish(self, plan_hash: bytes) -> None:
        """Both sides have stored the result: destroy what would let this side run again."""
        for stage in STAGES:
            self.path(plan_hash, f"{stage}.partial").unlink(missing_ok=True)
        self.path(plan_hash, "secret").unlink(missing_ok=True)

    def find(self, cohort_root: str) -> Cohort | None:
        """The aligned people with that root, if an alignment here gave them."""
        for path in sorted(self.folder.glob("*.people")):
            cohort = read_people(path)
            if cohort.root.hex() == cohort_root:
                return cohort
        return None
