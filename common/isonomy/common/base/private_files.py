"""Files written whole or not at all, and files for their owner's eyes only.

Every writer makes a new file (O_EXCL) and renames it into place, so none follows a link that
somebody else put there.
"""

from __future__ import annotations

import os
from pathlib import Path

from isonomy.common.base.errors import ConfigError, StorageError

MAX_SECRET_BYTES = 4096


def write_private(path: Path, data: bytes, *, sync: bool = True) -> None:
    """Replace a file in one step, mode 0600: a reader sees the old file or the new one.

    `sync`: it must survive a power cut, not only a kill.
    """
    _replace(path, data, 0o600, sync=sync)


def write_whole(path: Path, data: bytes) -> None:
    """Replace a file without secrets in one step; the umask decides who may read it."""
    _replace(path, data, 0o666, sync=True)


def create_private(path: Path, data: bytes) -> None:
    """Write a key to a file that does not exist yet; ConfigError if it does."""
    try:
        _create(path, data, 0o600, sync=True)
    except FileExistsError:
        raise ConfigError(f"{path} exists already; a key is never overwritten") from None


def read_private(path: Path, size: int) -> bytes:
    """Read a key of that size from a file that only its owner may read."""
    try:
        with path.open("rb") as file:
            mode, data = os.fstat(file.fileno()).st_mode, file.read(size + 1)
    except OSError as error:
        raise ConfigError(f"cannot read the key {path}: {error.strerror}") from None
    if mode & 0o077:
        raise ConfigError(f"{path} is readable by others; run: chmod 600 {path}")
    if len(data) != size:
        raise ConfigError(f"{path} is not a key: it must have {size} bytes")
    return data


def read_secret(path: Path) -> str:
    """Read the first line of a file that only its owner may read: a passphrase."""
    try:
        with path.open("rb") as file:
            mode, data = os.fstat(file.fileno()).st_mode, file.readline(MAX_SECRET_BYTES)
        if mode & 0o077:
            raise ConfigError(f"{path} is readable by others; run: chmod 600 {path}")
        return data.decode().rstrip("\r\n")
    except (OSError, UnicodeDecodeError):
        raise ConfigError(f"cannot read a passphrase from {path}") from None


def _replace(path: Path, data: bytes, mode: int, *, sync: bool) -> None:
    partial = path.with_name(path.name + ".partial")
    try:
        partial.unlink(missing_ok=True)  # one left by a crash may have another mode
        _create(partial, data, mode, sync=sync)
        partial.replace(path)
        if sync:
            fsync_folder(path)
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}; nothing was changed") from None


def _create(path: Path, data: bytes, mode: int, *, sync: bool) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(fd, "wb") as file:
        file.write(data)
        file.flush()
        if sync:
            os.fsync(file.fileno())


def fsync_folder(path: Path) -> None:
    """Make a new name in the folder of `path` durable."""
    fd = os.open(path.absolute().parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
