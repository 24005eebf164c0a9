"""docs/regulator-guide.md, executed line by line: what it shows is what comes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

GUIDE = Path(__file__).parents[2] / "docs" / "regulator-guide.md"
TIMEOUT_S = 90


@dataclass
class Step:
    """A command of the guide, and the lines that the guide shows after it."""

    command: str
    shown: list[str] = field(default_factory=list)

    def matches(self, said: str) -> bool:
        """Does the output read as shown? An ellipsis stands for anything, alone for any lines."""
        parts = [
            r"(?:.*\n)*?" if line == "…" else f"{'.*'.join(map(re.escape, line.split('…')))}\\n"
            for line in self.shown
        ]
        return re.fullmatch("".join(parts), said) is not None


def steps(text: str) -> Iterator[Step]:
    for block in re.findall(r"```console\n(.*?)```", text, re.S):
        found: list[Step] = []
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append(Step(line[2:]))
            else:
                found[-1].shown.append(line)
        yield from found


def test_the_walk_through(tmp_path: Path) -> None:
    text = GUIDE.read_text(encoding="utf-8")
    (script,) = re.findall(r"```python\n(.*?)```", text, re.S)
    folder = tmp_path / "g"
    folder.mkdir()
    (folder / "ask.py").write_text(script)
    bin_folder = str(Path(sys.executable).parent)
    environment = {
        **os.environ,
        "PATH": f"{bin_folder}:{os.environ['PATH']}",
        "COLUMNS": "400",
        "OMP_NUM_THREADS": "1",
    }
    running: list[subprocess.Popen[bytes]] = []
    count = 0
    try:
        for step in steps(text):
            count += 1
            if step.command.endswith("&"):
                running.append(start(step.command.removesuffix("&"), folder, environment))
                continue
            done = subprocess.run(
                ["bash", "-c", step.command],
                cwd=folder,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=TIMEOUT_S,
            )
            assert done.returncode == 0, f"{step.command}\n{done.stdout}"
            assert step.matches(done.stdout), f"{step.command}\nsaid:\n{done.stdout}"
    finally:
        for process in running:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(20)
    assert count > 40
    assert '"ready"' in (folder / "regulator" / "log" / "daemon.jsonl").read_text()


def start(command: str, folder: Path, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        ["bash", "-c", f"exec {command}"],
        cwd=folder,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


@pytest.mark.parametrize(
    ("shown", "said", "fits"),
    [
        (["a … c"], "a b c\n", True),
        (["a … c"], "a b d\n", False),
        (["…", "end"], "one\ntwo\nend\n", True),
        (["…", "end"], "one\ntwo\n", False),
        ([], "", True),
        ([], "unexpected\n", False),
    ],
)
def test_the_comparison_can_fail(shown: list[str], said: str, fits: bool) -> None:
    assert Step("", shown).matches(said) is fits
