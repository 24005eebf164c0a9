"""Rotation: a new identity, a new certificate or a new vault secret. The ledger stays as it is.

Plans name the public halves of identity and sealing key, so a plan ends with the identity that it
names: open plans must be closed first. The *member key* never changes: the ledger knows people by
it, and with another one everybody would get a second budget.

    keys/rotations/OLD.json     the record (keys/rotation.py) that leads from one card to the other
    tls.next/                   a new TLS key and its request; `tls-install` moves the key to tls/

A certificate only lets this regulator connect to the relay (certificates.py), so the ledger, the
plans and the identity are not affected by a new one.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509

from isonomy.common.base.errors import ConfigError
from isonomy.common.base.private_files import fsync_folder, private_folder, write_private
from isonomy.common.keys.certificates import TlsFiles, make_request, read_issued
from isonomy.common.keys.party import PartyKeys, fingerprint
from isonomy.common.keys.rotation import Rotation
from isonomy.common.ledger.ledger import verify_ledger
from isonomy.regulator.config.acts import remember
from isonomy.regulator.config.config import RegulatorConfig
from isonomy.regulator.config.officers import acting_officer
from isonomy.regulator.serving.officer import daemon_status, note
from isonomy.regulator.vault.member_key import FILE_NAME as MEMBER_KEY
from isonomy.regulator.vault.sealed_file import shred
from isonomy.regulator.vault.task_pools import finish_pools, seal_pools_anew
from isonomy.regulator.vault.unlock import Secret
from isonomy.regulator.vault.vault import Vault

_NEW, _OLD = "keys.new", "keys.old"


@dataclass(frozen=True)
class Rotated:
    """The new identity, and the record that leads to it from the old one."""

    fingerprint: str
    card: Path
    record: Path


def rotate_identity(config: RegulatorConfig) -> Rotated:
    """Make new identity and sealing keys, and destroy the old private halves.

    Returns the new identity and the record that leads to it.
    """
    if daemon_status(config) is not None:
        raise ConfigError("the daemon runs with the old keys; stop it first")
    finish_rotation(config)
    officer = acting_officer(config.officers)
    if config.ledger_path.exists():
        open_plans = [plan for plan in verify_ledger(config.ledger_path).plans() if plan.is_open]
        if open_plans:
            raise ConfigError(
                f"open plans name the old identity: {len(open_plans)}. Close each of them with "
                "`isonomy-regulator reject HASH`, then rotate"
            )
    old = PartyKeys.load(config.keys_folder)
    new_folder = config.home / _NEW
    shutil.rmtree(new_folder, ignore_errors=True)
    new = PartyKeys.create(new_folder, old.name, "regulator")
    shutil.copy2(config.keys_folder / MEMBER_KEY, new_folder / MEMBER_KEY)
    records = new_folder / "rotations"
    if (config.keys_folder / "rotations").exists():
        shutil.copytree(config.keys_folder / "rotations", records)
    records.mkdir(exist_ok=True, mode=0o700)
    name = f"{fingerprint(old.card()).replace(' ', '')}.json"
    write_private(records / name, Rotation.between(old, new, officer).to_json())
    _sync(new_folder)
    config.keys_folder.rename(config.home / _OLD)
    finish_rotation(config)
    note(config, "rotation", {"old": old.card().ed25519, "new": new.card().ed25519})
    keys = config.keys_folder
    return Rotated(fingerprint(new.card()), keys / "card.json", keys / "rotations" / name)


def finish_rotation(config: RegulatorConfig) -> None:
    """Complete a rotation that was cut short."""
    # The new folder was complete and synced before the old one was renamed, so it can be trusted.
    new, old = config.home / _NEW, config.home / _OLD
    if not config.keys_folder.exists() and new.exists():
        new.rename(config.keys_folder)
        fsync_folder(config.keys_folder)
    if old.exists() and config.keys_folder.exists():
        for path in sorted(old.rglob("*")):
            if path.is_file():
                shred(path)
        shutil.rmtree(old, ignore_errors=True)


def _sync(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
    fsync_folder(folder / "x")


def rotate_vault(
    config: RegulatorConfig, open_vault: Callable[[], Vault], new_one: Callable[[], Secret]
) -> None:
    """Give the vault, and the tasks beside it, the secret that `new_one` returns or asks for."""
    acting_officer(config.officers)  # who may not act changes nothing
    if daemon_status(config) is not None:
        raise ConfigError("the daemon runs with the old passphrase; stop it first")
    vault = open_vault()
    with vault.locked():
        secret = new_one()
        seal_pools_anew(config, vault, secret)
        vault.reseal(secret)
        finish_pools(config, secret)
    note(config, "vault-secret", {})


def request_certificate(config: RegulatorConfig) -> Path:
    """Make a new key and return the request that goes to the server's operator."""
    folder = config.home / "tls.next"
    if folder.exists():
        raise ConfigError(
            f"{folder} holds a request that was made before; install its certificate, or remove "
            "the folder"
        )
    acting_officer(config.officers)
    request = make_request(folder, config.name, "regulator")
    remember(config, "certificate-request", {})
    return request


def install_certificate(config: RegulatorConfig, certificate: Path, authority: Path) -> str:
    """Install a signed certificate beside its key. Returns its last day.

    Raises before anything changes.
    """
    acting_officer(config.officers)
    folder = config.home / "tls.next"
    waiting = folder / "tls.key"
    key = waiting if waiting.exists() else config.tls.key
    # Checked before anything changes: for this key, not expired, issued by this authority.
    ca_pem, pem, secret = read_issued(TlsFiles(authority, certificate, key))
    private_folder(config.tls_folder)
    # A kill between these lines leaves a certificate for another key. `doctor` says so, and the
    # same command repairs it, because the new key stays in tls.next until the end.
    write_private(config.tls.key, secret)
    write_private(config.tls.cert, pem)
    write_private(config.tls.ca, ca_pem)
    if key == waiting:
        shred(waiting)
        shutil.rmtree(folder, ignore_errors=True)
        fsync_folder(folder)
    until = f"{x509.load_pem_x509_certificate(pem).not_valid_after_utc:%Y-%m-%d}"
    note(config, "certificate", {"until": until})
    return until
