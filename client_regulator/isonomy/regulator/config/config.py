"""The regulator's file `regulator.toml`: its policy and settings. It holds no secrets.

`isonomy-regulator init` writes it with a comment at every line (policy_template). Its folder is the
*home*: everything else lies below it under fixed names (upkeep/home.py), and the paths in the file
are relative to it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    StringConstraints,
    ValidationError,
    field_validator,
)

from isonomy.common.base.documents import parse_toml
from isonomy.common.base.errors import ConfigError
from isonomy.common.base.logs import BACKUPS, MAX_BYTES
from isonomy.common.keys.certificates import TlsFiles
from isonomy.common.keys.party import PartyName
from isonomy.common.people.cohort import labels_fault
from isonomy.common.privacy.accounting import units_for
from isonomy.regulator.config.officers import Officer, OfficerName, distinct_officers
from isonomy.regulator.config.policy import Decimal, Policy

FILE_NAME = "regulator.toml"
DEFAULT_COHORT = "everybody"
UNKNOWN_VALUES = ("unknown", "?", "n/a", "not stated", "prefer not to say")

CohortName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")]
Label = Annotated[str, StringConstraints(min_length=1, max_length=128)]


class Below:
    """A path below the home, as an attribute of the configuration."""

    def __init__(self, *names: str) -> None:
        self._names = names

    def __get__(self, config: RegulatorConfig, owner: object) -> Path:
        return config.home.joinpath(*self._names)


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", ignored_types=(Below,))


class LedgerConfig(_Settings):
    """The most that the ledger ever lets a person lose."""

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


class VaultConfig(_Settings):
    """The file with the secret that opens the vault, if there is one; values that mean unknown."""

    unlock_file: Path | None = None
    unknown_values: tuple[Label, ...] = UNKNOWN_VALUES


class CohortConfig(_Settings):
    """A tighter total for the people of one cohort."""

    epsilon: Decimal


class LogConfig(_Settings):
    """Where the daemon's log goes, if not to stderr."""

    file: Path | None = None
    max_bytes: Annotated[int, Field(ge=1000)] = MAX_BYTES
    kept: Annotated[int, Field(ge=1, le=1000)] = BACKUPS


class RegulatorConfig(_Settings):
    """A checked configuration, and where the files of its home lie."""

    name: PartyName
    group: str | None = None
    witness_copies: tuple[Path, ...] = ()
    groups: dict[Label, tuple[Label, ...]] = Field(default_factory=dict)
    ledger: LedgerConfig
    policy: Policy = Policy()
    officers: dict[OfficerName, Officer] = Field(default_factory=dict)
    cohorts: dict[CohortName, CohortConfig] = Field(default_factory=dict)
    vault: VaultConfig = VaultConfig()
    log: LogConfig = LogConfig()
    _home: Path = PrivateAttr(Path())

    ledger_path = Below("ledger.jsonl")
    vault_path = Below("vault.bin")
    keys_folder = Below("keys")
    approvals_folder = Below("approvals")  # who signed what, of all kinds of plans
    plans_folder = Below("plans")
    closed_folder = Below("plans", "closed")  # plans that ended: the terms, without the people
    few_shot_folder = Below("few-shot")  # approved few-shot plans
    alignments_folder = Below("alignments")
    inbox_folder = Below("inbox")  # plans that came in and wait for a decision
    reports_folder = Below("reports")  # written in the console
    console_folder = Below("console")  # its socket, and uploads until they are used
    tasks_folder = Below("tasks")
    deletions_folder = Below("deletions")
    state_folder = Below("state")
    tls_folder = Below("tls")
    socket = Below("run", "daemon.sock")  # where the daemon listens for the Flower node
    officer_socket = Below("officer.sock")  # … and for its own user, nobody else
    witness = Below("witness.json")  # the newest head of the ledger that this home knows of

    @field_validator("groups")
    @classmethod
    def _groups_compare(cls, groups: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        for name, labels in groups.items():
            check_groups(name, labels)
        return groups

    @field_validator("officers")
    @classmethod
    def _officers_differ(cls, officers: dict[str, Officer]) -> dict[str, Officer]:
        return distinct_officers(officers)

    @classmethod
    def load(cls, path: Path) -> RegulatorConfig:
        """Read and check the file (or the one in this folder); ConfigError names every fault."""
        path = path / FILE_NAME if path.is_dir() else path
        try:
            return cls.parse(path.read_bytes(), path.resolve().parent)
        except OSError as error:
            raise ConfigError(
                f"cannot read the configuration {path}: {error.strerror}. Name the home folder "
                "with --home, or make one with `isonomy-regulator init`"
            ) from None

    @classmethod
    def parse(cls, raw: bytes, home: Path) -> RegulatorConfig:
        """Check the bytes of a file that lies, or will lie, in the folder `home`."""
        try:
            config = cls.model_validate(parse_toml(raw, home / FILE_NAME))
        except ValidationError as error:
            faults = (f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
            raise ConfigError(f"{home / FILE_NAME} cannot be used: {'; '.join(faults)}") from None
        config._home = home
        return config

    @property
    def home(self) -> Path:
        return self._home

    @property
    def tls(self) -> TlsFiles:
        return TlsFiles.of(self.tls_folder)

    @property
    def unlock_file(self) -> Path | None:
        return self.vault.unlock_file and self._home / self.vault.unlock_file

    @property
    def witness_paths(self) -> list[Path]:
        """The witness, and copies of it elsewhere."""
        return [self.witness, *(self._home / copy for copy in self.witness_copies)]


def check_groups(name: str, labels: tuple[str, ...]) -> None:
    """Raise ValueError unless there are two groups to compare."""
    fault = labels_fault(labels)
    if fault:
        raise ValueError(f"{name!r} {fault}")
    if "*" in name or "," in name or "=" in name:
        raise ValueError(f"{name!r}: an attribute's name holds no *, comma or equals sign")
