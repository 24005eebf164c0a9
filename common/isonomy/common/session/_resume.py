"""The secret with which a party comes back into its session after a broken stream or a restart."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from isonomy.common.base.canonical import hash_bytes
from isonomy.common.base.errors import StorageError
from isonomy.common.base.private_files import fsync_folder, new_file, private_folder
from isonomy.common.session.tickets import Ticket
from isonomy.common.wire.envelopes import SECRET_BYTES

_memory: dict[bytes, bytes] = {}  # for sessions without a folder: lives as long as the process


def resume_secret(state_dir: Path | None, ticket: Ticket) -> bytes:
    """Return the secret of this party in this plan: made on first use, on disk before it is sent.

    So the relay never knows a secret that a restarted party has lost. All tickets of a plan share
    it, so that tickets which lead nowhere leave nothing behind.
    """
    name = hash_bytes("isonomy/resume-secret/v1", ticket.plan_hash, ticket.party.encode())
    if state_dir is None:
        return _memory.setdefault(name, os.urandom(SECRET_BYTES))
    path = state_dir / f"session-{name.hex()[:16]}.key"
    try:
        private_folder(state_dir)
        if not path.exists():
            _make(path)
        secret = path.read_bytes()
    except OSError as error:
        raise StorageError(
            f"cannot keep the session's secret in {state_dir}: {error.strerror}"
        ) from None
    if len(secret) != SECRET_BYTES:
        raise StorageError(f"{path} is damaged; remove it, and ask the server for a new ticket")
    return secret


def _make(path: Path) -> None:
    """Make the secret. Of several processes that come here at once, the first one's stays."""
    partial = path.with_name(f"{path.stem}-{os.urandom(8).hex()}.partial")
    try:
        with new_file(partial) as file:
            file.write(os.urandom(SECRET_BYTES))
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):
            os.link(partial, path)  # unlike a renaming, this replaces nothing
    finally:
        partial.unlink(missing_ok=True)
    fsync_folder(path)
