"""A new plan from the company's wishes, and the three files that go out with it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from itertools import chain, combinations
from pathlib import Path
from typing import Any

from isonomy.common.agreements.approvals import write_people
from isonomy.common.agreements.plan import MILLION, Plan
from isonomy.common.base.errors import ConfigError, OverlappingPeople
from isonomy.common.base.private_files import write_whole
from isonomy.common.crypto.params import DEFAULT_PARAMETERS
from isonomy.common.keys.party import Card
from isonomy.common.pads.cost import compare, time_work
from isonomy.common.people.cohort import Cohort

INSPECTION_DAYS = 90
STRATEGIES = ("tilt", "pf_ld", "dp_fermi", "dp_sgda", "audit")  # audit: nothing is trained


@dataclass(frozen=True)
class PlanFiles:
    """What a plan consists of on disk: for both owners, for the regulator, for the server."""

    plan: Path
    people: Path
    public: Path

    @classmethod
    def beside(cls, plan: Path) -> PlanFiles:
        stem = plan.with_suffix("")
        return cls(plan, stem.with_suffix(".people"), stem.with_suffix(".public.json"))


def make_plan(
    companies: Sequence[tuple[Card, Cohort]],
    *,
    groups: Mapping[str, Sequence[str]],
    tolerance: str,
    epsilon: str,
    inspection_rate: str = "0",
    deadline: str | None = None,
    **terms: Any,
) -> tuple[Plan, Cohort]:
    """Put a plan together; numbers come as text, because they are kept exactly.

    `terms` are further fields of `Plan`. Returns the plan and everybody in it.
    """
    # The order of the people is part of the plan: the Merkle root fixes it for all parties.
    cohort = _all_people([people for _, people in companies])
    later = datetime.now(UTC).date() + timedelta(days=INSPECTION_DAYS)
    shares = [{"people": len(c), "cohort_root": c.root.hex()} for _, c in companies]
    fields = {
        "companies": [card for card, _ in companies],
        "cohort_root": cohort.root.hex(),
        "cohort_size": len(cohort),
        "shares": shares if len(shares) > 1 else [],
        "groups": {attribute: list(labels) for attribute, labels in groups.items()},
        "tolerance_millionths": millionths("tolerance", tolerance),
        "epsilon_millionths": millionths("epsilon", epsilon),
        "parameters": DEFAULT_PARAMETERS.name,
        "inspection_millionths": millionths("inspection rate", inspection_rate),
        "inspection_deadline": deadline or later.isoformat(),
    }
    return Plan.of(fields | terms), cohort


def choose_carrier(
    companies: Sequence[tuple[Card, Cohort]],
    groups: Mapping[str, Sequence[str]],
    strategy: str,
    auditor: str = "",
    megabits: float | None = None,
    source: str = "as you say",
) -> tuple[str, str]:
    """Return the carrier of a plan like this, and the reason in a sentence or two.

    `source`: where the link's `megabits` are from, in words.
    """
    if len(companies) > 1:
        return "homomorphic", "Carrier: homomorphic. Pads carry the rows of one company only."
    if auditor:
        # Not a matter of speed: the rate is about queries here, and about people there.
        return "homomorphic", (
            "Carrier: homomorphic, which opens whole queries to the auditor; with --carrier pads "
            "it is some people's rows of every query."
        )
    if megabits is not None and not 0 < megabits < math.inf:
        raise ConfigError(f"megabits is a link's speed in Mbit/s, above 0; got {megabits:g}")
    released = max(map(len, groups.values())) - 1
    people, work = len(companies[0][1]), time_work()
    comparison = compare(people, released, strategy, megabits, source, work=work)
    return comparison.best.carrier, f"Carrier: {comparison.best.carrier}. {comparison}"


def check_strategy(strategy: str) -> None:
    """Refuse the name of a strategy under which no session could ask anything."""
    if strategy not in STRATEGIES:
        raise ConfigError(
            f"there is no strategy {strategy!r}; a plan names one of {', '.join(STRATEGIES)}. "
            "Nothing was written."
        )


def write_plan(plan: Plan, cohort: Cohort, path: Path) -> PlanFiles:
    """Write plan, list of people and public part beside each other."""
    files = PlanFiles.beside(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_people(files.people, cohort)
    write_whole(files.public, plan.public().to_json())
    plan.save(path)
    return files


def millionths(what: str, text: str) -> int:
    """'0.05' → 50000, exactly; more than six decimals are refused rather than rounded."""
    try:
        scaled = Decimal(text) * MILLION
        whole = int(scaled)
    except (InvalidOperation, ValueError, OverflowError):
        raise ConfigError(f"{what} must be a number such as 0.05, got {text!r}") from None
    if whole != scaled:
        raise ConfigError(f"{what} {text} has more than six decimals; plans are exact to that")
    return whole


def _all_people(cohorts: Sequence[Cohort]) -> Cohort:
    """Everybody, one company after the other."""
    pairs = combinations(cohorts, 2)
    shared = sum(int((one.find(other.ids) >= 0).sum()) for one, other in pairs)
    if shared:
        raise OverlappingPeople(
            f"{shared} people stand in the lists of two companies; "
            "a person belongs to one company of a plan"
        )
    return Cohort(chain.from_iterable(cohort.ids for cohort in cohorts))
