"""The ServerApp's part of a session, over a grid that can be played with."""

from __future__ import annotations

import json
import threading
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from isonomy.common.agreements.agreement import PlanPublic
from isonomy.common.base.errors import PartyTimeout
from isonomy.common.base.exit_codes import code_of
from isonomy.common.base.logs import logger
from isonomy.common.crypto.params import DEFAULT_PARAMETERS
from isonomy.common.keys.party import PartyKeys
from isonomy.common.session.tickets import SessionRole, Ticket

with warnings.catch_warnings():
    # Flower loads Typer, which imports a name that Click has deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    from flwr.app import ConfigRecord, RecordDict

    from isonomy.common.node.client_app import OUTCOME, TICKET, pass_on
    from isonomy.server.flower import server_app
    from isonomy.server.flower.operator import RunFailed
    from isonomy.server.flower.overview import Overview, awaited
    from isonomy.server.flower.server_app import Conductor

PLAN = PlanPublic(
    hash=b"p" * 32,
    companies=(PartyKeys.generate("company", "company").card(),),
    regulator=PartyKeys.generate("regulator", "regulator").card(),
    relay_name="localhost",
    parameters=DEFAULT_PARAMETERS.name,
)


@dataclass
class FakeGrid:
    """Nodes by name; replies are put in by the test."""

    online: dict[str, int]
    sent: list[tuple[int, Any]] = field(default_factory=list)
    replies: list[Any] = field(default_factory=list)
    activated_at: dict[str, str] = field(default_factory=dict)

    def get_nodes(self) -> list[Any]:
        return [
            SimpleNamespace(
                name=name, node_id=number, last_activated_at=self.activated_at.get(name, "")
            )
            for name, number in self.online.items()
        ]

    def push_messages(self, messages: Iterable[Any]) -> list[str]:
        ids = []
        for message in messages:
            self.sent.append((message.metadata.dst_node_id, message))
            ids.append(f"m{len(self.sent)}")
        return ids

    def pull_messages(self, ids: list[str]) -> list[Any]:
        found = [reply for reply in self.replies if reply.metadata.reply_to_message_id in ids]
        self.replies = [reply for reply in self.replies if reply not in found]
        return found

    def reply(self, number: int, code: int | None, text: str = "{}") -> None:
        """Answer the n-th message that was sent; None: Flower itself reports an error."""
        records = SimpleNamespace(config_records={OUTCOME: {"code": code, "text": text}})
        metadata = SimpleNamespace(reply_to_message_id=f"m{number}")
        answer = SimpleNamespace(metadata=metadata, content=records, has_error=lambda: code is None)
        self.replies.append(answer)


class FakeRelay:
    def __init__(self) -> None:
        self.now_closed: dict[str, str] = {}
        self.unattended_s = 0.0
        self.here: frozenset[str] = frozenset()

    def issue_ticket(self, role: SessionRole, party: str) -> Ticket:
        return Ticket("127.0.0.1:1", "localhost", b"t", PLAN.hash, role, party, 1)

    def closed(self) -> dict[str, str]:
        return self.now_closed

    def passed(self) -> tuple[int, int]:
        return 3, 400

    def present(self) -> frozenset[str]:
        return self.here

    def end(self, reason: str) -> None: ...


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def plain_message(content: RecordDict, dst_node_id: int, message_type: str) -> Any:
    """Flower's own Message can be made inside a run only."""
    metadata = SimpleNamespace(dst_node_id=dst_node_id, message_type=message_type)
    return SimpleNamespace(content=content, metadata=metadata)


@pytest.fixture(autouse=True)
def outside_flower(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_app, "POLL_S", 0.0)
    monkeypatch.setattr(server_app, "Message", plain_message)


@pytest.fixture
def clock() -> Clock:
    return Clock()


def conductor(grid: FakeGrid, clock: Clock, relay: FakeRelay | None = None) -> Conductor:
    rules = {"join_s": 100, "stop": threading.Event(), "log": logger("test"), "clock": clock}
    return Conductor(grid, relay or FakeRelay(), PLAN, **rules)


BOTH = {"company": 7, "regulator": 8, "stranger": 9}


def test_each_party_gets_its_own_ticket_by_its_registered_name(clock: Clock) -> None:
    grid = FakeGrid(BOTH)
    conductor(grid, clock).gather()
    tickets = {}
    for node, message in grid.sent:
        text = message.content.config_records[TICKET]["json"]
        tickets[node] = Ticket.from_json(text.encode())
        assert message.metadata.message_type == "train.session"
    assert {node: (t.party, t.role) for node, t in tickets.items()} == {
        7: ("company", "company"),
        8: ("regulator", "regulator"),
    }


