"""The order of inspections in a ledger: a part of the rules in state.py, without I/O.

    demanded  →  [opened]  →  passed | failed         drawn while the plan runs
    demanded              →  overdue                 not opened in time, which counts as failed
    answered              →  passed | failed         opened later, from the company's file
    passed                →  failed                  a later inspection may find more, never less

Once a request was demanded, its query gets no debit before it was opened, none after it failed, and
none for another request than the one that was demanded last.
"""

from __future__ import annotations

from isonomy.common.base.errors import VerificationError
from isonomy.common.ledger.records import Debit, Inspection

_BEFORE = {
    "opened": ("demanded",),
    "overdue": ("demanded",),
    "passed": ("demanded", "opened"),
    "failed": ("demanded", "opened", "passed"),
}


class InspectionSteps:
    """How far each inspected request has come."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, bytes], Inspection] = {}  # last step of each request
        self._demanded: dict[str, bytes] = {}  # the request last demanded of each query id

    def holds(self, body: Inspection) -> bool:
        """Whether this very step was the request's last."""
        return self._last.get((body.query_id, body.request_hash)) == body

    def check(self, body: Inspection, *, may_begin: bool, answered: bytes | None) -> None:
        """Raise unless the step may come next.

        `may_begin`: the plan is open and the query unanswered; `answered`: the request that was.
        """
        last = self._last.get((body.query_id, body.request_hash))
        if body.step == "demanded":
            # Again only for another request, after the first one was opened and its key was lost.
            opened = self._step(body.query_id) in (None, "opened", "passed")
            allowed = last is None and may_begin and opened
        elif last is None:
            allowed = body.step in ("passed", "failed") and answered == body.request_hash
        else:
            allowed = last.plan == body.plan and last.step in _BEFORE[body.step]
        if not allowed:  # (10) steps in order
            raise VerificationError(
                f"an inspection of query {body.query_id!r} cannot be {body.step!r} here"
            )

    def check_debit(self, body: Debit) -> None:
        """Raise if the query is under inspection and this request did not get through it."""
        demanded = self._demanded.get(body.query_id, body.request_hash)
        opened = self._step(body.query_id) in (None, "opened", "passed")
        if demanded != body.request_hash or not opened:  # (10) nothing demanded goes unopened
            raise VerificationError(
                f"query {body.query_id!r} was to be inspected and this request did not pass"
            )

    def apply(self, step: Inspection) -> None:
        """Take a step that `check` let through."""
        self._last[step.query_id, step.request_hash] = step
        if step.step == "demanded":
            self._demanded[step.query_id] = step.request_hash

    def of_plan(self, plan: bytes) -> tuple[Inspection, ...]:
        """A plan's inspected requests by time of demand, each with its last step."""
        return tuple(each for each in self._last.values() if each.plan == plan)

    def _step(self, query_id: str) -> str | None:
        """How far the inspection of the request that was demanded last has come."""
        if query_id not in self._demanded:
            return None
        return self._last[query_id, self._demanded[query_id]].step
