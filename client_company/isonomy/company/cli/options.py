"""What the commands of `isonomy-company` share: the home option, and JSON on stdout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

HomeFolder = Annotated[Path, typer.Option("--home", help="The company's home folder.")]
HOME = Path("company")


def print_json(**fields: object) -> None:
    """One object on stdout, for people and scripts alike."""
    typer.echo(json.dumps(fields))


def confirm(question: str, yes: bool) -> None:
    """Ask on stderr, unless `--yes` was given; "no" ends the command with exit code 1."""
    if not yes and not typer.confirm(question, err=True):
        raise typer.Exit(1)
