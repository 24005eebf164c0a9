"""The ledger in words: what was answered and what officers did, for `ledger` and the console.

Amounts are in ε; the fields are those that `ledger --json` shows. Nobody of the people is named.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from isonomy.common.agreements.few_shot_plan import MEASURE
from isonomy.common.base.errors import ConfigError
from isonomy.common.crypto.params import DEFAULT_PARAMETERS
from isonomy.common.ledger.entries import LedgerEntry, read_entries
from isonomy.common.ledger.ledger import verify_ledger
from isonomy.common.ledger.records import SCHEMA
from isonomy.common.ledger.state import LedgerState
from isonomy.common.privacy.accounting import epsilon_of
from isonomy.common.privacy.declarations import Declaration, Unknowns
from isonomy.common.privacy.shown import at_least, at_most, share_left, share_up
from isonomy.regulator.config.config import RegulatorConfig
from isonomy.regulator.serving.status import moment, plan_status

_LAPLACE_95 = 2.996  # ln 20 scales: 95 % of Laplace noise lies within
_NOTES = {
    "approval": "plan approved",
    "rejection": "plan rejected",
    "deletion": "people forgotten",
    "enrolment": "people enrolled",
    "tasks-added": "tasks added",
    "tasks-destroyed": "tasks destroyed",
    "rotation": "identity replaced",
    "certificate": "certificate installed",
    "certificate-request": "certificate requested",
    "home": "home made",
    "keys-sealed": "keys sealed by a passphrase",
    "kit": "kit installed",
    "kit-request": "kit requested",
    "ledger-shared": "copy of the ledger written for others",
    "vault-secret": "the vault's secret replaced",
    "stop": "session stopped",
    "clock": "clock set back and accepted",
    "restore": "backup restored",
}
_STEPS = {  # of an inspection, and whose step it is
    "demanded": ("the regulator", "opening demanded"),
    "opened": ("", "opened"),
    "overdue": ("the regulator", "not opened in time, which counts as failed"),
    "passed": ("the regulator", "inspection passed"),
    "failed": ("the regulator", "inspection failed"),
}
# What a line for people leaves out: it is in `by`, or too long to read.
_QUIET = (
    *("kind", "at", "officer", "second_officer", "key", "second_key", "plan", "old", "new"),
    *("record_sha256", "backup", "vault", "last", "sha256"),
)


def read_story(
    path: Path,
    config: RegulatorConfig | None,
    *,
    plan: str = "",
    known_head: bytes | None = None,
    listed: bool = True,
) -> dict[str, Any]:
    """Verify a ledger and return it as fields: summary, plans, and an entry for each record.

    `config` is the home that keeps the plans' terms, if there is one; `plan` the beginning of a
    hash; without `listed` only the summary is returned.
    """
    summary = verify_ledger(path, known_head=known_head)
    plans = {one.plan.hex(): plan_status(config, one, summary.delta) for one in summary.plans()}
    subjects = {status["subjects"] for status in plans.values()} or {"people"}
    word = subjects.pop() if len(subjects) == 1 else "people or samples"
    fields = {**summary_fields(summary), "subjects": word}
    if listed:
        entries = read_entries(path)
        fields["lists"] = summary.records - len(entries)
        if plan:
            entries = [one for one in entries if one.plan and one.plan.hex().startswith(plan)]
        fields["plans"] = list(plans.values())
        fields["entries"] = [entry_fields(one, plans, summary.delta) for one in entries]
        units = {one.plan: one.units for one in summary.plans()}
        for one, shown in zip(entries, fields["entries"], strict=True):
            if one.kind == "debit" and one.plan is not None:
                whole = units[one.plan]
                shown["share"] = round(100 * one.units / max(whole, 1), 2)
                shown["share_spent"] = share_up(one.spent_units, whole)
                shown["share_left"] = share_left(one.spent_units, whole)
    return fields


def summary_fields(summary: LedgerState) -> dict[str, Any]:
    """Return what a whole ledger says."""
    return {
        "verified": True,
        "ledger_schema": SCHEMA,
        "records": summary.records,
        "answers": summary.debits,
        "people": summary.people,
        "head": summary.head.hex(),
        "torn": summary.torn,
        "epsilon_cap": epsilon_of(summary.cap_units, summary.delta),
        "epsilon_most_spent": epsilon_of(summary.max_person_units, summary.delta),
        "delta": summary.delta,
    }


def entry_fields(
    entry: LedgerEntry, plans: Mapping[str, Mapping[str, Any]], delta: float
) -> dict[str, Any]:
    """Return a ledger entry as JSON shows it, in ε. `plans`: the status of each plan, by hash."""
    fields: dict[str, Any] = {"seq": entry.seq, "time": moment(entry.time), "type": entry.kind}
    plan = entry.plan.hex() if entry.plan is not None else str(entry.event.get("plan", ""))
    if plan:
        status = plans.get(plan, {})
        who = ["the regulator"] if _is_of_regulator(entry) else list(status.get("companies", ()))
        subjects = status.get("subjects", "people or samples")
        fields |= {"plan": plan, "who": who, "subjects": subjects}
    if entry.kind in ("debit", "reserve"):
        fields |= {
            "people": entry.people,
            "epsilon": epsilon_of(entry.units, delta),
            "epsilon_spent": epsilon_of(entry.spent_units, delta),
            "epsilon_left": epsilon_of(entry.left_units, delta) if entry.left_units else 0.0,
        }
    if entry.query_id:
        fields["query"] = entry.query_id
    if entry.kind == "debit":
        fields["purpose"] = entry.event.get("purpose", "")
        fields["noise"] = {name: entry.event.get(name) for name in ("mechanism", "noise")}
    return {**fields, "event": dict(entry.event)}


def _is_of_regulator(entry: LedgerEntry) -> bool:
    """Return whether the regulator itself acted: asked about its people, or inspected."""
    if entry.kind == "inspection":
        return bool(_STEPS[str(entry.event["step"])][0])
    text = entry.event.get("declaration")
    return text is not None and isinstance(Declaration.from_text(str(text)).content, Unknowns)


def entry_words(entry: dict[str, Any]) -> str:
    """Return what one entry says, in one line."""
    event = entry["event"]
    if entry["type"] == "open":
        return "ledger opened"
    if entry["type"] == "reserve":
        whom = f"{entry['people']:,} {entry['subjects']}"
        return f"set ε = {at_most(entry['epsilon'])} aside for {whom}"
    if entry["type"] == "close":
        left = "all of its budget counts as spent" if event["in_full"] else "unused budget returned"
        return f"{left} (plan closed){_by(event)}"
    if entry["type"] == "note":
        on = f", on {event['at']}" if "at" in event else ""
        return f"{_NOTES.get(event['kind'], event['kind'])}{on}{_by(event)}{_details(event)}"
    if entry["type"] == "inspection":
        return f"query {entry['query']}: {_STEPS[event['step']][1]}{_by(event)}"
    if entry["type"] != "debit":
        return _details(event).strip()
    if event.get("kind") == MEASURE:
        return (
            f"{entry['purpose']}, model measured after {event['round']} rounds: "
            f"{event['people']:,} samples; each loses at most ε = {at_most(entry['epsilon'])}"
        )
    if event.get("kind") == "few_shot":
        most = entry["epsilon_spent"]  # set aside in full: individual accounts end there
        return (
            f"{entry['purpose']}, round {event['round']}: {entry['people']:,} samples; each loses "
            f"at most ε = {at_most(min(entry['epsilon'], most))} in it, {at_most(most)} in all "
            "rounds"
        )
    return (
        f"{entry['purpose'] or entry['query']}: noise of {noise_words(event)}, "
        f"{entry['people']:,} people asked about, ε = {at_most(entry['epsilon'])} "
        f"({entry['share']:g} % of the plan); then spent ε = {at_most(entry['epsilon_spent'])} "
        f"({entry['share_spent']:g} %), left ε = {at_least(entry['epsilon_left'])} "
        f"({entry['share_left']:g} %){_by(event)}"
    )


def _by(event: Mapping[str, Any]) -> str:
    """Return the officers who acted; nothing where the daemon answered a company."""
    names = [event[name] for name in ("officer", "second_officer") if event.get(name)]
    return f", by {' and '.join(names)}" if names else ""


def _details(event: Mapping[str, Any]) -> str:
    shown = {key: value for key, value in event.items() if key not in _QUIET}
    return "".join(f" ({key}: {value})" for key, value in shown.items())


def noise_words(event: Mapping[str, Any]) -> str:
    """Return the noise of an answer in people: in the most that one of them adds to a sum."""
    size = int(event.get("noise", 0)) / DEFAULT_PARAMETERS.row_bound
    unit = "people" if event.get("norm") == "1.0" else "whole rows"
    if event.get("mechanism") == "laplace":
        return f"{size:.3g} {unit} (scale; ± {_LAPLACE_95 * size:.3g} in 95 % of cases)"
    return f"{size:.3g} {unit} (one standard deviation; ± {1.96 * size:.3g} in 95 % of cases)"


def head_bytes(text: str) -> bytes:
    """Return a ledger head that was given in hexadecimal digits."""
    if not re.fullmatch("[0-9a-f]{64}", text):
        raise ConfigError(
            f"{text!r} is no ledger head: expected 64 hexadecimal digits, as "
            "`isonomy-company head` prints them"
        )
    return bytes.fromhex(text)
