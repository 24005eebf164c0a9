"""Live: the sessions that run, each with its questions as they arrive, and the stop."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from isonomy.common.agreements.agreement import Agreement
from isonomy.common.base.errors import ConfigError, IsonomyError
from isonomy.common.figures import style
from isonomy.common.node.bridge import DaemonAbsent
from isonomy.common.node.bridge import call as call_daemon
from isonomy.regulator.config.config import RegulatorConfig
from isonomy.regulator.console.call import COOKIE, Call, Console, act, page
from isonomy.regulator.console.render import TEXTS, budget_bar
from isonomy.regulator.plans.plan_files import find_agreement
from isonomy.regulator.serving import approving
from isonomy.regulator.serving.ledger_story import noise_words, read_story
from isonomy.regulator.serving.officer import ask, daemon_status
from isonomy.regulator.serving.status import read_status

LOOK_S, SIGN_OF_LIFE_S, SHOWN_ANSWERS = 1.0, 15.0, 200
_HASH = re.compile(r"[0-9a-f]{64}")


def running(config: RegulatorConfig, status: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the open sessions with their plans, as far as the daemon tells."""
    plans = {plan["hash"]: plan for plan in status["plans"]}
    sessions = status["daemon"]["sessions"] if status["daemon"] else []
    return [{**session, "terms": plans.get(session["plan"], {})} for session in sessions]


def live(call: Call) -> Response:
    """The page."""
    return call.show("live.html.j2", **_list(call))


def live_list(call: Call) -> Response:
    """The part of it that changes."""
    return call.show("live_list.html.j2", **_list(call))


def _list(call: Call) -> dict[str, Any]:
    """Return what runs, and which open plans wait for their company."""
    config = call.config
    status = call.console.kept("live", lambda: read_status(config))
    sessions = running(config, status)
    busy = {session["plan"] for session in sessions}
    idle = [plan for plan in status["plans"] if plan["is_open"] and plan["hash"] not in busy]
    return {"sessions": sessions, "idle": idle, "is_up": status["daemon"] is not None}


def session_page(call: Call) -> Response:
    """One plan's session."""
    return call.show("session.html.j2", **_fields(call))


def session_part(call: Call) -> Response:
    """The part of it that changes."""
    began = time.monotonic()
    response = call.show("session_part.html.j2", **_fields(call))
    call.console.part_s = time.monotonic() - began
    return response


def stop(call: Call) -> Response:
    """End the session; the plan stays approved."""
    plan = _plan(call)
    ask(call.config, {"type": "stop", "plan": plan.hash.hex()})
    return call.go(f"/live/{plan.hash.hex()}", TEXTS["live"]["stopped"])


def withdraw(call: Call) -> Response:
    """Withdraw the approval: no more answers, for good."""
    plan, reason = _plan(call), call.form["reason"].strip()
    if not reason:
        raise ConfigError(TEXTS["inbox"]["no_reason"])
    record = approving.reject(call.config, plan, reason)
    return call.go("/live", TEXTS["live"]["withdrawn"].format(name=plan.name, record=record))


async def events(request: Request) -> Response:
    """Tell an open page when to look again: the ledger grew, the daemon came or went."""
    console: Console = request.app.state.console
    cookie = request.cookies.get(COOKIE, "")
    session = console.access.session(cookie, idle=True)
    if session is None or session.is_locked:
        return Response(status_code=401)
    plan = str(request.path_params["plan"])

    async def changes() -> AsyncIterator[str]:
        last, quiet_s = None, 0.0
        while True:
            session = console.access.session(cookie, idle=True)
            if session is None or session.is_locked:
                yield "event: locked\ndata: \n\n"
                return
            seen = await run_in_threadpool(_state, console.config, plan)
            if seen != last:
                last, quiet_s = seen, 0.0
                yield "event: change\ndata: \n\n"
            elif quiet_s >= SIGN_OF_LIFE_S:
                quiet_s = 0.0
                yield ": still here\n\n"
            # The longer the ledger, the longer a part takes: pages look less often then.
            pause_s = max(LOOK_S, 4 * console.part_s)
            await asyncio.sleep(pause_s)
            quiet_s += pause_s

    return StreamingResponse(changes(), media_type="text/event-stream")


def _state(config: RegulatorConfig, plan: str) -> object:
    """Return something that differs whenever the page should be drawn again."""
    path = config.ledger_path
    return path.stat().st_size if path.exists() else 0, str(_watch(config, plan))


def _watch(config: RegulatorConfig, plan: str) -> dict[str, Any] | None:
    """Return the plan's session as the daemon sees it; None if no daemon answers."""
    try:
        return call_daemon(config.officer_socket, {"type": "watch", "plan": plan})
    except (DaemonAbsent, IsonomyError):
        return None


def _plan(call: Call) -> Agreement:
    name = call.named("plan")
    plan = find_agreement(call.config, name) if _HASH.fullmatch(name) else None
    if plan is None:
        raise ConfigError(TEXTS["live"]["unknown"])
    return plan


def _fields(call: Call) -> dict[str, Any]:
    """Return one session: who is there, its answers with their noise, and the budget."""
    config, plan = call.config, _plan(call)
    name = plan.hash.hex()
    session, answers, account = _watch(config, name), list[dict[str, Any]](), None
    if config.ledger_path.exists():
        story = read_story(config.ledger_path, config, plan=name)
        answers = [entry for entry in story["entries"] if entry["type"] == "debit"]
        account = next((one for one in story["plans"] if one["hash"] == name), None)
    for answer in answers:
        answer["noise_words"] = noise_words(answer["event"])
    answered = {answer.get("query") for answer in answers}
    events = list(reversed((session or {}).get("events", [])))
    return {
        "plan": plan,
        "hash": name,
        "is_up": session is not None,
        "daemon_is_up": session is not None or daemon_status(config) is not None,
        "session": session or None,
        "parties": [card.name for card in plan.companies],
        "answers": list(reversed(answers))[:SHOWN_ANSWERS],
        "count": len(answers),
        "pending": [
            one for one in events if one["kind"] == "columns" and one["query"] not in answered
        ][:1],
        "refusals": [one for one in events if one["kind"] == "refusal"],
        "account": account,
        "bar": _bar(account) if account else "",
    }


def _bar(account: dict[str, Any]) -> Any:
    share, texts = account["share_spent"], TEXTS["live"]
    return budget_bar(
        [
            (texts["bar_spent"], share, style.BLUE),
            (texts["bar_left"], round(100 - share, 1), style.SHADE),
        ],
        texts["bar"].format(share=share),
    )


ROUTES = [
    Route("/live", page(live)),
    Route("/live/list", page(live_list, idle=True)),
    Route("/live/{plan}", page(session_page)),
    Route("/live/{plan}/part", page(session_part, idle=True)),
    Route("/live/{plan}/events", events),
    Route("/live/{plan}/stop", act(stop, session_page), methods=["POST"]),
    Route("/live/{plan}/withdraw", act(withdraw, session_page), methods=["POST"]),
]
