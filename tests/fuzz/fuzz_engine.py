"""Mutants of valid inputs, and a watch over the parser that reads them.

A seed becomes a tree (dicts, lists, texts, numbers, bytes), the tree is changed in one to four
places, and writing it again recomputes lengths, hashes, chains and signatures, so that a mutant
gets past the first check. One input in four is changed as bytes instead.

A parser may return, or raise an error of Isonomy. All else is a finding: another exception, more
than a second of processor time, more than 200 MB, a dead process.
"""

from __future__ import annotations

import copy
import gc
import hashlib
import os
import random
import re
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isonomy.common.base.errors import IsonomyError

MAX_SECONDS, MAX_BYTES = 1.0, 200 << 20
HARNESS = 99  # exit code of a child whose fault is the fuzzer's own
DEEP = "@deep@"  # stands for 5,000 nested lists; written out by the format
AGAIN = "@again@"  # before a key: the same key once more
Tree = Any


@dataclass(frozen=True)
class Target:
    """A parser, small valid inputs, and how an input becomes a tree and back."""

    name: str
    seeds: list[bytes]
    parse: Callable[[bytes], object]
    load: Callable[[bytes], Tree]
    dump: Callable[[Tree], bytes]


def file_name(target: str, raw: bytes | None = None) -> str:
    """Return how a stored input of this target is called; without an input, how that begins."""
    words = re.sub(r"[^a-z]+", "_", target.lower())
    return words if raw is None else f"{words}-{hashlib.sha256(raw).hexdigest()[:12]}"


# --- Mutation ------------------------------------------------------------------------------------

_NUMBERS = (
    *(0, 1, -1, 2, 7, 127, 128, 255, 256, 65_535, 65_536, 999_999, 1_000_000, 10**12, 10**30),
    *(2**31 - 1, 2**31, 2**32, 2**53 - 1, 2**53, -(2**53), 2**63 - 1, 2**63, 2**64 - 1, -(2**63)),
    *(0.5, -0.0, 1e-320, 1e308, float("nan"), float("inf"), float("-inf")),
)
_TEXTS = (
    *("", " ", "0", "1", "-1", "1e999", "nan", "inf", "1e-400", "a\nb", "\0", "\ud800", "ﬀ", "💥"),
    *("a" * 300, "٣", "00" * 32, "ff" * 32, "../../x", "0001-01-01", "9999-12-31", "=1+1", "[]"),
)
_BYTES = (b"", b"\0", b"\xff" * 8, bytes(8), bytes(32), b"\xff" * 64, b"a" * 1000)


def mutant(rng: random.Random, target: Target) -> bytes:
    """Return a changed copy of one of the target's seeds."""
    seed = rng.choice(target.seeds)
    if rng.random() < 0.25:
        return _changed_bytes(rng, seed, target.seeds)
    tree = [target.load(seed)]  # in a list: the root, too, has a parent
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 4))):
        _change(rng, tree)
    return target.dump(tree[0] if tree else None)


def _change(rng: random.Random, tree: list[Tree]) -> None:
    """Change one place: a child of a dict or a list, whatever it is."""
    places = list(_places(tree))
    if not places:
        return
    parent, key = rng.choice(places)
    value, kind = parent[key], rng.random()
    if kind < 0.12:
        del parent[key]
    elif kind < 0.2 and isinstance(parent, dict):
        parent[rng.choice((AGAIN + str(key), str(key) + "x", "", "a" * 200))] = parent[key]
    elif kind < 0.27 and isinstance(parent, list):
        parent[key:key] = [copy.deepcopy(value)] * rng.choice((1, 2, 17))
    elif kind < 0.35:
        other, place = rng.choice(places)
        parent[key] = copy.deepcopy(other[place])
    elif kind < 0.45:
        parent[key] = rng.choice((None, True, False, [], {}, [value], {"": value}, DEEP))
    else:
        parent[key] = _changed_value(rng, value)


def _places(node: Tree) -> Iterable[tuple[Any, Any]]:
    keys = node if isinstance(node, dict) else range(len(node))
    for key in list(keys):
        yield node, key
        if isinstance(node[key], dict | list):
            yield from _places(node[key])


