"""All sessions that a server knows: those that are on, and how those before them ended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from isonomy.common.agreements.agreement import PlanPublic
from isonomy.common.base.errors import ConfigError, IsonomyError
from isonomy.common.base.exit_codes import help_for
from isonomy.server.config import ServerConfig
from isonomy.server.flower.operator import running

OUTCOME_FILE = "outcome.json"


def known_sessions(config: ServerConfig) -> list[dict[str, Any]]:
    """Return a row for each plan: on, done, broken off or not run yet; the newest first."""
    status: dict[str, Any] = running(config) or {"sessions": []}
    on = {row["plan"]: row for row in status["sessions"]}
    rows = [_row(config, path, on) for path in (config.home / "plans").glob("*.json")]
    return sorted(rows, key=lambda row: int(row["when"]), reverse=True)


def find_session(config: ServerConfig, text: str) -> str:
    """Return the plan's hash that is meant: by its public file, or the beginning of the hash."""
    path = Path(text)
    if path.is_file():
        return PlanPublic.from_json(path.read_bytes()).hash.hex()
    hashes = [file.stem for file in (config.home / "plans").glob(f"{_hex(text)}*.json")]
    if len(hashes) != 1:
        number = "several plans" if hashes else "no plan"
        raise ConfigError(f"{text!r} begins the hash of {number} of this server; `list` shows them")
    return hashes[0]


def _hex(text: str) -> str:
    if not text or set(text.lower()) - set("0123456789abcdef"):
        raise ConfigError(f"{text!r} is neither a plan's public file nor the beginning of a hash")
    return text.lower()


def _row(config: ServerConfig, path: Path, on: dict[str, Any]) -> dict[str, Any]:
    """Return one plan's row. A file that cannot be read says so in its row."""
    row: dict[str, Any] = {"plan": path.stem, "state": "not run", "when": int(path.stat().st_mtime)}
    try:
        plan = PlanPublic.from_json(path.read_bytes())
        row["parties"] = [card.name for card in (*plan.companies, plan.regulator)]
        file = config.home / "state" / path.stem / OUTCOME_FILE
        if path.stem in on:
            row |= {"state": "on", "when": on[path.stem]["since"]}
            row |= {name: on[path.stem][name] for name in ("messages", "bytes")}
        elif file.exists():
            row |= _ended(json.loads(file.read_text()), int(file.stat().st_mtime))
    except (IsonomyError, OSError, ValueError, LookupError, TypeError):
        row["state"] = "unreadable"
    return row


def _ended(outcome: dict[str, Any], when: int) -> dict[str, Any]:
    codes = {name: party["code"] for name, party in outcome["parties"].items()}
    bad = [f"{name}: {help_for(code)} (code {code})" for name, code in codes.items() if code]
    reason = "; ".join(bad) or outcome.get("broken_off", "")
    relay = outcome["relay"]
    return {
        "state": "broken off" if reason else "done",
        "reason": reason,
        "when": when,
        "seconds": outcome["seconds"],
        "messages": relay["envelopes"],
        "bytes": relay["bytes"],
    }
