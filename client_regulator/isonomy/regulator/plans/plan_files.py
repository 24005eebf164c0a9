"""The files of plans in the home, found by the beginning of a plan's hash.

plans/HASH.json + HASH.people        approved: the daemon answers for it
plans/closed/HASH.json               ended: the terms are kept, the list of people is not
plans/closed/HASH.TIME.rejection.json   the officer's signed refusals, to hand to the company
few-shot/HASH.json, alignments/HASH.json    approved plans of the other kinds
"""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path
from typing import Any

from isonomy.common.agreements.agreement import Agreement, kind_of
from isonomy.common.agreements.approvals import ApprovalStore
from isonomy.common.agreements.few_shot_plan import FewShotPlan
from isonomy.common.agreements.plan import Plan
from isonomy.common.alignment.alignment import AlignmentPlan
from isonomy.common.base.errors import ConfigError, IsonomyError
from isonomy.common.ledger.ledger import read_ledger
from isonomy.common.ledger.state import LedgerState, PlanSummary
from isonomy.common.people.cohort import Cohort
from isonomy.regulator.config.config import RegulatorConfig
from isonomy.regulator.vault.member_key import member_key

MIN_PREFIX = 8
_KINDS: dict[str, type[Agreement]] = {"alignment": AlignmentPlan, "few-shot": FewShotPlan}
_PREFIX = re.compile(rf"[0-9a-f]{{{MIN_PREFIX},64}}")


def few_shot_approvals(config: RegulatorConfig) -> ApprovalStore[FewShotPlan]:
    """Return the store of approved few-shot plans."""
    return ApprovalStore(config.few_shot_folder, FewShotPlan)


def load_agreement(path: Path) -> Agreement:
    """Read a plan, an alignment or a few-shot plan."""
    return _KINDS.get(kind_of(path), Plan).load(path)


def find_agreement(config: RegulatorConfig, prefix: str) -> Agreement | None:
    """Return what was approved or closed here under a hash that begins so, if there is any."""
    if not _PREFIX.fullmatch(prefix):
        return None
    folders = (config.closed_folder, config.plans_folder)
    paths = {
        path.stem: path
        for folder in (*folders, config.few_shot_folder, config.alignments_folder)
        for path in folder.glob(f"{prefix}*.json")
        if not path.stem.endswith(".rejection")
    }
    if len(paths) > 1:
        raise ConfigError(f"{len(paths)} plans begin with {prefix}; give more digits")
    return next((load_agreement(path) for path in paths.values()), None)


def find_plan(config: RegulatorConfig, prefix: str) -> Plan | None:
    """Return the run plan whose hash begins so, open or closed; None if there is none."""
    plan = find_agreement(config, prefix)
    return plan if isinstance(plan, Plan) else None


def named_agreement(config: RegulatorConfig, text: str) -> Agreement:
    """Return a plan of any kind by its file or by the beginning of its hash."""
    plan = load_agreement(Path(text)) if Path(text).is_file() else find_agreement(config, text)
    if plan is None:
        raise ConfigError(
            f"{text!r} is neither a plan's file nor the beginning ({MIN_PREFIX} digits or more) of "
            "the hash of a plan that is kept here; `isonomy-regulator status` lists them"
        )
    return plan


def named_plan(config: RegulatorConfig, text: str) -> Plan:
    """Return a run plan by its file or by the beginning of its hash."""
    plan = named_agreement(config, text)
    if not isinstance(plan, Plan):
        raise ConfigError(f"{text!r} is not a run plan, but a {plan.word}")
    return plan


def known_terms(config: RegulatorConfig, plan_hash: bytes) -> Agreement | None:
    """Return the terms of a plan, open or closed, if they are kept here and can be read."""
    with contextlib.suppress(IsonomyError):
        return find_agreement(config, plan_hash.hex())
    return None


def inspections_folder(config: RegulatorConfig, plan: Plan) -> Path:
    """Return where a plan's openings wait for the auditor and its verdicts are kept."""
    return config.state_folder / plan.hash.hex() / "inspections"


def keys_folder(config: RegulatorConfig, plan: Plan) -> Path:
    """Return where the keys of a plan by pads are kept, sealed as the vault is."""
    return config.state_folder / plan.hash.hex() / "keys"


def rejection_path(config: RegulatorConfig, plan: Agreement, time: int) -> Path:
    """Return where a signed refusal of a plan is kept. None is ever removed or overwritten."""
    return config.closed_folder / f"{plan.hash.hex()}.{time}.rejection.json"


def rejections(config: RegulatorConfig) -> list[dict[str, Any]]:
    """List the refusals that were signed here, the oldest first."""
    records = [json.loads(p.read_bytes()) for p in config.closed_folder.glob("*.rejection.json")]
    return sorted(records, key=lambda record: int(record["time"]))


def ledger_state(path: Path) -> LedgerState:
    """Return what a ledger file says. It takes no lock, so a daemon may be writing meanwhile."""
    return read_ledger(path) if path.exists() else LedgerState()


def most_spent(config: RegulatorConfig, cohort: Cohort) -> int:
    """Return the most units that one of these people has set aside or spent."""
    members = cohort.member_hashes(member_key(config))
    return ledger_state(config.ledger_path).held_units(members)


def was_closed(config: RegulatorConfig, plan: Agreement) -> bool:
    """Return whether the plan had a budget and was ended. It cannot get it again."""
    entry = _entry(config, plan)
    return entry is not None and not entry.is_open


def units_set_aside(config: RegulatorConfig, plan: Agreement) -> int:
    """Return what is set aside for an open plan now, for each of its people or samples."""
    entry = _entry(config, plan)
    return entry.units if entry is not None and entry.is_open else 0


def _entry(config: RegulatorConfig, plan: Agreement) -> PlanSummary | None:
    plans = ledger_state(config.ledger_path).plans()
    return next((entry for entry in plans if entry.plan == plan.hash), None)
