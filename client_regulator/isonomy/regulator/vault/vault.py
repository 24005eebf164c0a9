"""The vault: who is enrolled, in which cohort, with which attributes; encrypted at rest.

In memory it is a table of columns; on disk one sealed file (sealed_file) that is replaced as a
whole, so nobody is ever enrolled by half. Each write counts the generation up: a vault that is
older than the one last seen does not come back unnoticed (witness).

    payload = 8-byte length ‖ manifest (JSON) ‖ ids, one per line ‖ 16-bit codes, column by column

A code is the number of a declared group, or one of two that stand for "no value": MISSING (an empty
cell) and UNKNOWN (a value that says so). Both are groups of their own here and for the officer; in
whatever is released they count to the attribute's last group (DESIGN.md §8).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isonomy.common.base.canonical import canonical_json, parse_canonical
from isonomy.common.base.errors import ConfigError, ProtocolError
from isonomy.regulator.config.faults import VaultTampered
from isonomy.regulator.vault.sealed_file import Header, open_sealed, read_header, write_sealed
from isonomy.regulator.vault.unlock import Derivation, Secret

WHAT = "vault"
SCHEMA = 1
SCHEMAS = (1,)  # what this version reads; `_payload_of` brings older ones to the newest form
MISSING, UNKNOWN = 0xFFFF, 0xFFFE
MAX_MANIFEST_BYTES = 1 << 20

Codes = NDArray[np.uint16]


@dataclass(frozen=True)
class VaultTable:
    """Everybody who is enrolled, column by column. Never shown, only asked."""

    ids: tuple[str, ...]
    cohort_names: tuple[str, ...]
    cohorts: Codes  # (people,) number of each person's cohort
    groups: Mapping[str, tuple[str, ...]]
    codes: Mapping[str, Codes]  # per attribute (people,)

    @classmethod
    def empty(cls) -> VaultTable:
        return cls((), (), np.zeros(0, np.uint16), {}, {})

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        return f"VaultTable({len(self)} people)"

    @cached_property
    def index(self) -> dict[str, int]:
        """Where each person stands."""
        return {person: number for number, person in enumerate(self.ids)}

    def in_cohort(self, name: str) -> NDArray[np.bool_]:
        """(people,) who belongs to the cohort."""
        if name not in self.cohort_names:
            raise ConfigError(
                f"there is no cohort {name!r}; enrolled are "
                f"{', '.join(self.cohort_names) or 'no people at all'}"
            )
        return np.asarray(self.cohorts == self.cohort_names.index(name))

    def sizes(self, name: str) -> dict[str, int]:
        """How many people each group of an attribute has: for the officer's eyes only."""
        labels, codes = self.groups[name], self.codes[name]
        counts = {label: int((codes == number).sum()) for number, label in enumerate(labels)}
        apart = {"(missing)": MISSING, "(unknown)": UNKNOWN}
        return {**counts, **{label: int((codes == code).sum()) for label, code in apart.items()}}

    def without(self, gone: NDArray[np.bool_]) -> VaultTable:
        """The table without these people; cohorts that nobody is left of disappear."""
        kept = np.flatnonzero(~gone)
        ids = tuple(self.ids[number] for number in kept)
        used = np.unique(self.cohorts[kept])
        names = tuple(self.cohort_names[number] for number in used)
        cohorts = np.searchsorted(used, self.cohorts[kept]).astype(np.uint16)
        codes = {name: own[kept] for name, own in self.codes.items()}
        return VaultTable(ids, names, cohorts, self.groups, codes)

    # --- bytes ---------------------------------------------------------------------------------

    def dump(self) -> bytes:
        """The payload of the file."""
        ids = "\n".join(self.ids).encode()
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
        """Read a payload. It was authenticated, so a fault here is ours or of another version."""
        size = int.from_bytes(raw[:8], "big")
        manifest: Any = parse_canonical(raw[8 : 8 + size], max_bytes=MAX_MANIFEST_BYTES)
        people, start = manifest["people"], 8 + size
        stop = start + manifest["ids_bytes"]
        ids = tuple(raw[start:stop].decode().split("\n")) if people else ()
        groups = {own["name"]: tuple(own["labels"]) for own in manifest["attributes"]}
        columns = np.frombuffer(raw, "<u2", offset=stop).reshape(1 + len(groups), people)
        codes = dict(zip(groups, columns[1:], strict=True))
        if len(ids) != people:
            raise ValueError("ids")
        return cls(ids, tuple(manifest["cohorts"]), columns[0], groups, codes)


class Vault:
    """The vault's file and the secret that opens it."""

    def __init__(self, path: Path, secret: Secret) -> None:
        self._path, self._secret = path, secret

    @classmethod
    def create(cls, path: Path, secret: Secret) -> Vault:
        """A vault with nobody in it. An existing one is never overwritten."""
        vault = cls(path, secret)
        derivation = Derivation.fresh(strong_secret=secret.strong)
        vault._write(VaultTable.empty(), secrets.token_hex(16), derivation, 0, replace=False)
        return vault

    @staticmethod
    def header(path: Path) -> Header:
        """What is known of a vault without its secret."""
        return read_header(path, WHAT, SCHEMAS)

    def read(self) -> VaultTable:
        """Decrypt the whole vault."""
        header, payload = open_sealed(self._path, WHAT, SCHEMAS, self._secret)
        try:
            return VaultTable.parse(_payload_of(header.schema, payload))
        except (ProtocolError, ValueError, KeyError, TypeError):
            raise VaultTampered(f"{self._path} decrypts to something that is no vault") from None

    def write(self, table: VaultTable) -> int:
        """Replace the vault under a fresh key; returns its generation. Hold `locked` around it."""
        header = self.header(self._path)
        generation = int(header.public.get("generation", 0)) + 1
        self._write(table, header.file_id, header.derivation, generation, replace=True)
        return generation

    def reseal(self, secret: Secret) -> None:
        """Give the vault another passphrase or key file."""
        table, header = self.read(), self.header(self._path)
        self._secret = secret
        derivation = Derivation.fresh(strong_secret=secret.strong)
        generation = int(header.public.get("generation", 0)) + 1
        self._write(table, header.file_id, derivation, generation, replace=True)

    @property
    def secret(self) -> Secret:
        """For other files of the home that the same secret opens (task_pools)."""
        return self._secret

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other writers out: who reads, changes and writes must do it alone."""
        lock = self._path.with_name(self._path.name + ".lock")
        fd = os.open(lock, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigError(
                    "another isonomy-regulator command is changing the vault; wait for its end"
                ) from None
            yield
        finally:
            os.close(fd)

    def _write(
        self,
        table: VaultTable,
        file_id: str,
        derivation: Derivation,
        generation: int,
        *,
        replace: bool,
    ) -> None:
        write_sealed(
            self._path,
            table.dump(),
            what=WHAT,
            schema=SCHEMA,
            file_id=file_id,
            secret=self._secret,
            derivation=derivation,
            public={"generation": generation, "people": len(table)},
            replace=replace,
        )


def _payload_of(schema: int, payload: bytes) -> bytes:
    """A payload in the newest form. Each older schema gets its step here when there is a newer."""
    steps = _MIGRATIONS
    for version in range(schema, SCHEMA):
        payload = steps[version](payload)
    return payload


_MIGRATIONS: dict[int, Any] = {}