def test_a_node_that_never_comes_online_is_named(clock: Clock) -> None:
    grid = FakeGrid({"company": 7})
    waiting = conductor(grid, clock)
    original = grid.get_nodes

    def later() -> list[Any]:
        clock.now += 30
        return original()

    grid.get_nodes = later  # type: ignore[method-assign]
    with pytest.raises(PartyTimeout, match="regulator"):
        waiting.gather()
    assert grid.sent == []


def test_a_node_that_was_started_again_gets_a_new_ticket(clock: Clock) -> None:
    grid = FakeGrid(BOTH)
    running = conductor(grid, clock)
    running.gather()
    assert running.step()
    assert len(grid.sent) == 2
    grid.activated_at["regulator"] = "later"
    assert running.step()
    assert [node for node, _ in grid.sent] == [7, 8, 8]
    assert running.step()
    assert len(grid.sent) == 3  # once
    grid.reply(1, 0)
    grid.reply(3, 0)
    assert not running.step()


def test_all_done_is_the_end(clock: Clock) -> None:
    grid = FakeGrid(BOTH)
    running = conductor(grid, clock)
    running.gather()
    assert running.step()
    grid.reply(1, 0, '{"exchanges":3}')
    assert running.step()
    grid.reply(2, 0)
    assert not running.step()
    assert not running.failed
    assert running.parties[0].summary == {"exchanges": 3}


@pytest.mark.parametrize("code", [60, 67, 25, None])
def test_a_party_that_went_away_gets_a_new_ticket(clock: Clock, code: int | None) -> None:
    grid = FakeGrid(BOTH)
    running = conductor(grid, clock)
    running.gather()
    grid.reply(1, code)
    assert running.step()
    assert [node for node, _ in grid.sent] == [7, 8, 7]
    grid.reply(3, 0)
    grid.reply(2, 0)
    assert not running.step()
    assert not running.failed


def test_a_party_that_stays_away_ends_the_run(clock: Clock) -> None:
    grid = FakeGrid(BOTH)
    running = conductor(grid, clock)
    running.gather()
    message = 1
    for _ in range(5):
        grid.reply(message, 67)
        clock.now += 30
        running.step()
        message = len(grid.sent)
    assert [party.code for party in running.failed] == [63]


def test_absence_counts_anew_after_a_party_was_back(clock: Clock) -> None:
    grid = FakeGrid(BOTH)
    running = conductor(grid, clock)
    running.gather()
    for message in (1, 3, 4):
        clock.now += 1000  # in the session all that time
        grid.reply(message, 60)
        running.step()
    assert not running.failed
    assert len(grid.sent) == 5


@pytest.mark.parametrize("code", [15, 22, 40, 50, 1])
def test_what_a_new_ticket_cannot_mend_fails_at_once(clock: Clock, code: int) -> None:
    grid = FakeGrid(BOTH)
    running = conductor(grid, clock)
    running.gather()
    grid.reply(2, code, "any text of the party's own")
    assert running.step()
    assert [party.name for party in running.failed] == ["regulator"]
    assert "text of the party" not in running.reasons
    assert f"(code {code})" in running.reasons


@pytest.mark.parametrize(
    "records",
    [
        {},
        {OUTCOME: {}},
        {OUTCOME: {"code": "zero", "text": "{}"}},
        {OUTCOME: {"code": "0", "text": "{}"}},
        {OUTCOME: {"code": 0.0, "text": "{}"}},
        {OUTCOME: {"code": False, "text": "{}"}},
        {OUTCOME: {"code": -1, "text": "{}"}},
        {OUTCOME: {"code": [0], "text": "{}"}},
        {OUTCOME: {"code": 0}},
        {OUTCOME: {"code": 0, "text": "[]"}},
        {OUTCOME: {"code": 0, "text": "no JSON"}},
        {OUTCOME: {"code": 0, "text": "[" * 60_000}},
        {OUTCOME: {"code": 0, "text": '{"x":"' + "x" * 70_000 + '"}'}},
    ],
)
def test_a_reply_that_cannot_be_read_is_that_partys_failure(clock: Clock, records: Any) -> None:
    grid = FakeGrid(BOTH)
    running = conductor(grid, clock)
    running.gather()
    grid.reply(1, 0)
    grid.reply(2, 0)
    grid.replies[1].content.config_records = records
    assert not running.step()
    assert [(party.name, party.code) for party in running.failed] == [("regulator", 20)]


def test_a_summary_does_not_overwrite_the_code(clock: Clock, tmp_path: Path) -> None:
    grid = FakeGrid(BOTH)
    running = conductor(grid, clock)
    running.gather()
    grid.reply(1, 0, '{"code":50,"answered":3}')
    grid.reply(2, 50)
    running.step()
    server_app._write_outcome(tmp_path / "outcome.json", running, {}, 1.0)
    parties = json.loads((tmp_path / "outcome.json").read_text())["parties"]
    assert parties == {"company": {"code": 0, "answered": 3}, "regulator": {"code": 50}}


