"""Copies of the head witness: init, approve, doctor and the daemon when one cannot be written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from regulator_kit import Regulator, run_regulator

from isonomy.common.ledger.ledger import read_ledger
from isonomy.regulator.serving import deciding


@pytest.fixture
def regulator(tmp_path: Path) -> Regulator:
    made = Regulator.create(tmp_path)
    made.approve(made.plan_file(name="first", epsilon="0.3"))
    return made


class TestWitnessThatCannotBeWritten:
    """Its old state would vouch for an old backup, so nothing is approved or answered."""

    @pytest.fixture
    def copy(self, regulator: Regulator, tmp_path: Path) -> Path:
        copy = tmp_path / "other" / "witness.json"
        regulator.change("witness_copies = []", f'witness_copies = ["{copy}"]')
        return copy

    def witness(self, regulator: Regulator) -> dict[str, str]:
        findings = regulator.run("doctor", "--json").json["findings"]
        (row,) = [each for each in findings if each["check"] == "witness"]
        return row

    def test_nothing_is_approved_and_doctor_says_why(
        self, regulator: Regulator, copy: Path
    ) -> None:
        plan = regulator.plan_file(name="second", epsilon="0.3")
        before = regulator.config.ledger_path.read_bytes()
        done = regulator.run("approve", plan)  # nobody is there to answer a question
        assert done.code == 61
        assert str(copy) in done.stderr
        assert regulator.config.ledger_path.read_bytes() == before
        assert not copy.parent.exists()  # a disk that is not mounted is not made up
        row = self.witness(regulator)
        assert row["level"] == "fail"
        assert str(copy) in row["text"]

        copy.parent.mkdir()
        assert self.witness(regulator)["level"] == "warn"  # behind
        regulator.approve(plan)
        assert copy.read_bytes() == regulator.config.witness.read_bytes()
        assert self.witness(regulator)["level"] == "ok"

    def test_nothing_is_approved_by_a_daemon_that_cannot_write_it(
        self, regulator: Regulator, copy: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As in a sandbox in which the officer's own command is not."""
        monkeypatch.setattr(deciding, "check_copies", lambda config: None)
        plan = regulator.plan_file(name="second", epsilon="0.3")
        open_plans = len(read_ledger(regulator.config.ledger_path).plans())
        done = regulator.run("approve", plan, "--yes")
        assert done.code == 61
        assert "Approved" not in done.stdout
        assert len(read_ledger(regulator.config.ledger_path).plans()) == open_plans

    def test_what_was_done_stays_done_and_the_log_names_the_file(
        self, regulator: Regulator, copy: Path
    ) -> None:
        done = regulator.run("reject", regulator.plan_file(), "--yes")
        assert done.code == 0
        line, *_ = [json.loads(row) for row in done.stderr.splitlines() if row.startswith("{")]
        assert (line["event"], line["level"], line["code"]) == ("witness not written", "error", 61)
        assert str(copy) in line["reason"]


def test_init_refuses_a_witness_that_cannot_be_written(tmp_path: Path) -> None:
    copy = tmp_path / "other" / "witness.json"
    options = ("--groups", "sex=f,m", "--unlock-file", tmp_path / "key", "--witness", copy)
    done = run_regulator("init", tmp_path / "new", *options)
    assert done.code == 10
    assert f"there is no folder {copy.parent}" in done.stderr
    assert not (tmp_path / "new").exists()
    copy.parent.mkdir()
    assert run_regulator("init", tmp_path / "new", *options).code == 0
