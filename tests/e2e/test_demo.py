"""`isonomy demo` through real processes: it trains, it reports, and it leaves nothing running."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from page_kit import DOCS, blocks

from isonomy.common.ledger.ledger import verify_ledger
from isonomy.company.demo.layout import Layout
from isonomy.company.demo.look_around import look_around
from isonomy.regulator.vault.unlock import secret_from_file
from isonomy.regulator.vault.vault import Vault

KEYS = {
    "strategy",
    "notion",
    "accuracy_before",
    "accuracy_after",
    "violation_before",
    "violation_after",
    "epsilon_cap",
    "epsilon_spent",
    "delta",
    "exchanges",
    "bytes",
    "seconds",
}
ISONOMY = Path(sys.executable).with_name("isonomy")


def start(out: Path, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [ISONOMY, "demo", "--out", str(out), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def processes_of(folder: Path) -> list[str]:
    """Command lines of all processes that name the run folder or have it in their environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes()
            settings = (process / "environ").read_bytes()
        except OSError:
            continue
        if os.fsencode(folder) in command + settings and process.name != str(os.getpid()):
            found.append(command.replace(b"\0", b" ").decode(errors="replace"))
    return found


def test_a_demonstration_from_keys_to_report(tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = start(run, "--people", "2000", "--epsilon", "3")
    stdout, stderr = process.communicate(timeout=240)
    assert process.returncode == 0, stderr
    assert str(run) in stdout
    # One run, looked at from all sides: it is too dear to repeat for each.
    the_summary_has_what_a_script_needs(run)
    the_ledger_shows_what_was_answered(run)
    the_report_needs_no_network(run)
    the_first_page_verifies_the_report(tmp_path)
    the_report_is_verified_by_the_regulators_command(run)
    attributes_lie_in_the_regulators_folder_only(run)
    nothing_stays_behind(run)
    homes_are_closed_to_others(run)
    a_used_folder_is_not_touched(run)
    assert f"isonomy-regulator console --home {run / 'regulator'}" in stderr.replace("\n", " ")
    its_console_can_be_looked_at(run)


def homes_are_closed_to_others(run: Path) -> None:
    """After a whole session: what others may read is public, or this demonstration's input."""
    for home in ("company", "regulator", "server", "operator", "nodes/company", "nodes/regulator"):
        assert (run / home).stat().st_mode & 0o077 == 0, home
        for path in (run / home).rglob("*"):
            name = path.relative_to(run / home).as_posix()
            public = path.suffix in (".pem", ".csr") or path.name in ("card.json", "server.toml")
            handed_out = name.startswith(("signed", "plans/", "run", "data", "model"))
            written_by_us = name in ("plans", "outcome.json", "progress.jsonl", "statement.json")
            if path.lstat().st_mode & 0o077:
                assert public or handed_out or written_by_us, path


def the_summary_has_what_a_script_needs(run: Path) -> None:
    summary = json.loads((run / "summary.json").read_text())
    assert set(summary) >= KEYS
    assert 0.6 < summary["accuracy_after"] <= 1
    assert 0 < summary["epsilon_spent"] <= summary["epsilon_cap"] == 3
    assert summary["exchanges"] >= 3
    assert summary["bytes"] > 100_000


def the_ledger_shows_what_was_answered(run: Path) -> None:
    summary = json.loads((run / "summary.json").read_text())
    ledger = verify_ledger(run / "regulator" / "ledger.jsonl")
    assert ledger.debits == summary["exchanges"]
    assert ledger.head.hex() == summary["ledger_head"]


def the_report_needs_no_network(run: Path) -> None:
    page = (run / "report.html").read_text()
    assert "<script src" not in page
    assert "<link" not in page
    assert "Megabytes and seconds of each exchange." in page


def the_first_page_verifies_the_report(folder: Path) -> None:
    """The commands of docs/index.md after `make demo`, in one shell; .venv is this Python's."""
    runs = folder / "isonomy-runs"
    runs.mkdir()
    (runs / "demo-1").symlink_to(folder / "run")  # sockets need a short path
    (block,) = [own for own in blocks(DOCS / "index.md") if "isonomy-verify" in own.text]
    environment, *steps = [step.command for step in block.steps()]
    assert environment == ". .venv/bin/activate"
    path = f"{ISONOMY.parent}:{os.environ['PATH']}"
    shown = subprocess.run(
        ["bash", "-ec", "\n".join(steps)],
        cwd=folder,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
    )
    assert shown.stdout.endswith("the report holds\n"), shown.stdout + shown.stderr


def the_report_is_verified_by_the_regulators_command(run: Path) -> None:
    command = Path(sys.executable).with_name("isonomy-regulator")
    ledger = str(run / "regulator" / "ledger.jsonl")
    call = [str(command), "verify", str(run), "--json", "--plan", str(run / "plan.json")]
    done = subprocess.run([*call, "--ledger", ledger], capture_output=True, text=True, check=True)
    checks = {own["number"]: own["state"] for own in json.loads(done.stdout)["checks"]}
    assert {checks[number] for number in (1, 2, 3, 4, 5, 6, 8, 9)} == {"ok"}
    report = json.loads((run / "report.json").read_bytes())
    assert [own["name"] for own in report["audits"]] == ["before", "after"]
    assert all(own["tables"] for own in report["audits"])
    page = run / "report.html"
    page.write_text(page.read_text() + " ")
    assert subprocess.run(call, capture_output=True).returncode == 40


def attributes_lie_in_the_regulators_folder_only(run: Path) -> None:
    home = run / "regulator"
    table = Vault(home / "vault.bin", secret_from_file(home / "unlock.key")).read()
    assert len(table) == 2000
    person, value = table.ids[0], table.groups["sex"][table.codes["sex"][0]]
    for path in run.rglob("*"):  # the regulator's own folder too: there they are encrypted
        if path.is_file():
            for line in path.read_bytes().split(b"\n"):
                assert not (person.encode() in line and value.encode() in line), path


def nothing_stays_behind(run: Path) -> None:
    assert processes_of(run) == []


class Seen(Exception):  # noqa: N818  (reads as the event it is)
    """The console was looked at; whoever runs it may go home."""


def its_console_can_be_looked_at(run: Path) -> None:
    """As `--console` does it: daemon and console run until the reader has seen enough."""

    def look(address: str) -> None:
        host, _, token = address.removeprefix("http://").partition("/")
        settings = {"base_url": f"http://127.0.0.1:{host.partition(':')[2]}", "timeout": 30}
        with httpx.Client(headers={"Host": host}, trust_env=False, **settings) as browser:
            assert browser.get(f"/{token}").status_code == 200
            page = browser.get("/reports").text
        assert "demonstration on lending" in page
        raise Seen

    with pytest.raises(Seen):
        look_around(Layout(run), look)
    assert processes_of(run) == []


def a_used_folder_is_not_touched(run: Path) -> None:
    before = (run / "summary.json").read_bytes()
    process = start(run)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 10
    assert "empty folder" in stderr
    assert (run / "summary.json").read_bytes() == before


def test_ctrl_c_takes_everything_down(tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = start(out, "--people", "2000")
    log = out / "logs" / "server.log"
    deadline = time.monotonic() + 90
    while not (log.exists() and '"ready"' in log.read_text()):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.2)
    assert processes_of(out)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert processes_of(out) == []


def test_a_failure_names_the_logs_and_takes_everything_down(tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = start(out, "--people", "2000")
    log = out / "logs" / "regulator.log"
    deadline = time.monotonic() + 90
    while not (log.exists() and '"ready"' in log.read_text()):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.1)
    (daemon,) = [line for line in pids_of(out) if "isonomy-regulator serve" in line[1]]
    os.kill(daemon[0], signal.SIGKILL)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 16, stderr
    assert "regulator ended" in stderr
    assert str(out / "logs") in stderr.replace("\n", "")
    assert processes_of(out) == []


def pids_of(folder: Path) -> list[tuple[int, str]]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if str(folder) in command and process.name != str(os.getpid()):
            found.append((int(process.name), command))
    return found
