"""Rotation: a new identity, a new certificate or a new vault secret. The ledger stays as it is.

Identity and sealing key stand in plans by their public halves, so a plan ends with the identity it
names: open plans must be closed first. The *member key* never changes: the ledger knows people by
it, and with another one everybody would get a second budget.

    keys/rotations/OLD.json     {"old": card, "new": card, "time"} signed by both identities, so
                                that whoever trusted the old fingerprint can follow to the new one
"""

from __future__ import annotations

import json
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from isonomy.common.base.canonical import canonical_json
from isonomy.common.base.errors import ConfigError
from isonomy.common.base.private_files import fsync_folder, write_private
from isonomy.common.keys.party import PartyKeys, fingerprint
from isonomy.common.ledger.ledger import verify_ledger
from isonomy.regulator.config.config import RegulatorConfig
from isonomy.regulator.serving.officer import ask, daemon_status
from isonomy.regulator.vault.member_key import FILE_NAME as MEMBER_KEY
from isonomy.regulator.vault.sealed_file import shred

DOMAIN = "isonomy/rotation/v1"
_NEW, _OLD = "keys.new", "keys.old"


@dataclass(frozen=True)
class Rotated:
    """The new identity, and the record that leads to it from the old one."""

    fingerprint: str
    card: Path
    record: Path


def rotate_identity(config: RegulatorConfig) -> Rotated:
    """New identity and sealing keys; the old private halves are destroyed."""
    if daemon_status(config) is not None:
        raise ConfigError("the daemon holds the old keys in memory; stop it first")
    finish_rotation(config)
    if config.ledger.path.exists():
        still = [own for own in verify_ledger(config.ledger.path).plans if own.is_open]
        if still:
            raise ConfigError(
                f"{len(still)} open plans name the old identity; close them with "
                "`isonomy-regulator reject HASH` (or wait for their end), then rotate"
            )
    old = PartyKeys.load(config.keys_folder)
    new_folder = config.home / _NEW
    shutil.rmtree(new_folder, ignore_errors=True)
    new = PartyKeys.create(new_folder, old.name, "regulator")
    for kept in (MEMBER_KEY,):
        shutil.copy2(config.keys_folder / kept, new_folder / kept)
    records = new_folder / "rotations"
    if (config.keys_folder / "rotations").exists():
        shutil.copytree(config.keys_folder / "rotations", records)
    records.mkdir(exist_ok=True, mode=0o700)
    name = f"{fingerprint(old.card()).replace(' ', '')}.json"
    write_private(records / name, _record(old, new))
    _sync(new_folder)
    config.keys_folder.rename(config.home / _OLD)
    finish_rotation(config)
    if config.ledger.path.exists():
        event = {"old": old.card().ed25519, "new": new.card().ed25519}
        ask(config, {"type": "note", "kind": "rotation", "event": event})
    made = config.keys_folder
    return Rotated(fingerprint(new.card()), made / "card.json", made / "rotations" / name)


def finish_rotation(config: RegulatorConfig) -> None:
    """Go on where a rotation was cut short: the new folder was complete before the old one went."""
    new, old = config.home / _NEW, config.home / _OLD
    if not config.keys_folder.exists() and new.exists():
        new.rename(config.keys_folder)
        fsync_folder(config.keys_folder)
    if old.exists() and config.keys_folder.exists():
        for path in sorted(old.rglob("*")):
            if path.is_file():
                shred(path)
        shutil.rmtree(old, ignore_errors=True)


def _record(old: PartyKeys, new: PartyKeys) -> bytes:
    said = {
        "schema": 1,
        "old": old.card().model_dump(),
        "new": new.card().model_dump(),
        "time": int(time.time()),
    }
    raw = canonical_json(said)
    signatures = {
        "signature_old": old.identity.sign(DOMAIN, raw).hex(),
        "signature_new": new.identity.sign(DOMAIN, raw).hex(),
    }
    return canonical_json({**json.loads(raw), **signatures}) + b"\n"


def _sync(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
    fsync_folder(folder / "x")
