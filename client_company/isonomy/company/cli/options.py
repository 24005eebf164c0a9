"""What the commands share: options and questions."""

from __future__ import annotations

from contextlib import AbstractContextManager
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
        "--data-dir",
        envvar="ISONOMY_DATA_DIR",
        help="Folder with the public data sets; without it, they are downloaded.",
    ),
]
GroupOption = Annotated[
    str | None,
    typer.Option(
        "--group",
        envvar="ISONOMY_SOCKET_GROUP",
        help="A group that the Flower node's user shares; a home from a kit knows it.",
    ),
]
Jobs = Annotated[int, typer.Option(min=1, max=64, help="How many processes work at once.")]
YesOption = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
AboutOption = Annotated[
    list[str] | None,
    typer.Option(
        help="FIELD=TEXT, shown to those who approve and in the report; repeatable. Fields: "
        + ", ".join(
            name if name == title else f"{name} ({title})" for name, title in TITLES.items()
        )
        + ". A day is written 2027-01-31; after valid_until nothing is answered."
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


def spread(jobs: int) -> AbstractContextManager[object]:
    """Independent work of this block goes to so many processes."""
    from joblib import parallel_config  # here: most commands need it not

    # Two processes with two threads each on two cores are slower than two with one.
    config: AbstractContextManager[object] = parallel_config(
        "loky", n_jobs=jobs, inner_max_num_threads=1
    )
    return config


def confirm(question: str, yes: bool) -> None:
    """Ask on stderr, unless `--yes` was given."""
    command_line.confirm(question, yes=yes)
