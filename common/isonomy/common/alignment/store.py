"""Approved alignments and what came of them.

    folder/<hash>.json      the alignment, byte for byte as its owner approved it
    folder/<hash>.people    the common people in the common order, one id per line
    folder/<hash>.runs      how often it was begun

A plan is then made about the people of a result; the other owner finds them here by the Merkle root
that the plan binds, so no list of ids travels with a plan.
"""

from __future__ import annotations

from pathlib import Path

from isonomy.common.agreements.approvals import PlanNotApproved, read_people
from isonomy.common.alignment.alignment import AlignmentPlan
from isonomy.common.base.errors import ConfigError
from isonomy.common.base.private_files import write_private
from isonomy.common.keys.party import PartyKeys
from isonomy.common.people.cohort import Cohort

MAX_RUNS = 5


class Alignments:
    """A folder of alignments."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def approve(self, plan: AlignmentPlan, keys: PartyKeys) -> None:
        """Store an alignment as approved by this party's owner."""
        if plan.card(keys.name) != keys.card():
            raise ConfigError(
                f"the alignment names {keys.name!r} with other keys than ours; hand over the card "
                "again"
            )
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_private(self._path(plan.hash, "json"), plan.to_json())

    def approved(self, plan_hash: bytes) -> bool:
        return self._path(plan_hash, "json").exists()

    def require(self, plan_hash: bytes) -> AlignmentPlan:
        """Return an approved alignment, or raise PlanNotApproved."""
        path = self._path(plan_hash, "json")
        if not path.exists():
            raise PlanNotApproved(
                f"alignment {plan_hash.hex()[:16]}… is not approved on this side; compare the hash "
                "with the other owner, read it, then run `approve`"
            )
        plan = AlignmentPlan.load(path)
        if plan.hash != plan_hash:
            raise PlanNotApproved(f"{path} was changed after its approval; approve it again")
        return plan

    def begin(self, plan_hash: bytes) -> None:
        """Count a run. A run tests the other side's ids against ours: approved once, not for ever.

        One that succeeded was the last; of those that broke off there are MAX_RUNS.
        """
        path = self._path(plan_hash, "runs")
        runs = int(path.read_text()) if path.exists() else 0
        if self.people(plan_hash).exists() or runs >= MAX_RUNS:
            raise PlanNotApproved(
                f"alignment {plan_hash.hex()[:16]}… was carried out already, or broke off "
                f"{MAX_RUNS} times; agree on a new one"
            )
        write_private(path, str(runs + 1).encode())

    def withdraw(self, plan_hash: bytes) -> None:
        """Take an approval back; what was found under it stays."""
        self.require(plan_hash)
        self._path(plan_hash, "json").unlink()

    def people(self, plan_hash: bytes) -> Path:
        """Where the people that an alignment found are kept."""
        return self._path(plan_hash, "people")

    def save(self, plan_hash: bytes, common: Cohort) -> Path:
        """Keep the common people; the file is for its owner only."""
        path = self.people(plan_hash)
        write_private(path, "".join(f"{person}\n" for person in common.ids).encode())
        return path

    def find(self, cohort_root: str) -> Cohort | None:
        """The aligned people with that root, if an alignment here gave them."""
        for path in sorted(self._folder.glob("*.people")):
            found = read_people(path)
            if found.root.hex() == cohort_root:
                return found
        return None

    def _path(self, plan_hash: bytes, suffix: str) -> Path:
        return self._folder / f"{plan_hash.hex()}.{suffix}"


__all__ = ["Alignments"]
