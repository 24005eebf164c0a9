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
from isonomy.common.base.private_files import fsync_folder, open_file, write_whole
from isonomy.common.ledger._lines import MAX_LINE_BYTES, shared, unseal
from isonomy.common.ledger.records import Sealed
from isonomy.common.ledger.state import LedgerState

OnRecord = Callable[[Sealed, LedgerState], None]


def verify_ledger(path: Path, *, known_head: bytes | None = None) -> LedgerState:
    """Check a whole ledger without lock and without changing it; LedgerTampered names the line.

    Returns what the ledger says. The checks, for each line:
        (1) the first record, and no other, opens the ledger, in the schema that is known;
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
    The numbers stand at the lines that check them, here, in lines.py, records.py and state.py.
    """
    heads = set()
    state = read_ledger(path, lambda sealed, _: heads.add(sealed.hash))  # (1) … (10)
    if known_head is not None and known_head not in heads:  # (11) no rollback
        raise LedgerTampered(f"{path} lacks a record that it once had: it was rolled back")
    return state


def read_ledger(path: Path, on_record: OnRecord | None = None) -> LedgerState:
    """Return what a ledger says, verified but for (11), without lock and without changing it.

    `on_record` gets each record with the state right after it.
    """
    with storage_errors(path), Path(path).open("rb") as file:
        return replay_lines(path, file, on_record).state


def write_shared(path: Path, target: Path) -> None:
    """Write a copy for others: whole lines, secret subsets without the people in them."""
    with storage_errors(path), path.open("rb") as file:
        lines = [shared(line[:-1]) + b"\n" for line in file if line.endswith(b"\n")]
    write_whole(target, b"".join(lines))


@dataclass(frozen=True)
class LedgerLines:
    """What the lines of a ledger say, and where the last one stands."""

    state: LedgerState
    size: int  # of all complete lines
    last_line: bytes
    tail: bytes  # a torn line, or nothing


def replay_lines(path: Path, file: BinaryIO, on_record: OnRecord | None = None) -> LedgerLines:
    """Replay all complete lines under the rules; anything broken but a torn tail is tampering."""
    state, size, last, tail = LedgerState(), 0, b"", b""
    for number, line in enumerate(iter(lambda: file.readline(MAX_LINE_BYTES + 1), b""), start=1):
        if not line.endswith(b"\n"):
            if len(line) > MAX_LINE_BYTES or _has_more_than_a_record(line):
                raise LedgerTampered(f"{path}, line {number}: not a record, nor the start of one")
            tail, state.torn = line, True
            break
        try:
            sealed = unseal(line[:-1])
            state.replay(sealed)
        except UnknownSchema:
            raise
        except IsonomyError as error:
            raise LedgerTampered(f"{path}, line {number}: {error}") from None
        size, last = size + len(line), line
        if on_record is not None:
            on_record(sealed, state)
    if not state.records:
        raise LedgerTampered(f"{path}, line 1: no record opens this ledger")  # (1)
    return LedgerLines(state, size, last, tail)


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
    fd = open_file(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
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
