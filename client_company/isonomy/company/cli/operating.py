"""`isonomy-company status`, `runs` and `doctor`: what goes on, what went on, what is wrong."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from cryptography import x509

from isonomy.common.agreements.few_shot_plan import FewShotPlan
from isonomy.common.agreements.plan import MILLION, Plan
from isonomy.common.base.errors import ConfigError, IsonomyError
from isonomy.common.base.output import emit
from isonomy.common.keys.party import fingerprint
from isonomy.common.kits.install import installed_facts
from isonomy.common.kits.preflight import ProblemsFound
from isonomy.company.cli.options import HOME, HomeFolder
from isonomy.company.federation.home import Home
from isonomy.company.federation.runs import Run, read_runs


def status(home: HomeFolder = HOME) -> None:
    """Show keys and certificate, the approved plans, and what this company's processes wait for.

    \b
    Examples:
    isonomy-company status --home company
    """
    company = Home(home.resolve())
    keys = company.keys()
    facts, until = installed_facts(home), _certificate_until(company)
    plans = [_plan(company, number) for number in _hashes(company)]
    alive = [run for run in read_runs(company.runs) if run.is_alive]
    fields = {
        "name": keys.name,
        "fingerprint": fingerprint(keys.card()),
        "server": facts.server if facts else "",
        "certificate_until": until,
        "plans": plans,
        "runs": [_row(run) for run in alive],
    }
    lines = [
        f"{keys.name}: fingerprint {fields['fingerprint']}",
        f"  server       {fields['server'] or 'no kit is installed'}",
        f"  certificate  {f'valid until {until}' if until else 'none yet (tls-request)'}",
        *(f"  {plan['kind']} {plan['hash'][:12]}…  {plan['text']}" for plan in plans),
        *(f"  {_in_words(run)}" for run in alive),
    ]
    if not plans:
        lines.append("  no plan is approved here: isonomy-company plan, then approve")
    if not alive:
        lines.append("  no process of this company takes part or waits for a session now")
    emit(fields, "\n".join(lines))


def runs(
    home: HomeFolder = HOME,
    last: Annotated[int, typer.Option(min=1, help="How many to list, the newest first.")] = 20,
) -> None:
    """List what this company's processes did: trainings, audits, alignments, and how they ended.

    \b
    Examples:
    isonomy-company runs --home company --last 5
    """
    if not home.is_dir():
        raise ConfigError(f"{home} is not a folder")
    found = read_runs(Home(home.resolve()).runs)[:last]
    lines = [_in_words(run) for run in found] or ["No process has joined a session from this home."]
    emit({"runs": [_row(run) for run in found]}, "\n".join(lines))


def doctor(
    home: HomeFolder = HOME,
    node: Annotated[Path | None, typer.Option(help="The Flower node's folder.")] = None,
) -> None:
    """Check the whole set-up of this company, and say how to fix what is wrong. Changes nothing.

    The command ends with code 0 if nothing must be fixed, else with 73. With --node it also looks
    at the node's group and asks the server's door; run it as root then.

    \b
    Examples:
    isonomy-company doctor --home company
    isonomy-company doctor --home /srv/company --node /srv/node
    """
    from isonomy.company.federation.doctor import examine

    findings = examine(Home(home.resolve()), node)
    marks = {"ok": "ok  ", "warn": "NOTE", "fail": "FIX "}
    lines = []
    for finding in findings:
        lines.append(f"{marks[finding.level]}  {finding.check:<13} {finding.text}")
        if finding.fix:
            lines.append(f"{'':<20} → {finding.fix}")
    bad = sum(finding.level == "fail" for finding in findings)
    fields = {"healthy": bad == 0, "findings": [asdict(finding) for finding in findings]}
    emit(fields, "\n".join(lines))
    if bad:
        raise ProblemsFound(f"fix what the lines marked FIX say ({bad})")


def _hashes(home: Home) -> list[bytes]:
    return [*home.approvals.hashes(), *home.alignments.hashes(), *home.few_shot.hashes()]


def _plan(home: Home, plan_hash: bytes) -> dict[str, Any]:
    """Return an approved plan's row. One that cannot be read says why."""
    row: dict[str, Any] = {"hash": plan_hash.hex(), "kind": "plan", "name": ""}
    try:
        plan = home.require(plan_hash)
    except IsonomyError as error:
        return {**row, "text": f"cannot be used: {error}"}
    row |= {"kind": plan.word, "name": plan.name, "regulator": plan.regulator.name}
    text = f"{plan.name!r} with {plan.regulator.name}"
    if isinstance(plan, Plan | FewShotPlan):
        row["epsilon"] = plan.epsilon_millionths / MILLION
        text += f", ε = {row['epsilon']:g}"
    if isinstance(plan, Plan):
        row["people"] = plan.cohort_size
        text += f", {plan.cohort_size:,} people"
    return {**row, "text": text}


def _certificate_until(home: Home) -> str:
    try:
        certificate = x509.load_pem_x509_certificate(home.tls.cert.read_bytes())
    except (OSError, ValueError):
        return ""
    return certificate.not_valid_after_utc.strftime("%Y-%m-%d")


def _row(run: Run) -> dict[str, Any]:
    return {**asdict(run), "state": run.state}


def _in_words(run: Run) -> str:
    """Return a run in one line."""
    parts = [
        f"{_moment(run.began)}  {run.word} {run.plan[:12]}… {run.name!r}: {run.state}",
        f"{run.exchanges} answers, {run.bytes:,} bytes",
    ]
    if run.is_alive and run.waits_for:
        parts.append(f"process {run.pid} has waited for {run.waits_for} since {_moment(run.since)}")
    if run.reason:
        parts.append(f"{run.reason} (code {run.code})")
    return ", ".join(parts)


def _moment(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
