"""kill −9 anywhere: whatever left is in the ledger, and the ledger goes on.

A forked child makes debits and sends each answer down a pipe only after `debit` returned. It dies
    * at a random moment, by a SIGKILL from outside,
    * before, in the middle of and after every system call that touches the disk,
    * at every line of the ledger's own code (a trace function counts lines).
The parent then reads what left, opens the ledger again and compares.

(A SIGKILL does not lose the page cache; that `fsync` comes before the return is tested by the
order of calls, here and in test_ledger.py.)
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import numpy as np
import pytest

from isonomy.common.base.canonical import hash_bytes
from isonomy.common.base.errors import ReplayRefused
from isonomy.common.ledger.ledger import Ledger, verify_ledger

PLAN, OTHER_PLAN = b"A" * 32, b"B" * 32
MEMBERS = [hash_bytes("test/person", bytes([number]))[:16] for number in range(40)]
BUDGET = 10**6
UNITS = 3
ANSWER_BYTES = 24  # sent with its 8-byte query number: below PIPE_BUF, so never in pieces
DISK_CALLS = ("pwrite", "fsync", "ftruncate", "link", "unlink")
Work = Callable[[Path, int], None]


def request_hash(number: int) -> bytes:
    return hash_bytes("test/request", number.to_bytes(8, "big"))


def new_ledger(path: Path) -> bytes:
    with Ledger.create(path, cap_units=2 * BUDGET, delta=1e-5) as ledger:
        root = ledger.add_people(MEMBERS)
        ledger.reserve(PLAN, root, BUDGET)
    return root


def debit(ledger: Ledger, root: bytes, number: int) -> bytes:
    return ledger.debit(
        plan=PLAN,
        query_id=f"query {number}",
        request_hash=request_hash(number),
        root=root,
        units=UNITS,
        event={"mechanism": "gaussian", "sigma": 4},
        answer=os.urandom(ANSWER_BYTES),
    ).answer


def debit_for_ever(path: Path, pipe: int) -> None:
    """The child's work. Numbers go on where the ledger stands; the last one is asked again."""
    with Ledger.open(path) as ledger:
        root = ledger.plans()[0].root
        number = max(ledger.records - 4, 0)
        while True:
            os.write(pipe, number.to_bytes(8, "big") + debit(ledger, root, number))
            number += 1


def every_record(path: Path, pipe: int) -> None:
    """A child that writes one record of each type, after cutting a torn tail off."""
    with path.open("ab") as file:
        file.write(b'{"answer":"half a rec')
    with Ledger.open(path) as ledger:
        root = ledger.plans()[0].root
        start = ledger.records
        ledger.add_people(MEMBERS[:5])
        ledger.reserve(OTHER_PLAN, ledger.add_subset(root, np.array([1, 2])), 7)
        for number in (start, start, start + 1):
            os.write(pipe, number.to_bytes(8, "big") + debit(ledger, root, number))
        ledger.close_plan(OTHER_PLAN)


def run(path: Path, work: Work, arm: Callable[[], None], kill_after_s: float | None) -> bytes:
    """Fork, let the child work until something kills it, return what left it."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:  # nothing here may return into pytest
        code = 2
        try:
            os.close(reader)
            arm()
            work(path, writer)
            code = 0
        finally:
            os._exit(code)
    os.close(writer)
    if kill_after_s is not None:
        time.sleep(kill_after_s)
        os.kill(child, signal.SIGKILL)
    with os.fdopen(reader, "rb") as pipe:
        left = pipe.read()  # to the end: the child is gone
    status = os.waitpid(child, 0)[1]
    assert os.waitstatus_to_exitcode(status) in (0, -signal.SIGKILL)
    return left


def assert_nothing_was_lost(path: Path, left: bytes) -> int:
    """The four promises of the ledger, after a kill. Returns the number of stored debits."""
    size = 8 + ANSWER_BYTES
    assert len(left) % size == 0
    answers = [left[at : at + size] for at in range(0, len(left), size)]
    with Ledger.open(path) as ledger:
        root = ledger.plans()[0].root
        for each in answers:  # every answer that left is stored, byte for byte
            number = int.from_bytes(each[:8], "big")
            stored = ledger.find(f"query {number}")
            assert stored is not None
            assert stored.answer == each[8:]
            assert debit(ledger, root, number) == each[8:]  # asked again: the same, no fresh noise
            with pytest.raises(ReplayRefused):
                ledger.debit(
                    plan=PLAN,
                    query_id=f"query {number}",
                    request_hash=request_hash(number + 1),
                    root=root,
                    units=UNITS,
                    event={},
                    answer=b"fresh noise",
                )
        spent = ledger.spent_units(PLAN)
        assert spent >= UNITS * len({each[:8] for each in answers})  # Σ debits ≥ what left
        assert ledger.person_units(MEMBERS[0]) == spent
        debit(ledger, root, 10**6 + ledger.records)  # and it goes on
        assert ledger.spent_units(PLAN) == spent + UNITS
    found = verify_ledger(path)  # the chain holds
    assert not found.torn
    assert found.debits * UNITS == spent + UNITS
    return found.debits


def random_kills(folder: Path, kills: int, seed: int) -> None:
    source = random.Random(seed)
    path, sent = folder / "none", 0
    for number in range(kills):
        if number % 20 == 0:  # a short ledger opens faster
            path = folder / f"ledger-{number}"
            new_ledger(path)
        left = run(path, debit_for_ever, lambda: None, source.uniform(0.0, 0.02))
        assert_nothing_was_lost(path, left)
        sent += len(left)
    assert sent > 0  # the kills did not all come too early


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_at_call(target: int, part: float) -> Callable[[], None]:
    """Die at the target-th disk call: before it (0), within a write (a fraction), after it (1)."""

    def arm() -> None:
        count = 0

        def watch(real: Callable[..., object]) -> Callable[..., object]:
            def call(*args: object) -> object:
                nonlocal count
                count += 1
                if count != target:
                    return real(*args)
                if real is pwrite:
                    fd, data, offset = args
                    pwrite(fd, data[: int(len(data) * part)], offset)
                elif part > 0:
                    real(*args)
                die()
                return None

            return call

        pwrite = os.pwrite
        for name in DISK_CALLS:
            setattr(os, name, watch(getattr(os, name)))

    return arm


def kill_at_line(target: int) -> Callable[[], None]:
    """Die at the target-th line that runs in the ledger's modules."""

    def arm() -> None:
        count = 0

        def trace(frame: FrameType, event: str, _: object) -> object:
            nonlocal count
            if "isonomy/common/ledger" not in frame.f_code.co_filename:
                return None
            count += event == "line"
            if count == target:
                die()
            return trace

        sys.settrace(trace)

    return arm


