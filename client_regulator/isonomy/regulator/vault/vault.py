"""The vault: who is enrolled, in which cohort, with which attributes; encrypted at rest.

In memory it is a table of columns; on disk one sealed file (sealed_file) that is replaced as a
whole, so nobody is ever enrolled by half. Each write increases the generation, so that an older
vault that is put back is noticed (witness).

    payload = 8-byte length ‖ manifest (JSON) ‖ ids, one per line ‖ 16-bit codes, column by column

A code is the number of a declared group, or one of two that stand for "no value": MISSING (an empty
cell) and UNKNOWN (a value that says so). The officer sees both as groups of their own. In whatever
is released they are the attribute's last group, "not stated", or are merged into it ("male or not
stated"); an attribute without either has neither code.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isonomy.common.base.canonical import canonical_json, parse_canonical
from isonomy.common.base.errors import ConfigError, ProtocolError
from isonomy.common.base.merkle import Places
from isonomy.common.base.private_files import open_file
from isonomy.common.people.cohort import NOT_STATED, Ids, id_digests, written_as
from isonomy.regulator.config.faults import VaultTampered
from isonomy.regulator.vault.sealed_file import (
    Header,
    check_secret,
    open_sealed,
    read_header,
    write_sealed,
)
from isonomy.regulator.vault.unlock import Derivation, Secret

WHAT = "vault"
SCHEMA = 1
MISSING, UNKNOWN = 0xFFFF, 0xFFFE
MAX_MANIFEST_BYTES = 1 << 20

Codes = NDArray[np.uint16]


@dataclass(frozen=True)
class VaultTable:
    """Everybody who is enrolled, column by column. Its `repr` shows none of it."""

    ids: Ids
    cohort_names: tuple[str, ...]
    cohorts: Codes  # (people,) number of each person's cohort
    groups: Mapping[str, tuple[str, ...]]
    codes: Mapping[str, Codes]  # per attribute (people,)

    @classmethod
    def empty(cls) -> VaultTable:
        return cls(Ids(()), (), np.zeros(0, np.uint16), {}, {})

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        return f"VaultTable({len(self)} people)"

    def find(self, ids: Iterable[str]) -> NDArray[np.int64]:
        """(n,) these people's rows; −1 for who is not enrolled."""
        return self._places.find(id_digests(ids))

    @cached_property
    def _places(self) -> Places:
        return Places(id_digests(self.ids))

    def in_cohort(self, name: str) -> NDArray[np.bool_]:
        """(people,) who belongs to the cohort."""
        names = self.cohort_names
        if name not in names:
            raise ConfigError(
                f"there is no cohort {name!r}; "
                + (f"there are {', '.join(names)}" if names else "nobody is enrolled")
            )
        return np.asarray(self.cohorts == names.index(name))

    def sizes(self, name: str) -> dict[str, int]:
        """Return how many people each group of an attribute has: for the officer's eyes only."""
        labels = self.groups[name]
        codes = {
            written_as(label): code for code, label in enumerate(labels) if label != NOT_STATED
        }
        codes |= {"(missing)": MISSING, "(unknown)": UNKNOWN}
        return {label: int((self.codes[name] == code).sum()) for label, code in codes.items()}

    def without(self, leaving: NDArray[np.bool_]) -> VaultTable:
        """Return the table without these people, and without cohorts that become empty."""
        rows = np.flatnonzero(~leaving)
        ids = Ids(self.ids[row] for row in rows)
        used = np.unique(self.cohorts[rows])
        names = tuple(self.cohort_names[number] for number in used)
        cohorts = np.searchsorted(used, self.cohorts[rows]).astype(np.uint16)
        codes = {name: column[rows] for name, column in self.codes.items()}
        return VaultTable(ids, names, cohorts, self.groups, codes)

    # --- bytes ---------------------------------------------------------------------------------

    def dump(self) -> bytes:
        """The payload of the file."""
        ids = self.ids.text[:-1]
        manifest = canonical_json(
            {
                "people": len(self),
                "ids_bytes": len(ids),
                "cohorts": list(self.cohort_names),
                "attributes": [
                    {"name": name, "labels": list(labels)} for name, labels in self.groups.items()
                ],
            }
        )
        columns = [self.cohorts, *(self.codes[name] for name in self.groups)]
        raw = b"".join(np.ascontiguousarray(column, "<u2").tobytes() for column in columns)
        return len(manifest).to_bytes(8, "big") + manifest + ids + raw

    @classmethod
    def parse(cls, raw: bytes) -> VaultTable:
        """Read a payload. It was authenticated, so a fault in it is Isonomy's own."""
        size = int.from_bytes(raw[:8], "big")
        manifest: Any = parse_canonical(raw[8 : 8 + size], max_bytes=MAX_MANIFEST_BYTES)
        people, start = manifest["people"], 8 + size
        stop = start + manifest["ids_bytes"]
        ids = Ids(raw[start:stop].decode().split("\n") if people else ())
        groups = {entry["name"]: tuple(entry["labels"]) for entry in manifest["attributes"]}
        columns = np.frombuffer(raw, "<u2", offset=stop).reshape(1 + len(groups), people)
        codes = dict(zip(groups, columns[1:], strict=True))
        names = [*manifest["cohorts"], *(each for labels in groups.values() for each in labels)]
        if len(ids) != people or set(map(type, [*names, *groups])) - {str}:
            raise ValueError("ids, or names that are no texts")
        return cls(ids, tuple(manifest["cohorts"]), columns[0], groups, codes)


