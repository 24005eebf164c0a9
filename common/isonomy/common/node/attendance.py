"""A party's sessions, one per plan: a ticket comes in by the bridge, and a session begins.

Shared by the regulator's daemon and the company's process, so that both treat a ticket alike:

    a ticket for a plan without a session     opens one
    a ticket for a plan with a session        renews it: the relay was started anew

The session has a thread of its own. The caller's thread waits until the session has ended, because
the Flower node waits for the reply, or until the caller hangs up; the session then goes on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from isonomy.common.base.errors import ProtocolError, TransportError
from isonomy.common.node.bridge import Message
from isonomy.common.node.bridge_server import caller_is_gone
from isonomy.common.session.connection import Session
from isonomy.common.session.tickets import Ticket

POLL_S = 1.0  # how often a waiting thread looks whether its caller is still there


@dataclass
class _Place:
    """One plan's session, from its first ticket to its end."""

    session: Session
    ended: threading.Event = field(default_factory=threading.Event)
    summary: Message = field(default_factory=dict)
    error: Exception | None = None


class Attendance:
    """Turns bridge requests into sessions. `attend` runs one session and returns its summary."""

    def __init__(
        self,
        open_session: Callable[[Ticket], Session],
        attend: Callable[[Session], Message],
    ) -> None:
        self._open, self._attend = open_session, attend
        self._places: dict[bytes, _Place] = {}
        self._lock = threading.Lock()

    def handle(self, request: Message) -> Message:
        """Answer a `session` request; the answer comes at the session's end."""
        match request:
            case {"type": "session", "ticket": str(text)}:
                return self._session(Ticket.from_json(text.encode()))
        raise ProtocolError("the bridge request is of no known type")

    def _session(self, ticket: Ticket) -> Message:
        with self._lock:
            place = self._places.get(ticket.plan_hash)
            if place is None:
                place = self._places[ticket.plan_hash] = _Place(self._open(ticket))
                run = (ticket.plan_hash, place)
                threading.Thread(target=self._run, args=run, name="attend", daemon=True).start()
            else:
                place.session.renew(ticket)
        while not place.ended.wait(POLL_S):
            if caller_is_gone():
                raise TransportError("the caller hung up; the session goes on without it")
        if place.error is not None:
            raise place.error
        return place.summary

    def _run(self, plan: bytes, place: _Place) -> None:
        try:
            place.summary = self._attend(place.session)
        except Exception as error:
            place.error = error
        finally:
            with self._lock:
                del self._places[plan]
            place.ended.set()
