"""The regulator's file `regulator.toml`: its policy, and where things lie. It holds no secrets.

`isonomy-regulator init` writes it with a comment at every line (policy_template). Paths are
relative to the home folder, which is the file's own folder unless `home` says otherwise.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    field_validator,
)

from isonomy.common.base.errors import ConfigError
from isonomy.common.base.logs import KEPT, MAX_BYTES
from isonomy.common.keys.certificates import TlsFiles
from isonomy.common.keys.party import PartyName
from isonomy.common.node.bridge_server import Callers
from isonomy.common.privacy.accounting import units_for
from isonomy.regulator.config.policy import Decimal, Policy

FILE_NAME = "regulator.toml"
DEFAULT_COHORT = "everybody"
UNKNOWN_VALUES = ("unknown", "?", "n/a", "not stated", "prefer not to say")

_STRICT = ConfigDict(frozen=True, extra="forbid")

CohortName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")]
Label = Annotated[str, StringConstraints(min_length=1, max_length=128)]


class TlsConfig(BaseModel):
    """Where the TLS files lie."""

    model_config = _STRICT
    ca: Path = Path("tls/ca.pem")
    cert: Path = Path("tls/tls.pem")
    key: Path = Path("tls/tls.key")


class LedgerConfig(BaseModel):
    """The ledger, and the most that it ever lets a person lose."""

    model_config = _STRICT
    path: Path = Path("ledger.jsonl")
    epsilon: Decimal
    delta: Decimal

    @field_validator("delta")
    @classmethod
    def _probability(cls, text: str) -> str:
        if not 0 < float(text) < 1:
            raise ValueError("must be a probability between 0 and 1, such as '1e-6'")
        return text

    @property
    def cap_units(self) -> int:
        return units_for(float(self.epsilon), float(self.delta))


class VaultConfig(BaseModel):
    """The encrypted attributes, and the file with the secret that opens them, if there is one."""

    model_config = _STRICT
    path: Path = Path("vault.bin")
    unlock_file: Path | None = None
    unknown_values: tuple[Label, ...] = UNKNOWN_VALUES


class CohortConfig(BaseModel):
    """A tighter total for the people of one cohort."""

    model_config = _STRICT
    epsilon: Decimal


class LogConfig(BaseModel):
    """Where the daemon's log goes, if not to stderr."""

    model_config = _STRICT
    file: Path | None = None
    max_bytes: Annotated[int, Field(ge=1000)] = MAX_BYTES
    kept: Annotated[int, Field(ge=1, le=1000)] = KEPT


class RegulatorConfig(BaseModel):
    """A checked configuration. Paths are absolute after `load`."""

    model_config = _STRICT
    name: PartyName
    home: Path = Path()
    socket: Path = Path("run/daemon.sock")
    group: str | None = None
    callers: tuple[Annotated[int, Field(ge=0)], ...] = ()
    witness_copies: tuple[Path, ...] = ()
    rejoin_s: Annotated[int, Field(ge=1, le=86_400)] = 600
    groups: dict[Label, tuple[Label, ...]] = Field(default_factory=dict)
    ledger: LedgerConfig
    policy: Policy = Policy()
    cohorts: dict[CohortName, CohortConfig] = Field(default_factory=dict)
    vault: VaultConfig = VaultConfig()
    log: LogConfig = LogConfig()
    tls: TlsConfig = TlsConfig()

    @field_validator("groups")
    @classmethod
    def _groups_compare(cls, groups: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        for name, labels in groups.items():
            check_groups(name, labels)
        return groups

    @classmethod
    def load(cls, path: Path) -> RegulatorConfig:
        """Read and check the file (or the one in this folder); ConfigError names every fault."""
        path = path / FILE_NAME if path.is_dir() else path
        try:
            raw = tomllib.loads(path.read_text(encoding="utf-8"))
            config = cls.model_validate(raw)
        except OSError as error:
            raise ConfigError(
                f"cannot read the configuration {path}: {error.strerror}. Name the home folder "
                "with --home, or make one with `isonomy-regulator init`"
            ) from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path} is not TOML: {error}") from None
        except ValidationError as error:
            reasons = "; ".join(
                f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()
            )
            raise ConfigError(f"{path} cannot be used: {reasons}") from None
        return config._resolved(path.resolve().parent)

    def _resolved(self, folder: Path) -> RegulatorConfig:
        home = folder / self.home
        unlock, log = self.vault.unlock_file, self.log.file
        vault = {"path": home / self.vault.path, "unlock_file": unlock and home / unlock}
        return self.model_copy(
            update={
                "home": home,
                "socket": home / self.socket,
                "tls": TlsConfig(**{k: home / v for k, v in vars(self.tls).items()}),
                "ledger": self.ledger.model_copy(update={"path": home / self.ledger.path}),
                "vault": self.vault.model_copy(update=vault),
                "log": self.log.model_copy(update={"file": log and home / log}),
                "witness_copies": tuple(home / copy for copy in self.witness_copies),
            }
        )

    @property
    def keys_folder(self) -> Path:
        return self.home / "keys"

    @property
    def plans_folder(self) -> Path:
        return self.home / "plans"

    @property
    def few_shot_folder(self) -> Path:
        """Approved few-shot plans."""
        return self.home / "few-shot"

    @property
    def closed_folder(self) -> Path:
        """Plans that were rejected, withdrawn or forgotten: the terms, without the people."""
        return self.home / "plans" / "closed"

    @property
    def deletions_folder(self) -> Path:
        return self.home / "deletions"

    @property
    def state_folder(self) -> Path:
        return self.home / "state"

    @property
    def node_folder(self) -> Path:
        """What the Flower node needs, apart from everything else: another user owns it."""
        return self.home / "node"

    @property
    def tls_folder(self) -> Path:
        return self.tls.cert.parent

    @property
    def witness(self) -> Path:
        """The newest head of the ledger that this home knows of."""
        return self.home / "witness.json"

    @property
    def officer_socket(self) -> Path:
        """Where the daemon hears its owner, and nobody else."""
        return self.home / "officer.sock"

    @property
    def tls_files(self) -> TlsFiles:
        return TlsFiles(self.tls.ca, self.tls.cert, self.tls.key)

    @property
    def bridge_callers(self) -> Callers:
        return Callers(self.group, frozenset(self.callers))


def check_groups(name: str, labels: tuple[str, ...]) -> None:
    """Raise ValueError unless there is something to compare."""
    if len(labels) < 2 or len(set(labels)) != len(labels):
        raise ValueError(f"{name!r} needs two or more distinct groups")
    if "*" in name or "," in name or "=" in name:
        raise ValueError(f"{name!r}: an attribute's name holds no *, comma or equals sign")
