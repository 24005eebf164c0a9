"""The files of plans in the home, found by the beginning of a plan's hash.

plans/HASH.json + HASH.people        approved: the daemon answers for it
plans/closed/HASH.json               ended: the terms are kept, the list of people is not
plans/closed/HASH.rejection.json     the officer's signed no, to hand to the company
"""

from __future__ import annotations

import re
from pathlib import Path

from isonomy.common.agreements.plan import Plan
from isonomy.common.base.errors import ConfigError
from isonomy.common.ledger.file import read_ledger
from isonomy.common.people.cohort import Cohort
from isonomy.regulator.config.config import RegulatorConfig
from isonomy.regulator.vault.member_key import member_key
from isonomy.regulator.vault.sealed_file import shred

MIN_PREFIX = 8
_PREFIX = re.compile(rf"[0-9a-f]{{{MIN_PREFIX},64}}")


def find_plan(config: RegulatorConfig, text: str) -> Plan | None:
    """The plan whose hash begins so, open or closed; None if there is none."""
    if not _PREFIX.fullmatch(text):
        return None
    found = {
        path.stem: path
        for folder in (config.closed_folder, config.plans_folder)
        for path in folder.glob(f"{text}*.json")
        if not path.stem.endswith(".rejection")
    }
    if len(found) > 1:
        raise ConfigError(f"{len(found)} plans begin with {text}; give more digits")
    return next((Plan.load(path) for path in found.values()), None)


def named_plan(config: RegulatorConfig, text: str) -> Plan:
    """A plan by its file or by the beginning of its hash."""
    if Path(text).is_file():
        return Plan.load(Path(text))
    plan = find_plan(config, text)
    if plan is None:
        raise ConfigError(
            f"{text!r} is neither a plan's file nor the beginning ({MIN_PREFIX} digits or more) of "
            "the hash of a plan that is kept here; `isonomy-regulator status` lists them"
        )
    return plan


def inspections_folder(config: RegulatorConfig, plan: Plan) -> Path:
    """Where a plan's openings wait for the auditor and its verdicts are kept."""
    return config.state_folder / plan.hash.hex() / "inspections"


def people_beside(plan: Path) -> Path:
    """Where the company's `plan` command puts the list of people."""
    return plan.with_suffix(".people")


def held_by(config: RegulatorConfig, cohort: Cohort) -> int:
    """The most units that one of these people has set aside or spent; reads, takes no lock."""
    path = config.ledger.path
    if not path.exists():
        return 0
    with path.open("rb") as file:
        state = read_ledger(path, file).state
    return state.held_units(cohort.member_hashes(member_key(config)))


def was_closed(config: RegulatorConfig, plan: Plan) -> bool:
    """Whether the plan had a budget and gave it back: it cannot get it again."""
    path = config.ledger.path
    if not path.exists():
        return False
    with path.open("rb") as file:
        plans = read_ledger(path, file).state.plans()
    return any(own.plan == plan.hash and not own.is_open for own in plans)


def rejection_path(config: RegulatorConfig, plan: Plan) -> Path:
    """Where the signed refusal of a plan is kept."""
    return config.closed_folder / f"{plan.hash.hex()}.rejection.json"


def remove_approval(config: RegulatorConfig, plan: Plan) -> None:
    """Remove a plan and its list of people from the approved ones."""
    # The approval goes first: without it the daemon joins no session, even if the next line fails.
    stem = config.plans_folder / plan.hash.hex()
    stem.with_suffix(".json").unlink(missing_ok=True)
    shred(stem.with_suffix(".people"))
