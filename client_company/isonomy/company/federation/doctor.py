"""`isonomy-company doctor`: what is wrong in this company's home, and how to mend it.

It looks at what `isonomy preflight` looks at, and at what only a company has: approved plans, runs
that were killed, and rows that are kept longer than they need to be. Nothing is changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path

from isonomy.common.base.errors import IsonomyError
from isonomy.common.keys.party import fingerprint
from isonomy.common.kits import preflight
from isonomy.common.kits.preflight import Finding
from isonomy.company.federation.home import Home
from isonomy.company.federation.runs import read_runs


def examine(home: Home, node: Path | None) -> list[Finding]:
    """Return the findings of all checks. A check that cannot be made has failed."""
    findings = preflight.examine(home.folder, node)
    for check in (_keys, _plans, _openings, _runs):
        try:
            findings += check(home)
        except IsonomyError as error:
            findings.append(Finding(check.__name__.strip("_"), "fail", str(error)))
    return findings


def _keys(home: Home) -> Iterator[Finding]:
    keys = home.keys()
    yield Finding("keys", "ok", f"{keys.name}, fingerprint {fingerprint(keys.card())}")


def _plans(home: Home) -> Iterator[Finding]:
    hashes = [*home.approvals.hashes(), *home.alignments.hashes(), *home.few_shot.hashes()]
    if not hashes:
        text = "no plan is approved here, so no session can begin"
        yield Finding("plans", "warn", text, "isonomy-company plan, then approve")
    for number in hashes:
        try:
            home.require(number)
        except IsonomyError as error:
            fix = "approve the plan again, with its own people"
            yield Finding("plans", "fail", f"plan {number.hex()[:12]}…: {error}", fix)
    if hashes:
        yield Finding("plans", "ok", f"{len(hashes)} approved")


def _openings(home: Home) -> Iterator[Finding]:
    today = datetime.now(UTC).date()
    late = [plan for plan in home.approvals.hashes() if _is_late(home, plan, today)]
    if late:
        text = f"rows of {len(late)} plans are kept after their inspection deadline"
        yield Finding("openings", "warn", text, f"isonomy-company tidy --home {home.folder}")


def _is_late(home: Home, plan_hash: bytes, today: date) -> bool:
    plan, _ = home.approvals.require(plan_hash)
    kept = (home.folder / "openings" / plan_hash.hex()).glob("*.opening")
    return date.fromisoformat(plan.inspection_deadline) < today and any(kept)


def _runs(home: Home) -> Iterator[Finding]:
    newest = {run.plan: run for run in reversed(read_runs(home.runs))}
    for run in newest.values():
        if run.state == "killed":
            text = f"the last run of {run.name!r} was killed after {run.exchanges} answers"
            fix = "start the same script again: it gets the same answers, at no cost"
            yield Finding("runs", "warn", text, fix)
