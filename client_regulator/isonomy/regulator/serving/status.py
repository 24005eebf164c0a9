"""Where a regulator stands: from its files, and from the daemon if it runs. No secret needed.

Amounts are in ε; the fields are those that `status --json` shows.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from isonomy.common.agreements.agreement import Agreement
from isonomy.common.agreements.few_shot_plan import FewShotPlan
from isonomy.common.ledger.ledger import verify_ledger
from isonomy.common.ledger.state import PlanSummary
from isonomy.common.privacy.accounting import epsilon_of
from isonomy.common.privacy.shown import share_left, share_up
from isonomy.regulator.config.config import RegulatorConfig
from isonomy.regulator.plans.plan_files import known_terms, rejections
from isonomy.regulator.plans.sign_off import incomplete
from isonomy.regulator.serving.officer import daemon_status
from isonomy.regulator.vault.vault import Vault


def read_status(config: RegulatorConfig) -> dict[str, Any]:
    """Return what ledger, plans and vault header say, and the daemon, if one runs."""
    ledger = verify_ledger(config.ledger_path) if config.ledger_path.exists() else None
    delta, vault = float(config.ledger.delta), config.vault_path
    cap = min(config.ledger.cap_units, ledger.cap_units) if ledger else config.ledger.cap_units
    unspent = cap - (ledger.max_held_units if ledger else 0)
    entries = ledger.plans() if ledger else ()
    plans = [plan_status(config, entry, delta) for entry in entries]
    running = [entry.plan for entry in entries if entry.is_open and not _is_few_shot(config, entry)]
    return {
        "name": config.name,
        "enrolled": int(Vault.header(vault).public.get("people", 0)) if vault.exists() else 0,
        "aligned": ledger.distinct_people(running) if ledger else 0,
        "epsilon_cap": epsilon_of(cap, delta),
        "epsilon_left": epsilon_of(unspent, delta) if unspent > 0 else 0.0,
        "share_left": share_left(cap - unspent, cap),
        "delta": config.ledger.delta,
        "daemon": daemon_status(config),
        "plans": plans,
        "waiting": [
            {"plan": record.plan.hex(), "officers": [each.name for each in record.officers]}
            for record in incomplete(config)
        ],
        "rejections": [
            {name: record[name] for name in ("plan", "reason", "time", "officer")}
            for record in rejections(config)
        ],
    }


def _is_few_shot(config: RegulatorConfig, entry: PlanSummary) -> bool:
    """Return whether a plan is about samples; these are not among the enrolled people."""
    return isinstance(known_terms(config, entry.plan), FewShotPlan)


def plan_status(config: RegulatorConfig | None, entry: PlanSummary, delta: float) -> dict[str, Any]:
    """Return a plan of the ledger, with names if a home is at hand that keeps its terms."""
    terms = known_terms(config, entry.plan) if config else None
    return {
        "hash": entry.plan.hex(),
        "name": terms.name if terms else "",
        "purpose": terms.words.purpose if terms else "",
        "companies": [card.name for card in terms.companies] if terms else [],
        "people": entry.people,
        "subjects": _subjects(terms),
        "answers": entry.answers,
        "is_open": entry.is_open,
        "epsilon_reserved": epsilon_of(entry.units, delta),
        "epsilon_spent": epsilon_of(entry.spent_units, delta),
        "share_spent": share_up(entry.spent_units, entry.units),  # these add up, ε does not
    }


def _subjects(terms: Agreement | None) -> str:
    """Return what a plan is about, in a word; both, if its terms are not known here."""
    if terms is None:
        return "people or samples"
    return "samples" if isinstance(terms, FewShotPlan) else "people"


def moment(seconds: int) -> str:
    """Return Unix seconds as a date and time in UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
