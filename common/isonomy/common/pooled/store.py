"""What a pooled answer was given to, on the regulator's disk: one small file per query.

The ledger keeps one hash over all companies' requests. A company that asks again has only its own
part of what was hashed, so the regulator keeps the rest: the reply, which names every company's
request by the hash of its header.
"""

from __future__ import annotations

from pathlib import Path

from isonomy.common.base.canonical import hash_bytes
from isonomy.common.base.errors import IsonomyError, StorageError, VerificationError
from isonomy.common.base.private_files import private_folder, write_private
from isonomy.common.sums.pool_masks import PooledReply


class PooledStore:
    """One folder per plan."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        private_folder(folder)

    def save(self, query_id: str, reply: PooledReply) -> None:
        """On disk when this returns. A later attempt at the same query replaces it."""
        try:
            write_private(self._path(query_id), reply.dump())
        except StorageError as error:
            raise StorageError(f"{error}; nothing was answered") from None

    def load(self, query_id: str) -> PooledReply | None:
        """What goes with a recorded answer; VerificationError if the file was changed.

        Whether it is the reply of this very answer, the ledger's hash tells.
        """
        try:
            return PooledReply.parse(self._path(query_id).read_bytes())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StorageError(f"could not read a joint request ({error.strerror})") from None
        except IsonomyError:
            raise VerificationError(
                f"the stored joint request of {query_id!r} was changed on disk; restore it from "
                "the backup"
            ) from None

    def _path(self, query_id: str) -> Path:
        name = hash_bytes("isonomy/joint-file/v1", query_id.encode()).hex()[:32]
        return self._folder / f"{name}.reply"