def _changed_value(rng: random.Random, value: Tree) -> Tree:
    """Return a value that is near, or extreme; now and then of another type."""
    if rng.random() < 0.15:
        return rng.choice((*_NUMBERS, *_TEXTS, *_BYTES))
    if isinstance(value, bool) or value is None:
        return rng.choice((not value, 0, "true"))
    if isinstance(value, int | float):
        near = (value + 1, value - 1, -value, value * 2, value // 2 if value == value else 0)
        return rng.choice((*near, *_NUMBERS))
    if isinstance(value, str):
        if rng.random() < 0.4:
            return rng.choice((*_TEXTS, value * 2, value[:-1], value.upper()))
        at = rng.randrange(len(value) + 1)
        return value[:at] + rng.choice(("", "0", "f", "-", "é", "\n", "*")) + value[at + 1 :]
    if isinstance(value, bytes):
        return (
            rng.choice((*_BYTES, value * 2)) if rng.random() < 0.3 else _changed_bytes(rng, value)
        )
    if isinstance(value, list):
        return rng.choice((value[:-1], value[1:], value[::-1], value + value[:1], value * 3))
    return {key: value[key] for key in list(value)[1:]}


def _changed_bytes(rng: random.Random, raw: bytes, others: Iterable[bytes] = ()) -> bytes:
    """Return bytes with one to four flips, cuts, insertions or repetitions."""
    data = bytearray(raw)
    for _ in range(rng.choice((1, 1, 2, 4))):
        at, size = rng.randrange(len(data) + 1), rng.choice((1, 1, 2, 4, 8, 32))
        match rng.randrange(7):
            case 0:
                data[at : at + 1] = bytes([rng.randrange(256)])
            case 1 if data:
                data[at % len(data)] ^= 1 << rng.randrange(8)
            case 2:
                del data[at : at + size]
            case 3:
                data[at:at] = rng.randbytes(size)
            case 4:
                data[at:at] = data[at : at + size] * rng.choice((1, 3, 50))
            case 5:
                data[at : at + size] = rng.choice((b"\0", b"\xff", b"\x7f")) * size
            case _:
                del data[at:]
    other = rng.choice([*others, b""])
    return (
        bytes(data)
        if rng.random() < 0.9
        else bytes(data[: len(data) // 2]) + other[len(other) // 2 :]
    )


# --- The watch -----------------------------------------------------------------------------------


class TooSlow(BaseException):
    """The parser is still at it; no `except Exception` may catch this."""


def _ring(number: int, frame: object) -> None:
    raise TooSlow


def watch(target: Target, raw: bytes) -> tuple[bool, str]:
    """Parse; returns whether the input was taken, and what went wrong (empty if nothing did)."""
    before, start = _resident(), time.process_time()
    signal.setitimer(signal.ITIMER_PROF, 4 * MAX_SECONDS)
    signal.setitimer(signal.ITIMER_REAL, 40 * MAX_SECONDS)  # it waits for something
    taken, fault = False, ""
    try:
        target.parse(raw)
        taken = True
    except IsonomyError:
        pass
    except TooSlow:
        fault = "too slow"
    except BaseException as error:
        fault = f"{type(error).__name__} at {_place(error)}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
    if not fault and time.process_time() - start > MAX_SECONDS:
        fault = "too slow"
    if not fault and _peak() - before > MAX_BYTES:
        fault = "too much memory"
    if fault.startswith("too"):
        gc.collect()
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")  # the peak counts from now on
    return taken, fault


def _place(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "/isonomy/" in frame.filename] or list(frames)
    return f"{ours[-1].filename.rpartition('/isonomy/')[2]}:{ours[-1].name}:{ours[-1].lineno}"


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def in_child(work: Callable[[Callable[[bytes], None]], None], scratch: Path) -> tuple[int, bytes]:
    """Run `work` in a process of its own; returns how it ended and the last input it noted."""
    slot = scratch / ".input"
    pid = os.fork()
    if pid:
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        return status, slot.read_bytes() if slot.exists() else b""
    try:
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, 2)
        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + 5 * MAX_BYTES, resource.RLIM_INFINITY))
        for name in (signal.SIGPROF, signal.SIGALRM):
            signal.signal(name, _ring)
        sys.setrecursionlimit(1000)
        work(slot.write_bytes)
        os._exit(0)
    except BaseException:
        traceback.print_exc(file=sys.stdout)
        sys.stdout.flush()
        os._exit(HARNESS)
