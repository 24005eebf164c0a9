"""`isonomy`: rehearse, demonstrate and measure on one machine."""

from __future__ import annotations

import os
import sys
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Annotated

import typer

from isonomy.common.base.command_line import CommandLine
from isonomy.common.kits.command import preflight
from isonomy.company.cli import bench, few_shot
from isonomy.company.cli.benchmark import benchmark
from isonomy.company.cli.demo import demo
from isonomy.company.cli.simulate import simulate

NEXT_STEPS = """\
Isonomy trains a fair model on sensitive attributes that its owner may never see.

  1. See a whole federation at work on this machine, in about a minute:
       isonomy demo
  2. Rehearse: what does a privacy budget buy? (made-up people; your own file: --dataset people.csv)
       isonomy simulate --dataset lending --epsilon 0.5,1
  3. Set up a real one, on three machines:
       docs/kits.md

All commands: isonomy --help. All pages: docs/index.md.
"""

app = CommandLine(
    no_args_is_help=False,
    invoke_without_command=True,
    name="isonomy",
    help="Train a fair model on sensitive attributes that its owner may never see. "
    "This command rehearses, demonstrates and measures on one machine; `isonomy-company`, "
    "`isonomy-regulator` and `isonomy-server` are the three parties of a real federation, and "
    "`kit` and `preflight` help to set up their machines.",
)
app.add_typer(bench.app, name="bench")
app.add_typer(few_shot.app, name="few-shot")
app.command()(benchmark)
app.command()(demo)
app.command()(simulate)
app.command()(preflight)


@app.command(service=True, add_help_option=False, context_settings={"ignore_unknown_options": True})
def kit(arguments: Annotated[list[str] | None, typer.Argument()] = None) -> None:
    """Make kits for the parties of a federation, as the server's operator: `isonomy-server kit`."""
    program = Path(sys.executable).with_name("isonomy-server")
    os.execv(program, [program.name, "kit", *(arguments or ["--help"])])  # noqa: S606


def _print_version(value: bool) -> None:
    if value:
        typer.echo(installed_version("isonomy"))
        raise typer.Exit


@app.callback()
def main(
    ctx: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Train a fair model on sensitive attributes that its owner may never see."""
    if ctx.invoked_subcommand is None:
        typer.echo(NEXT_STEPS, nl=False)
