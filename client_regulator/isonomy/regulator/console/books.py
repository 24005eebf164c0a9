"""Companies and Ledger: who asked what, and every record of it."""

from __future__ import annotations

import csv
import io
from typing import Any

from starlette.responses import Response
from starlette.routing import Route

from isonomy.common.agreements.agreement import Agreement
from isonomy.common.keys.party import fingerprint
from isonomy.common.ledger.ledger import verify_ledger
from isonomy.regulator.config.config import RegulatorConfig
from isonomy.regulator.console.call import Call, act, page
from isonomy.regulator.console.inbox import waiting
from isonomy.regulator.console.render import TEXTS
from isonomy.regulator.console.reports import reports_of
from isonomy.regulator.plans.plan_files import known_terms, ledger_state, rejections
from isonomy.regulator.report.spreadsheet import safe_cells
from isonomy.regulator.serving.ledger_story import entry_words, head_bytes, read_story
from isonomy.regulator.serving.status import read_status

PAGE_ENTRIES = 100
KINDS = ("open", "reserve", "debit", "close", "inspection", "note")


def companies(call: Call) -> Response:
    """The list of companies."""
    return call.show("companies.html.j2", companies=_companies(call.config))


def company(call: Call) -> Response:
    """One company: its plans, inspections, rejections and reports."""
    config, name = call.config, call.named("company")
    one = _companies(config).get(name)
    if one is None:
        return call.go("/companies", TEXTS["companies"]["unknown"], "warn")
    return call.show("company.html.j2", company=one, reports=reports_of(config, one["name"]))


def ledger(call: Call) -> Response:
    """The records that the filter leaves, the newest first, a hundred on a page."""
    config = call.config
    if not config.ledger_path.exists():
        return call.show("ledger.html.j2", story=None)
    story = read_story(config.ledger_path, config, plan=call.asked("plan"))
    entries = _filtered(call, story)
    number = call.asked("page")
    at = min(int(number) if number.isdigit() else 1, max(-(-len(entries) // PAGE_ENTRIES), 1))
    at = max(at, 1)
    return call.show(
        "ledger.html.j2",
        story=story,
        shown=entries[(at - 1) * PAGE_ENTRIES : at * PAGE_ENTRIES],
        count=len(entries),
        at=at,
        pages=max(-(-len(entries) // PAGE_ENTRIES), 1),
        kinds=KINDS,
        chosen={name: call.asked(name) for name in ("plan", "type")},
    )


def verify(call: Call) -> Response:
    """Recompute the chain now; a head that a company shows must be in it."""
    head = call.form["head"].strip().lower()
    state = verify_ledger(call.config.ledger_path, known_head=head_bytes(head) if head else None)
    text = TEXTS["ledger"]["with_head" if head else "verified"]
    return call.go("/ledger", text.format(records=state.records, head=state.head.hex()))


def ledger_csv(call: Call) -> Response:
    """The filtered records as a spreadsheet."""
    config = call.config
    story = read_story(config.ledger_path, config, plan=call.asked("plan"))
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(["record", "time", "type", "who", "plan", "words"])
    for entry in reversed(_filtered(call, story)):
        who = ", ".join(entry.get("who", ()))
        cells = (entry["type"], who, entry.get("plan", ""), entry["words"])
        writer.writerow([entry["seq"], entry["time"], *safe_cells(cells)])
    headers = {"Content-Disposition": 'attachment; filename="ledger.csv"'}
    return Response(out.getvalue(), media_type="text/csv; charset=utf-8", headers=headers)


def _filtered(call: Call, story: dict[str, Any]) -> list[dict[str, Any]]:
    kind = call.asked("type")
    entries = [one for one in story["entries"] if not kind or one["type"] == kind]
    for entry in entries:
        entry["words"] = entry_words(entry)
    return list(reversed(entries))


def _companies(config: RegulatorConfig) -> dict[str, dict[str, Any]]:
    """Return every company that a plan names, by its fingerprint without blanks."""
    status, state = read_status(config), ledger_state(config.ledger_path)
    companies: dict[str, dict[str, Any]] = {}

    def entries(plan: Agreement) -> list[dict[str, Any]]:
        return [
            companies.setdefault(
                fingerprint(card).replace(" ", ""),
                {
                    "name": card.name,
                    "fingerprint": fingerprint(card),
                    "plans": [],
                    "waiting": [],
                    "inspections": [],
                    "rejections": [],
                },
            )
            for card in plan.companies
        ]

    for row in status["plans"]:
        terms = known_terms(config, bytes.fromhex(row["hash"]))
        for one in entries(terms) if terms else ():
            one["plans"].append(row)
            one["inspections"] += state.inspections(bytes.fromhex(row["hash"]))
    for record in rejections(config):
        terms = known_terms(config, bytes.fromhex(record["plan"]))
        for one in entries(terms) if terms else ():
            one["rejections"].append({**record, "name": terms.name if terms else ""})
    for item in waiting(config):
        for one in entries(item["plan"]):
            one["waiting"].append(item)
    return companies


ROUTES = [
    Route("/companies", page(companies)),
    Route("/companies/{company}", page(company)),
    Route("/ledger", page(ledger)),
    Route("/ledger/verify", act(verify, ledger, proof=False, changes=False), methods=["POST"]),
    Route("/ledger.csv", page(ledger_csv)),
]
