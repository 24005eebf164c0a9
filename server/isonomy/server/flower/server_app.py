"""The ServerApp: the relay, and one message per party.

    (1) wait until every party of the plan has a node online, by its registered name
    (2) send each node one `train.session` message with a ticket for its daemon
    (3) wait for the replies; a party whose daemon went away gets a new ticket when it is back
    (4) when all are done, or one has failed for good, stop the relay and write the outcome

The server is trusted with nothing: tickets open the relay's door and no more. Whoever the message
reaches, the daemon behind it joins only a plan that its owner approved, under keys that the plan
pins.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict

from isonomy.common.agreements.agreement import PlanPublic
from isonomy.common.base.errors import (
    IsonomyError,
    PartyTimeout,
    ProtocolError,
    TokenRefused,
    TransportError,
)
from isonomy.common.base.exit_codes import code_of, help_for
from isonomy.common.base.private_files import write_private
from isonomy.common.node.bridge import DaemonAbsent
from isonomy.common.node.bridge_server import caller_is_gone
from isonomy.common.node.client_app import OUTCOME, TICKET
from isonomy.common.session.connection import DONE
from isonomy.common.session.tickets import SessionRole
from isonomy.server.config import ServerConfig
from isonomy.server.flower.operator import RunFailed
from isonomy.server.flower.overview import Overview
from isonomy.server.flower.sessions import OUTCOME_FILE
from isonomy.server.relay.metrics import RelayMetrics
from isonomy.server.relay.relay import RelayServer

POLL_S = 0.5
GRACE_S = 15.0
DAEMON_WAIT_S = 15  # then the node says why, and is sent a new ticket
MAX_SUMMARY_CHARS = 1 << 16

# The daemon died, was not there yet, or took so long that its ticket expired: worth a new ticket.
RETRY = frozenset(code_of(kind("")) for kind in (TransportError, DaemonAbsent, TokenRefused))
NO_NODE = "its node is not connected; start it, and check that its certificate is registered"
WHY = {
    0: "its node has the ticket, its own process has not joined",
    code_of(TransportError("")): "its process hung up; start it again",
}


@dataclass
class Party:
    """One party of the session, as the server sees it."""

    name: str
    role: SessionRole
    message_id: str = ""
    code: int | None = None
    summary: dict[str, Any] = field(default_factory=dict)
    sent_at: float = 0.0
    absent_since: float = 0.0
    activated_at: str = ""  # when its node had come online, as the ticket was sent
    trouble: int = 0  # the number with which its node replied last, until it is in the session


class Conductor:
    """Steps (1) to (3), over any object that behaves like Flower's Grid."""

    def __init__(
        self,
        grid: Any,
        relay: RelayServer,
        plan: PlanPublic,
        *,
        join_s: float,
        log: Any,
        stop: threading.Event,
        overview: Overview | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._grid, self._relay, self._join_s = grid, relay, join_s
        self._overview = overview or Overview(plan)
        self._log, self._clock = log, clock
        self._stop = stop
        self._companies = {card.name for card in plan.companies}
        self._joined: set[str] = set()  # companies that were in the session under this relay
        self.parties = [Party(card.name, "company") for card in plan.companies]
        self.parties.append(Party(plan.regulator.name, "regulator"))

    def nodes(self) -> dict[str, Any]:
        """Return the parties' nodes that are online now, by registered name."""
        names = {party.name for party in self.parties}
        return {node.name: node for node in self._grid.get_nodes() if node.name in names}

    def gather(self) -> None:
        """(1) Wait for every party's node; then (2) send the tickets."""
        deadline = self._clock() + self._join_s
        while len(nodes := self.nodes()) < len(self.parties):
            self._look(nodes)
            if self._clock() > deadline:
                absent = sorted({party.name for party in self.parties} - set(nodes))
                raise PartyTimeout(
                    f"no node is online for {', '.join(absent)}; start it, check that its key is "
                    "registered under that name, and run again"
                )
            self.pause()
        for party in self.parties:
            self._send(party, nodes[party.name])

    def step(self) -> bool:
        """(3) Take the replies that are there; False once every party has ended."""
        waiting = {party.message_id: party for party in self.parties if party.message_id}
        for reply in self._grid.pull_messages(list(waiting)):
            party = waiting.get(reply.metadata.reply_to_message_id)
            if party is not None:
                self._take(party, reply)
        nodes = self.nodes()
        self._note_restarts(nodes)
        self._send_again(nodes)
        self._look(nodes)
        waited_s = self._clock() - max(party.sent_at for party in self.parties)
        if min(waited_s, self._relay.unattended_s) > self._join_s:  # nobody replies, nobody is here
            for party in self.parties:
                party.code = code_of(PartyTimeout("")) if party.code is None else party.code
        return any(party.code is None for party in self.parties)

    def pause(self) -> None:
        """Wait a little; RunFailed once the operator has stopped the run, or its command is gone.

        Nobody would see the outcome of a run without its command, nor know that it is on.
        """
        if self._stop.wait(POLL_S):
            raise RunFailed("the operator stopped the run. Run again to resume")
        if caller_is_gone():
            raise RunFailed("the operator's `run` command is gone. Run again to resume")

    def _look(self, nodes: Mapping[str, Any]) -> None:
        """Note where everybody stands, for the operator."""
        present = self._relay.present()
        self._overview.count(*self._relay.passed())
        for party in self.parties:
            if party.code is not None:
                why = help_for(party.code) if party.code else ""
                self._overview.note(party.name, "ended", why)
            elif party.name in present:
                party.trouble = 0
                self._overview.note(party.name, "connected")
            elif party.name not in nodes:
                self._overview.note(party.name, "no node", NO_NODE)
            elif not party.sent_at:
                self._overview.note(party.name, "ready")
            else:
                why = WHY.get(party.trouble) or help_for(party.trouble)
                self._overview.note(party.name, "awaited", why)

    def completed(self) -> bool:
        """Say whether every company took part and closed with "done".

        After a restart the daemons may be faster than Flower: they come back by themselves and
        finish, and nobody needs the new tickets.
        """
        closed = self._relay.closed()
        self._joined |= self._companies - set(closed)
        return self._joined >= self._companies and all(
            closed.get(name) == DONE for name in self._companies
        )

    def settle(self) -> None:
        """Count the parties whose reply is outstanding as done: the session itself is."""
        for party in self.parties:
            party.code = party.code or 0

    @property
    def failed(self) -> list[Party]:
        return [party for party in self.parties if party.code]

    @property
    def reasons(self) -> str:
        """What the other parties may read about it: the fixed lines, no party's own text."""
        return "; ".join(
            f"{party.name}: {help_for(party.code or 0)} (code {party.code})"
            for party in self.failed
        )

    def _send(self, party: Party, node: Any) -> None:
        ticket = self._relay.issue_ticket(party.role, party.name)
        record = ConfigRecord({"json": ticket.to_json().decode(), "wait_s": DAEMON_WAIT_S})
        message = Message(
            content=RecordDict({TICKET: record}),
            dst_node_id=node.node_id,
            message_type="train.session",
        )
        party.sent_at, party.activated_at = self._clock(), node.last_activated_at
        (party.message_id,) = self._grid.push_messages([message])
        self._log.info("ticket sent", party=party.name)

    def _take(self, party: Party, reply: Message) -> None:
        party.message_id = ""
        code, summary = code_of(TransportError("")), dict[str, Any]()
        if not reply.has_error():  # an error is Flower's own: the node or its process died
            code, summary = _outcome(reply)
        if code in RETRY:
            self._went_away(party, code)
            return
        party.code, party.summary = code, summary
        self._log.info("party ended", party=party.name, code=code)

    def _went_away(self, party: Party, code: int) -> None:
        party.message_id = ""
        if not party.absent_since or self._clock() - party.sent_at > 2 * DAEMON_WAIT_S:
            party.absent_since = self._clock()  # it was there in between
        party.trouble = code
        self._log.warning("party went away", party=party.name, code=code)

    def _note_restarts(self, nodes: Mapping[str, Any]) -> None:
        """A node that was started again has lost its message: nobody would ever reply to it."""
        for party in self.parties:
            node = nodes.get(party.name)
            if party.message_id and node and node.last_activated_at != party.activated_at:
                self._went_away(party, code_of(TransportError("")))

    def _send_again(self, nodes: Mapping[str, Any]) -> None:
        """Give a party that went away a new ticket, until it has been away too long."""
        for party in self.parties:
            if party.message_id or party.code is not None:
                continue
            if self._clock() - party.absent_since > self._join_s:
                party.code = code_of(PartyTimeout(""))
            elif party.name in nodes:
                self._send(party, nodes[party.name])


def _outcome(reply: Message) -> tuple[int, dict[str, Any]]:
    """Return code and summary of a node's reply. An unreadable one is that party's failure."""
    try:
        record = reply.content.config_records[OUTCOME]
        code, text = record["code"], record["text"]
        if type(code) is int and code > 0:
            return code, {}
        if type(code) is int and code == 0 and len(str(text)) <= MAX_SUMMARY_CHARS:
            summary = json.loads(str(text))
            if isinstance(summary, dict):
                return 0, summary
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError):
        pass
    return code_of(ProtocolError("")), {}


