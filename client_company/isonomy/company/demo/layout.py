"""The demonstration's options, and where each party's files lie below its run folder.

DIR/server       the server's home             DIR/logs           one file per process
DIR/operator     the authority, sealed         DIR/nodes          keys of the Flower nodes
DIR/company      the company's home + data     DIR/report.html    for people; report.json and .sig
DIR/regulator    the regulator's home:         DIR/summary.json   for machines
                 attributes and ledger live
                 here and nowhere else
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from isonomy.common.base.errors import ConfigError
from isonomy.common.node.bridge_server import MAX_PATH_BYTES
from isonomy.common.node.node import free_port
from isonomy.company.federation.home import Home

COMPANY, REGULATOR = "company", "regulator"


class DemoSettings(BaseModel):
    """The demonstration's options; the other processes of it read them from a file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    dataset: str = "lending"
    data_dir: Path | None = None
    people: int = 20_000
    epsilon: str = "1"
    delta: str = "1e-6"
    notion: str = "demographic_parity"
    tolerance: str = "0.01"
    strategy: str = "tilt"
    base: str = "logistic"
    seed: int = 0

    @classmethod
    def load(cls, path: Path) -> DemoSettings:
        """Read the options."""
        return cls.model_validate_json(path.read_bytes())


@dataclass(frozen=True)
class Place:
    """Where the parties meet: this machine, or containers that know each other by name."""

    name: str
    host: str
    door_port: int
    relay_port: int
    socket_group: str | None = None

    @classmethod
    def here(cls) -> Place:
        return cls("localhost", "127.0.0.1", free_port(), free_port())

    @property
    def advertise(self) -> str:
        return "127.0.0.1" if self.host == "127.0.0.1" else self.name


class Layout:
    """Paths below one run folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.plan, self.settings = root / "plan.json", root / "settings.json"
        self.few_shot_plan = root / "few-shot.json"  # if the demonstration is a few-shot run
        self.logs = root / "logs"
        self.server = root / "server"
        self.server_config = self.server / "server.toml"
        self.authority = root / "operator" / "authority"
        # It opens the authority, and is beside it in the demonstration only.
        self.passphrase = root / "operator" / "passphrase"
        self.signed = root / "operator" / "signed"
        self.company = Home(root / "company")
        self.company_data = self.company.folder / "data"
        # What the company says about its model, for the regulator's report.
        self.statement = self.company.folder / "statement.json"
        # What the company's process found out: decisions and its report.
        self.outcome = self.company.folder / "outcome.json"
        self.regulator = root / "regulator"
        self.regulator_config = self.regulator / "regulator.toml"
        # It opens the vault, and is beside it in the demonstration only.
        self.regulator_unlock = self.regulator / "unlock.key"
        # The regulator's file of people, until they are enrolled.
        self.regulator_file = self.regulator / "people.csv"
        self.regulator_socket = self.regulator / "run" / "daemon.sock"
        self.ledger = self.regulator / "ledger.jsonl"

    def node(self, name: str) -> Path:
        """The folder of a party's Flower node."""
        return self.root / "nodes" / name

    @classmethod
    def make(cls, out: Path | None) -> Layout:
        """Make a run folder: the given one, which must be empty, or one named after now."""
        stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        root = (out or Path("isonomy-runs") / f"demo-{stamp}").resolve()
        if root.exists() and (not root.is_dir() or any(root.iterdir())):
            raise ConfigError(f"{root} is not an empty folder; nothing in it was touched")
        root.mkdir(parents=True, exist_ok=True)
        return cls(root).make_folders()

    def make_folders(self) -> Layout:
        """Make the folders of all parties, each for its own eyes."""
        if len(os.fsencode(self.regulator_socket)) > MAX_PATH_BYTES:
            raise ConfigError(f"{self.root} is too long for sockets below it; use a shorter --out")
        for folder in (self.server, self.passphrase.parent, self.company.folder, self.regulator):
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o700)
        return self
