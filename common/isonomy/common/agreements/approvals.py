"""What a party's owner has approved: plans by hash, each with the people it is about.

    folder/<hash>.json      the plan, byte for byte as it was approved
    folder/<hash>.people    the ids of its cohort in the agreed order, one per line

A daemon joins a session only for a hash that it finds here. The bytes are hashed again each time,
so a file that was changed after its approval counts as not approved.
"""

from __future__ import annotations

from pathlib import Path

from isonomy.common.agreements.plan import MILLION, Plan
from isonomy.common.base.errors import ConfigError, DataError
from isonomy.common.base.private_files import write_private
from isonomy.common.keys.party import PartyKeys
from isonomy.common.people.cohort import Cohort

MAX_PEOPLE_BYTES = 1 << 30


class PlanNotApproved(ConfigError):  # noqa: N818  (reads as the event it is)
    """A session was offered for a plan that this party's owner has not approved."""


class Approvals:
    """A folder of approved plans."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def approve(self, plan: Plan, cohort: Cohort, keys: PartyKeys) -> None:
        """Store the plan as approved, after the checks that need no other party."""
        if plan.card(keys.name) != keys.card():  # (1) our name stands for our keys
            raise ConfigError(
                f"the plan names {keys.name!r} with other keys than ours; hand over the card again"
            )
        check_people(plan, cohort, keys.name)  # (2) the people are those of the plan
        check_promises(plan)  # (3) it promises nothing that this version does not do
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_private(
            self._path(plan.hash, "people"), "".join(f"{i}\n" for i in cohort.ids).encode()
        )
        write_private(self._path(plan.hash, "json"), plan.to_json())  # last: this is what counts

    def require(self, plan_hash: bytes) -> tuple[Plan, Cohort]:
        """Return an approved plan and its people, or raise PlanNotApproved."""
        path = self._path(plan_hash, "json")
        if not path.exists():
            raise PlanNotApproved(
                f"plan {plan_hash.hex()[:16]}… is not approved on this side. Compare the hash with "
                "the other owners, read the plan, then run `approve`"
            )
        plan = Plan.load(path)
        if plan.hash != plan_hash:
            raise PlanNotApproved(f"{path} was changed after its approval; approve the plan again")
        cohort = read_people(self._path(plan_hash, "people"))
        roots = {plan.cohort_root, *(share.cohort_root for share in plan.shares)}
        if cohort.root.hex() not in roots:
            raise PlanNotApproved(
                f"the list of people beside {path} was changed after its approval; approve again"
            )
        return plan, cohort

    def hashes(self) -> list[bytes]:
        """List the approved plans."""
        return [bytes.fromhex(path.stem) for path in sorted(self._folder.glob("*.json"))]

    def _path(self, plan_hash: bytes, suffix: str) -> Path:
        return self._folder / f"{plan_hash.hex()}.{suffix}"


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
    if plan.inspection_millionths and len(plan.companies) > 1:
        raise ConfigError(
            "the plan inspects queries of several companies together, which this version does not "
            "do while it runs; make a plan with rate 0, or one plan per company"
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


def read_people(path: Path) -> Cohort:
    """Read a cohort, one id per line."""
    return Cohort.of(read_lines(path))


def read_lines(path: Path) -> list[str]:
    """Read a list of ids, one per line, as they stand there."""
    try:
        if path.stat().st_size > MAX_PEOPLE_BYTES:
            raise DataError(f"{path} is larger than {MAX_PEOPLE_BYTES} bytes")
        return path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ConfigError(f"cannot read the list of people {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise DataError(f"{path} is not text in UTF-8") from None
