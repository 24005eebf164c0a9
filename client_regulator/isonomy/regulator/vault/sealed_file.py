"""Files encrypted at rest: the vault, and backups of the home.

    line 1    canonical JSON: format, what it is, schema, file id, key derivation, wrapped key, …
    then      AES-256-GCM in chunks of 4 MiB; the last one says that it is the last

    KEK = scrypt(secret, salt, n)        key-encryption key: the same as long as the salt is kept
    DEK = 32 random bytes                fresh for *each* write, wrapped under the KEK in line 1

Why it is safe: a DEK encrypts one file, so a counter serves as nonce; the whole of line 1 (schema
version, file id) is associated data of every chunk, so no part can be moved to another file or
passed off as another version; the flag of the last chunk shows a cut. Destroying line 1 destroys
the file, whatever copies of its chunks the disk still holds.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from isonomy.common.base.canonical import canonical_json, hash_bytes, parse_canonical
from isonomy.common.base.errors import ConfigError, ProtocolError, StorageError, UnknownSchema
from isonomy.common.base.private_files import fsync_folder, new_file
from isonomy.regulator.config.faults import VaultLocked, VaultTampered
from isonomy.regulator.vault.unlock import Derivation, Secret

FORMAT = "isonomy-sealed"
MAX_HEADER_BYTES = 1 << 14
CHUNK_BYTES, TAG_BYTES, NONCE_BYTES, KEY_BYTES = 1 << 22, 16, 12, 32


@dataclass(frozen=True)
class Header:
    """Line 1: what can be known without the secret. `public` is for the owner's convenience."""

    what: str
    schema: int
    derivation: Derivation
    public: Mapping[str, int | str]
    file_id: str = field(default_factory=lambda: secrets.token_hex(16))
    wrapped: str = ""  # set by `write_sealed`

    def line(self) -> bytes:
        return canonical_json(
            {
                "format": FORMAT,
                "what": self.what,
                "schema": self.schema,
                "file_id": self.file_id,
                "kdf": self.derivation.fields(),
                "wrapped": self.wrapped,
                "public": dict(self.public),
            }
        )


def read_header(path: Path, what: str, schema: int) -> Header:
    """Return line 1 of a sealed file; no secret needed."""
    with _reading(path) as file:
        return _read_header(path, file, what, schema)


def check_secret(path: Path, what: str, schema: int, secret: Secret) -> None:
    """Raise VaultLocked unless the secret opens the file. Nothing of its content is decrypted."""
    _unwrap(path, read_header(path, what, schema), secret)


def open_sealed(path: Path, what: str, schema: int, secret: Secret) -> tuple[Header, bytes]:
    """Decrypt a whole file. Returns its header and its content.

    Raises VaultLocked for a wrong secret and VaultTampered for changed bytes.
    """
    with _reading(path) as file:
        header = _read_header(path, file, what, schema)
        key = AESGCM(_unwrap(path, header, secret))
        # Every chunk is bound to the whole header: none fits into another file or version.
        bound, pieces, number = hash_bytes("isonomy/sealed/v1", header.line()), [], 0
        chunk = file.read(CHUNK_BYTES + TAG_BYTES)
        while True:
            # One chunk ahead: whether a chunk claims to be the last must be known before it opens.
            following = file.read(CHUNK_BYTES + TAG_BYTES)
            try:
                pieces.append(key.decrypt(_nonce(number, last=not following), chunk, bound))
            except (InvalidTag, ValueError):
                raise VaultTampered(
                    f"{path} was changed or cut after it was written; restore it from a backup"
                ) from None
            if not following:
                return header, b"".join(pieces)
            chunk, number = following, number + 1


