"""Freed blocks of a chunk's size are used again: no fresh pages for every chunk."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

ROUNDS = 40
SCRIPT = f"""
import resource, sys
if sys.argv[1] == "tuned":
    from isonomy.common.base.malloc import reuse_freed_memory
    assert reuse_freed_memory()
def chunks():
    return [bytes([7]) * (1 << 19) for _ in range(4)]
for _ in range(5):
    chunks()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range({ROUNDS}):
    chunks()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str) -> int:
    """Fresh pages that the kernel had to find for 2 MB in four pieces, per round."""
    command = [sys.executable, "-c", SCRIPT, how]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return int(done.stdout) // ROUNDS


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library's malloc")
def test_freed_memory_is_used_again() -> None:
    assert faults("tuned") < 20
    assert faults("plain") > 200, "glibc does this by itself now: memory.py can go"
