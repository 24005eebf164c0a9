"""`isonomy bench …`: speed and size, as ratios in one run."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from isonomy.common.base.command_line import CommandLine
from isonomy.common.base.errors import ConfigError
from isonomy.common.base.output import emit
from isonomy.common.base.progress import Stages

app = CommandLine(help="Measure speed and size on this machine, as ratios within one run.")
_PEOPLE = typer.Option(help="People of the demonstration that is timed.")
_IDS = typer.Option(min=2, help="Ids on each side.")
_BANK = typer.Option(
    envvar="ISONOMY_DATA_DIR", help="Folder with the Bank data; without: synthetic."
)


@app.command()
def sums() -> None:
    """Time the blind group sum beside TenSEAL's matmul, and show how it grows with people.

    Takes two to four minutes. Example: isonomy bench sums --json > sums.json
    """
    _run("sums")


@app.command()
def session(people: Annotated[int, _PEOPLE] = 20_000) -> None:
    """Time a message through the relay beside a Flower message, and a run beside a local one.

    Starts the demonstration's processes; takes a few minutes. Example: isonomy bench session --json
    """
    _run("session", people=people)


@app.command()
def step(data_dir: Annotated[Path | None, _BANK] = None) -> None:
    """Time a private and fair training step beside a plain one and beside Opacus' DP-SGD.

    Two and ten hidden layers, three batch sizes, local and encrypted; and the memory of a gradient.
    Takes about three minutes. Example: isonomy bench step --json --data-dir data > step.json
    """
    _run("step", data_dir=data_dir)


@app.command()
def alignment(people: Annotated[int, _IDS] = 100_000) -> None:
    """Time the alignment of two lists of ids, beside openmined-psi if that is installed.

    Half of each list is common. Example: isonomy bench alignment --people 1000000 --json
    """
    _run("alignment", people=people)


@app.command("few-shot")
def few_shot() -> None:
    """Time a few-shot round of Conv-4, from its key to its ledger record, beside plain addition.

    Takes about a minute. Example: isonomy bench few-shot --json > few-shot.json
    """
    _run("few_shot")


@app.command()
def scale(
    people: Annotated[
        str, typer.Option(help="How many people, separated by commas.")
    ] = "10000,100000,1000000",
    phase: Annotated[
        list[str] | None, typer.Option(help="Only this phase; repeatable. Without: all.")
    ] = None,
    slow: Annotated[bool, typer.Option("--slow", help="Also with 5,000,000 people.")] = False,
) -> None:
    """Seconds, peak memory and bytes per person of every phase, as people grow.

    Takes half an hour on two idle cores, with --slow some hours.
    Example: isonomy bench scale --people 10000,100000 --json > scale.json
    """
    try:
        numbers = [int(part) for part in people.split(",")]
    except ValueError:
        raise ConfigError(f"--people takes whole numbers; got {people!r}") from None
    _run("scale", people=[*numbers, *([5_000_000] if slow else [])], phases=phase or ())


@app.command()
def cores(
    jobs: Annotated[int, typer.Option(min=2, help="Processes beside one.")] = 2,
) -> None:
    """Out-of-fold fits, rehearsals, pads and products with one job and with several.

    Takes about two minutes on two idle cores. Example: isonomy bench cores --jobs 4 --json
    """
    _run("cores", jobs=jobs)


def _run(name: str, **options: Any) -> None:
    """Measure with a progress line on stderr; print tables, or one JSON object on stdout."""
    bench = import_module(f"isonomy.company.speed.{name}")  # torch, TenSEAL: only where needed
    with Stages() as stages:
        result = bench.measure(stages.show, **options)
    emit(result, *bench.tables(result))
