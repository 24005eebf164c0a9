"""Making a regulator's home, once: nothing in it is ever overwritten.

regulator.toml   policy and settings      vault.bin      people and attributes, encrypted
keys/            identity, sealing and    ledger.jsonl   from the first approval on
                 member key, card.json    witness.json   how far the ledger had got
tls/             certificate and key      plans/         what was approved; closed/: what ended
run/             socket for the node      deletions/     signed records of what was forgotten
tasks/           few-shot samples, sealed few-shot/      approved few-shot plans
inbox/           plans that wait          state/         how far sessions got
acts.jsonl       acts before the ledger
reports/         written in the console   console/       its socket and uploads
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from isonomy.common.base.errors import ConfigError
from isonomy.common.base.private_files import private_folder, write_private
from isonomy.common.keys.certificates import make_request
from isonomy.common.keys.party import PartyKeys, fingerprint
from isonomy.common.kits.access import witness_fix, write_fault
from isonomy.regulator.config.acts import remember
from isonomy.regulator.config.config import FILE_NAME, RegulatorConfig
from isonomy.regulator.config.policy_template import policy_text
from isonomy.regulator.vault.member_key import make_member_key
from isonomy.regulator.vault.unlock import new_secret
from isonomy.regulator.vault.vault import Vault


@dataclass(frozen=True)
class HomeFiles:
    """Where a new home and its files lie: what the officer reads or hands out next."""

    home: Path
    policy: Path
    card: Path
    fingerprint: str
    tls_request: Path


def make_home(
    folder: Path,
    *,
    name: str,
    epsilon: str,
    delta: str,
    groups: Mapping[str, tuple[str, ...]],
    group: str | None = None,
    unlock_file: Path | None = None,
    witness_copies: Sequence[Path] = (),
    user: int | None = None,
) -> HomeFiles:
    """Make everything that a regulator needs before it enrolls people. Returns where it lies.

    `user` will own the home and write the copies of the witness; None: who asks for it.
    """
    folder = folder.resolve()
    user = os.geteuid() if user is None else user
    for copy in witness_copies:
        if fault := write_fault(copy.absolute(), user):
            raise ConfigError(f"{fault}; {witness_fix(copy.absolute(), user)}")
    policy = folder / FILE_NAME
    if folder.exists() and any(not path.is_dir() for path in (folder, *folder.rglob("*"))):
        raise ConfigError(f"{folder} is not an empty folder; nothing in it was touched")
    unlock = unlock_file and unlock_file.absolute()
    text = policy_text(
        name=name,
        epsilon=epsilon,
        delta=delta,
        groups=groups,
        group=group,
        unlock_file=_relative(unlock, folder) if unlock else None,
        witness_copies=[str(copy.absolute()) for copy in witness_copies],
    )
    # Checked before anything is made, and before a passphrase is asked for.
    config = RegulatorConfig.parse(text.encode(), folder)
    secret = new_secret(unlock)
    private_folder(folder, home=True)
    keys = PartyKeys.create(config.keys_folder, name, "regulator")
    make_member_key(config)
    config.socket.parent.mkdir(parents=True, exist_ok=True)
    request = make_request(config.tls_folder, name, "regulator")
    Vault.create(config.vault_path, secret)
    write_private(policy, text.encode())  # last: a folder without it is no home
    remember(config, "home", {"fingerprint": fingerprint(keys.card())})
    return HomeFiles(
        home=config.home,
        policy=policy,
        card=config.keys_folder / "card.json",
        fingerprint=fingerprint(keys.card()),
        tls_request=request,
    )


def _relative(path: Path, folder: Path) -> str:
    """Return a path below the home relative to it, so that the home can be moved."""
    inside = os.path.commonpath([path, folder]) == str(folder)
    return str(path.relative_to(folder)) if inside else str(path)
