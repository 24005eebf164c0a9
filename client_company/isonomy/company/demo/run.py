"""The demonstration from start to end."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any

from isonomy.common.agreements.plan import MILLION, Plan
from isonomy.common.base.errors import VerificationError
from isonomy.common.ledger.ledger import verify_ledger
from isonomy.common.privacy.accounting import epsilon_of
from isonomy.company.demo.display import Display
from isonomy.company.demo.federation import Federation
from isonomy.company.demo.layout import DemoSettings, Layout
from isonomy.company.demo.population import Population, Score
from isonomy.company.demo.prepare import prepare
from isonomy.company.demo.processes import Processes


@dataclass(frozen=True)
class DemoResult:
    """What came out: the summary for machines, and what only the report shows."""

    summary: dict[str, Any]
    before: Score
    after: Score
    report: dict[str, Any]
    plots: list[dict[str, Any]]
    exchanges: list[dict[str, Any]]


def run_demo(layout: Layout, settings: DemoSettings, display: Display) -> DemoResult:
    """Prepare, start, train, take down, score. Whatever happens, no process stays behind."""
    began = time.monotonic()
    with Processes(layout.logs) as processes:
        display.stage("making keys, certificates, data and plan")
        population = prepare(layout, settings, processes)
        outcome = Federation(layout, processes).run(display)
    seconds = time.monotonic() - began
    display.stage("writing the report")
    result = collect(layout, settings, population, outcome, seconds)
    result.summary["stages"] = display.seconds()
    return result


def collect(
    layout: Layout,
    settings: DemoSettings,
    population: Population,
    server: dict[str, Any],
    seconds: float,
) -> DemoResult:
    """Put the result together from what the parties wrote, checked against the ledger."""
    plan = Plan.load(layout.plan)
    company = json.loads(layout.outcome.read_text())
    before = population.score(company["before"], settings.notion)
    after = population.score(company["after"], settings.notion)
    exchanges = _exchanges(layout)
    ledger = verify_ledger(layout.ledger)
    (account,) = [account for account in ledger.plans() if account.plan == plan.hash]
    spent = epsilon_of(account.spent_units, plan.delta_value)
    if spent < company["epsilon_spent"]:
        raise VerificationError("the ledger shows less than the company was answered")
    summary = {
        "strategy": settings.strategy,
        "notion": settings.notion,
        "accuracy_before": before.accuracy,
        "accuracy_after": after.accuracy,
        "violation_before": before.violation,
        "violation_after": after.violation,
        "epsilon_cap": plan.epsilon_millionths / MILLION,
        "epsilon_spent": spent,
        "delta": plan.delta_value,
        "exchanges": len(exchanges),
        "bytes": server["relay"]["bytes"],
        "seconds": seconds,
        "training_seconds": company["seconds"],
        "startup_seconds": seconds - company["seconds"],
        "dataset": settings.dataset,
        "attribute": population.attribute,
        "people": plan.cohort_size,
        "tested": len(company["after"]),
        "base": settings.base,
        "returned": company["report"]["returned"],
        "plan": plan.hash.hex(),
        "ledger_head": ledger.head.hex(),
        "relay_chain_head": server["relay"]["chain_head"],
        "settings": {k: str(v) for k, v in settings},
    }
    return DemoResult(summary, before, after, company["report"], company["plots"], exchanges)


def _exchanges(layout: Layout) -> list[dict[str, Any]]:
    lines = (layout.company.folder / "progress.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    return [event for event in events if event["event"] == "exchange"]