def conduct(
    grid: Any,
    *,
    config: ServerConfig,
    plan: PlanPublic,
    stop: threading.Event,
    overview: Overview,
    metrics: RelayMetrics,
    log: Any,
) -> None:
    """Run one session to its end; RunFailed if it did not complete (its state stays)."""
    state = config.state_folder(plan)
    began, reason = time.monotonic(), ""
    relay = RelayServer.of(config, plan, log, metrics=metrics).start()
    rules = {"join_s": config.join_s, "stop": stop, "overview": overview, "log": log}
    conductor = Conductor(grid, relay, plan, **rules)
    try:
        conductor.gather()
        _wait(conductor, relay, began + config.session_s)
    except IsonomyError as error:
        reason = str(error)
        raise
    finally:
        relay.end(reason or "the run has ended")
        relay.stop()
        seconds = time.monotonic() - began
        _write_outcome(state / OUTCOME_FILE, conductor, relay.summary(), seconds, reason)
    if conductor.failed:
        raise RunFailed(f"the session did not complete: {conductor.reasons}. Run again to resume")


def _wait(conductor: Conductor, relay: RelayServer, deadline: float) -> None:
    """Wait until all parties have ended; once the session is over, replies get a short grace."""
    grace, done = 0.0, False
    while conductor.step():
        now = time.monotonic()
        done = done or conductor.completed()
        if not grace and (done or conductor.failed):
            grace = now + GRACE_S
        if conductor.failed and not done:  # every time: a party may have joined just now
            relay.end(f"the server ended the session: {conductor.reasons}")
        if now > deadline or (grace and now > grace):
            break
        conductor.pause()
    if done:
        conductor.settle()


def _write_outcome(
    path: Path, conductor: Conductor, relay: Any, seconds: float, reason: str = ""
) -> None:
    outcome = {
        "parties": {
            party.name: {**party.summary, "code": party.code} for party in conductor.parties
        },
        "relay": relay,
        "seconds": round(seconds, 3),
        "broken_off": reason,
    }
    write_private(path, json.dumps(outcome, indent=1, default=str).encode(), sync=False)
