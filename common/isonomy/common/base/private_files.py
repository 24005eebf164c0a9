"""Files written whole or not at all, and files for their owner's eyes only.

Every writer of the product opens its file by `open_file`, which follows no link that somebody else
put there; most make a new file and rename it into place.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

from isonomy.common.base.errors import ConfigError, StorageError

MAX_SECRET_BYTES = 4096


def open_file(path: Path, flags: int, mode: int = 0o600) -> int:
    """Open a file to write to it; returns its descriptor. A link in its place is an OSError."""
    return os.open(path, flags | os.O_NOFOLLOW, mode)


def new_file(path: Path, mode: int = 0o600) -> BinaryIO:
    """Make a file in place of one that a crash left behind, whatever that one's mode or kind."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    try:
        fd = open_file(path, flags, mode)
    except FileExistsError:
        path.unlink()
        fd = open_file(path, flags, mode)
    return os.fdopen(fd, "wb")


def private_folder(path: Path, *, home: bool = False) -> Path:
    """Make a folder, and parents that are missing, for the owner's eyes only.

    `home`: a party's own folder is closed to others even if it was there before; what lies above it
    is not the party's, so the umask decides.
    """
    if home:
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(0o700)
    elif not path.is_dir():
        private_folder(path.parent)
        path.mkdir(exist_ok=True, mode=0o700)
    return path


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
        descriptor = open_file(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        _fill(os.fdopen(descriptor, "wb"), data, sync=True)
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
        _fill(new_file(partial, mode), data, sync=sync)
        partial.replace(path)
        if sync:
            fsync_folder(path)
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}; nothing was changed") from None


def _fill(file: BinaryIO, data: bytes, *, sync: bool) -> None:
    with file:
        file.write(data)
        file.flush()
        if sync:
            os.fsync(file.fileno())


def fsync_folder(path: Path) -> None:
    """Make a new name in the folder of `path` durable."""
    fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
