"""`isonomy-company open-query` and `tidy`: what is kept for inspections, shown and deleted."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from isonomy.common.agreements.plan import Plan
from isonomy.common.base.errors import ConfigError
from isonomy.common.keys.party import Card
from isonomy.common.sums.sealed_opening import seal_opening
from isonomy.company.cli.options import HOME, HomeFolder, print_json
from isonomy.company.federation.home import Home

_HEX_KEY = 64


def open_query(
    plan: Annotated[Path, typer.Argument(help="The plan under which the query was asked.")],
    query: Annotated[str, typer.Option(help="The query's id, or its number in the plan.")],
    out: Annotated[Path, typer.Option(help="File for the auditor.")],
    home: HomeFolder = HOME,
) -> None:
    """Seal what a query was made of to the plan's auditor, until the plan's inspection deadline.

    The file holds rows and seeds, readable by the auditor's key only. Hand it to the auditor, who
    runs `isonomy-regulator inspect FILE --plan plan.json --keys FOLDER`.

    \b
    isonomy-company open-query plan.json --query 3 --out query-3.opening
    """
    company = Home(home.resolve())
    approved, _ = company.approvals.require(Plan.load(plan).hash)
    if not approved.auditor:
        raise ConfigError("the plan names no auditor, so there is nobody to open a query to")
    if len(approved.companies) > 1:
        raise ConfigError("one company's file cannot open a query of several companies")
    store = company.openings(approved)
    query_id = _query_id(approved, query)
    stored = store.find(query_id)
    if stored is None:
        raise ConfigError(
            f"no opening of query {query_id!r} is kept here: it was not asked from this home, or "
            f"it was deleted after {approved.inspection_deadline}"
        )
    key, columns = bytes.fromhex(approved.auditor), store.columns(query_id)
    identity = company.keys().identity
    sealed = seal_opening(key, approved.hash, query_id, stored, columns, identity)
    sealed.save(out)
    request, size = sealed.request_hash.hex(), out.stat().st_size
    print_json(opening=str(out), query=query_id, request=request, bytes=size)


def tidy(home: HomeFolder = HOME) -> None:
    """Delete rows, seeds and columns of all plans whose inspection deadline has passed.

    `join` does the same. What stays are headers and signed answers, which show nobody's row.

    \b
    isonomy-company tidy --home company
    """
    deleted = Home(home.resolve()).delete_openings(datetime.now(UTC).date())
    print_json(deleted=deleted)


def auditor_keys(text: str, regulator: Card) -> tuple[str, str]:
    """(sealing, signing) key of: nobody, the regulator, the owner of a card, or a bare key."""
    if text == "regulator":
        return regulator.x25519, regulator.ed25519
    if not text or (len(text) == _HEX_KEY and not Path(text).exists()):
        return text, ""
    card = Card.load(Path(text))
    if card.role != "auditor":
        raise ConfigError(f"{text} is the card of a {card.role}, not of an auditor")
    return card.x25519, card.ed25519


def _query_id(plan: Plan, text: str) -> str:
    return f"{plan.hash.hex()[:16]}-{int(text):06d}" if text.isdecimal() else text
