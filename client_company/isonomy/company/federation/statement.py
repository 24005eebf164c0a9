"""Write the statement that a company hands to the regulator for its report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from isonomy.common.agreements.plan import Plan
from isonomy.common.base.errors import ConfigError
from isonomy.common.base.private_files import write_private
from isonomy.common.report.schema import Statement, millionths
from isonomy.company.federation.auditing import AuditResult, file_sha256


def add_to_statement(
    path: Path | str,
    plan: Plan | Path | str,
    company: str,
    audits: Sequence[AuditResult],
    *,
    model: str = "",
    file: Path | None = None,
    reason: str = "",
) -> Statement:
    """Write a company's statement, or add audits to the one at `path`; returns it as written.

    The regulator shows it in its report (`report --statement`). Of audits that several companies
    asked together only a statement tells the totals, without which the report has no rates.

    The salts of the audits' fingerprints go to a file beside it that the company keeps: with them
    it can show later which decisions were audited.
    """
    path, plan = Path(path), plan if isinstance(plan, Plan) else Plan.load(Path(plan))
    old = Statement.load(path) if path.exists() else None
    if old is not None and (old.plan, old.company) != (plan.hash.hex(), company):
        raise ConfigError(f"{path} is a statement about another plan, or of another company")
    pooled = len(plan.companies) > 1
    totals = {a.receipt.query_id: [millionths(t) for t in a.totals] for a in audits if pooled}
    decisions = {a.name: a.decisions_sha256 for a in audits}
    statement = Statement.of(
        {
            "plan": plan.hash.hex(),
            "company": company,
            "model": model or (old.model if old else ""),
            "model_sha256": file_sha256(file) or (old.model_sha256 if old else ""),
            "decisions": {**(old.decisions if old else {}), **decisions},
            "totals": {**(old.totals if old else {}), **totals},
            "reason": reason or (old.reason if old else ""),
        }
    )
    salts = path.with_suffix(".salts")
    lines = salts.read_bytes() if salts.exists() else b""
    lines += b"".join(f"{a.name}\t{a.salt.hex()}\n".encode() for a in audits)
    write_private(salts, lines)
    statement.save(path)
    return statement
