"""What the regulator's commands share: options and the vault's secret.

How they print is common to all parties (common/base/output.py).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from isonomy.common.kits.users import acting_as_owner
from isonomy.regulator.config.acts import remember
from isonomy.regulator.config.config import RegulatorConfig
from isonomy.regulator.config.officers import acting_officer
from isonomy.regulator.vault.unlock import read_secret
from isonomy.regulator.vault.vault import Vault

Home = Annotated[
    Path,
    typer.Option(
        "--home",
        "--config",
        "-c",
        envvar="ISONOMY_REGULATOR_HOME",
        help="The home folder that `init` made, or its regulator.toml.",
    ),
]
UnlockFile = Annotated[
    Path | None,
    typer.Option(
        "--unlock-file",
        help="The file that opens the vault; else the one in regulator.toml, else you are asked.",
    ),
]
PassphraseFile = Annotated[
    Path | None,
    typer.Option("--passphrase-file", help="File with the key's passphrase; else it is asked for."),
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]


def open_vault(config: RegulatorConfig, unlock_file: Path | None) -> Vault:
    """Return the vault with its secret: from the option, the configuration or the prompt."""
    return Vault(config.vault_path, read_secret(unlock_file or config.unlock_file))


def noted(command: Callable[..., None], kind: str) -> Callable[..., None]:
    """Return a command of both parties that also leaves a record of the acting officer's name."""

    @wraps(command)
    def run(**options: Any) -> None:
        config = RegulatorConfig.load(options["home"])
        acting_officer(config.officers)  # who may not act changes nothing
        command(**options)
        with acting_as_owner(config.home):
            remember(config, kind, {})

    return run
