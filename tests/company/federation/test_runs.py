"""What a company's processes leave for its operator: how far they are, and how they ended."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import asdict, replace
from pathlib import Path

from isonomy.common.base.errors import BudgetExceeded
from isonomy.company.federation import runs
from isonomy.company.federation.runs import RunFile, measured_link, read_runs


def begin(folder: Path) -> RunFile:
    return RunFile.begin(folder, "ab" * 32, "spring", "plan")


def test_a_run_from_its_beginning_to_its_end(tmp_path: Path) -> None:
    file = begin(tmp_path)
    (run,) = read_runs(tmp_path)
    assert (run.state, run.is_alive, run.pid) == ("waiting", True, os.getpid())
    file.note("waiting", "regulator (not connected)", exchanges=0, size=0)
    assert read_runs(tmp_path)[0].waits_for == "regulator (not connected)"
    assert measured_link(tmp_path) == (None, "")
    file.note("in session", exchanges=3, size=1000, megabits=41.03)
    (run,) = read_runs(tmp_path)
    assert (run.state, run.exchanges, run.bytes, run.waits_for) == ("in session", 3, 1000, "")
    megabits, source = measured_link(tmp_path)
    assert megabits == 41.0
    assert "measured in this company's session of 20" in source
    file.end(None)
    (run,) = read_runs(tmp_path)
    assert (run.state, run.is_alive, run.code) == ("done", False, 0)
    (path,) = tmp_path.iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_failure_has_its_number_and_reason(tmp_path: Path) -> None:
    begin(tmp_path).end(BudgetExceeded("nothing is left"))
    (run,) = read_runs(tmp_path)
    assert (run.state, run.code, run.reason) == ("failed", 50, "nothing is left")


def test_a_process_that_is_gone_was_killed_even_if_its_number_is_used_again(tmp_path: Path) -> None:
    run = begin(tmp_path).run
    (path,) = tmp_path.iterdir()
    path.write_text(json.dumps(asdict(replace(run, started="1"))))
    assert read_runs(tmp_path)[0].state == "killed"
    path.write_text(json.dumps(asdict(replace(run, pid=2**22 + 1))))
    assert read_runs(tmp_path)[0].state == "killed"


def test_broken_files_are_left_out_and_old_ones_go(tmp_path: Path) -> None:
    for name in ("1-1-aa.json", "2-1-aa.json"):
        (tmp_path / name).write_text("{" if name.startswith("1") else '{"plan": 3}')
    begin(tmp_path).end(None)
    assert [run.state for run in read_runs(tmp_path)] == ["done"]
    for number in range(runs.KEPT + 5):
        (tmp_path / f"0-{number}-aa.json").write_text("{}")
    begin(tmp_path)
    assert len(list(tmp_path.iterdir())) == runs.KEPT
    assert [run.state for run in read_runs(tmp_path)] == ["waiting", "done"]