class Vault:
    """The vault's file and the secret that opens it."""

    def __init__(self, path: Path, secret: Secret) -> None:
        self._path, self._secret = path, secret

    @classmethod
    def create(cls, path: Path, secret: Secret) -> Vault:
        """Make a vault with nobody in it. An existing one is never overwritten."""
        public = {"generation": 0, "people": 0}
        header = Header(WHAT, SCHEMA, Derivation.fresh(strong_secret=secret.strong), public)
        write_sealed(path, VaultTable.empty().dump(), header, secret)
        return cls(path, secret)

    @staticmethod
    def header(path: Path) -> Header:
        """Return what is known of a vault without its secret."""
        return read_header(path, WHAT, SCHEMA)

    def check(self) -> None:
        """Raise VaultLocked unless the secret is the right one; the people stay encrypted."""
        check_secret(self._path, WHAT, SCHEMA, self._secret)

    def read(self) -> VaultTable:
        """Decrypt the whole vault."""
        payload = open_sealed(self._path, WHAT, SCHEMA, self._secret)[1]
        try:
            return VaultTable.parse(payload)
        except (ProtocolError, ValueError, KeyError, TypeError):
            raise VaultTampered(f"{self._path} decrypts to something that is not a vault") from None

    def write(self, table: VaultTable) -> int:
        """Replace the vault under a fresh key; returns its generation. Hold `locked` around it."""
        return self._write(table, self.header(self._path))

    def reseal(self, secret: Secret) -> None:
        """Give the vault another passphrase or key file."""
        table, header = self.read(), self.header(self._path)
        self._secret = secret
        derivation = Derivation.fresh(strong_secret=secret.strong)
        self._write(table, replace(header, derivation=derivation))

    @property
    def secret(self) -> Secret:
        """The secret, for other files of the home that it opens (task_pools)."""
        return self._secret

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other writers out: to read, change and write is one step for each of them."""
        lock = self._path.with_name(self._path.name + ".lock")
        fd = open_file(lock, os.O_WRONLY | os.O_CREAT)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigError(
                    "another isonomy-regulator command is changing the vault; wait until it ends"
                ) from None
            yield
        finally:
            os.close(fd)

    def _write(self, table: VaultTable, header: Header) -> int:
        generation = int(header.public["generation"]) + 1
        header = replace(header, public={"generation": generation, "people": len(table)})
        write_sealed(self._path, table.dump(), header, self._secret, overwrite=True)
        return generation
