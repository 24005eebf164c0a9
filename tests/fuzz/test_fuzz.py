"""A short form of `make fuzz`: a few inputs per parser from a fixed seed, and all that once failed.

In a process of its own: the fuzzer forks, and limits memory.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

RUN = Path(__file__).with_name("run.py")


def test_parsers_return_or_refuse() -> None:
    command = (sys.executable, "-W", "ignore", RUN, "--replay", "--inputs", "25", "--seed", "1")
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
