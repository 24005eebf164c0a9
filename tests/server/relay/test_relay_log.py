"""What the relay writes to its log: enough to see what happened, and nothing that is secret."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from tests.kits.session_kit import Federation

from isonomy.common.base.errors import IsonomyError
from isonomy.common.base.logs import RotatingFile, logger
from isonomy.common.session.sealed_links import Parcel


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Federation:
    return Federation.create(tmp_path_factory.mktemp("federation"))


class Log:
    """A relay's log at debug level."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.logger = logger("server", RotatingFile(path), least="debug")

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.path.read_text().splitlines()]

    def wait_for(self, event: str) -> dict[str, Any]:
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            for line in self.lines:
                if line["event"] == event:
                    return line
            time.sleep(0.02)
        raise AssertionError(f"{event!r} is not in {self.lines}")


def test_a_session_from_beginning_to_end(federation: Federation, tmp_path: Path) -> None:
    log = Log(tmp_path / "relay.jsonl")
    with federation.relay(log=log.logger) as relay:
        tickets = [relay.issue_ticket(role, role) for role in ("company", "regulator")]
        company, regulator = (federation.session(ticket) for ticket in tickets)
        with company, regulator:
            company.generation("regulator")
            company.send("regulator", Parcel("", "query", "q-7", 1, 0, True, b"what is sent"))
            regulator.receive("company")
        log.wait_for("session closed")
    events = {line["event"] for line in log.lines}
    assert events >= {"relay listens", "session opened", "session closed", "stream ended"}
    assert "relay stopped" in events
    assert all(line["plan"] == federation.plan.hash.hex()[:16] for line in log.lines)
    passed = next(line for line in log.lines if line.get("query") == "q-7")
    assert (passed["event"], passed["sender"], passed["purpose"]) == (
        "envelope passed",
        "company",
        "query",
    )
    text = log.path.read_text()
    for ticket in tickets:
        assert ticket.token.hex() not in text
    assert "what is sent" not in text


def test_a_failure_is_in_the_log_and_not_at_the_party(
    federation: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log(tmp_path / "relay.jsonl")
    with federation.relay(log=log.logger) as relay:

        def broken(*_: object) -> None:
            raise ZeroDivisionError("a foreign text")

        monkeypatch.setattr(relay._state, "admit", broken)
        with pytest.raises(IsonomyError, match="see its log"):
            federation.session(relay.issue_ticket("company", "company")).start()
        line = log.wait_for("relay failed")
    assert "ZeroDivisionError: a foreign text" in line["exception"]
    assert log.wait_for("refused")["code"] == "IsonomyError"
