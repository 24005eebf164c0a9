"""The ledger as a file: how it is read and verified, and how bytes get onto the disk.

A last line without its newline is *torn*: the process died in the write, so `debit` never returned
and nothing left. A last line that is complete but wrong, or that has something other than a newline
behind it, is no torn write but tampering. A line before the last is never torn.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from isonomy.common.base.errors import (
    ConfigError,
    IsonomyError,
    LedgerTampered,
    StorageError,
    UnknownSchema,
)
from isonomy.common.base.private_files import fsync_folder
from isonomy.common.ledger.lines import MAX_LINE_BYTES, unseal
from isonomy.common.ledger.records import Open, Sealed
from isonomy.common.ledger.state import LedgerState, PlanSummary

OnRecord = Callable[[Sealed, LedgerState], None]


def see_nothing(sealed: Sealed, state: LedgerState) -> None:
    """For who wants the end result only."""


@dataclass(frozen=True)
class LedgerSummary:
    """What `verify_ledger` found. `torn` says that a record at the end was written in part."""

    records: int
    people: int
    debits: int
    head: bytes
    cap_units: int
    delta: float
    max_person_units: int
    max_held_units: int  # spent, or set aside in an open plan
    torn: bool
    plans: tuple[PlanSummary, ...]
    ledger_id: bytes
    last_time: int  # of the last record, in Unix seconds


def verify_ledger(path: Path, *, known_head: bytes | None = None) -> LedgerSummary:
    """Check a whole ledger without lock and without changing it; LedgerTampered names the line.

    The checks, for each line:
        (1) the first record, and no other, opens the ledger, in a schema that is known;
        (2) the line is one record in canonical JSON, with exactly the fields of its type;
        (3) `seq` counts from 0 without a gap;
        (4) `prev` is the hash of the record before;
        (5) `hash` is the hash of the record;
        (6) memberships give the root they claim, hold nobody twice, subsets lie in their parent;
        (7) with each reservation everybody stays within the cap;
        (8) each debit names an open plan, people of that plan and a new query id, and leaves
            everybody within the plan's reservation;
        (9) each debit holds an answer;
        (10) inspections go step by step, and no demanded request was answered without opening;
        (11) at the end, `known_head` (from a signed answer), if given, is one of the records.
    The numbers stand at the lines that check them, here and in ledger_records and ledger_state.
    """
    path = Path(path)
    with storage_errors(path), path.open("rb") as file:
        found = read_ledger(path, file, known_head=known_head)  # (1) … (9)
    if known_head is not None and not found.has_known_head:  # (11) no rollback
        raise LedgerTampered(f"{path} lacks a record that it once had: it was rolled back")
    opening = opening_of(found.state)
    return LedgerSummary(
        records=found.state.records,
        people=found.state.people,
        debits=found.state.debits,
        head=found.state.head,
        cap_units=opening.cap_units,
        delta=float(opening.delta),
        max_person_units=found.state.max_person_units,
        max_held_units=found.state.max_held_units,
        torn=bool(found.tail),
        plans=found.state.plans(),
        ledger_id=opening.ledger_id,
        last_time=found.state.time,
    )


@dataclass(frozen=True)
class Found:
    """A ledger file that was read to its end."""

    state: LedgerState
    size: int  # of all complete lines
    last_line: bytes
    tail: bytes  # a torn line, or nothing
    has_known_head: bool


def read_ledger(
    path: Path,
    file: BinaryIO,
    known_head: bytes | None = None,
    on_record: OnRecord = see_nothing,
) -> Found:
    """Replay all complete lines under the rules; anything broken but a torn tail is tampering.

    `on_record` is shown each record with the state right after it.
    """
    state, size, last, tail, known = LedgerState(), 0, b"", b"", False
    for number, line in enumerate(iter(lambda: file.readline(MAX_LINE_BYTES + 1), b""), start=1):
        if not line.endswith(b"\n"):
            if len(line) > MAX_LINE_BYTES or _has_more_than_a_record(line):
                raise LedgerTampered(f"{path}, line {number}: not a record, nor the start of one")
            tail = line
            break
        try:
            sealed = unseal(line[:-1])
            state.replay(sealed)
        except UnknownSchema:
            raise
        except IsonomyError as error:
            raise LedgerTampered(f"{path}, line {number}: {error}") from None
        size, last = size + len(line), line
        known = known or state.head == known_head
        on_record(sealed, state)
    if state.opening is None:
        raise LedgerTampered(f"{path}, line 1: no record opens this ledger")  # (1)
    return Found(state, size, last, tail, known)


def _has_more_than_a_record(tail: bytes) -> bool:
    """Tell a changed newline from a torn write, which is always the beginning of a line."""
    try:
        text = tail.decode("utf-8", "surrogateescape")
        _, end = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return False
    return end < len(text)


def keep_torn(path: Path, tail: bytes) -> None:
    """Copy a torn line aside before it is cut off; never over an earlier copy."""
    number = 1
    while (copy := path.with_name(f"{path.name}.torn-{number}")).exists():
        number += 1
    fd = os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        write_all(fd, tail, 0)
        os.fsync(fd)
    finally:
        os.close(fd)
    fsync_folder(path)


def write_all(fd: int, data: bytes, offset: int) -> None:
    """Write in one call; a short write is a failure (the next call would only say why)."""
    if os.pwrite(fd, data, offset) != len(data):
        raise OSError(0, "short write, the disk is probably full")


def opening_of(state: LedgerState) -> Open:
    """Return the terms that the first record set."""
    if state.opening is None:
        raise LedgerTampered("the ledger has no first record")
    return state.opening


@contextlib.contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn the operating system's errors into ours."""
    try:
        yield
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist (or its folder); create it first") from None
    except (PermissionError, IsADirectoryError, NotADirectoryError) as error:
        raise ConfigError(f"{path} cannot be used as a ledger: {error.strerror}") from None
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror}; nothing was answered") from None
