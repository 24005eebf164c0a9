"""Where a regulator stands: from its files, and from the daemon if it runs. No secret needed."""

from __future__ import annotations

from dataclasses import dataclass

from isonomy.common.ledger.ledger import PlanSummary, verify_ledger
from isonomy.common.node.bridge import Message
from isonomy.common.privacy.accounting import epsilon_of
from isonomy.regulator.config.config import RegulatorConfig
from isonomy.regulator.plans.plan_files import known_terms
from isonomy.regulator.serving.officer import daemon_status
from isonomy.regulator.vault.vault import Vault


@dataclass(frozen=True)
class PlanStatus:
    """A plan's standing, in ε."""

    hash: str
    name: str
    companies: tuple[str, ...]
    people: int
    answers: int
    is_open: bool
    epsilon_reserved: float
    epsilon_spent: float


@dataclass(frozen=True)
class Status:
    """All that `status` shows."""

    name: str
    enrolled: int
    aligned: int  # people in the largest open plan: alignments of one cohort overlap
    epsilon_cap: float
    epsilon_left: float
    delta: str
    daemon: Message | None
    plans: tuple[PlanStatus, ...]


def read_status(config: RegulatorConfig) -> Status:
    """Read ledger, plans and vault header, and ask the daemon, if one runs."""
    ledger = verify_ledger(config.ledger_path) if config.ledger_path.exists() else None
    delta = float(config.ledger.delta)
    cap = min(config.ledger.cap_units, ledger.cap_units) if ledger else config.ledger.cap_units
    spent = ledger.max_held_units if ledger else 0
    plans = tuple(plan_status(config, entry, delta) for entry in ledger.plans()) if ledger else ()
    vault = config.vault_path
    return Status(
        name=config.name,
        enrolled=int(Vault.header(vault).public.get("people", 0)) if vault.exists() else 0,
        aligned=max((plan.people for plan in plans if plan.is_open), default=0),
        epsilon_cap=epsilon_of(cap, delta),
        epsilon_left=epsilon_of(cap - spent, delta) if cap > spent else 0.0,
        delta=config.ledger.delta,
        daemon=daemon_status(config),
        plans=plans,
    )


def plan_status(config: RegulatorConfig | None, entry: PlanSummary, delta: float) -> PlanStatus:
    """Return a plan of the ledger, with names if a home is at hand that keeps its terms."""
    terms = known_terms(config, entry.plan) if config else None
    return PlanStatus(
        hash=entry.plan.hex(),
        name=terms.name if terms else "",
        companies=tuple(card.name for card in terms.companies) if terms else (),
        people=entry.people,
        answers=entry.answers,
        is_open=entry.is_open,
        epsilon_reserved=epsilon_of(entry.units, delta),
        epsilon_spent=epsilon_of(entry.spent_units, delta),
    )
