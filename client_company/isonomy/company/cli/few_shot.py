"""`isonomy few-shot`: rehearse, adapt and measure few-shot collaboration."""

from __future__ import annotations

import typer

from isonomy.company.cli.few_shot_run import run

app = typer.Typer(
    no_args_is_help=True,
    help="Few-shot collaboration: both parties hold tasks and meta-train one model.",
)


@app.callback()
def main() -> None:
    """Few-shot collaboration: both parties hold tasks and meta-train one model."""


app.command()(run)
