"""Files that are written whole or not at all: for their owner's eyes only, or to hand over."""

from __future__ import annotations

import os
from pathlib import Path

from isonomy.common.base.errors import StorageError


def write_private(path: Path, data: bytes) -> None:
    """Write mode 0600, fsynced, in one step: a reader sees the old file or the new one."""
    write_whole(path, data, mode=0o600)


def write_whole(path: Path, data: bytes, *, mode: int = 0o666) -> None:
    """As `write_private`, for files that other people may read (mode as the umask leaves it)."""
    partial = path.with_name(path.name + ".partial")
    try:
        partial.unlink(missing_ok=True)  # one left by a crash may have another mode
        fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        fsync_folder(path)
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}; nothing was changed") from None


def fsync_folder(path: Path) -> None:
    """Make a new name in the folder of `path` durable."""
    fd = os.open(path.absolute().parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
