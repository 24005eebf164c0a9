"""`isonomy bench …`: speed and size, as ratios in one run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from isonomy.common.base.command_line import CommandLine

app = CommandLine(help="Measure speed and size on this machine, as ratios within one run.")

JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]


@app.command()
def sums(as_json: JsonOption = False) -> None:
    """The blind group sum beside TenSEAL's matmul, and how it grows with people.

    Takes two to four minutes. Example: isonomy bench sums --json > sums.json
    """
    from isonomy.company.bench import sums as bench  # TenSEAL loads only where it is used

    bench.sums(as_json)


@app.command()
def session(
    as_json: JsonOption = False,
    people: Annotated[
        int, typer.Option(help="People of the demonstration that is timed.")
    ] = 20_000,
) -> None:
    """A leg through the relay beside a Flower message, and a whole run beside a local one.

    Starts the demonstration's processes; takes a few minutes. Example: isonomy bench session --json
    """
    from isonomy.company.bench import session as bench

    bench.session(as_json, people)


@app.command()
def step(
    as_json: JsonOption = False,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            envvar="ISONOMY_DATA_DIR", help="Folder with the Bank data; without: synthetic."
        ),
    ] = None,
) -> None:
    """A private and fair training step beside a plain one and beside Opacus' DP-SGD.

    Two and ten hidden layers, three batch sizes, local and encrypted; and the memory of a gradient.
    Takes about three minutes. Example: isonomy bench step --json --data-dir data > step.json
    """
    from isonomy.company.bench import step as bench  # torch loads only where it is used

    bench.step(as_json, data_dir)


@app.command("few-shot")
def few_shot(as_json: JsonOption = False) -> None:
    """A few-shot round of Conv-4 through key, encryption, relay and ledger, beside plain addition.

    Takes about a minute. Example: isonomy bench few-shot --json > few-shot.json
    """
    from isonomy.company.bench import few_shot as bench  # torch loads only where it is used

    bench.few_shot(as_json)
