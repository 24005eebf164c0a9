"""The regulator's configuration: one TOML file that names folders and files, no secrets.

name       = "regulator"            # as on the card and as the node is registered
home       = "."                    # keys, plans, ledger; relative to this file
attributes = "attributes.csv"       # id column + one column per attribute
id_column  = "id"
socket     = "run/daemon.sock"      # for the Flower node next door
group      = "isonomy"              # group that the node's user shares, optional

[groups]                            # declared, because whether a rare group has anybody in it
sex = ["female", "male"]            # is itself private

[ledger]                            # what a person may lose over all plans, for ever
epsilon = "3"
delta   = "1e-6"

[tls]                               # from the server's operator
ca = "tls/ca.pem"
cert = "tls/tls.pem"
key = "tls/tls.key"
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from isonomy.common.bridge_server import Callers
from isonomy.common.errors import ConfigError
from isonomy.common.party import PartyName
from isonomy.common.session import TlsFiles

_STRICT = ConfigDict(frozen=True, extra="forbid")


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
    epsilon: str
    delta: str

    @field_validator("epsilon", "delta")
    @classmethod
    def _positive(cls, text: str) -> str:
        if not 0 < float(text) < float("inf"):
            raise ValueError("must be a positive number, written as text such as '1e-6'")
        return text


class RegulatorConfig(BaseModel):
    """A checked configuration. Paths are absolute after `load`."""

    model_config = _STRICT
    name: PartyName
    home: Path = Path()
    attributes: Path = Path("attributes.csv")
    id_column: str = "id"
    socket: Path = Path("run/daemon.sock")
    group: str | None = None
    callers: tuple[Annotated[int, Field(ge=0)], ...] = ()
    groups: dict[str, tuple[str, ...]]
    ledger: LedgerConfig
    tls: TlsConfig = TlsConfig()
    rejoin_s: Annotated[int, Field(ge=1, le=86_400)] = 600

    @classmethod
    def load(cls, path: Path) -> RegulatorConfig:
        """Read and check the file; ConfigError names every field that is wrong."""
        try:
            raw = tomllib.loads(path.read_text(encoding="utf-8"))
            config = cls.model_validate(raw)
        except OSError as error:
            raise ConfigError(f"cannot read the configuration {path}: {error.strerror}") from None
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
        tls = TlsConfig(**{k: home / v for k, v in vars(self.tls).items()})
        ledger = self.ledger.model_copy(update={"path": home / self.ledger.path})
        return self.model_copy(
            update={
                "home": home,
                "attributes": home / self.attributes,
                "socket": home / self.socket,
                "tls": tls,
                "ledger": ledger,
            }
        )

    @property
    def keys_folder(self) -> Path:
        return self.home / "keys"

    @property
    def plans_folder(self) -> Path:
        return self.home / "plans"

    @property
    def state_folder(self) -> Path:
        return self.home / "state"

    @property
    def node_folder(self) -> Path:
        """What the Flower node needs, apart from everything else: another user owns it."""
        return self.home / "node"

    @property
    def tls_files(self) -> TlsFiles:
        return TlsFiles(self.tls.ca, self.tls.cert, self.tls.key)

    @property
    def bridge_callers(self) -> Callers:
        return Callers(self.group, frozenset(self.callers))
