"""Where both sides keep the keys of a plan: in memory, or sealed in a folder.

One file per attribute and group, sealed (AES-256-GCM) for its own place under a key that lies
elsewhere: the company's follows from its sealing key, the regulator's from the secret that opens
its vault, because its files also say who is in which group. A file that does not open is no file:
its keys are transferred again, which costs nothing.

The files go with the plan: the company deletes them with its openings, the regulator when a plan is
closed or forgotten.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from numpy.typing import NDArray

from isonomy.common.base.canonical import HASH_BYTES, hash_bytes
from isonomy.common.base.errors import ConfigError, StorageError
from isonomy.common.base.private_files import private_folder, write_private
from isonomy.common.pads.transfer import Keys

SUFFIX = "keys"
_NONCE_BYTES = 12


def place_of(plan: bytes, cohort: bytes, attribute: str, column: int) -> bytes:
    """What a transfer is bound to: plan, people in their order, group column."""
    number = column.to_bytes(4, "big")
    return hash_bytes("isonomy/key-place/v1", plan, cohort, attribute.encode(), number)


@dataclass(frozen=True, repr=False)  # no repr: keys must not reach logs
class KeyColumn:
    """One side's keys of one group column. `number` is a hash over the transfer they came from.

    The company has (2, people, 2): K0 and K1. The regulator has (1, people, 2), and who is a member
    (people,): as they were at the transfer, because the keys follow from it.
    """

    number: bytes
    keys: NDArray[np.uint64]
    members: NDArray[np.bool_] | None = None

    @property
    def zeros(self) -> Keys:
        """The company's K0; the regulator's only keys."""
        zeros: Keys = self.keys[0]
        return zeros

    @property
    def ones(self) -> Keys:
        """The company's K1."""
        ones: Keys = self.keys[-1]
        return ones

    def dump(self) -> bytes:
        members = b"" if self.members is None else np.packbits(self.members).tobytes()
        return self.number + self.keys.astype("<u8").tobytes() + members

    @classmethod
    def load(cls, raw: bytes, people: int, *, company: bool) -> KeyColumn:
        """What `dump` wrote; ValueError for anything else."""
        sides, tail = (2, 0) if company else (1, -(-people // 8))
        end = HASH_BYTES + sides * people * 16
        if len(raw) != end + tail:
            raise ValueError("another size")
        keys = np.frombuffer(raw[HASH_BYTES:end], "<u8").astype(np.uint64)
        members = np.unpackbits(np.frombuffer(raw[end:], np.uint8), count=people).view(np.bool_)
        shaped = keys.reshape(sides, people, 2)
        return cls(raw[:HASH_BYTES], shaped, None if company else members)


def keys_hash(columns: Sequence[KeyColumn]) -> bytes:
    """One hash over the transfers that a request was made with."""
    return hash_bytes("isonomy/keys/v1", *(column.number for column in columns))


class KeyStore:
    """The keys of one plan, by place. Without a folder they end with the process.

    `sealing` is a secret; the key of the files is made from it.
    """

    def __init__(
        self, people: int, *, company: bool, folder: Path | None = None, sealing: bytes = b""
    ) -> None:
        if folder is not None and not sealing:
            raise ConfigError("keys on disk are sealed: a folder needs a sealing secret")
        self._people, self._company, self._folder = people, company, folder
        self._cipher = AESGCM(hash_bytes("isonomy/key-files/v1", sealing))
        self._columns: dict[bytes, KeyColumn] = {}

    def find(self, place: bytes) -> KeyColumn | None:
        """The keys of a place; None if they are not here or cannot be read."""
        if place not in self._columns and (column := self._read(place)) is not None:
            self._columns[place] = column
        return self._columns.get(place)

    def save(self, place: bytes, column: KeyColumn) -> None:
        """On disk when this returns, in place of older ones."""
        if self._folder is not None:
            nonce = os.urandom(_NONCE_BYTES)
            private_folder(self._folder)
            sealed = nonce + self._cipher.encrypt(nonce, column.dump(), place)
            write_private(_path(self._folder, place), sealed)
        self._columns[place] = column

    def drop(self) -> None:
        """Forget what is in memory, and what is on disk, so that keys are transferred again."""
        self._columns.clear()
        if self._folder is not None:
            delete_keys(self._folder)

    def _read(self, place: bytes) -> KeyColumn | None:
        if self._folder is None:
            return None
        try:
            sealed = _path(self._folder, place).read_bytes()
            raw = self._cipher.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], place)
            return KeyColumn.load(raw, self._people, company=self._company)
        except (OSError, ValueError, InvalidTag):
            return None


def _path(folder: Path, place: bytes) -> Path:
    return folder / f"{place.hex()[:32]}.{SUFFIX}"


def delete_keys(folder: Path) -> bool:
    """Delete a plan's keys; says whether there were any."""
    paths = list(folder.glob(f"*.{SUFFIX}*"))
    try:
        for path in paths:
            path.unlink()
    except OSError as error:
        raise StorageError(f"could not delete in {folder}: {error.strerror}") from None
    return bool(paths)
