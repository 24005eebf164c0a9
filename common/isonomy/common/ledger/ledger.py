"""The regulator's privacy ledger on disk: append-only, hash-chained, one fsync before each answer.

The rules live in state.py (no I/O), the lines in records.py;
this module holds the lock and decides the order of write, fsync and belief.

Formal guarantees (each has a test in tests/common/ledger):
    * When `debit` returns, its record is on disk in full. So whatever left is in the ledger, kill
      the process where you like: Σ debits ≥ what left.
    * A repeated query gets the stored bytes; a query id never gets two answers.
    * A write that fails changes neither the file nor what this object believes. If that cannot be
      known, the object refuses everything from then on.
    * Changing any byte of any record is found when the ledger is opened or verified.

What a file alone cannot show is a cut at the end of a record (a rollback): therefore the head
travels in every signed answer, and `verify_ledger(path, known_head=…)` looks for it.

A last line without its newline is *torn*: the process died in the write, so `debit` never returned
and nothing left. It is copied to PATH.torn-<n> and cut off when the ledger is opened. A last line
that is complete but wrong, or that has something other than a newline behind it, is no torn write
but tampering. A line before the last is never torn.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import BinaryIO, Concatenate, ParamSpec, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from isonomy.common.base.canonical import HASH_BYTES, MEMBER_BYTES
from isonomy.common.base.errors import (
    ClockWentBack,
    ConfigError,
    DataError,
    IsonomyError,
    LedgerTampered,
    StorageError,
    UnknownSchema,
)
from isonomy.common.base.logs import logger
from isonomy.common.base.merkle import merkle_root
from isonomy.common.base.private_files import fsync_folder, open_file, write_whole
from isonomy.common.ledger.reading import note_replayed
from isonomy.common.ledger.records import (
    MAX_LINE_BYTES,
    NO_RECORD,
    Body,
    ClosePlan,
    Debit,
    DebitRecord,
    Inspection,
    Key,
    Note,
    Open,
    PeopleList,
    Reserve,
    Sealed,
    Subset,
    seal,
    shared,
    subset_root,
    unseal,
)
from isonomy.common.ledger.state import LedgerState

CLOCK_TOLERANCE_S = 120  # clocks are set back by seconds all the time

P = ParamSpec("P")
T = TypeVar("T")
OnRecord = Callable[[Sealed, LedgerState], None]


def _locked(
    question: Callable[Concatenate[LedgerState, P], T],
) -> Callable[Concatenate[Ledger, P], T]:
    """Put a question to the ledger's state while no other thread writes."""

    @wraps(question)
    def ask(self: Ledger, /, *args: P.args, **kwargs: P.kwargs) -> T:
        with self._mutex:
            return question(self._ready(), *args, **kwargs)

    return ask


