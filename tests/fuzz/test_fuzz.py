"""A short form of `make fuzz`: a few inputs per parser from a fixed seed, and all that once failed.

In a process of its own: the fuzzer forks, and limits memory.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).with_name("run.py")


@pytest.mark.parametrize("arguments", [("--replay",), ("--inputs", "50", "--seed", "1")])
def test_parsers_return_or_refuse(arguments: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", RUN, *arguments], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
