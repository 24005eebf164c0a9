"""The head witness: the newest state of ledger and vault that this home knows of, signed.

A ledger file alone cannot show that its end was cut off. So after each session and each of the
officer's requests the daemon writes, beside the ledger and wherever `witness_copies` says, how far
it had got:

    {"ledger_id", "records", "head", "vault_generation", "time", "signer", "signature"}

A ledger that lacks the witnessed head, or a vault of an older generation, is refused. Copies on
another disk protect against a whole home that is put back to an older state. A copy that is not
written would make an old backup look like the newest state, so nothing is approved or answered
while one cannot be written. Folders are never made: a disk that is not mounted must not look like
one. The heads in a
company's signed answers can show that a ledger is too old, never that it is new enough: the company
chooses which one it shows.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from isonomy.common.base.canonical import MAX_TIME
from isonomy.common.base.documents import Digest, Document, parse_json, read_bounded
from isonomy.common.base.errors import ConfigError, StorageError, VerificationError
from isonomy.common.base.private_files import write_private
from isonomy.common.keys.identity import Identity, verify_signature
from isonomy.common.keys.party import Card
from isonomy.common.kits.access import write_fault
from isonomy.common.ledger.ledger import Ledger
from isonomy.regulator.config.config import RegulatorConfig
from isonomy.regulator.config.faults import RollbackRefused
from isonomy.regulator.vault.vault import Vault

DOMAIN = "isonomy/ledger-witness/v1"


class Witness(Document):
    """How far ledger and vault had got, signed."""

    word: ClassVar[str] = "head witness"
    schema_version: Literal[1] = 1
    ledger_id: Digest
    records: int
    head: Digest
    vault_generation: Annotated[int, Field(ge=0)]
    time: Annotated[int, Field(ge=0, le=MAX_TIME)]
    signer: Digest
    signature: bytes = b""

    def unsigned(self) -> bytes:
        return self.model_copy(update={"signature": b""}).to_json()


def load_witness(path: Path, config: RegulatorConfig) -> Witness:
    """Read and check a witness; VerificationError unless an identity of this home signed it."""
    raw = read_bounded(path, Witness.max_bytes)
    try:
        witness = Witness.from_json(raw)
        verify_signature(witness.signer, DOMAIN, witness.unsigned(), witness.signature)
        if witness.signer in home_identities(config):
            return witness
    except (ConfigError, VerificationError):
        pass  # what is wrong with it makes no difference
    raise VerificationError(f"{path} is not a witness file of this regulator, or it was changed")


def check_copies(config: RegulatorConfig) -> None:
    """Raise StorageError unless every copy of the witness can be written."""
    for copy in config.witness_paths[1:]:
        if fault := write_fault(copy, config.home.stat().st_uid):
            raise StorageError(f"the witness {fault}; nothing was changed")


def write_witness(config: RegulatorConfig, ledger: Ledger, identity: Identity) -> None:
    """Write how far ledger and vault are now, into the home and to every copy.

    StorageError names the first one that could not be written, after all were tried.
    """
    witness = Witness(
        ledger_id=ledger.ledger_id,
        records=ledger.records,
        head=ledger.head,
        vault_generation=vault_generation(config),
        time=int(time.time()),
        signer=identity.public,
    )
    signature = identity.sign(DOMAIN, witness.unsigned())
    signed = witness.model_copy(update={"signature": signature}).to_json()
    faults = []
    for path in config.witness_paths:
        try:
            write_private(path, signed)
        except StorageError as error:
            faults.append(error)
    if faults:
        raise faults[0]


def known_witnesses(config: RegulatorConfig) -> list[Witness]:
    """Return the home's own witness and its copies, as far as they exist."""
    return [load_witness(path, config) for path in config.witness_paths if path.exists()]


def home_identities(config: RegulatorConfig) -> set[bytes]:
    """Return the signing keys of this home: the one in use, and those that were rotated away."""
    identities = {Card.load(config.keys_folder / "card.json").signing_key}
    for path in (config.keys_folder / "rotations").glob("*.json"):
        try:
            old = parse_json(read_bounded(path, Witness.max_bytes), path)["old"]
            identities.add(Card.of(old).signing_key)
        except (ConfigError, KeyError, TypeError, ValueError):
            raise VerificationError(f"{path} is not the record of a rotation") from None
    return identities


def open_ledger(config: RegulatorConfig) -> Ledger:
    """Open the ledger, or create it on first use. RollbackRefused if it is older than witnessed."""
    path, witnesses = config.ledger_path, known_witnesses(config)
    if not path.exists():
        if witnesses:
            most = max(witness.records for witness in witnesses)
            raise RollbackRefused(
                f"{path} is gone, but a witness says that it had {most} records; restore the "
                "newest backup"
            )
        return Ledger.create(
            path, cap_units=config.ledger.cap_units, delta=float(config.ledger.delta)
        )
    heads: set[bytes] = set()
    ledger = Ledger.open(path, on_record=lambda sealed, state: heads.add(sealed.hash))
    try:
        for witness in witnesses:
            if ledger.ledger_id != witness.ledger_id or witness.head not in heads:
                raise RollbackRefused(
                    f"{path} is older than the state of {_day(witness.time)} that was witnessed "
                    f"({witness.records} records): budgets would be spent twice. Put the newest "
                    "copy back"
                )
            check_vault(config, witness)
    except BaseException:
        ledger.close()
        raise
    return ledger


def check_vault(config: RegulatorConfig, witness: Witness) -> None:
    """Raise RollbackRefused if an older vault is in place: forgotten people would come back."""
    if vault_generation(config) < witness.vault_generation:
        raise RollbackRefused(
            f"{config.vault_path} is older than the one of {_day(witness.time)} that was "
            "witnessed; people who were forgotten since could come back. Put the newest copy back"
        )


def vault_generation(config: RegulatorConfig) -> int:
    """Return how often the vault was written; 0 if there is none."""
    if not config.vault_path.exists():
        return 0
    return int(Vault.header(config.vault_path).public.get("generation", 0))


def _day(seconds: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))
