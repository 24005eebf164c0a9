"""What the commands share: options and questions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from isonomy.common.agreements.about import TITLES
from isonomy.common.base import command_line
from isonomy.common.base.errors import ConfigError

HomeFolder = Annotated[Path, typer.Option("--home", help="The company's home folder.")]
HOME = Path("company")
DataFolder = Annotated[
    Path | None,
    typer.Option(
        "--data-dir", envvar="ISONOMY_DATA_DIR", help="Folder with the data; without: online."
    ),
]
GroupOption = Annotated[
    str | None,
    typer.Option(
        "--group",
        envvar="ISONOMY_SOCKET_GROUP",
        help="A Unix group that the Flower node's user shares, if it is another user.",
    ),
]
YesOption = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
AboutOption = Annotated[
    list[str] | None,
    typer.Option(
        help="FIELD=TEXT, for approval and report; repeatable. "
        + "; ".join(f"{name}: {title}" for name, title in TITLES.items())
        + ". Days as 2027-01-31."
    ),
]


def about_fields(texts: list[str] | None) -> dict[str, str] | None:
    """["purpose=Loans"] to {"purpose": "Loans"}; None for nothing."""
    fields: dict[str, str] = {}
    for text in texts or []:
        name, _, words = (part.strip() for part in text.partition("="))
        if not words or name not in TITLES or name in fields:
            raise ConfigError(f"--about takes FIELD=TEXT, each field once: {', '.join(TITLES)}")
        fields[name] = words
    return fields or None


def confirm(question: str, yes: bool) -> None:
    """Ask on stderr, unless `--yes` was given."""
    command_line.confirm(question, yes=yes)
