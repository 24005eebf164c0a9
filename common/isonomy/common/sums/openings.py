"""What the company keeps of each query: its request and what that follows from, and the answer.

Stored before the request leaves, so that after a crash the very same bytes can be sent again, and
so that an inspector can be shown what the ciphertext was made of (docs/inspection.md).

Rows are kept under a plan with an auditor only: nobody else may ever see them, and a run that is
resumed brings the same rows again, which the stored commitment shows. Under such a plan the
regulator's encrypted columns are kept too, because nothing else gives the ciphertexts again. They
are seeded already (half their size) and look random otherwise, so compressing them would gain 6 %,
from the unused bits of each word. What that costs on disk is
196.7 KB per group and block: for 36,000 people in two groups 1.2 MB (one column of rows) to 3.7 MB
(128 columns, whose rows are 18 MB).
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, Protocol

import numpy as np
from numpy.typing import NDArray

from isonomy.common.base.canonical import Data, Pieces, hash_bytes, pieces_of
from isonomy.common.base.errors import ProtocolError, StorageError, VerificationError
from isonomy.common.base.private_files import fsync_folder, new_file, private_folder
from isonomy.common.crypto.blinding import SEED_BYTES, Seeds
from isonomy.common.privacy.row_sources import IntegerRows, StreamedRows
from isonomy.common.sums.answers import NAME_BYTES, AnswerFile
from isonomy.common.wire.messages import MAX_FRAME_BYTES, SumHeader, decode

NONCE_BYTES = 32
_SCHEMA = 2
_LENGTH = struct.Struct("<Q")
LENGTH_BYTES = _LENGTH.size  # before each of joined chunks
_FETCHED_AGAIN = "the answer will be fetched again"
_NO_ROWS = np.zeros((0, 0), np.int32)
_UNREADABLE = (OSError, ValueError, TypeError, LookupError, RecursionError, struct.error)


@dataclass(frozen=True, repr=False)  # no repr: rows and seeds must not reach logs
class Opening:
    """Everything that determines a request's ciphertexts, given the regulator's columns.

    From a store without rows (`inspected`) it comes with none, and the caller puts its own there.
    """

    query_frame: bytes
    rows: IntegerRows
    seeds: Seeds
    nonce: bytes

    def commitment(self) -> bytes:
        """SHA-256(domain ‖ query (with plan and id) ‖ nonce ‖ integer rows ‖ seeds)."""
        shape = np.array(self.rows.shape, dtype="<i8").tobytes()
        return hash_bytes(
            "isonomy/commitment/v1",
            self.query_frame,
            self.nonce,
            shape,
            row_bytes(self.rows),
            self.seeds.flood,
            self.seeds.mask,
        )


@dataclass(frozen=True, repr=False)
class StoredRequest:
    """An opening with the frames that were sent, and the answer once it is in.

    With the answer, the header alone is kept: it names the request, so that the same answer can be
    had again, and compared.
    """

    opening: Opening
    header: SumHeader
    frames: tuple[bytes, ...]  # the header's first
    answer: bytes | None = None


class OpeningStore(Protocol):
    """Where the company keeps its openings."""

    @property
    def inspected(self) -> bool:
        """Does the plan name an auditor, to whom rows and columns can be shown?"""

    def save(self, query_id: str, request: StoredRequest) -> None: ...
    def find(self, query_id: str) -> StoredRequest | None: ...
    def acknowledge(self, query_id: str, request: StoredRequest, answer: bytes) -> None:
        """Keep the answer: it is on disk before the next request can leave."""

    def settle(self) -> None:
        """Wait until the last answer is on disk; StorageError if it cannot be."""

    def keep_columns(self, query_id: str, frames: Iterable[bytes]) -> Iterator[bytes]:
        """Pass the columns of an attempt on, and keep them: for plans that have an auditor."""

    def columns(self, query_id: str) -> Iterator[bytes]:
        """The columns that were kept last; VerificationError if none were."""


class MemoryOpenings:
    """For rehearsals: survives nothing."""

    def __init__(self, *, inspected: bool = False) -> None:
        self.inspected = inspected
        self._requests: dict[str, StoredRequest] = {}
        self._columns: dict[str, list[bytes]] = {}

    def save(self, query_id: str, request: StoredRequest) -> None:
        self._requests[query_id] = request

    def find(self, query_id: str) -> StoredRequest | None:
        return self._requests.get(query_id)

    def acknowledge(self, query_id: str, request: StoredRequest, answer: bytes) -> None:
        self._requests[query_id] = replace(request, frames=request.frames[:1], answer=answer)

    def settle(self) -> None:
        """Nothing is under way."""

    def keep_columns(self, query_id: str, frames: Iterable[bytes]) -> Iterator[bytes]:
        columns: list[bytes] = []
        for frame in frames:
            columns.append(frame)
            yield frame
        self._columns[query_id] = columns

    def columns(self, query_id: str) -> Iterator[bytes]:
        if query_id not in self._columns:
            raise _no_columns(query_id)
        return iter(self._columns[query_id])


class FolderOpenings:
    """One folder per plan on the company's disk; files for the owner's eyes only.

    A file per query, two under an auditor, and one for all answers. The opening (seeds, nonce,
    request; rows for an auditor) is on disk before anything leaves, and stays until it is deleted
    after the inspection deadline. Header and signed answer survive a kill when the caller gets the
    answer, and a power cut before the next request leaves: a thread waits for the disk while the
    caller goes on. They stay, so that a resumed run gets the same answer again, and a regulator
    that forgot it can be shown it. Then the request's ciphertexts go. Columns appear under their
    name when the last one is on disk.
    """

    def __init__(self, folder: Path, *, inspected: bool = False) -> None:
        self._folder, self.inspected = folder, inspected
        self._answers = answers_in(folder)
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="openings")
        self._under_way: Future[None] | None = None
        private_folder(folder)

    def save(self, query_id: str, request: StoredRequest) -> None:
        self.settle()
        opening = request.opening
        rows = opening.rows if self.inspected else _NO_ROWS
        meta = {
            "schema": _SCHEMA,
            "query_id": query_id,
            "shape": list(rows.shape),
            "query": opening.query_frame.hex(),
        }
        seeds = opening.seeds.flood + opening.seeds.mask + opening.nonce
        head = json.dumps(meta).encode()
        chunks: list[Data] = [head, seeds, row_bytes(rows), *request.frames]
        self._write(query_id, "opening", chunks, "nothing was sent")

    def find(self, query_id: str) -> StoredRequest | None:
        self.settle()
        path = self._path(query_id, "opening")
        try:
            opening, frames = self._read_opening(path)
            header = decode(frames[0], SumHeader)
            kept, answer = self._answers.find(_name(query_id)) or (frames[0], None)
            if kept != frames[0]:
                raise ValueError("files of two requests")
        except FileNotFoundError:
            return None
        except (*_UNREADABLE, ProtocolError):
            raise VerificationError(
                f"the stored request of query {query_id!r} is damaged or incomplete; restore "
                f"{self._folder} from a backup, or begin a new plan"
            ) from None
        here = self.inspected or len(opening.rows) > 0
        if here and header.commitment != opening.commitment():
            raise VerificationError(f"the stored opening of query {query_id!r} was changed on disk")
        return StoredRequest(opening, header, frames[:1] if answer else frames, answer)

    def acknowledge(self, query_id: str, request: StoredRequest, answer: bytes) -> None:
        header, *ciphertexts = request.frames
        try:
            self._answers.add(_name(query_id), header, answer)
        except OSError as error:  # the caller has its answer; the next query hears of it
            self._under_way = Future()
            self._under_way.set_exception(self._no_room(error, _FETCHED_AGAIN))
            return
        self._under_way = self._writer.submit(self._sync_answer, query_id, ciphertexts)

    def _sync_answer(self, query_id: str, ciphertexts: list[bytes]) -> None:
        try:
            self._answers.sync()
            if ciphertexts:
                path = self._path(query_id, "opening")
                size = sum(LENGTH_BYTES + len(frame) for frame in ciphertexts)
                os.truncate(path, path.stat().st_size - size)
        except FileNotFoundError:  # deleted meanwhile, with all that it held
            return
        except OSError as error:
            raise self._no_room(error, _FETCHED_AGAIN) from None

    def settle(self) -> None:
        under_way, self._under_way = self._under_way, None
        if under_way is not None:
            under_way.result()

    def keep_columns(self, query_id: str, frames: Iterable[bytes]) -> Iterator[bytes]:
        path, partial = (self._path(query_id, f"columns{end}") for end in ("", ".partial"))
        try:
            with new_file(partial) as file:
                for frame in frames:
                    _put(file, [frame])
                    yield frame
                _sync(file)
            partial.replace(path)
        except OSError as error:
            raise self._no_room(error, "nothing was sent") from None
        finally:
            partial.unlink(missing_ok=True)

    def columns(self, query_id: str) -> Iterator[bytes]:
        try:
            with self._path(query_id, "columns").open("rb") as file:
                while size := file.read(_LENGTH.size):
                    (length,) = _LENGTH.unpack(size)
                    frame = file.read(min(length, MAX_FRAME_BYTES))
                    if len(frame) != length:
                        raise _no_columns(query_id)
                    yield frame
        except (OSError, struct.error):
            raise _no_columns(query_id) from None

    def _read_opening(self, path: Path) -> tuple[Opening, tuple[bytes, ...]]:
        with path.open("rb") as file:
            meta, seeds = json.loads(_chunk(file)), _chunk(file)
            (size,) = _LENGTH.unpack(file.read(_LENGTH.size))
            shape = tuple(meta["shape"])
            if not all(type(each) is int for each in shape) or size != 4 * math.prod(shape):
                raise ValueError("rows of another shape")
            place = file.tell()
            file.seek(size, os.SEEK_CUR)
            frames = cut_chunks(file.read())
        rows = _NO_ROWS
        if size:  # mapped, not read: of millions of people they would not fit
            mapped = np.memmap(path, "<i4", "r", place, shape)
            rows = np.asarray(mapped, np.int32)
        opening = Opening(
            query_frame=bytes.fromhex(meta["query"]),
            rows=rows,
            seeds=Seeds(seeds[:SEED_BYTES], seeds[SEED_BYTES : 2 * SEED_BYTES]),
            nonce=seeds[2 * SEED_BYTES :],
        )
        return opening, tuple(frames)

    def _path(self, query_id: str, kind: str) -> Path:
        return self._folder / f"{_name(query_id).hex()}.{kind}"

    def _write(self, query_id: str, kind: str, chunks: Sequence[Data], consequence: str) -> None:
        """All or nothing: a temporary file, fsync, rename, fsync of the folder."""
        path, partial = self._path(query_id, kind), self._path(query_id, f"{kind}.partial")
        try:
            with new_file(partial) as file:
                _put(file, chunks)
                _sync(file)
            partial.replace(path)
            fsync_folder(path)
        except OSError as error:
            partial.unlink(missing_ok=True)
            raise self._no_room(error, consequence) from None

    def _no_room(self, error: OSError, consequence: str) -> StorageError:
        return StorageError(
            f"could not write to {self._folder} ({error.strerror}); {consequence}. Make room and "
            "ask again."
        )


def answers_in(folder: Path) -> AnswerFile:
    """The signed answers of the plan whose openings are in this folder."""
    return AnswerFile(folder / "answers")


def delete_openings(folder: Path) -> bool:
    """Delete everything that shows what a plan's queries were made of; says whether there was any.

    Of answered queries header and signed answer stay: what was asked and paid, and nobody's row.
    """
    kinds = ("opening", "columns", "keys")  # the last of a plan by pads (pads/key_store.py)
    paths = [path for kind in kinds for path in folder.glob(f"*.{kind}*")]
    try:
        for path in paths:
            path.unlink()
    except OSError as error:
        raise StorageError(f"could not delete in {folder}: {error.strerror}") from None
    return bool(paths)


def join_chunks(chunks: Iterable[bytes | memoryview]) -> bytes:
    """Chunks as one string of bytes, each after its length."""
    return b"".join(part for chunk in chunks for part in (_LENGTH.pack(len(chunk)), chunk))


def cut_chunks(raw: bytes) -> list[bytes]:
    """What `join_chunks` joined; ValueError or struct.error for anything else."""
    chunks, start = [], 0
    while start < len(raw):
        (size,) = _LENGTH.unpack_from(raw, start)
        start += _LENGTH.size
        if start + size > len(raw):
            raise ValueError("cut off")
        chunks.append(raw[start : start + size])
        start += size
    return chunks


def _put(file: BinaryIO, chunks: Iterable[Data]) -> None:
    for chunk in chunks:
        file.write(_LENGTH.pack(len(chunk)))
        for piece in pieces_of(chunk):
            file.write(piece)


def _chunk(file: BinaryIO) -> bytes:
    """The next chunk; struct.error or ValueError if it is cut off."""
    (size,) = _LENGTH.unpack(file.read(_LENGTH.size))
    data = file.read(min(size, MAX_FRAME_BYTES * 3))
    if len(data) != size:
        raise ValueError("cut off")
    return data


def _name(query_id: str) -> bytes:
    return hashlib.sha256(query_id.encode()).digest()[:NAME_BYTES]  # ids are free text


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _no_columns(query_id: str) -> VerificationError:
    return VerificationError(
        f"the columns of query {query_id!r} are not here, so it cannot be opened; restore the "
        "openings from a backup"
    )


def row_bytes(rows: IntegerRows) -> memoryview | Pieces:
    """The rows' little-endian bytes, without a copy where the machine is little-endian too."""
    if isinstance(rows, StreamedRows):
        return Pieces(4 * math.prod(rows.shape), map(array_bytes, rows.pieces()))
    return array_bytes(rows)


def array_bytes(rows: NDArray[np.int32]) -> memoryview:
    """The same of rows in an array."""
    return np.ascontiguousarray(rows, dtype="<i4").reshape(-1).view(np.uint8).data
