"""The four commands exist, help themselves, and print one JSON object where they promise it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BIN = Path(sys.executable).parent


@pytest.mark.parametrize(
    "command", ["isonomy", "isonomy-company", "isonomy-regulator", "isonomy-server"]
)
def test_help_suffices(command: str) -> None:
    shown = subprocess.run([BIN / command, "--help"], capture_output=True, text=True, check=True)
    assert "Usage" in shown.stdout
    assert shown.stderr == ""


def test_version() -> None:
    shown = subprocess.run(
        [BIN / "isonomy", "--version"], capture_output=True, text=True, check=True
    )
    assert shown.stdout.strip().count(".") == 2


def test_arguments_are_explained_too() -> None:
    """Click 8.5 under typer 0.20 prints an argument's name and nothing else."""
    command = [BIN / "isonomy-regulator", "approve", "--help"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "The plan, as the company sent it." in shown.stdout


def test_a_crash_shows_nobodys_rows(tmp_path: Path) -> None:
    """Tracebacks name lines of code; what variables held stays untold."""
    script = tmp_path / "crash.py"
    script.write_text(
        "import isonomy.company.rehearsal.simulate as s\n"
        "from isonomy.company.cli.main import app\n"
        "def fails(dataset, settings, **more):\n"
        "    rows = ['row of ' + 'Zoë']\n"
        "    raise RuntimeError('broken')\n"
        "s.simulate = fails\n"
        "app(['simulate', '--dataset', 'lending'])\n",
        encoding="utf-8",
    )
    ended = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, check=False, encoding="utf-8"
    )
    assert ended.returncode != 0
    assert "broken" in ended.stderr
    assert "row of Zoë" not in ended.stdout + ended.stderr
