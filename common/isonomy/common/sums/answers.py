"""The signed answers of a plan, one behind the other in a file that only grows.

    record = query's name ‖ sizes ‖ check ‖ header of the request ‖ answer

One file, because making a new one for each answer cost a step of training more time than all of its
arithmetic on pads. What a kill or a power cut left of the last record is put aside before the next
one is written: that answer is fetched again. Other damage is an error.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from isonomy.common.base.canonical import hash_bytes
from isonomy.common.base.errors import VerificationError
from isonomy.common.base.private_files import open_file
from isonomy.common.ledger.ledger import keep_torn
from isonomy.common.wire.messages import MAX_FRAME_BYTES

NAME_BYTES = 16
_HEAD = struct.Struct("<16sII16s")  # name, sizes of header and answer, check


class AnswerFile:
    """The answers of one plan. One process writes them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._places: dict[bytes, int] = {}  # by name: where the newest record begins
        self._end = 0  # of the whole records that were read or written
        self._unsynced = -1

    def find(self, name: bytes) -> tuple[bytes, bytes] | None:
        """The header and the answer of this query; VerificationError if the file is damaged."""
        self._read_on()
        place = self._places.get(name)
        if place is None:
            return None
        with self._path.open("rb") as file:
            file.seek(place)
            _, header, answer = self._record(file.read(_HEAD.size), file)
        return header, answer

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        """Header and answer of every query."""
        self._read_on()
        yield from filter(None, map(self.find, tuple(self._places)))

    def add(self, name: bytes, header: bytes, answer: bytes) -> None:
        """Write an answer; `sync` makes it durable."""
        fd = open_file(self._path, os.O_RDWR | os.O_CREAT)
        try:
            size = os.fstat(fd).st_size
            if size != self._end:
                self._read_on()
            if size > self._end:
                keep_torn(self._path, os.pread(fd, size - self._end, self._end))
                os.ftruncate(fd, self._end)
            head = _HEAD.pack(name, len(header), len(answer), _check(name, header, answer))
            record = b"".join((head, header, answer))
            if os.pwrite(fd, record, self._end) != len(record):
                raise OSError(0, "short write, the disk is probably full")
        except BaseException:
            os.close(fd)
            raise
        self._unsynced, self._places[name] = fd, self._end
        self._end += len(record)

    def sync(self) -> None:
        """The answer that was added last is on disk when this returns."""
        fd, self._unsynced = self._unsynced, -1
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def _read_on(self) -> None:
        """Note the records that came since the last look."""
        try:
            size = self._path.stat().st_size
        except FileNotFoundError:
            size = 0
        if size < self._end:
            self._places, self._end = {}, 0
        if size == self._end:
            return
        with self._path.open("rb") as file:
            file.seek(self._end)
            while len(head := file.read(_HEAD.size)) == _HEAD.size:
                _, header_bytes, answer_bytes, _ = _HEAD.unpack(head)
                if max(header_bytes, answer_bytes) > MAX_FRAME_BYTES:
                    raise self._damaged()
                end = self._end + _HEAD.size + header_bytes + answer_bytes
                if end > size:
                    return  # written in part
                name, _, _ = self._record(head, file)
                self._places[name], self._end = self._end, end

    def _record(self, head: bytes, file: BinaryIO) -> tuple[bytes, bytes, bytes]:
        """Name, header and answer of the record that begins with `head` and goes on in the file."""
        try:
            name, header_bytes, answer_bytes, check = _HEAD.unpack(head)
        except struct.error:
            raise self._damaged() from None
        header, answer = file.read(header_bytes), file.read(answer_bytes)
        if _check(name, header, answer) != check:
            raise self._damaged()
        return name, header, answer

    def _damaged(self) -> VerificationError:
        return VerificationError(
            f"{self._path} is damaged; restore it from a backup, or begin a new plan"
        )


def _check(name: bytes, header: bytes, answer: bytes) -> bytes:
    return hash_bytes("isonomy/answer-record/v1", name, header, answer)[:16]
