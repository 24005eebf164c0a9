"""Who may audit a plan, and what an owner reads about it before approving."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from session_kit import plan_fields, share_fields, split

from isonomy.common.agreements.approvals import Approvals
from isonomy.common.agreements.plan import Plan
from isonomy.common.base.errors import ConfigError
from isonomy.common.keys.party import PartyKeys, fingerprint
from isonomy.common.people.cohort import Cohort

COMPANY = PartyKeys.generate("acme", "company")
REGULATOR = PartyKeys.generate("bureau", "regulator")
AUDITOR = PartyKeys.generate("watch", "auditor").card()
PEOPLE = Cohort.of(["ann", "bo", "cy", "di"])
OUTSIDE = {
    "auditor": AUDITOR.x25519,
    "auditor_signing": AUDITOR.ed25519,
    "auditor_name": AUDITOR.name,
}
OWN = {"auditor": REGULATOR.card().x25519}


def plan(**changes: Any) -> Plan:
    own = {
        "companies": [COMPANY.card()],
        "regulator": REGULATOR.card(),
        "cohort_root": PEOPLE.root.hex(),
        "cohort_size": len(PEOPLE),
    }
    return Plan.of({**plan_fields(), **own, **changes})


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"auditor": COMPANY.card().x25519}, "cannot be its auditor"),
        ({**OUTSIDE, "auditor_signing": COMPANY.card().ed25519}, "cannot be its auditor"),
        ({"auditor": "nobody"}, "public key"),
        ({**OUTSIDE, "auditor_signing": "AB" * 32}, "public key"),
        ({"inspection_millionths": 1}, "need an auditor"),
        ({"auditor": AUDITOR.x25519}, "signing key"),
        ({**OUTSIDE, "auditor_name": ""}, "needs a name"),
        ({**OUTSIDE, "auditor_name": "Watch"}, "auditor_name"),
        ({**OWN, "inspection_millionths": 1_000_001}, "inspection_millionths"),
    ],
)
def test_nobody_audits_themselves_or_without_keys(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        plan(**changes)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, ["no inspections agreed: false input would go unnoticed"]),
        (OUTSIDE, ["inspected while it runs", "opens that query later", fingerprint(AUDITOR)]),
        (OWN, ["inspected while it runs", "opens that query later", "bureau itself", "rows"]),
        ({**OWN, "inspection_millionths": 50_000}, ["5 %", "bureau itself", "rows", "before they"]),
        (
            {**OUTSIDE, "inspection_millionths": 1_000_000},
            ["100 %", fingerprint(AUDITOR), "before"],
        ),
        (
            {**OUTSIDE, "inspection_millionths": 10_000, "inspection_waits": False},
            ["1 %", "checked after"],
        ),
        (
            {**OWN, "carrier": "pads", "inspection_millionths": 50_000},
            [
                "every query",
                "5 % of its people",
                "number in the list",
                "bureau itself",
                "before it",
            ],
        ),
        (
            {**OUTSIDE, "carrier": "pads", "inspection_millionths": 1, "inspection_waits": False},
            ["0.0001 %", fingerprint(AUDITOR), "checked after it"],
        ),
    ],
)
def test_the_owner_reads_who_sees_what_and_when(changes: dict[str, Any], said: list[str]) -> None:
    text = plan(**changes).describe()
    assert all(part in text for part in said)


def test_plans_with_inspection_are_approved_and_joint_ones_too(tmp_path: Path) -> None:
    """But for an individual filter of several companies, whose losses nobody adds up."""
    approvals = Approvals(tmp_path)
    inspected = plan(**OUTSIDE, inspection_millionths=50_000)
    approvals.approve(inspected, PEOPLE, COMPANY)
    assert approvals.require(inspected.hash)[0] == inspected
    other = PartyKeys.generate("bolt", "company")
    companies = {"companies": [COMPANY.card(), other.card()]}
    shares = share_fields(split(PEOPLE, ["acme", "bolt"]))
    joint = plan(**companies, **shares, **OUTSIDE, inspection_millionths=50_000)
    approvals.approve(joint, PEOPLE, REGULATOR)
    assert set(approvals.hashes()) == {inspected.hash, joint.hash}
    every = {"auditor": REGULATOR.card().x25519, "inspection_millionths": 1_000_000}
    filtered = plan(**companies, **shares, **every, individual_filter=True)
    with pytest.raises(ConfigError, match="several companies"):
        approvals.approve(filtered, PEOPLE, REGULATOR)
