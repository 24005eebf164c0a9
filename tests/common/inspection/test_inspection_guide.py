"""The commands in docs/inspection.md exist, with the options that they are shown with."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest
import typer

from isonomy.company.cli.company import app as company
from isonomy.regulator.cli import app as regulator

PAGE = (Path(__file__).parents[3] / "docs" / "inspection.md").read_text()
LINES = [
    line
    for block in re.findall(r"```console\n(.*?)```", PAGE, re.S)
    for line in block.strip().splitlines()
]
APPS = {"isonomy-company": company, "isonomy-regulator": regulator}


def test_the_page_shows_commands() -> None:
    assert len(LINES) >= 8


@pytest.mark.parametrize("line", LINES)
def test_every_command_can_be_typed_as_shown(line: str) -> None:
    program, name, *arguments = shlex.split(line)
    group = typer.main.get_command(APPS[program])
    assert isinstance(group, click.Group)
    command = group.commands[name]
    command.make_context(name, arguments)  # UsageError for an unknown or a missing option
