"""Today: is all well, what waits, what runs, and the first steps of a new home."""

from __future__ import annotations

import time
from typing import Any

from starlette.responses import Response
from starlette.routing import Route

from isonomy.regulator.console.call import Call, page
from isonomy.regulator.console.inbox import waiting
from isonomy.regulator.console.live import running
from isonomy.regulator.console.reports import report_names
from isonomy.regulator.serving.status import read_status
from isonomy.regulator.upkeep.doctor import Finding, examine


def today(call: Call) -> Response:
    """The page."""
    return call.show("today.html.j2", **_fields(call))


def lights(call: Call) -> Response:
    """The part that changes by itself."""
    return call.show("today_lights.html.j2", **_fields(call))


def _fields(call: Call) -> dict[str, Any]:
    config = call.config

    def look() -> tuple[dict[str, Any], list[Finding], int]:
        return read_status(config), examine(config), int(time.time())

    status, findings, checked = call.console.kept("today", look)
    steps = {
        "people": status["enrolled"] > 0,
        "certificate": config.tls.cert.exists(),
        "daemon": status["daemon"] is not None,
        "plan": bool(status["plans"]),
        "report": bool(report_names(config)),
    }
    return {
        "status": status,
        "checked": checked,
        "findings": sorted(findings, key=lambda one: ("fail", "warn", "ok").index(one.level)),
        "failed": sum(finding.level == "fail" for finding in findings),
        "notes_made": sum(finding.level == "warn" for finding in findings),
        "steps": {} if all(steps.values()) else steps,
        "waiting": waiting(config),
        "sessions": running(config, status),
        "certificates": [one for one in findings if one.check == "certificates"],
    }


ROUTES = [Route("/", page(today)), Route("/today/lights", page(lights, idle=True))]
