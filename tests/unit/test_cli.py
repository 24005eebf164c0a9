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
