"""What a joint answer was given to, on the regulator's disk: one small file per query.

The ledger keeps the hash; a company that asks again has only its own part of what was hashed. The
headers hold every company's commitment, for inspections.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from isonomy.common.canonical import canonical_json, hash_bytes, parse_canonical
from isonomy.common.errors import StorageError, VerificationError
from isonomy.common.joint import JointReply

_SCHEMA = 1
_MAX_BYTES = 1 << 22


class JointStore:
    """One folder per plan."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def save(self, query_id: str, reply: JointReply, headers: Sequence[bytes]) -> None:
        """On disk when this returns. A later attempt at the same query replaces it."""
        content = {
            "schema": _SCHEMA,
            "query_id": query_id,
            "reply": reply.dump().hex(),
            "headers": [header.hex() for header in headers],
        }
        path = self._path(query_id)
        partial = path.with_suffix(".partial")
        try:
            fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(fd, "wb") as file:
                file.write(canonical_json(content))
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
            folder = os.open(self._folder, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            raise StorageError(
                f"could not store a joint request ({error.strerror}); nothing was answered"
            ) from None

    def load(self, query_id: str) -> JointReply | None:
        """The reply that goes with a recorded answer."""
        try:
            data = self._path(query_id).read_bytes()
        except FileNotFoundError:
            return None
        found = parse_canonical(data, max_bytes=_MAX_BYTES)
        if not isinstance(found, dict) or found.get("query_id") != query_id:
            raise VerificationError(f"the stored joint request of {query_id!r} was changed on disk")
        return JointReply.parse(bytes.fromhex(found["reply"]))

    def _path(self, query_id: str) -> Path:
        return (
            self._folder
            / f"{hash_bytes('isonomy/joint-file/v1', query_id.encode()).hex()[:32]}.json"
        )
