"""The head witness: the newest state of ledger and vault that this home knows of, signed.

A ledger file alone cannot show that its end was cut off. So after each session and each of the
officer's requests the daemon writes, beside the ledger and wherever `witness_copies` says, how far
it had got:

    {"ledger_id", "records", "head", "vault_generation", "time", "signature"}

A ledger that lacks the witnessed head, or a vault of an older generation, is refused. Copies on
another disk, and the heads in the companies' signed answers, protect against a whole home that is
put back to an older state.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isonomy.common.base.canonical import canonical_json, parse_canonical
from isonomy.common.base.errors import (
    ConfigError,
    IsonomyError,
    ProtocolError,
    VerificationError,
)
from isonomy.common.base.private_files import write_private
from isonomy.common.keys.identity import Identity, verify_signature
from isonomy.common.keys.party import Card
from isonomy.common.ledger.ledger import Ledger
from isonomy.regulator.config.config import RegulatorConfig
from isonomy.regulator.config.faults import RollbackRefused
from isonomy.regulator.vault.vault import Vault

DOMAIN = "isonomy/ledger-witness/v1"
MAX_BYTES = 4096
WRITE_EVERY_S = 5.0


@dataclass(frozen=True)
class Witness:
    """How far ledger and vault had got."""

    ledger_id: bytes
    records: int
    head: bytes
    vault_generation: int
    time: int

    def fields(self) -> dict[str, object]:
        return {
            "schema": 1,
            "ledger_id": self.ledger_id.hex(),
            "records": self.records,
            "head": self.head.hex(),
            "vault_generation": self.vault_generation,
            "time": self.time,
        }

    def signed(self, identity: Identity) -> bytes:
        signature = identity.sign(DOMAIN, canonical_json(self.fields())).hex()
        signer = identity.public.hex()
        return canonical_json({**self.fields(), "signer": signer, "signature": signature}) + b"\n"

    @classmethod
    def load(cls, path: Path, config: RegulatorConfig) -> Witness:
        """Read and check one; VerificationError unless an identity of this home signed it."""
        try:
            raw: Any = parse_canonical(path.read_bytes().strip(), max_bytes=MAX_BYTES)
            witness = cls(
                bytes.fromhex(raw["ledger_id"]),
                raw["records"],
                bytes.fromhex(raw["head"]),
                raw["vault_generation"],
                raw["time"],
            )
            signer, signature = bytes.fromhex(raw["signer"]), bytes.fromhex(raw["signature"])
            verify_signature(signer, DOMAIN, canonical_json(witness.fields()), signature)
            if signer not in home_identities(config):
                raise VerificationError("signer")
        except OSError as error:
            raise ConfigError(f"cannot read the witness {path}: {error.strerror}") from None
        except (ProtocolError, VerificationError, KeyError, TypeError, ValueError):
            raise VerificationError(
                f"{path} is not a head witness of this regulator, or it was changed"
            ) from None
        return witness


def write_witness(config: RegulatorConfig, ledger: Ledger, identity: Identity) -> None:
    """Write how far ledger and vault are now, into the home and to every copy."""
    generation, now = vault_generation(config), int(time.time())
    witness = Witness(ledger.ledger_id, ledger.records, ledger.head, generation, now)
    signed = witness.signed(identity)
    for path in config.witness_paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_private(path, signed)


class WitnessWriter:
    """Writes witnesses for the daemon. A copy that cannot be written is reported, not raised."""

    def __init__(
        self,
        config: RegulatorConfig,
        ledger: Ledger,
        identity: Identity,
        on_error: Callable[[Exception], None],
    ) -> None:
        self._config, self._ledger, self._identity = config, ledger, identity
        self._on_error, self._last = on_error, time.monotonic()
        self._lock = threading.Lock()

    def write(self) -> None:
        try:
            # Sessions end in threads of their own: without the lock, two of them would write the
            # same temporary file, and an older witness could replace a newer one.
            with self._lock:
                write_witness(self._config, self._ledger, self._identity)
        except (IsonomyError, OSError) as error:
            self._on_error(error)

    def write_soon(self) -> None:
        """Write during a session, but not with every answer: each write costs two fsyncs."""
        now = time.monotonic()
        if now - self._last >= WRITE_EVERY_S:
            self._last = now
            self.write()


def known_witnesses(config: RegulatorConfig) -> list[Witness]:
    """Return the home's own witness and its copies, as far as they exist."""
    return [Witness.load(path, config) for path in config.witness_paths if path.exists()]


def home_identities(config: RegulatorConfig) -> set[bytes]:
    """Return the signing keys of this home: the one in use, and those that were rotated away."""
    identities = {Card.load(config.keys_folder / "card.json").signing_key}
    for path in (config.keys_folder / "rotations").glob("*.json"):
        identities.add(bytes.fromhex(json.loads(path.read_text())["old"]["ed25519"]))
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
            check_heads(path, heads, ledger.ledger_id, witness)
            check_vault(config, witness)
    except BaseException:
        ledger.close()
        raise
    return ledger


def check_heads(path: Path, heads: set[bytes], ledger_id: bytes, witness: Witness) -> None:
    """Raise RollbackRefused unless these are the heads of the ledger that the witness saw."""
    if ledger_id != witness.ledger_id or witness.head not in heads:
        raise RollbackRefused(
            f"{path} is older than the state of {_day(witness.time)} that was witnessed "
            f"({witness.records} records): budgets would be spent twice. Put the newest copy back"
        )


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
