"""What it costs the regulator's vault to take a CSV of people: the command, in its own process."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from isonomy.common.base.errors import StorageError
from isonomy.company.speed._memory import status_mb

_LOOK_S = 0.005
_FEW = 1_000  # people of the enrolment whose memory counts as the program's own


def measure_enrolment(ids: Iterable[str], folder: Path) -> tuple[float, float]:
    """Seconds, and the peak memory in bytes above that of enrolling a few people."""
    few, everybody = folder / "few.csv", folder / "everybody.csv"
    _write(few, (f"person-{number}" for number in range(_FEW)))
    _write(everybody, ids)
    _, least = _enrol(folder / "few", few)
    seconds, peak = _enrol(folder / "everybody", everybody)
    return seconds, peak - least


def _write(path: Path, ids: Iterable[str]) -> None:
    with path.open("x") as file:
        file.write("id,sex\n")
        file.writelines(f"{person},{'fm'[number % 2]}\n" for number, person in enumerate(ids))


def _enrol(home: Path, people: Path) -> tuple[float, float]:
    """Seconds and peak bytes of `isonomy-regulator enroll` into a new home."""
    program = Path(sys.executable).with_name("isonomy-regulator")
    unlock = ("--unlock-file", str(home.with_suffix(".key")))
    groups = ("--groups", "sex=f,m", "--complete", "sex")
    _run([str(program), "init", str(home), *groups, *unlock])
    begin = time.perf_counter()
    peak = _run([str(program), "enroll", str(people), "--attribute", "sex", "--home", str(home)])
    return time.perf_counter() - begin, peak


def _run(command: list[str]) -> float:
    """Run a command to its end; its peak memory in bytes, looked at every few milliseconds.

    Not `ru_maxrss`: a child begins with that of the process that it was forked from.
    """
    with tempfile.TemporaryFile() as errors:
        child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors)
        peak = 0.0
        while child.poll() is None:
            with suppress(OSError, StopIteration):  # it may end between two looks
                peak = status_mb("VmHWM", child.pid) * 2**20
            time.sleep(_LOOK_S)
        errors.seek(0)
        if child.returncode:
            text = errors.read().decode(errors="replace").strip()
            raise StorageError(f"isonomy-regulator {command[1]} failed: {text}")
    return peak
