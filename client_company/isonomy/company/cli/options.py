"""What the commands share: options, JSON on stdout, questions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from isonomy.common.base import command_line

HomeFolder = Annotated[Path, typer.Option("--home", help="The company's home folder.")]
HOME = Path("company")
DataFolder = Annotated[
    Path | None,
    typer.Option(
        "--data-dir", envvar="ISONOMY_DATA_DIR", help="Folder with the data; without: online."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]
YesOption = Annotated[bool, typer.Option("--yes", help="Do not ask.")]


def print_json(**fields: object) -> None:
    """One object on stdout, for people and scripts alike."""
    typer.echo(json.dumps(fields))


def confirm(question: str, yes: bool) -> None:
    """Ask on stderr, unless `--yes` was given."""
    command_line.confirm(question, yes=yes)
