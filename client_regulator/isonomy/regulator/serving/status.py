"""Where a regulator stands: from its files, and from the daemon if it runs. No secret needed."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from isonomy.common.agreements.approvals import ApprovalStore
from isonomy.common.agreements.plan import Plan
from isonomy.common.base.errors import IsonomyError
from isonomy.common.few_shot.rounds.plan import FewShotPlan
from isonomy.common.ledger.ledger import PlanSummary, verify_ledger
from isonomy.common.node.bridge import Message
from isonomy.common.privacy.accounting import epsilon_of
from isonomy.regulator.config.config import RegulatorConfig
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

    def fields(self) -> dict[str, object]:
        return asdict(self)


def look(config: RegulatorConfig) -> Status:
    """Read ledger, plans and vault header, and ask the daemon."""
    found = verify_ledger(config.ledger.path) if config.ledger.path.exists() else None
    delta = float(config.ledger.delta)
    cap = min(config.ledger.cap_units, found.cap_units) if found else config.ledger.cap_units
    held = found.max_held_units if found else 0
    plans = tuple(_plan(config, own, delta) for own in found.plans) if found else ()
    vault = config.vault.path
    return Status(
        name=config.name,
        enrolled=int(Vault.header(vault).public.get("people", 0)) if vault.exists() else 0,
        aligned=max((own.people for own in plans if own.is_open), default=0),
        epsilon_cap=epsilon_of(cap, delta),
        epsilon_left=epsilon_of(max(cap - held, 0), delta) if cap > held else 0.0,
        delta=config.ledger.delta,
        daemon=daemon_status(config),
        plans=plans,
    )


def load_plan(config: RegulatorConfig, plan_hash: str) -> Plan | None:
    """The terms of a plan, open or closed, if they are kept here."""
    for folder in (config.plans_folder, config.closed_folder):
        path = folder / f"{plan_hash}.json"
        if path.exists():
            try:
                return Plan.load(path)
            except IsonomyError:
                return None
    return None


def _plan(config: RegulatorConfig, own: PlanSummary, delta: float) -> PlanStatus:
    terms = load_plan(config, own.plan.hex()) or _few_shot(config, own.plan)
    return PlanStatus(
        hash=own.plan.hex(),
        name=terms.name if terms else "",
        companies=tuple(card.name for card in terms.companies) if terms else (),
        people=own.people,
        answers=own.answers,
        is_open=own.is_open,
        epsilon_reserved=epsilon_of(own.units, delta),
        epsilon_spent=epsilon_of(own.spent_units, delta),
    )


def _few_shot(config: RegulatorConfig, plan_hash: bytes) -> FewShotPlan | None:
    """The terms of an open few-shot plan."""
    store = ApprovalStore(config.few_shot_folder, FewShotPlan)
    try:
        return store.require(plan_hash) if store.approved(plan_hash) else None
    except IsonomyError:
        return None
