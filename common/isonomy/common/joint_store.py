"""What a joint answer was given to, on the regulator's disk: one small file per query.

The ledger keeps the hash; a company that asks again has only its own part of what was hashed. For
inspections the file also holds every company's header (with its commitment) and the digests of the
ciphertexts that the company signed; `reply` holds the hash of their sum, which was decrypted.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from isonomy.common.canonical import canonical_json, hash_bytes, parse_canonical
from isonomy.common.errors import IsonomyError, StorageError, VerificationError
from isonomy.common.joint import JointReply
from isonomy.common.messages import SumHeader, decode, frame_hash, frames_hash

_SCHEMA = 1
_MAX_BYTES = 1 << 22  # seven companies with 4,096 digests each are 2 MB


@dataclass(frozen=True)
class JointEvidence:
    """Everything that binds a joint answer to what each company sent, in the plan's order."""

    reply: JointReply
    headers: tuple[bytes, ...]
    digests: tuple[tuple[bytes, ...], ...]

    def check(self, query_id: str) -> None:
        """VerificationError unless reply, headers and digests belong together."""
        if tuple(map(frame_hash, self.headers)) != self.reply.header_hashes:
            raise VerificationError("the headers are not those of the joint reply")
        for frame, own in zip(self.headers, self.digests, strict=True):
            header = decode(frame, SumHeader)
            bound = (header.query_id, header.parts, header.parts_hash)
            if bound != (query_id, len(own), frames_hash(own, hashed=True)):
                raise VerificationError("a header does not bind the digests beside it")


class JointStore:
    """One folder per plan."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def save(self, query_id: str, evidence: JointEvidence) -> None:
        """On disk when this returns. A later attempt at the same query replaces it."""
        content = {
            "schema": _SCHEMA,
            "query_id": query_id,
            "reply": evidence.reply.dump().hex(),
            "headers": [header.hex() for header in evidence.headers],
            "digests": [[digest.hex() for digest in own] for own in evidence.digests],
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

    def load(self, query_id: str) -> JointEvidence | None:
        """What goes with a recorded answer. VerificationError if it is not what `save` wrote."""
        try:
            data = self._path(query_id).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StorageError(f"could not read a joint request ({error.strerror})") from None
        try:
            evidence = _read(parse_canonical(data, max_bytes=_MAX_BYTES), query_id)
            evidence.check(query_id)
        except (IsonomyError, KeyError, TypeError, ValueError):
            raise VerificationError(
                f"the stored joint request of {query_id!r} was changed on disk; restore it from "
                "the backup"
            ) from None
        return evidence

    def _path(self, query_id: str) -> Path:
        return (
            self._folder
            / f"{hash_bytes('isonomy/joint-file/v1', query_id.encode()).hex()[:32]}.json"
        )


def _read(found: object, query_id: str) -> JointEvidence:
    """KeyError, TypeError or ValueError for any other form than `save` writes."""
    if not isinstance(found, dict) or (found["schema"], found["query_id"]) != (_SCHEMA, query_id):
        raise ValueError("another schema or query")
    return JointEvidence(
        JointReply.parse(bytes.fromhex(found["reply"])),
        tuple(bytes.fromhex(header) for header in found["headers"]),
        tuple(tuple(bytes.fromhex(digest) for digest in own) for own in found["digests"]),
    )