def test_a_session_that_ended_without_flowers_help_is_complete(clock: Clock) -> None:
    grid, relay = FakeGrid(BOTH), FakeRelay()
    running = conductor(grid, clock, relay)
    running.gather()
    assert not running.completed()
    relay.now_closed = {"company": "done"}
    assert running.completed()
    running.settle()
    assert not running.failed


def test_a_session_that_ended_before_this_run_does_not_count(clock: Clock) -> None:
    relay = FakeRelay()
    relay.now_closed = {"company": "done"}  # from the checkpoint of an earlier run
    running = conductor(FakeGrid(BOTH), clock, relay)
    assert not running.completed()
    relay.now_closed = {}
    assert not running.completed()
    relay.now_closed = {"company": "done"}
    assert running.completed()


class TestNode:
    """The other end: what runs in the node never lets a text out."""

    def message(self) -> Any:
        record = ConfigRecord({"json": "{}", "wait_s": 0})
        return plain_message(RecordDict({TICKET: record}), 1, "train.session")

    def outcome(self, config: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> Any:
        seen: dict[str, Any] = {}

        def reply(content: RecordDict, reply_to: Any) -> Any:
            seen.update(content.config_records[OUTCOME])
            return content

        monkeypatch.setattr("isonomy.common.node.client_app.Message", reply)
        pass_on(self.message(), config)
        return seen

    def test_no_socket_configured(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert self.outcome({}, monkeypatch)["code"] == 10

    def test_no_daemon(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
        path = tmp_path / "secret-place" / "daemon.sock"
        seen = self.outcome({"isonomy-socket": str(path)}, monkeypatch)
        assert seen["code"] == 67
        assert "secret-place" not in seen["text"]

    def test_a_fault_of_any_kind(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def broken(*_: Any) -> Any:
            raise RuntimeError("secret-9137")

        monkeypatch.setattr("isonomy.common.node.client_app._call", broken)
        seen = self.outcome({"isonomy-socket": "/x"}, monkeypatch)
        assert seen["code"] == 1
        assert "secret" not in seen["text"]


def test_a_session_that_nobody_attends_ends(clock: Clock) -> None:
    """Nodes that vanish with their machines never reply; the relay knows that nobody is here."""
    relay = FakeRelay()
    table = conductor(FakeGrid(BOTH), clock, relay)
    table.gather()
    clock.now, relay.unattended_s = clock.now + 99, 1e6
    assert table.step(), "a party has time to join"
    clock.now += 2
    relay.unattended_s = 50.0
    assert table.step(), "somebody was here a while ago"
    relay.unattended_s = 101.0
    assert not table.step()
    assert [party.code for party in table.failed] == [code_of(PartyTimeout(""))] * 2


# --- The operator's eyes -------------------------------------------------------------------------


def watched(grid: FakeGrid, clock: Clock, relay: FakeRelay) -> tuple[Conductor, Overview]:
    overview = Overview(PLAN)
    rules = {"join_s": 100, "stop": threading.Event(), "log": logger("test"), "clock": clock}
    return Conductor(grid, relay, PLAN, overview=overview, **rules), overview


def stands(overview: Overview, name: str) -> tuple[str, str]:
    (line,) = [party for party in overview.row()["parties"] if party["name"] == name]  # type: ignore[attr-defined]
    return line["state"], line["why"]


def test_an_operator_sees_whom_a_run_waits_for_and_why(clock: Clock) -> None:
    relay, grid = FakeRelay(), FakeGrid(BOTH)
    running, overview = watched(grid, clock, relay)
    running._look({"company": 7})
    assert stands(overview, "company") == ("ready", "")
    state, why = stands(overview, "regulator")
    assert (state, "registered" in why) == ("no node", True)
    assert awaited(overview.row()["parties"])[0].startswith("regulator (its node")  # type: ignore[arg-type]

    running.gather()
    relay.here = frozenset({"company"})
    running.step()
    assert stands(overview, "company") == ("connected", "")
    assert "has not joined" in stands(overview, "regulator")[1]
    grid.reply(2, 67)  # no daemon
    running.step()
    assert "no daemon listens" in stands(overview, "regulator")[1]
    relay.here = frozenset({"company", "regulator"})
    running.step()
    assert awaited(overview.row()["parties"]) == ("", 0)  # type: ignore[arg-type]
    relay.here = frozenset({"company"})  # it went away: the old reason is not its reason now
    running.step()
    assert "has not joined" in stands(overview, "regulator")[1]
    grid.reply(3, 15)
    running.step()
    state, why = stands(overview, "regulator")
    assert (state, "not approved" in why) == ("ended", True)
    assert (overview.row()["messages"], overview.row()["bytes"]) == (3, 400)


def test_a_run_ends_with_its_command(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    running = conductor(FakeGrid(BOTH), clock)
    running.pause()
    monkeypatch.setattr(server_app, "caller_is_gone", lambda: True)
    with pytest.raises(RunFailed, match="command is gone"):
        running.pause()