def write_sealed(
    path: Path, payload: bytes, header: Header, secret: Secret, *, overwrite: bool = False
) -> None:
    """Encrypt under a fresh key, and put the file in place in one step.

    If a file is overwritten, its header is destroyed: it held the old key.
    """
    # A new key with each write: a copy of an older file and this one share no key stream.
    dek, nonce = os.urandom(KEY_BYTES), os.urandom(NONCE_BYTES)
    kek = AESGCM(secret.key(header.derivation))
    wrapped = nonce + kek.encrypt(nonce, dek, _wrap_bound(header))
    header = replace(header, wrapped=wrapped.hex())
    bound, key = hash_bytes("isonomy/sealed/v1", header.line()), AESGCM(dek)
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        try:
            with new_file(fresh) as file:
                file.write(header.line() + b"\n")
                view = memoryview(payload)
                count = max(1, -(-len(view) // CHUNK_BYTES))
                for number in range(count):
                    piece = view[number * CHUNK_BYTES : (number + 1) * CHUNK_BYTES]
                    file.write(key.encrypt(_nonce(number, last=number == count - 1), piece, bound))
                file.flush()
                os.fsync(file.fileno())
            _put(fresh, path, overwrite=overwrite)
        finally:
            fresh.unlink(missing_ok=True)
    except FileExistsError:
        raise ConfigError(f"{path} exists already; it is never overwritten") from None
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}; nothing was changed") from None


def shred(path: Path) -> None:
    """Overwrite a file and remove it, as well as the disk allows. A missing file is no error."""
    try:
        with path.open("r+b") as file:
            _overwrite(file, path.stat().st_size)
        path.unlink()
        fsync_folder(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise StorageError(f"cannot remove {path}: {error.strerror}") from None


def _put(fresh: Path, path: Path, *, overwrite: bool) -> None:
    if not overwrite:
        os.link(fresh, path)  # unlike rename, refuses a name that is taken
        fsync_folder(path)
        return
    # The old file is opened before its name is taken away, so that its header, which holds the
    # wrapped key, can be overwritten afterwards. A kill in between leaves one of the two whole.
    try:
        old: BinaryIO | None = path.open("r+b")
    except FileNotFoundError:
        old = None
    fresh.replace(path)
    fsync_folder(path)
    if old is not None:
        with old:
            _overwrite(old, len(old.readline(MAX_HEADER_BYTES)))


def _overwrite(file: BinaryIO, size: int) -> None:
    # A disk that remaps blocks may keep the old ones, and backups are other files.
    file.seek(0)
    for start in range(0, size, CHUNK_BYTES):
        file.write(os.urandom(min(CHUNK_BYTES, size - start)))
    file.flush()
    os.fsync(file.fileno())


def _read_header(path: Path, file: BinaryIO, what: str, schema: int) -> Header:
    """Return the header of a file of this kind. It is not authenticated before `_unwrap`."""
    line = file.readline(MAX_HEADER_BYTES)
    try:
        raw: Any = parse_canonical(line.removesuffix(b"\n"), max_bytes=MAX_HEADER_BYTES)
        if (raw["format"], raw["what"]) != (FORMAT, what) or not line.endswith(b"\n"):
            raise KeyError
        if type(raw["schema"]) is not int or raw["schema"] != schema:
            raise UnknownSchema(
                f"{path} has schema {raw['schema']}; this version reads {schema}. Open it with the "
                "version of Isonomy that wrote it"
            )
        public, names = dict(raw["public"].items()), (raw["file_id"], raw["wrapped"])
        if set(map(type, names)) != {str} or set(map(type, public.values())) - {int, str}:
            raise KeyError
        return Header(what, schema, Derivation.of(raw["kdf"]), public, *names)
    except (ProtocolError, KeyError, TypeError, ValueError, AttributeError):
        raise VaultTampered(f"{path} is not a {what} of Isonomy, or is damaged") from None


def _unwrap(path: Path, header: Header, secret: Secret) -> bytes:
    try:
        raw = bytes.fromhex(header.wrapped)
        key = AESGCM(secret.key(header.derivation))
        return key.decrypt(raw[:NONCE_BYTES], raw[NONCE_BYTES:], _wrap_bound(header))
    except (InvalidTag, ValueError):
        raise VaultLocked(
            f"the passphrase or unlock file does not open {path}; nothing was changed"
        ) from None


def _wrap_bound(header: Header) -> bytes:
    """Return what the wrapped key is bound to: it opens no other file, kind or version."""
    kdf = canonical_json(header.derivation.fields())
    names = (header.what.encode(), str(header.schema).encode(), header.file_id.encode())
    return hash_bytes("isonomy/sealed/key/v1", *names, kdf)


def _nonce(number: int, *, last: bool) -> bytes:
    # A counter is safe here, because each key encrypts one file only. The last byte marks the last
    # chunk, so that a file cut between chunks does not decrypt.
    return number.to_bytes(NONCE_BYTES - 1, "big") + bytes([last])


def _reading(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
