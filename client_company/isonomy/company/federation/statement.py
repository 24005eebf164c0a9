"""Write the statement that a company hands to the regulator for its report."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from isonomy.common.agreements.plan import Plan
from isonomy.common.base.errors import ConfigError
from isonomy.common.report.schema import millionths
from isonomy.common.report.sign import write_whole
from isonomy.common.report.statement import Statement
from isonomy.company.federation.auditing import AuditResult

_CHUNK = 1 << 20


def add_to_statement(
    path: Path,
    plan: Plan,
    company: str,
    audits: Sequence[AuditResult],
    *,
    model: str = "",
    file: Path | None = None,
    reason: str = "",
) -> Statement:
    """Make a statement, or add audits to the one that is there for the same plan."""
    old = Statement.load(path) if path.exists() else None
    if old is not None and (old.plan, old.company) != (plan.hash.hex(), company):
        raise ConfigError(f"{path} is a statement about another plan, or of another company")
    joint = len(plan.companies) > 1
    totals = {a.receipt.query_id: [millionths(t) for t in a.totals] for a in audits if joint}
    try:
        made = Statement.model_validate(
            {
                "plan": plan.hash.hex(),
                "company": company,
                "model": model or (old.model if old else ""),
                "model_sha256": _sha256(file) or (old.model_sha256 if old else ""),
                "decisions": {
                    **(old.decisions if old else {}),
                    **{a.name: a.decisions_sha256 for a in audits},
                },
                "totals": {
                    **(old.totals if old else {}),
                    **{query: tuple(own) for query, own in totals.items()},
                },
                "reason": reason or (old.reason if old else ""),
            }
        )
    except ValidationError as error:
        places = ", ".join(sorted({".".join(map(str, e["loc"])) for e in error.errors()}))
        raise ConfigError(f"the statement cannot be written: look at {places}") from None
    write_whole(path, made.to_json())
    return made


def _sha256(path: Path | None) -> str:
    if path is None:
        return ""
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
    except OSError as error:
        raise ConfigError(f"cannot read the model {path}: {error.strerror}") from None
    return digest.hexdigest()
