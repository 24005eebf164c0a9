"""Backup of a home: one sealed file with everything but the unlock file, sockets and logs.

It holds keys, so it is encrypted like the vault, under the vault's secret: without the passphrase
or the unlock file nobody can read it. The ledger is read last, so that the reservation of every
plan in the backup is in it too. A daemon may run meanwhile, because a ledger only grows at its end.
Commands that change the vault (enroll, forget, rotate) must wait: the vault's lock is held.
"""

from __future__ import annotations

import io
import json
import os
import tarfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from isonomy.common.base.errors import ConfigError
from isonomy.common.base.private_files import create_private, open_file, private_folder
from isonomy.common.ledger.ledger import replay_lines
from isonomy.regulator.config.config import RegulatorConfig
from isonomy.regulator.config.faults import VaultTampered
from isonomy.regulator.config.officers import acting_officer
from isonomy.regulator.vault.sealed_file import Header, open_sealed, write_sealed
from isonomy.regulator.vault.unlock import Secret
from isonomy.regulator.vault.vault import Vault

WHAT, SCHEMA = "backup", 1
LIST_NAME = "backups.jsonl"
_SKIPPED_ENDINGS = (".lock", ".partial", ".sock")
_SKIPPED_FOLDERS = {"run", "log", "flower", "inbox", "console"}  # the last two: until they are used


@dataclass(frozen=True)
class Backup:
    """What a backup holds."""

    backup: Path
    files: int
    records: int
    head: str
    vault_generation: int


def make_backup(config: RegulatorConfig, file: Path, secret: Secret) -> Backup:
    """Write the home into one new file. Returns what is in it."""
    acting_officer(config.officers)
    vault = Vault(config.vault_path, secret)
    with vault.locked():
        vault.read()  # a backup that nobody can open would be worse than none
        return _write(config, file, secret)


def _write(config: RegulatorConfig, file: Path, secret: Secret) -> Backup:
    """Write the backup, the ledger last. Returns what is in it."""
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
        if config.ledger_path.exists():
            raw = config.ledger_path.read_bytes()
            raw = raw[: raw.rfind(b"\n") + 1]
            # Count and head are taken from these bytes, because the file may have grown since.
            state = replay_lines(config.ledger_path, io.BytesIO(raw)).state
            _add(archive, config.ledger_path.relative_to(config.home), raw)
            records, head, count = state.records, state.head.hex(), count + 1
    vault = Vault.header(config.vault_path)
    generation = int(vault.public["generation"])
    public: dict[str, int | str] = {"time": now, "records": records, "head": head}
    header = Header(WHAT, SCHEMA, vault.derivation, {**public, "vault_generation": generation})
    write_sealed(file, buffer.getvalue(), header, secret)
    _list_backup(config, file.absolute(), header.file_id, now)
    return Backup(file, count, records, head, generation)


def unpack(file: Path, folder: Path, secret: Secret) -> str:
    """Write a backup's files into a new folder; returns the backup's id."""
    header, payload = open_sealed(file, WHAT, SCHEMA, secret)
    folder.mkdir(parents=True, mode=0o700)
    try:
        with tarfile.open(fileobj=io.BytesIO(payload), mode="r:") as archive:
            for member in archive:
                name, content = PurePosixPath(member.name), archive.extractfile(member)
                if content is None or name.is_absolute() or ".." in name.parts:
                    raise VaultTampered(f"{file} holds something that is not a file of a home")
                path = folder / name
                private_folder(path.parent)
                create_private(path, content.read())
    except (tarfile.TarError, KeyError, ValueError, OSError, ConfigError):
        raise VaultTampered(f"{file} opens, and what is in it is not a backup") from None
    return header.file_id


def backups_made(config: RegulatorConfig) -> list[str]:
    """Return the files of all backups so far, whether they still exist or not.

    A deletion names them, because they still hold the people that it forgot.
    """
    path = config.home / LIST_NAME
    files = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            files.append(str(json.loads(line)["file"]))
        except (ValueError, KeyError, TypeError):
            continue  # a torn line: the backup that it was about failed too
    return files


def _list_backup(config: RegulatorConfig, file: Path, file_id: str, now: int) -> None:
    record = {"time": now, "file": str(file), "id": file_id}
    line = json.dumps({**record, "officer": acting_officer(config.officers)}) + "\n"
    fd = open_file(config.home / LIST_NAME, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.write(fd, line.encode())
        os.fsync(fd)
    finally:
        os.close(fd)


def _files(config: RegulatorConfig) -> Iterator[Path]:
    """Yield what belongs into a backup, except the ledger."""
    excluded = {config.ledger_path, config.unlock_file}
    for path in sorted(config.home.rglob("*")):
        inside = path.relative_to(config.home).parts
        if path.is_symlink() or not path.is_file() or path in excluded:
            continue
        if _SKIPPED_FOLDERS & set(inside[:-1]) or path.name.endswith(_SKIPPED_ENDINGS):
            continue
        yield path


def _add(archive: tarfile.TarFile, name: Path, raw: bytes) -> None:
    member = tarfile.TarInfo(name.as_posix())
    member.size, member.mode = len(raw), 0o600
    archive.addfile(member, io.BytesIO(raw))
