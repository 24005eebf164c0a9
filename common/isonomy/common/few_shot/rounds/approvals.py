"""Few-shot plans that a party's owner approved: folder/<hash>.json, byte for byte as approved."""

from __future__ import annotations

from pathlib import Path

from isonomy.common.agreements.approvals import PlanNotApproved
from isonomy.common.base.errors import ConfigError
from isonomy.common.base.private_files import write_private
from isonomy.common.few_shot.rounds.plan import FewShotPlan
from isonomy.common.keys.party import PartyKeys


class FewShotApprovals:
    """A folder of approved few-shot plans."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def approve(self, plan: FewShotPlan, keys: PartyKeys) -> None:
        """Store a plan as approved by this party's owner."""
        if plan.card(keys.name) != keys.card():
            raise ConfigError(
                f"the plan names {keys.name!r} with other keys than ours; hand over the card again"
            )
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_private(self._path(plan.hash), plan.to_json())

    def approved(self, plan_hash: bytes) -> bool:
        return self._path(plan_hash).exists()

    def require(self, plan_hash: bytes) -> FewShotPlan:
        """Return an approved plan, or raise PlanNotApproved."""
        path = self._path(plan_hash)
        if not path.exists():
            raise PlanNotApproved(
                f"few-shot plan {plan_hash.hex()[:16]}… is not approved on this side; compare the "
                "hash with the other owner, read it, then run `approve`"
            )
        plan = FewShotPlan.load(path)
        if plan.hash != plan_hash:
            raise PlanNotApproved(f"{path} was changed after its approval; approve it again")
        return plan

    def withdraw(self, plan_hash: bytes) -> None:
        """Take an approval back. What was spent under it stays spent."""
        self._path(plan_hash).unlink(missing_ok=True)

    def all(self) -> list[FewShotPlan]:
        """Every approved plan."""
        return [self.require(plan_hash) for plan_hash in self.hashes()]

    def hashes(self) -> list[bytes]:
        """List the approved plans."""
        return [bytes.fromhex(path.stem) for path in sorted(self._folder.glob("*.json"))]

    def _path(self, plan_hash: bytes) -> Path:
        return self._folder / f"{plan_hash.hex()}.json"


__all__ = ["FewShotApprovals"]
