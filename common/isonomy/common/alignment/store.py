"""Approved alignments and what came of them.

    folder/<hash>.json      the alignment, byte for byte as its owner approved it
    folder/<hash>.people    the common people in the common order, one id per line
    folder/<hash>.runs      how often it was begun

A plan is then made about the people of a result; the other owner finds them here by the Merkle root
that the plan binds, so no list of ids travels with a plan.
"""

from __future__ import annotations

from pathlib import Path

from isonomy.common.agreements.approvals import (
    ApprovalStore,
    PlanNotApproved,
    read_people,
    write_people,
)
from isonomy.common.alignment.alignment import AlignmentPlan
from isonomy.common.base.private_files import write_private
from isonomy.common.people.cohort import Cohort

MAX_RUNS = 5


class Alignments(ApprovalStore[AlignmentPlan]):
    """A folder of alignments."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, AlignmentPlan)

    def begin(self, plan_hash: bytes) -> None:
        """Count a run. A run tests the other side's ids against ours: approved once, not for ever.

        One that succeeded was the last; of those that broke off there are MAX_RUNS.
        """
        path = self.path(plan_hash, "runs")
        runs = int(path.read_text()) if path.exists() else 0
        if self.people(plan_hash).exists() or runs >= MAX_RUNS:
            raise PlanNotApproved(
                f"alignment {plan_hash.hex()[:16]}… was carried out already, or broke off "
                f"{MAX_RUNS} times; agree on a new one"
            )
        write_private(path, str(runs + 1).encode())

    def people(self, plan_hash: bytes) -> Path:
        """Where the people that an alignment found are stored."""
        return self.path(plan_hash, "people")

    def save(self, plan_hash: bytes, common: Cohort) -> Path:
        """Store the common people; the file is for its owner only."""
        path = self.people(plan_hash)
        write_people(path, common)
        return path

    def find(self, cohort_root: str) -> Cohort | None:
        """The aligned people with that root, if an alignment here gave them."""
        for path in sorted(self.folder.glob("*.people")):
            cohort = read_people(path)
            if cohort.root.hex() == cohort_root:
                return cohort
        return None
