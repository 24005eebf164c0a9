"""What the company keeps of each query: its rows and seeds, and its request until acknowledged.

Stored before the request leaves, so that after a crash the very same bytes can be sent again, and
so that an inspector can be shown what the ciphertext was made of (DESIGN.md §2, §7).
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from isonomy.common.blinding import SEED_BYTES, Seeds
from isonomy.common.canonical import hash_bytes
from isonomy.common.errors import StorageError, VerificationError

NONCE_BYTES = 32
_SCHEMA = 1


@dataclass(frozen=True, repr=False)  # no repr: rows and seeds must not reach logs
class Opening:
    """Everything that determines a request's ciphertexts, given the regulator's columns."""

    query_frame: bytes
    rows: NDArray[np.int32]
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
            self.rows.astype("<i4", copy=False).tobytes(),
            self.seeds.flood,
            self.seeds.mask,
        )


@dataclass(frozen=True, repr=False)
class StoredRequest:
    """An opening with the frames that were sent: header and parts, or only the header once the
    answer is in (it names the request, so the same answer can be had again).
    """

    opening: Opening
    frames: tuple[bytes, ...]

    @property
    def acknowledged(self) -> bool:
        return len(self.frames) == 1


class OpeningStore(Protocol):
    """Where the company keeps its openings."""

    def save(self, query_id: str, request: StoredRequest) -> None: ...
    def find(self, query_id: str) -> StoredRequest | None: ...
    def acknowledge(self, query_id: str) -> None: ...


class MemoryOpenings:
    """For rehearsals: survives nothing."""

    def __init__(self) -> None:
        self._requests: dict[str, StoredRequest] = {}

    def save(self, query_id: str, request: StoredRequest) -> None:
        self._requests[query_id] = request

    def find(self, query_id: str) -> StoredRequest | None:
        return self._requests.get(query_id)

    def acknowledge(self, query_id: str) -> None:
        request = self._requests[query_id]
        self._requests[query_id] = StoredRequest(request.opening, request.frames[:1])


class FolderOpenings:
    """One folder per plan on the company's disk; files for the owner's eyes only.

    The opening (rows, seeds) stays until it is deleted after the inspection deadline; the request's
    ciphertexts go as soon as the answer is in, but its header stays: it names the request, so that
    a resumed run gets the same answer again.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def save(self, query_id: str, request: StoredRequest) -> None:
        opening = request.opening
        meta = {
            "schema": _SCHEMA,
            "query_id": query_id,
            "shape": list(opening.rows.shape),
            "query": opening.query_frame.hex(),
            "commitment": opening.commitment().hex(),
        }
        head = json.dumps(meta).encode()
        seeds = opening.seeds.flood + opening.seeds.mask + opening.nonce
        rows = opening.rows.astype("<i4", copy=False).tobytes()
        # The opening last: it is what `find` looks for, so a break between leaves nothing half.
        self._write(query_id, "request", request.frames)
        self._write(query_id, "opening", [head, seeds, rows])

    def find(self, query_id: str) -> StoredRequest | None:
        opening = self._path(query_id, "opening")
        if not opening.exists():
            return None
        head, seeds, rows = self._read(opening)
        frames = tuple(self._read(self._path(query_id, "request")))
        meta = json.loads(head)
        found = Opening(
            query_frame=bytes.fromhex(meta["query"]),
            rows=np.frombuffer(rows, "<i4").astype(np.int32).reshape(meta["shape"]),
            seeds=Seeds(seeds[:SEED_BYTES], seeds[SEED_BYTES : 2 * SEED_BYTES]),
            nonce=seeds[2 * SEED_BYTES :],
        )
        if found.commitment().hex() != meta["commitment"]:
            raise VerificationError(f"the stored opening of query {query_id!r} was changed on disk")
        return StoredRequest(found, frames)

    def acknowledge(self, query_id: str) -> None:
        header, *_ = self._read(self._path(query_id, "request"))
        self._write(query_id, "request", [header])

    def _path(self, query_id: str, kind: str) -> Path:
        name = hashlib.sha256(query_id.encode()).hexdigest()[:32]  # ids are free text
        return self._folder / f"{name}.{kind}"

    def _write(self, query_id: str, kind: str, chunks: Sequence[bytes]) -> None:
        """All or nothing: a temporary file, fsync, rename, fsync of the folder."""
        path = self._path(query_id, kind)
        partial = path.with_suffix(path.suffix + ".partial")
        try:
            fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(fd, "wb") as file:
                for chunk in chunks:
                    file.write(struct.pack("<Q", len(chunk)) + chunk)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
            folder = os.open(self._folder, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            partial.unlink(missing_ok=True)
            raise StorageError(
                f"could not store the request before sending it ({error.strerror}); nothing was "
                f"sent. Make room in {self._folder} and ask again."
            ) from None

    @staticmethod
    def _read(path: Path) -> list[bytes]:
        raw, chunks, start = path.read_bytes(), [], 0
        while start < len(raw):
            (size,) = struct.unpack_from("<Q", raw, start)
            chunks.append(raw[start + 8 : start + 8 + size])
            start += 8 + size
        return chunks
