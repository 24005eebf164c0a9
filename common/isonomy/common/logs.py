"""Logs: one JSON object per line on stderr, for people with `jq` and for machines.

Only events and counts go in: no ids, attributes, rows, sums, keys, tickets or tokens.
"""

from __future__ import annotations

import sys
from typing import Any

import structlog


def logger(role: str) -> Any:
    """Return a logger whose lines carry time, level and role."""
    return structlog.wrap_logger(
        structlog.PrintLogger(file=sys.stderr),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.JSONRenderer(),
        ],
    ).bind(role=role)
