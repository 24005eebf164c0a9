"""Backup of a home: one sealed file with everything but the unlock file, sockets and logs.

Keys lie in it, so it is encrypted like the vault, under the vault's secret; without the passphrase
or the unlock file it is worth nothing. The ledger is read last: whatever plan is in the backup, its
reservation is too. A daemon may run meanwhile, since a ledger only ever grows at its end; whoever
changes the vault (enroll, forget, rotate) may not: the vault's lock is held to the end.
"""

from __future__ import annotations

import io
import secrets
import tarfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from isonomy.common.base.errors import ConfigError
from isonomy.common.ledger.file import read_ledger
from isonomy.regulator.config.config import RegulatorConfig
from isonomy.regulator.config.faults import VaultTampered
from isonomy.regulator.upkeep.backup_list import add_backup
from isonomy.regulator.vault.sealed_file import open_sealed, write_sealed
from isonomy.regulator.vault.unlock import Secret
from isonomy.regulator.vault.vault import Vault

WHAT = "backup"
SCHEMA, SCHEMAS = 1, (1,)
_LEFT_OUT = (".lock", ".partial", ".sock")
_FOLDERS_LEFT_OUT = {"run", "log", "flower"}


@dataclass(frozen=True)
class Backup:
    """What a backup holds."""

    file: Path
    files: int
    records: int
    head: str
    vault_generation: int


def make_backup(config: RegulatorConfig, file: Path, secret: Secret) -> Backup:
    """Write the home into one new file."""
    for path in (config.ledger.path, config.vault.path):
        if config.home not in path.parents:
            raise ConfigError(f"{path} lies outside of the home; move it there to back it up")
    vault = Vault(config.vault.path, secret)
    with vault.locked():
        vault.read()  # a backup nobody can open would be worse than none
        return _write(config, file, secret)


def _write(config: RegulatorConfig, file: Path, secret: Secret) -> Backup:
    now, buffer, count = int(time.time()), io.BytesIO(), 0
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path in _files(config):
            try:
                raw = path.read_bytes()
            except FileNotFoundError:
                continue  # a session of the daemon ended meanwhile
            _add(archive, path.relative_to(config.home), raw)
            count += 1
        records, head = 0, ""
        if config.ledger.path.exists():
            raw = config.ledger.path.read_bytes()
            raw = raw[: raw.rfind(b"\n") + 1]
            # What is said of the ledger is said of these bytes: the file may have grown since.
            found = read_ledger(config.ledger.path, io.BytesIO(raw)).state
            _add(archive, config.ledger.path.relative_to(config.home), raw)
            records, head, count = found.records, found.head.hex(), count + 1
    header = Vault.header(config.vault.path)
    generation = int(header.public.get("generation", 0))
    public: dict[str, int | str] = {"time": now, "records": records, "head": head}
    public["vault_generation"] = generation
    file_id = secrets.token_hex(16)
    write_sealed(
        file,
        buffer.getvalue(),
        what=WHAT,
        schema=SCHEMA,
        file_id=file_id,
        secret=secret,
        derivation=header.derivation,
        public=public,
        replace=False,
    )
    add_backup(config, file.absolute(), file_id, now)
    return Backup(file, count, records, head, generation)


def unpack(file: Path, folder: Path, secret: Secret) -> str:
    """Write a backup's files into a new folder; returns the backup's id."""
    header, payload = open_sealed(file, WHAT, SCHEMAS, secret)
    folder.mkdir(parents=True, mode=0o700)
    try:
        with tarfile.open(fileobj=io.BytesIO(payload), mode="r:") as archive:
            for member in archive:
                name, content = PurePosixPath(member.name), archive.extractfile(member)
                if content is None or name.is_absolute() or ".." in name.parts:
                    raise VaultTampered(f"{file} holds something that is no file of a home")
                path = folder / name
                path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                path.touch(mode=0o600, exist_ok=False)
                path.write_bytes(content.read())
    except tarfile.TarError:
        raise VaultTampered(f"{file} decrypts to something that is no backup") from None
    return header.file_id


def _files(config: RegulatorConfig) -> Iterator[Path]:
    """What belongs into a backup, except the ledger."""
    apart = {config.ledger.path, config.vault.unlock_file}
    for path in sorted(config.home.rglob("*")):
        inside = path.relative_to(config.home).parts
        if path.is_symlink() or not path.is_file() or path in apart:
            continue
        if _FOLDERS_LEFT_OUT & set(inside[:-1]) or path.name.endswith(_LEFT_OUT):
            continue
        yield path


def _add(archive: tarfile.TarFile, name: Path, raw: bytes) -> None:
    member = tarfile.TarInfo(name.as_posix())
    member.size, member.mode = len(raw), 0o600
    archive.addfile(member, io.BytesIO(raw))
