"""`isonomy`: rehearse, demonstrate and measure on one machine."""

from __future__ import annotations

from importlib.metadata import version as installed_version
from typing import Annotated

import typer

from isonomy.common.base.command_line import CommandLine
from isonomy.company.cli import bench, few_shot
from isonomy.company.cli.benchmark import benchmark
from isonomy.company.cli.demo import demo
from isonomy.company.cli.simulate import simulate

app = CommandLine(
    help="Train a fair model on sensitive attributes that its owner may never see. "
    "This command rehearses, demonstrates and measures on one machine; `isonomy-company`, "
    "`isonomy-regulator` and `isonomy-server` are the three parties of a real federation.",
)
app.add_typer(bench.app, name="bench")
app.add_typer(few_shot.app, name="few-shot")
app.command()(benchmark)
app.command()(demo)
app.command()(simulate)


def _print_version(value: bool) -> None:
    if value:
        typer.echo(installed_version("isonomy"))
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show it.")
    ] = False,
) -> None:
    """Train a fair model on sensitive attributes that its owner may never see."""
