"""The server's configuration: one TOML file in its home folder.

name = "server.example.org"         # what certificates and plans call the relay

[door]                              # where the parties' Flower nodes come in
host = "0.0.0.0"
port = 9093

[relay]                             # the data plane, up while a run is
host = "0.0.0.0"
port = 9095                         # 0: any free port
advertise = "server.example.org"    # what the parties dial

home/nodes/   certificates of registered nodes   home/tls/     this server's certificate
home/plans/   public parts of plans              home/state/   the relay's checkpoints, per plan
home/run/     the operator's socket              home/token.key   signs tickets
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from isonomy.common.agreements.agreement import PlanPublic
from isonomy.common.base.documents import parse_toml
from isonomy.common.base.errors import ConfigError
from isonomy.common.base.private_files import private_folder, write_private, write_whole
from isonomy.common.keys.certificates import NODE, Holder, TlsFiles, check_issued

_STRICT = ConfigDict(frozen=True, extra="forbid")
_Port = Annotated[int, Field(ge=0, le=65_535)]
_Seconds = Annotated[int, Field(ge=1, le=604_800)]


class DoorConfig(BaseModel):
    """Where the door for the parties' nodes is."""

    model_config = _STRICT
    host: str = "127.0.0.1"
    port: _Port = 9093


class RelayConfig(BaseModel):
    """Where the relay listens, and under which host name the parties reach it."""

    model_config = _STRICT
    host: str = "127.0.0.1"
    port: _Port = 9095
    advertise: str = "127.0.0.1"


class ServerConfig(BaseModel):
    """A checked configuration with its home folder."""

    model_config = _STRICT
    name: str
    door: DoorConfig = DoorConfig()
    relay: RelayConfig = RelayConfig()
    join_s: _Seconds = 600  # how long a party may take to appear, or to come back
    session_s: _Seconds = 86_400  # how long a whole session may take
    home: Path = Path()

    @classmethod
    def load(cls, path: Path) -> ServerConfig:
        """Read and check the file; ConfigError names every field that is wrong."""
        try:
            raw = parse_toml(path.read_bytes(), path)
            return cls.model_validate({**raw, "home": path.resolve().parent})
        except OSError as error:
            raise ConfigError(f"cannot read the configuration {path}: {error.strerror}") from None
        except ValidationError as error:
            reasons = "; ".join(
                f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()
            )
            raise ConfigError(f"{path} cannot be used: {reasons}") from None

    @property
    def tls(self) -> TlsFiles:
        return TlsFiles.of(self.home / "tls")

    @property
    def token_key(self) -> Path:
        return self.home / "token.key"

    @property
    def socket(self) -> Path:
        """Where the operator's commands reach the running server."""
        return self.home / "run" / "server.sock"

    def state_folder(self, plan: PlanPublic) -> Path:
        folder = self.home / "state" / plan.hash.hex()
        private_folder(folder)
        return folder

    # --- Nodes ---------------------------------------------------------------------------------

    def register(self, certificate: Path, *, replace: bool) -> str:
        """Let a node in by its certificate, under the name in it; returns the name.

        The file has the node's key for every request at the door, so a key that was replaced is
        refused at once.
        """
        pem = check_issued(self.tls.ca, certificate)
        holder = Holder.of(pem)
        if holder.role != NODE:
            raise ConfigError(f"{certificate} is a certificate of a {holder.role}, not of a node")
        current = self.node_key(holder.name)
        if current not in (None, holder.public_key) and not replace:
            raise ConfigError(
                f"{holder.name} has a node with another key. If that key was lost, or the party "
                "says that this is its new one, register it with --replace"
            )
        private_folder(self.home / "nodes")
        write_private(self.home / "nodes" / f"{holder.name}.pem", pem)
        return holder.name

    def node_key(self, name: str) -> bytes | None:
        """Return the public key of the party's node now; None if none is registered."""
        try:
            return Holder.of((self.home / "nodes" / f"{name}.pem").read_bytes()).public_key
        except FileNotFoundError:
            return None

    # --- Plans ---------------------------------------------------------------------------------

    def add_plan(self, plan: PlanPublic) -> None:
        """Store a plan's public part, so that a run can name it by its hash."""
        folder = self.home / "plans"
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / f"{plan.hash.hex()}.json", plan.to_json())

    def plan(self, plan_hash: str) -> PlanPublic:
        """Return a plan's public part. The hash comes from a run's settings, so it is checked."""
        if len(plan_hash) != 64 or set(plan_hash) - set("0123456789abcdef"):
            raise ConfigError("a run names its plan by 64 hexadecimal digits")
        path = self.home / "plans" / f"{plan_hash}.json"
        try:
            return PlanPublic.from_json(path.read_bytes())
        except OSError:
            raise ConfigError(
                f"the server does not know plan {plan_hash[:16]}…; `isonomy-server run` takes its "
                "public file"
            ) from None
