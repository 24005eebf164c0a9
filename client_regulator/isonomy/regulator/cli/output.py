"""What all commands share: their options, and how they print.

A command's result goes to stdout: for people, or with `--json` as one object that begins with its
schema, `isonomy-regulator/COMMAND/v1`. Everything else (progress, questions, warnings) goes to
stderr.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from isonomy.common.base.errors import ConfigError
from isonomy.regulator.config.config import RegulatorConfig
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
Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]
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


def emit(command: str, fields: Mapping[str, Any], text: str, *, as_json: bool) -> None:
    """Print a command's result, in one of the two ways. Paths become text in JSON."""
    if as_json:
        result = {"schema": f"isonomy-regulator/{command}/v1", **fields}
        typer.echo(json.dumps(result, ensure_ascii=False, default=str))
    elif text:
        typer.echo(text)


def say(text: str) -> None:
    """Tell the officer something that is not the result."""
    typer.echo(text, err=True)


def open_vault(config: RegulatorConfig, unlock_file: Path | None) -> Vault:
    """Return the vault with its secret: from the option, the configuration or the prompt."""
    return Vault(config.vault_path, read_secret(unlock_file or config.unlock_file))


def moment(seconds: int) -> str:
    """Return Unix seconds as a date and time in UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def head_bytes(text: str) -> bytes:
    """Return a ledger head that was given in hexadecimal digits."""
    if not re.fullmatch("[0-9a-f]{64}", text):
        raise ConfigError(
            f"--head {text!r} is no ledger head: 64 hexadecimal digits, as `isonomy-company head` "
            "prints them"
        )
    return bytes.fromhex(text)
