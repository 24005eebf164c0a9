"""Questions at a real terminal: a passphrase, never shown, and an officer's texts, never empty."""

from __future__ import annotations

import os
import pty
import select
import signal
import sys
import time
from pathlib import Path

from regulator_kit import Regulator

from isonomy.common.report.schema import ReportFile
from isonomy.regulator.vault.unlock import Secret
from isonomy.regulator.vault.vault import Vault

TIMEOUT_S = 120
PROGRAM = str(Path(sys.executable).with_name("isonomy-regulator"))


def at_terminal(answers: list[str], *arguments: object) -> tuple[int, str]:
    """Run a command at a terminal of its own, typing an answer at each question."""
    child, terminal = pty.fork()
    if child == 0:  # pragma: no cover  (another program from here on)
        os.execv(PROGRAM, [PROGRAM, *map(str, arguments)])  # noqa: S606
    said, waiting, deadline = "", list(answers), time.monotonic() + TIMEOUT_S
    while True:
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
        if not select.select([terminal], [], [], 0.2)[0]:
            continue
        try:
            piece = os.read(terminal, 4096).decode(errors="replace")
        except OSError:  # the other end is closed
            break
        if not piece:
            break
        said += piece
        if waiting and said.endswith(": "):  # the blank comes once nothing typed is shown any more
            os.write(terminal, f"{waiting.pop(0)}\n".encode())
            said += "\n"
    _, status = os.waitpid(child, 0)
    os.close(terminal)
    return os.waitstatus_to_exitcode(status), said


def test_a_passphrase_is_asked_for(tmp_path: Path) -> None:
    home, right = tmp_path / "home", "correct horse battery"
    options = ("--groups", "sex=female,male")
    code, said = at_terminal(["", right, right], "init", home, *options)
    assert code == 0, said
    assert right not in said  # not even echoed
    assert len(Vault(home / "vault.bin", Secret(right.encode())).read()) == 0
    people = tmp_path / "people.csv"
    people.write_text("id,sex\na,female\nb,male\n")
    enroll = ("enroll", people, "--attribute", "sex", "--home", home)
    code, said = at_terminal(["wrong horse battery"], *enroll)
    assert code == 70, said
    code, said = at_terminal([right], *enroll)
    assert code == 0, said
    assert "female" in said  # at a terminal, the officer sees the sizes


def test_an_officers_texts_are_asked_for_once_more_where_they_are_empty(tmp_path: Path) -> None:
    regulator = Regulator.create(tmp_path)
    plan, out = regulator.plan_file(), tmp_path / "out"
    regulator.approve(plan)
    options = ("report", plan, "--home", regulator.home, "-o", out, "--access", "Kim")
    code, said = at_terminal(["Why not", "", "None would", "In May"], *options)
    assert code == 0, said
    assert said.count("Why other data would not do") == 2
    report = ReportFile.load(out / "report.json")
    assert report.officer.model_dump() == {
        "reason": "Why not", "alternatives": "None would", "access": "Kim", "retention": "In May",
    }  # fmt: skip
