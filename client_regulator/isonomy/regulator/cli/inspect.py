"""`inspect`, `verdict` and `auditor-key`: was a company's query what it claimed to be?

An auditor needs this program, the plan, its own keys and an opening file: no home, no vault, no
ledger, no network.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer

from isonomy.common.agreements.plan import Plan
from isonomy.common.base.errors import ConfigError, InspectionFailed
from isonomy.common.base.output import emit
from isonomy.common.base.private_files import write_private
from isonomy.common.inspection.verdict import InspectionFolder, Verdict
from isonomy.common.keys.party import PartyKeys, fingerprint
from isonomy.common.ledger.records import STEPS
from isonomy.common.sums.joint_opening import JointOpening, load_opening
from isonomy.regulator.cli.output import Home
from isonomy.regulator.config.config import RegulatorConfig
from isonomy.regulator.plans.plan_files import inspections_folder, ledger_state, named_plan
from isonomy.regulator.serving.officer import ask

CHECKS = (
    "(a) the plan names this auditor, and the opening is about the plan",
    "(b) the company sealed and signed it",
    "(c) the regulator demanded or answered this request",
    "(0) the header is that of the request",
    "(1) the query is the one that the header binds",
    "(2) rows and seeds are those committed to",
    "(3) the columns are those that the request was made from",
    "(4) the rows have the shape that the query declares",
    "(5) no person's rows exceed the bound",
    "(6) the ciphertexts follow from columns, rows and seeds, byte for byte",
)
ROW_CHECKS = (  # by pads, of the people drawn
    *CHECKS[:5],
    "(4) the rows are those of the people drawn, in the shape that the query declares",
    "(5) none of these rows exceeds the bound",
    "(6) the cells that arrived follow from rows and row keys, byte for byte",
)
JOINT_CHECKS = (
    *CHECKS,
    "(8) each company's masks and totals are those that it had to send",
    "(9) the server added the ciphertexts of all companies",
)


def inspect(
    what: Annotated[
        str, typer.Argument(help="An opening file to check; or a run, to see its inspections.")
    ],
    query: Annotated[str, typer.Option(help="Of a run: this query only.")] = "",
    plan: Annotated[
        Path | None, typer.Option(help="The plan's file. Default: from the home folder.")
    ] = None,
    keys: Annotated[
        Path | None, typer.Option(help="The auditor's key folder. Default: the regulator's.")
    ] = None,
    ledger: Annotated[
        Path | None, typer.Option(help="A copy of the regulator's ledger, to compare with.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--verdict", help="Write the signed verdict here.")
    ] = None,
    home: Home = Path(),
) -> None:
    """Check whether a company asked what it claims, from the file in which it shows its question.

    Give a file to check it. An auditor adds --plan, --keys and --verdict, and hands the verdict's
    file to the regulator, who runs `verdict`. If the regulator is the auditor, none of these is
    needed, and the verdict is filed at once. If a check fails, the command ends with code 42.

    Give a run to list its inspections, and which files wait for the auditor.

    \b
    isonomy-regulator inspect query-3.opening --plan plan.json --keys auditor --verdict v.json
    isonomy-regulator inspect 3f9c21ab --home /srv/regulator
    """
    from isonomy.common.inspection.audit import audit  # here: `verify` needs no encryption

    if what.endswith(".opening") and not Path(what).is_file():
        raise ConfigError(f"there is no opening {what}; `inspect` of the run lists those that wait")
    if not Path(what).is_file():
        _show_run(RegulatorConfig.load(home), what, query)
        return
    sealed = load_opening(Path(what))
    if plan is not None and keys is not None:  # an auditor, who has no home
        terms, auditor, books = Plan.load(plan), PartyKeys.load(keys), ledger
    else:
        config = RegulatorConfig.load(home)
        terms = Plan.load(plan) if plan else named_plan(config, sealed.plan.hex())
        auditor, books = PartyKeys.load(keys or config.keys_folder), ledger or config.ledger_path
    result = audit(terms, sealed, auditor, answered=_answered(books, sealed.query_id))
    if out is not None:
        write_private(out, result.to_json())
    if keys is None:
        _file(config, result)
    if not result.passed:
        raise InspectionFailed(f"query {sealed.query_id!r} failed: {result.reason}")
    checks: tuple[str, ...] = CHECKS
    if terms.carrier == "pads" and sealed.demand:
        checks = ROW_CHECKS
    elif isinstance(sealed, JointOpening):
        checks = JOINT_CHECKS
    fields = {
        "passed": True,
        "query": sealed.query_id,
        "checks": checks,
        "request": sealed.request_hash.hex(),
        "verdict": out or "",
    }
    text = "\n".join(f"{check}: yes" for check in checks)
    emit(fields, f"{text}\nQuery {sealed.query_id} passed.")


def verdict(
    file: Annotated[Path, typer.Argument(help="A verdict that the plan's auditor signed.")],
    home: Home = Path(),
) -> None:
    """File an auditor's verdict. If it is "failed", the plan gets no more answers.

    The verdict may be about a question that waits for it, or about one that was answered long ago.
    It is in the ledger, with your name, when this command ends.

    \b
    isonomy-regulator verdict v.json --home /srv/regulator
    """
    config = RegulatorConfig.load(home)
    signed = Verdict.load(file)
    _file(config, signed)
    outcome = "passed" if signed.passed else f"failed: {signed.reason}"
    fields = {"query": signed.query_id, "passed": signed.passed, "reason": signed.reason}
    emit(fields, f"Query {signed.query_id} {outcome}.")


def auditor_key(
    folder: Annotated[Path, typer.Argument(help="A new folder for the keys.")],
    name: Annotated[str, typer.Option(help="The auditor's name.")] = "auditor",
) -> None:
    """Make an auditor's keys, once. Hand card.json to whoever writes the plan.

    \b
    isonomy-regulator auditor-key auditor --name inspectorate
    """
    card = PartyKeys.create(folder, name, "auditor").card()
    fields = {
        "card": folder / "card.json",
        "fingerprint": fingerprint(card),
        "auditor": card.x25519,
        "auditor_signing": card.ed25519,
    }
    text = (
        f"Card: {fields['card']}\nFingerprint, to compare by telephone: {fields['fingerprint']}\n"
        f'For a policy that demands this auditor, in regulator.toml: auditor = "{card.x25519}"'
    )
    emit(fields, text)


def _file(config: RegulatorConfig, verdict: Verdict) -> None:
    """Have the verdict checked and stored by whoever holds the ledger."""
    ask(config, {"type": "verdict", "verdict": verdict.to_json().decode()})


def _show_run(config: RegulatorConfig, text: str, query: str) -> None:
    """Print the inspections of a run, and which openings wait for the auditor."""
    plan = named_plan(config, text)
    steps = ledger_state(config.ledger_path).inspections(plan.hash)
    inspections = [step for step in steps if query in ("", step.query_id)]
    counts = Counter(inspection.step for inspection in inspections)
    waiting = list(InspectionFolder(inspections_folder(config, plan), plan).openings())
    fields: dict[str, Any] = {
        "plan": plan.hash.hex(),
        "inspected": len(inspections),
        **{step: counts[step] for step in STEPS},
        "requests": [
            {"query": one.query_id, "request": one.request_hash.hex(), "step": one.step}
            for one in inspections
        ],
        "waiting": waiting,
    }
    lines = [
        f"{len(inspections)} inspected: {counts['passed']} passed, {counts['failed']} failed, "
        f"{counts['opened']} with the auditor, {counts['demanded']} not opened, "
        f"{counts['overdue']} not opened in time, which counts as failed.",
        *(f"  {one.query_id}  {one.step}" for one in inspections),
        *(f"  waits for the auditor: {path}" for path in waiting),
    ]
    emit(fields, "\n".join(lines), schema="isonomy-regulator/inspect-run")


def _answered(ledger: Path | None, query_id: str) -> bytes:
    """Return the request that a ledger has under this query id, if a ledger is at hand."""
    record = ledger_state(ledger).find(query_id) if ledger is not None else None
    return record.request_hash if record is not None else b""
