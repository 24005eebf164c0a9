"""`make fuzz`: every parser for so many seconds (or inputs), one line each; fails on a finding.

    python tests/fuzz/run.py [--seconds-each 14] [--inputs N] [--seed N] [--only WORD] [--keep]

What once failed is parsed first: `--replay` does only that, or also N inputs with `--inputs N`.

Each parser runs in a process of its own, so that one that dies is a finding like any other.
`--keep` stores what is found in regressions/.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "kits")]
os.environ.setdefault("OMP_NUM_THREADS", "1")

from fuzz_engine import HARNESS, Target, file_name, in_child, mutant, watch  # noqa: E402

REGRESSIONS = HERE / "regressions"
MOST_FINDINGS = 20  # of one parser: then it is time to fix them
SAVE_EVERY = 256


@dataclass
class Tally:
    """What became of a parser's inputs; `faults` has one input for each fault and place."""

    tried: int = 0
    taken: int = 0
    faults: dict[str, str] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(vars(self)))

    @classmethod
    def load(cls, path: Path) -> Tally:
        return cls(**json.loads(path.read_text()))


def fuzz(target: Target, seed: int, enough: Callable[[int], bool], scratch: Path) -> Tally:
    """Try mutants until there are enough of them. A process that dies is followed by another."""
    path = scratch / ".tally"
    tally, part = Tally(), 0
    while not enough(tally.tried) and len(tally.faults) < MOST_FINDINGS:
        part += 1
        tally.tried += 1
        tally.save(path)
        work = _Work(target, random.Random(f"{seed} {part}"), enough, path)
        status, last = in_child(work, scratch)
        tally = Tally.load(path)
        if status == HARNESS:
            raise SystemExit(f"{target.name}: the fuzzer itself failed")
        if status:
            tally.faults.setdefault(f"the process ended with {status}", last.hex())
    return tally


@dataclass
class _Work:
    """What the child process does."""

    target: Target
    rng: random.Random
    enough: Callable[[int], bool]
    path: Path

    def __call__(self, note: Callable[[bytes], object]) -> None:
        tally = Tally.load(self.path)
        while not self.enough(tally.tried) and len(tally.faults) < MOST_FINDINGS:
            raw = mutant(self.rng, self.target)
            note(raw)
            taken, fault = watch(self.target, raw)
            if fault.startswith("too"):
                taken, fault = watch(self.target, raw)  # again: was it this input, or the machine?
            tally.tried, tally.taken = tally.tried + 1, tally.taken + taken
            if fault:
                tally.faults.setdefault(fault, raw.hex())
            if fault or tally.tried % SAVE_EVERY == 0:
                tally.save(self.path)
        tally.save(self.path)


def replay(targets: list[Target], scratch: Path) -> int:
    """Parse every stored input once; returns how many still fail."""
    by_name, failed = {file_name(target.name): target for target in targets}, 0
    path = scratch / ".fault"
    for stored in sorted(REGRESSIONS.glob("*-*")):
        target, raw = by_name.get(stored.name.rpartition("-")[0]), stored.read_bytes()
        if target is None:
            continue  # `--only` others

        def work(note: object, target: Target = target, raw: bytes = raw) -> None:
            path.write_text(watch(target, raw)[1])

        status, _ = in_child(work, scratch)
        fault = f"the process ended with {status}" if status else path.read_text()
        if fault:
            failed += 1
            print(f"{stored.name}: {fault}")  # noqa: T201
    return failed


def main() -> int:
    """Fuzz or replay; returns the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds-each", type=float, default=14.0)
    parser.add_argument("--inputs", type=int, default=0, help="inputs per parser, not seconds")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--only", default="")
    parser.add_argument("--replay", action="store_true")
    parser.add_argument("--keep", action="store_true", help="store findings as regressions")
    options = parser.parse_args()
    shared = Path("/dev/shm")  # noqa: S108  (a disk would be the slowest part)
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as folder:
        from fuzz_targets import all_targets

        scratch = Path(folder)
        targets = [target for target in all_targets(scratch) if options.only in target.name]
        total = replay(targets, scratch)
        if not options.replay or options.inputs:
            total += sum(_report(target, options, scratch) for target in targets)
    print(f"seed {options.seed}: {total} findings")  # noqa: T201
    return int(total > 0)


def _report(target: Target, options: argparse.Namespace, scratch: Path) -> int:
    """Fuzz one parser and print its line; returns the number of findings."""
    stop = time.monotonic() + options.seconds_each

    def enough(tried: int) -> bool:
        return tried >= options.inputs if options.inputs else time.monotonic() > stop

    tally = fuzz(target, options.seed, enough, scratch)
    counts = f"{tally.tried:9,} inputs {tally.taken:9,} taken {len(tally.faults):3} findings"
    print(f"{target.name:22}{counts}", flush=True)  # noqa: T201
    for fault, digits in tally.faults.items():
        print(f"    {fault}", flush=True)  # noqa: T201
        if options.keep:
            raw = bytes.fromhex(digits)
            (REGRESSIONS / file_name(target.name, raw)).write_bytes(raw)
    return len(tally.faults)


if __name__ == "__main__":
    sys.exit(main())
