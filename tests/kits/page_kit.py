"""Pages of docs/ as programs: their console and Python blocks, run in order in one folder."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from typer.testing import CliRunner

from isonomy.company.cli.company import app as company_app
from isonomy.company.cli.main import app as main_app
from isonomy.regulator.cli import app as regulator_app
from isonomy.server.cli import app as server_app

DOCS = Path(__file__).parents[2] / "docs"
TIMEOUT_S = 120
PROGRAMS = {
    "isonomy": main_app,
    "isonomy-company": company_app,
    "isonomy-regulator": regulator_app,
    "isonomy-server": server_app,
}


@dataclass
class Step:
    """A command of a page, and the lines that the page shows after it."""

    command: str
    output: list[str] = field(default_factory=list)

    def matches(self, text: str) -> bool:
        """Does the output read as shown? An ellipsis stands for anything, alone for any lines."""
        parts = [
            r"(?:.*\n)*?" if line == "…" else f"{'.*'.join(map(re.escape, line.split('…')))}\\n"
            for line in self.output
        ]
        return re.fullmatch("".join(parts), text) is not None


@dataclass(frozen=True)
class Block:
    """A fenced block of a page: `console` or `python`, perhaps with the title that readers see."""

    kind: str
    title: str
    text: str

    def steps(self) -> Iterator[Step]:
        """The commands of a console block. A line that ends in a backslash goes on."""
        steps: list[Step] = []
        for line in self.text.replace("\\\n", "").splitlines():
            if line.startswith("$ "):
                steps.append(Step(line[2:]))
            else:
                assert steps, f"no command before {line!r}"
                steps[-1].output.append(line)
        yield from steps


def blocks(page: Path, section: str = "") -> list[Block]:
    """All console and Python blocks of a page, or of its section with this heading."""
    text = page.read_text(encoding="utf-8")
    if section:
        text = re.split(rf"^#+ {re.escape(section)}$", text, flags=re.M)[1]
        text = re.split(r"^## ", text, flags=re.M)[0]
    fences = re.findall(r'```(console|python)(?: title="(.*?)")?\n(.*?)```', text, re.S)
    return [Block(*parts) for parts in fences]


def simple(command: str) -> bool:
    """Is it one command of ours, with nothing for a shell to do?"""
    program = command.split(" ", 1)[0]
    return program in PROGRAMS and not re.search(r"[$|&;<>*`~]", command)


class Walk:
    """Runs the blocks of pages in one folder. Use it as a context: it ends what it started.

    Python blocks share `names`; a page may assume what its prose says the reader has. `replace`
    puts small or local values in the place of a page's own, such as fewer people.
    """

    def __init__(self, folder: Path, replace: Mapping[str, str] | None = None) -> None:
        self.folder, self.replace = folder, dict(replace or {})
        self.names: dict[str, Any] = {"__name__": "page"}
        self.count = 0
        self._background: list[subprocess.Popen[bytes]] = []
        self._environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "COLUMNS": "400",
            "OMP_NUM_THREADS": "1",
        }

    def __enter__(self) -> Self:
        self._cwd = Path.cwd()
        os.chdir(self.folder)
        return self

    def __exit__(self, *_: object) -> None:
        os.chdir(self._cwd)
        for process in self._background:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(20)

    def page(self, name: str, section: str = "") -> None:
        """Run all blocks of docs/NAME, or of one section of it."""
        for block in blocks(DOCS / name, section):
            self.run(block)

    def run(self, block: Block) -> None:
        """Run one block; what it prints must be what the page shows."""
        if block.kind == "python":
            self.count += 1
            exec(compile(self._local(block.text), "page", "exec"), self.names)  # noqa: S102
            return
        for step in block.steps():
            self.count += 1
            self.enter(step)

    def enter(self, step: Step) -> None:
        """Run one command; what it prints must be what the page shows."""
        command = self._local(step.command)
        if command == "wait":
            self._wait()
            return
        if background := re.fullmatch(r"(.*[^&])&(\s+#.*)?", command):
            self._background.append(self._start(background[1]))
            return
        code, text = self._in_process(command) if simple(command) else self._by_shell(command)
        assert code == 0, f"{command}\n{text}"
        assert step.matches(text), f"{command}\nprinted:\n{text}"

    def _wait(self) -> None:
        """As in a shell: until the command that was started last has ended."""
        process = self._background.pop()
        code = process.wait(TIMEOUT_S)
        assert code == 0, f"{process.args!r} ended with {code}"  # pytest shows what it printed

    def _in_process(self, command: str) -> tuple[int, str]:
        """A command of ours without a shell and without a second of imports."""
        program, *arguments = shlex.split(command, comments=True)
        result = CliRunner().invoke(PROGRAMS[program], arguments, env=self._environment)
        return result.exit_code, result.output + ("" if not result.exit_code else repr(result))

    def _by_shell(self, command: str) -> tuple[int, str]:
        result = subprocess.run(
            ["bash", "-c", command],
            cwd=self.folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT_S,
        )
        return result.returncode, result.stdout

    def _start(self, command: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            ["bash", "-c", f"exec {command}"],
            cwd=self.folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _local(self, text: str) -> str:
        for page_value, value in self.replace.items():
            text = text.replace(page_value, value)
        return text