class Ledger:
    """An open ledger. One process holds it at a time; its threads may share this object."""

    # What it can be asked is explained in LedgerState.
    members = _locked(LedgerState.members)
    find = _locked(LedgerState.find)
    debits_of = _locked(LedgerState.debits_of)
    inspections = _locked(LedgerState.inspections)
    check = _locked(LedgerState.check_debit)
    spent_units = _locked(LedgerState.spent_units)
    answers = _locked(LedgerState.answers)
    remaining_units = _locked(LedgerState.remaining_units)
    person_units = _locked(LedgerState.person_units)
    held_units = _locked(LedgerState.held_units)
    plans = _locked(LedgerState.plans)
    approval = _locked(LedgerState.approval)

    def __init__(self, path: Path, fd: int, state: LedgerState, size: int) -> None:
        """Use `create` or `open`."""
        self._path = path
        self._fd = fd
        self._state = state
        self._size = size
        self._pid = os.getpid()
        self._mutex = threading.RLock()
        self._unusable: str | None = None
        self._log = logger("ledger", least="warning").bind(ledger=state.ledger_id.hex()[:16])

    @classmethod
    def create(cls, path: Path, *, cap_units: int, delta: float) -> Ledger:
        """Make a new ledger and hold it. Never overwrites: an existing path is a ConfigError.

        The file appears under its name only when it is complete, so a kill leaves either no ledger
        or a whole one (and at worst a stray PATH.new-… beside it).
        """
        path = Path(path)
        body = Open(secrets.token_bytes(HASH_BYTES), cap_units, repr(float(delta)))
        sealed, line = seal(body, seq=0, prev=NO_RECORD, time=int(time.time()))
        fresh = path.with_name(f"{path.name}.new-{secrets.token_hex(8)}")
        with storage_errors(path), contextlib.ExitStack() as on_failure:
            fd = open_file(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL)
            on_failure.callback(os.close, fd)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # before anybody can see the name
                write_all(fd, line, 0)
                os.fsync(fd)
                os.link(fresh, path)  # unlike rename, refuses a name that is taken
            except FileExistsError:
                raise ConfigError(f"{path} exists; a ledger is never overwritten") from None
            finally:
                os.unlink(fresh)  # noqa: PTH108  (the same layer of calls throughout)
            fsync_folder(path)
            on_failure.pop_all()
        state = LedgerState()
        state.replay(sealed)
        return cls(path, fd, state, len(line))

    @classmethod
    def open(cls, path: Path, *, on_record: OnRecord | None = None) -> Ledger:
        """Hold an existing ledger: lock, verify every record, cut a torn tail off, fsync."""
        path = Path(path)
        with storage_errors(path), contextlib.ExitStack() as on_failure:
            fd = open_file(path, os.O_RDWR)
            on_failure.callback(os.close, fd)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigError(
                    f"{path} is held by another process, probably `isonomy-regulator serve` or "
                    f"another isonomy-regulator command (`fuser {path}` names it); stop it first"
                ) from None
            with open(fd, "rb", closefd=False) as file:
                lines = replay_lines(path, file, on_record)
            if lines.state.is_copy:
                raise ConfigError(
                    f"{path} is a copy for others: it does not say who was drawn, so it can hold "
                    "nobody to their budget. Put the ledger itself back"
                )
            if lines.tail:
                keep_torn(path, lines.tail)
                os.ftruncate(fd, lines.size)
            # The last record may sit in the page cache only: its writer died before the fsync, or
            # the fsync failed and the kernel now calls the page clean. `find` may hand its answer
            # out, so it is written again, byte for byte, and synced. All before it were synced.
            write_all(fd, lines.last_line, lines.size - len(lines.last_line))
            os.fsync(fd)
            on_failure.pop_all()
        ledger = cls(path, fd, lines.state, lines.size)
        if lines.tail:
            ledger._log.warning("a record that was written in part was cut off")
        ledger._log.info("ledger opened", records=ledger.records)
        return ledger

    def close(self) -> None:
        """Let the file and its lock go. Closing twice is harmless."""
        with self._mutex:
            if self._fd >= 0:
                os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def head(self) -> bytes:
        return self._ready().head

    @property
    def records(self) -> int:
        return self._ready().records

    @property
    def last_time(self) -> int:
        """When the last record was written, in Unix seconds."""
        return self._ready().time

    @property
    def ledger_id(self) -> bytes:
        return self._ready().ledger_id

    @property
    def cap_units(self) -> int:
        return self._ready().cap_units

    @property
    def delta(self) -> float:
        return self._ready().delta

    # ---- what is written -----------------------------------------------------------------------

    def bind_key(self, tag: bytes) -> None:
        """Tie the ledger to the key of its people's hashes; another one is a ConfigError."""
        self._append(Key(tag))

    def add_people(self, members: Sequence[bytes]) -> bytes:
        """Store a list of keyed 16-byte id hashes, in row order; returns its Merkle root."""
        if any(type(each) is not bytes or len(each) != MEMBER_BYTES for each in members):
            raise DataError(f"people must be hashes of {MEMBER_BYTES} bytes each")
        root = merkle_root(members)
        self._append(PeopleList(root, b"".join(members)))
        return root

    def add_subset(
        self, parent: bytes, positions: NDArray[np.integer], *, secret: bool = False
    ) -> bytes:
        """Store some people of a stored root, by ascending position; returns the subset's root.

        `secret`: copies of the ledger for others do not say who is in it.
        """
        array = np.asarray(positions)
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise DataError("positions must be a one-dimensional array of integers")
        if array.size and not 0 <= int(array.min()) <= int(array.max()) < 2**32:
            raise DataError("a subset's positions must ascend and lie within its parent")
        if not array.size:
            raise DataError("a subset needs one or more positions")
        packed, salt = array.astype("<u4").tobytes(), os.urandom(HASH_BYTES) if secret else b""
        root = subset_root(parent, packed, salt)
        self._append(Subset(root, parent, packed, salt))
        return root

    def reserve(self, plan: bytes, root: bytes, units: int, *, individual: bool = False) -> None:
        """Set `units` aside for everybody of `root`; BudgetExceeded if somebody lacks them.

        The same plan on the same terms is a no-op (a closed plan stays closed), on other terms
        ReplayRefused.
        """
        self._append(Reserve(plan, root, units, individual))

    def close_plan(self, plan: bytes, *, in_full: bool = False, officer: str = "") -> None:
        """Close a plan: what each person did not spend under it is free for other plans.

        `in_full`: nothing becomes free, as if everybody had spent all of it.
        """
        self._append(ClosePlan(plan, in_full, officer))

    def note(self, kind: str, event: Mapping[str, str | int]) -> None:
        """Write down something that costs nothing."""
        self._append(Note(kind, event))

    def check_clock(self) -> None:
        """Raise ClockWentBack if nothing can be written before somebody checks the clock."""
        with self._mutex:
            self._now(self._ready().time)

    def accept_clock(self, officer: str) -> None:
        """Go on under a clock that stands before the last record: an officer's word, written down.

        For the case that the clock was wrong *then*. The note says by how much it went back.
        """
        with self._mutex:
            before, now = self.last_time, int(time.time())
            self._append(Note("clock", {"last": before, "officer": officer}), now=now)

    def debit(
        self,
        *,
        plan: bytes,
        query_id: str,
        request_hash: bytes,
        root: bytes,
        units: int,
        event: Mapping[str, str | int],
        answer: bytes,
        adjacency: str = "attribute",
    ) -> DebitRecord:
        """Write debit and answer as one record, fsync it, and only then return it.

        What may leave is the *returned* record's answer: for a query that was answered before it
        is the stored one, and nothing is written. BudgetExceeded, ReplayRefused and StorageError
        mean that nothing was debited and nothing may leave.
        """
        body = Debit(plan, query_id, request_hash, root, units, adjacency, event, answer)
        with self._mutex:
            self._append(body)
            record = self._state.find(query_id)
        if record is None:
            raise StorageError("the debit was written but cannot be found")
        return record

    def note_inspection(
        self, plan: bytes, query_id: str, request_hash: bytes, step: str, officer: str = ""
    ) -> None:
        """Write a step of an inspection; on disk when this returns. The last step again: no-op."""
        self._append(Inspection(plan, query_id, request_hash, step, officer))

    def _append(self, body: Body, *, now: int | None = None) -> None:
        """Check, write, fsync, and only then believe. A record that is there already is a no-op."""
        with self._mutex:
            state = self._ready()
            if not state.check(body):
                return
            now = self._now(state.time) if now is None else now
            sealed, line = seal(body, seq=state.records, prev=state.head, time=now)
            # Condemned first and cleared last: whatever interrupts the lines between (a signal's
            # exception, no memory) leaves the object refusing, not guessing.
            self._unusable = "a write was interrupted"
            self._write(line)
            state.apply(sealed)
            self._size += len(line)
            self._unusable = None
        self._log.debug("record written", record=sealed.seq, type=body.TYPE)

    def _now(self, last: int) -> int:
        """The time of the next record: never before the last one."""
        now = int(time.time())
        if last - now > CLOCK_TOLERANCE_S:
            raise ClockWentBack(
                f"this machine's clock stands {last - now} s before the last record of "
                f"{self._path}; nothing was written or answered. Set the clock; if it was wrong "
                "when that record was written, run `isonomy-regulator doctor --accept-clock`"
            )
        return max(now, last)

    def _write(self, line: bytes) -> None:
        """Write and fsync; when this returns the line is on disk. Raises StorageError otherwise."""
        try:
            size = os.fstat(self._fd).st_size
            # The lock holds among our processes. An editor or a copy put in place takes no lock.
            if size != self._size:
                self._unusable = "somebody else changed the file"
                raise LedgerTampered(f"{self._path} changed while this process holds it")
            write_all(self._fd, line, self._size)
        except OSError as error:
            self._take_back(error)
        try:
            os.fsync(self._fd)
        except OSError as error:
            # The kernel may have dropped the pages and call them clean: nobody can tell any more
            # what is on disk, so this object must not try again (open does, from the start).
            self._unusable = f"fsync failed ({error.strerror})"
            raise StorageError(f"{self._path}: {self._unusable}; nothing was answered") from None

    def _take_back(self, error: OSError) -> None:
        try:
            # Half a line before the next record would look like tampering, not like a full disk.
            os.ftruncate(self._fd, self._size)
        except OSError as worse:
            self._unusable = f"a failed write could not be taken back ({worse.strerror})"
        else:
            self._unusable = None
        raise StorageError(
            f"{self._path} could not be written ({error.strerror}); nothing was debited or "
            "answered. Free some space and ask again"
        ) from None

    def _ready(self) -> LedgerState:
        if self._fd < 0:
            raise ConfigError(f"the ledger {self._path} is closed; open it again")
        if self._unusable:
            raise StorageError(f"{self._path}: {self._unusable}; close the ledger and open it anew")
        if os.getpid() != self._pid:  # a forked child shares the lock: both would write
            raise ConfigError("a ledger cannot be used in a forked process; open it there")
        return self._state


# --- Reading and verifying, without a lock -------------------------------------------------------


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
    The numbers stand at the lines that check them, here, in records.py and state.py.
    """
    heads = set()
    state = read_ledger(path, lambda sealed, _: heads.add(sealed.hash))  # (1) … (10)
    if known_head is not None and known_head not in heads:  # (11) no rollback
        raise LedgerTampered(
            f"{path} lacks the record of this head: it was rolled back, or the head is of another "
            "ledger"
        )
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
        note_replayed(number, size, path)
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
