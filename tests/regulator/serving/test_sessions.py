"""Sessions of the daemon: what `status` shows of them, and what the log says."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from regulator_kit import fill_vault, hand_over, sign_for
from session_kit import GROUPS, Federation, attributes

from isonomy.common.agreements.approvals import Approvals
from isonomy.common.base.errors import ConfigError, SessionClosed
from isonomy.common.ledger.entries import read_entries
from isonomy.company.federation.joining import join
from isonomy.regulator.config.config import RegulatorConfig
from isonomy.regulator.serving._sessions import SessionBoard
from isonomy.regulator.serving.daemon import Daemon
from isonomy.regulator.vault.member_key import make_member_key
from isonomy.regulator.vault.vault import Vault

PLAN = bytes(range(32))
HOME_FILE = """
name = "regulator"
[groups]
sex = ["f", "m"]
[ledger]
epsilon = "3"
delta = "1e-6"
[log]
file = "daemon.jsonl"
"""


class Present:
    """What the board asks of a session: who is there."""

    def present(self) -> frozenset[str]:
        return frozenset({"acme"})


SESSION: Any = Present()


class TestBoard:
    def test_lists_a_session_while_it_lasts(self) -> None:
        board = SessionBoard()
        with board.entry(PLAN, SESSION):
            kinds = (("answer", "q1"), ("answer", "q1"), ("refusal", "q2"), ("answer", "q3"))
            assert [board.event(PLAN, *kind) for kind in kinds] == [1, 1, 1, 2]
            (row,) = board.rows()
            assert (row["plan"], row["answered"], row["refused"]) == (PLAN.hex(), 2, 1)
            assert (row["connected"], row["present"]) == (True, ["acme"])
            events = board.details(PLAN)["events"]
            assert [(one["kind"], one["query"]) for one in events] == list(kinds)
        assert board.rows() == []
        assert board.details(PLAN) == {}

    def test_what_is_not_open_cannot_be_stopped(self) -> None:
        with pytest.raises(ConfigError, match="nothing to stop"):
            SessionBoard().stop(PLAN)

    def test_is_removed_when_a_session_breaks_off(self) -> None:
        board = SessionBoard()
        with pytest.raises(RuntimeError), board.entry(PLAN, SESSION):
            raise RuntimeError
        assert board.rows() == []

    @pytest.mark.parametrize("step", ["open", "count", "close", "read"])
    def test_every_access_waits_for_the_lock(self, step: str) -> None:
        """While one thread reads the sessions, none comes, goes or changes."""
        board, entered = SessionBoard(), threading.Event()
        entry = board.entry(PLAN, SESSION)
        if step != "open":
            entry.__enter__()
        steps: dict[str, Any] = {
            "open": entry.__enter__,
            "count": lambda: board.event(PLAN, "answer", "q"),
            "close": lambda: entry.__exit__(None, None, None),
            "read": board.rows,
        }

        def run() -> None:
            steps[step]()
            entered.set()

        thread = threading.Thread(target=run)
        with board._lock:
            thread.start()
            assert not entered.wait(0.2)
        assert entered.wait(5)
        thread.join()


def running(tmp_path: Path) -> tuple[Federation, RegulatorConfig, Vault]:
    """A federation whose plan both owners approved, and the regulator's home."""
    federation = Federation.create(tmp_path)
    (tmp_path / "regulator" / "regulator.toml").write_text(HOME_FILE)
    config = RegulatorConfig.load(tmp_path / "regulator")
    make_member_key(config)
    codes = attributes(federation.cohort).codes("sex")
    ids = federation.cohort.ids
    values = {i: GROUPS["sex"][code] for i, code in zip(ids, codes, strict=True)}
    vault, plan = fill_vault(config, values, GROUPS), federation.plan
    for name in ("regulator", "company"):
        keys = federation.keys(name)
        Approvals(tmp_path / name / "plans").approve(plan, federation.cohort, keys)
    sign_for(config, plan, federation.keys("company"))
    return federation, config, vault


def test_the_officer_stops_a_session_and_the_company_is_told(tmp_path: Path) -> None:
    federation, config, vault = running(tmp_path)
    plan, socket = federation.plan, tmp_path / "company" / "run" / "company.sock"
    with (
        federation.relay() as relay,
        Daemon(config, vault) as daemon,
        ThreadPoolExecutor(2) as pool,
    ):
        tickets = {
            role: relay.issue_ticket(role, role).to_json().decode()
            for role in ("regulator", "company")
        }
        served = pool.submit(daemon.node, {"type": "session", "ticket": tickets["regulator"]})
        pool.submit(hand_over, socket, tickets["company"])
        stop = {"type": "stop", "plan": plan.hash.hex(), "officer": "Kim"}
        with join(plan, home=tmp_path / "company", wait_s=20) as oracle:
            oracle.counts(share=0.1)
            (row,) = daemon.officer({"type": "status"})["sessions"]
            assert (row["connected"], row["present"]) == (True, ["company"])
            daemon.officer(stop)
            with pytest.raises(SessionClosed, match="officer stopped this session"):
                oracle.counts(share=0.1)
        with pytest.raises(SessionClosed):
            served.result(30)
        assert daemon.officer({"type": "status"})["sessions"] == []
        with pytest.raises(ConfigError, match="nothing to stop"):
            daemon.officer(stop)
    notes = [one.event for one in read_entries(config.ledger_path) if one.kind == "note"]
    assert {"kind": "stop", "officer": "Kim", "plan": plan.hash.hex()} in notes


def test_the_log_names_each_step_and_no_number(tmp_path: Path) -> None:
    federation, config, vault = running(tmp_path)
    plan, ids = federation.plan, federation.cohort.ids
    socket = tmp_path / "company" / "run" / "company.sock"
    with (
        federation.relay() as relay,
        Daemon(config, vault) as daemon,
        ThreadPoolExecutor(2) as pool,
    ):
        tickets = {
            role: relay.issue_ticket(role, role).to_json().decode()
            for role in ("regulator", "company")
        }
        served = pool.submit(daemon.node, {"type": "session", "ticket": tickets["regulator"]})
        pool.submit(hand_over, socket, tickets["company"])
        with join(plan, home=tmp_path / "company", wait_s=20) as oracle:
            oracle.counts(share=0.1)
            (row,) = daemon.officer({"type": "status"})["sessions"]
            assert row["answered"] == 1
        assert served.result(30) == {"answered": 1, "reconnects": 0}
        assert daemon.officer({"type": "status"})["sessions"] == []
    lines = [json.loads(line) for line in (config.home / "daemon.jsonl").read_text().splitlines()]
    events = [line["event"] for line in lines if line["event"] != "peer joined"]
    assert events == [
        "session connected", "session opened", "query received", "query answered",
        "session closed",
    ]  # fmt: skip
    assert {line["plan"] for line in lines} == {plan.hash.hex()[:16]}
    assert len({line["session"] for line in lines if "session" in line}) == 1
    assert {line["query"][:16] for line in lines if "query" in line} == {plan.hash.hex()[:16]}
    allowed = {"event", "level", "role", "timestamp", "plan", "session", "query", "kind"}
    allowed |= {"peer", "code"}
    assert {key for line in lines for key in line} <= allowed
    assert not any(person in json.dumps(lines) for person in ids)
