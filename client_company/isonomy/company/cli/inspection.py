"""`isonomy-company open-query`, `tidy` and `head`: what is kept of queries, shown and deleted.

The head of the regulator's ledger stands in every signed answer, and signed answers are kept. A
regulator that restores a backup needs the newest one: a ledger without it was rolled back.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from isonomy.common.agreements.agreement import kind_of
from isonomy.common.agreements.few_shot_plan import FewShotPlan
from isonomy.common.agreements.plan import Plan
from isonomy.common.base.errors import ConfigError, IsonomyError
from isonomy.common.base.output import emit
from isonomy.common.few_shot.rounds.state import CompanyState
from isonomy.common.keys.identity import verify_signature
from isonomy.common.keys.party import Card
from isonomy.common.pads.opening import show_request
from isonomy.common.privacy.queries import asks_alone, audit_number, query_id_prefix
from isonomy.common.sums.openings import answers_in
from isonomy.common.sums.sealed_opening import seal_opening, show_columns
from isonomy.common.wire.messages import ANSWER_DOMAIN, Answer, decode
from isonomy.company.cli.options import HOME, HomeFolder
from isonomy.company.federation.home import Home


def open_query(
    plan: Annotated[Path, typer.Argument(help="The plan under which the query was asked.")],
    query: Annotated[str, typer.Option(help="The query's id, its number, or an audit's name.")],
    out: Annotated[Path, typer.Option(help="File for the auditor.")],
    home: HomeFolder = HOME,
) -> None:
    """Seal what a query was made of for the plan's auditor; it works until the inspection deadline.

    The file holds rows and seeds, readable by the auditor's key only. Hand it to the auditor, who
    runs `isonomy-regulator inspect FILE --plan plan.json --keys FOLDER`.

    \b
    isonomy-company open-query plan.json --query 3 --out query-3.opening
    """
    company = Home(home.resolve())
    approved, _ = company.approvals.require(Plan.load(plan).hash)
    if not approved.auditor:
        raise ConfigError("the plan names no auditor, so there is nobody to open a query to")
    store = company.openings(approved)
    query_id = _query_id(approved, query)
    if len(approved.companies) > 1 and asks_alone(query_id, approved.hash) is None:
        raise ConfigError(
            "several companies asked this query: its parts are opened together, when the regulator "
            "demands it, and not by one company's file"
        )
    stored = store.find(query_id)
    if stored is None:
        raise ConfigError(
            f"no opening of query {query_id!r} is kept here: it was not asked from this home, or "
            f"it was deleted after {approved.inspection_deadline}"
        )
    key, keys = bytes.fromhex(approved.auditor), company.keys()
    if approved.carrier == "pads":
        shown = show_request(approved, stored, company.key_store(approved, keys))
    else:
        shown = show_columns(query_id, stored, store.columns(query_id))
    sealed = seal_opening(key, approved.hash, query_id, shown, keys.identity)
    sealed.save(out)
    request, size = sealed.request_hash.hex(), out.stat().st_size
    facts = {"opening": out, "query": query_id, "request": request, "bytes": size}
    emit(facts, f"Sealed query {query_id} for the auditor: {out}, {size:,} bytes")


def tidy(home: HomeFolder = HOME) -> None:
    """Delete rows, seeds and columns of all plans whose inspection deadline has passed.

    `join` does the same. Headers and signed answers stay; they show nobody's row.

    \b
    isonomy-company tidy --home company
    """
    deleted = Home(home.resolve()).delete_openings(datetime.now(UTC).date())
    emit(
        {"deleted": deleted}, f"Deleted what was kept for the inspections of {len(deleted)} plans."
    )


def auditor_fields(text: str, regulator: Card) -> dict[str, str]:
    """What a plan says of its auditor: nobody, the regulator, or the owner of a card."""
    if not text:
        return {}
    if text == "regulator":
        return {"auditor": regulator.x25519, "auditor_signing": regulator.ed25519}
    card = Card.load(Path(text))
    if card.role != "auditor":
        raise ConfigError(f"{text} is the card of a {card.role}, not of an auditor")
    keys = {"auditor": card.x25519, "auditor_signing": card.ed25519}
    return {**keys, "auditor_name": card.name}


def _query_id(plan: Plan, text: str) -> str:
    """The id of a query that is named by its id, its number in the plan, or an audit's name."""
    prefix = query_id_prefix(plan.hash)
    if text.startswith(prefix):
        return text
    return f"{prefix}{int(text) if text.isdecimal() else audit_number(text):06d}"


def head(
    plan: Annotated[Path, typer.Argument(help="A plan under which this company asked.")],
    home: HomeFolder = HOME,
) -> None:
    """Show the ledger's head in the last answer that the regulator signed.

    The regulator gives it to `isonomy-regulator restore --head` or `ledger --verify --head`.

    \b
    Examples:
    isonomy-company head plan.json --home company
    """
    if kind_of(plan) == "few-shot":
        _few_shot(FewShotPlan.load(plan), Home(home))
        return
    loaded = Plan.load(plan)
    folder = Home(home).folder / "openings" / loaded.hash.hex()
    newest = max(_answers(folder, loaded), key=lambda answer: answer.sequence, default=None)
    if newest is None:
        raise ConfigError(f"no answer under plan {loaded.hash.hex()[:16]}… is kept in {home}")
    _show(newest.ledger_head, newest.sequence, query=newest.query_id)


def _few_shot(plan: FewShotPlan, home: Home) -> None:
    receipt = CompanyState(home.state(plan)).receipt(plan)
    if receipt is None:
        raise ConfigError(f"no round of plan {plan.hash.hex()[:16]}… is kept in {home.folder}")
    _show(receipt.ledger_head, receipt.sequence, round=receipt.number)


def _show(head: bytes, record: int, **answer: object) -> None:
    ((kind, number),) = answer.items()
    text = f"{head.hex()}\n  after record {record} of the ledger, signed with {kind} {number}"
    emit({"head": head.hex(), "record": record, **answer}, text)


def _answers(folder: Path, plan: Plan) -> Iterator[Answer]:
    """Every stored answer that bears the regulator's signature; other requests are skipped."""
    for _, frame in answers_in(folder):
        try:
            answer = decode(frame, Answer)
            verify_signature(
                plan.regulator.signing_key, ANSWER_DOMAIN, answer.signed_bytes(), answer.signature
            )
        except IsonomyError:
            continue
        yield answer