def kill_everywhere(folder: Path, points: list[Callable[[], None]]) -> int:
    """Kill `every_record` at each point; returns how many points came before its end."""
    killed = 0
    for number, arm in enumerate(points):
        path = folder / f"ledger-{number}"
        new_ledger(path)
        left = run(path, every_record, arm, None)
        killed += len(left) < 3 * (8 + ANSWER_BYTES)
        debits = assert_nothing_was_lost(path, left)
        assert debits <= 3
        path.unlink()
    return killed


def count_points(folder: Path, arm_at: Callable[[int], Callable[[], None]]) -> int:
    """Find by bisection how many kill points a whole run of `every_record` passes."""

    def survives(target: int) -> bool:
        path = folder / f"probe-{target}"
        new_ledger(path)
        reader = run(path, _last_gasp, arm_at(target), None)
        path.unlink()
        return reader == b"done"

    low, high = 1, 1 << 14
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if survives(middle) else (middle + 1, high)
    return low - 1


def _last_gasp(path: Path, pipe: int) -> None:
    silent = os.open(os.devnull, os.O_WRONLY)
    every_record(path, silent)
    os.write(pipe, b"done")


def test_150_kills_at_random_times(tmp_path):
    random_kills(tmp_path, 150, seed=1)


def test_kills_around_and_within_every_disk_call(tmp_path):
    calls = count_points(tmp_path, lambda target: kill_at_call(target, 1))
    # torn copy: write, fsync, folder; cut, rewrite, fsync; then 6 records of write and fsync
    assert calls == 3 + 3 + 6 * 2
    points = [
        kill_at_call(target, part)
        for target in range(1, calls + 1)
        for part in (0, 0.01, 0.5, 0.999, 1)
    ]
    # Only kills up to the last debit's fsync come before the last answer left; `release` is later.
    assert kill_everywhere(tmp_path, points) == 5 * (calls - 2)


def test_kills_at_lines_of_the_ledgers_code(tmp_path):
    lines = count_points(tmp_path, kill_at_line)
    assert lines > 300
    source = random.Random(2)
    kill_everywhere(tmp_path, [kill_at_line(source.randint(1, lines)) for _ in range(60)])


def test_a_kill_during_create_leaves_no_ledger_or_a_whole_one(tmp_path):
    def create(path: Path, pipe: int) -> None:
        Ledger.create(path, cap_units=5, delta=1e-5).close()
        os.write(pipe, b"done")

    seen = set()
    for target in range(1, 7):
        for part in (0, 0.5, 1):
            path = tmp_path / f"ledger-{target}-{part}"
            left = run(path, create, kill_at_call(target, part), None)
            assert path.exists() or not left
            seen.add((path.exists(), left))
            if not path.exists():
                Ledger.create(path, cap_units=5, delta=1e-5).close()
            assert verify_ledger(path).records == 1
            with Ledger.open(path) as ledger:
                ledger.add_people(MEMBERS)
    assert seen == {(False, b""), (True, b""), (True, b"done")}


def test_an_answer_leaves_only_after_its_fsync(tmp_path, monkeypatch):
    root = new_ledger(tmp_path / "ledger")
    calls = []
    for name in ("pwrite", "fsync"):
        real = getattr(os, name)
        monkeypatch.setattr(
            os, name, lambda *args, name=name, real=real: (calls.append(name), real(*args))[1]
        )
    with Ledger.open(tmp_path / "ledger") as ledger:
        calls.clear()
        debit(ledger, root, 1)
        assert calls == ["pwrite", "fsync"]  # one write, one fsync, both before the return
        debit(ledger, root, 1)
        assert calls == ["pwrite", "fsync"]  # a repeated query touches nothing


@pytest.mark.slow
def test_3000_kills(tmp_path):
    for name in ("random", "lines"):
        (tmp_path / name).mkdir()
    random_kills(tmp_path / "random", 2000, seed=3)
    lines = count_points(tmp_path, kill_at_line)
    points = [kill_at_line(round(each)) for each in np.linspace(1, lines, 1000)]
    kill_everywhere(tmp_path / "lines", points)
