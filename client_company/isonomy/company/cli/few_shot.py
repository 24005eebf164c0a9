"""`isonomy few-shot`: rehearse, adapt and measure few-shot collaboration."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from isonomy.common.base.command_line import CommandLine
from isonomy.common.base.errors import ConfigError, IsonomyError
from isonomy.common.base.exit_codes import code_of
from isonomy.company.cli import few_shot_run
from isonomy.company.federation.progress import progress_bar

app = CommandLine(help="Few-shot collaboration: both parties hold tasks and meta-train one model.")

_DATA = typer.Option(envvar="ISONOMY_DATA_DIR", help="Folder with mnist/ and omniglot/.")
_EPSILON = typer.Option(help="Privacy budgets, by commas or repeated.")
_METHODS = "alone, none, fair, dp_sgd, irdp, l_d, pf_ld, sc_reptile; by commas or repeated."


@app.callback()
def main() -> None:
    """Few-shot collaboration: both parties hold tasks and meta-train one model."""


app.command("run")(few_shot_run.run)


@contextmanager
def _errors() -> Iterator[None]:
    """What went wrong in one line, and its exit code."""
    try:
        yield
    except KeyboardInterrupt as error:
        typer.echo("interrupted; finished cells are kept: the same command goes on", err=True)
        raise typer.Exit(code_of(error)) from None
    except IsonomyError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(code_of(error)) from None


@app.command()
def rehearse(
    dataset: Annotated[
        str,
        typer.Option(
            help="digits, mnist, omniglot, or a folder with company.npz, regulator.npz, test.npz."
        ),
    ] = "digits",
    data_dir: Annotated[Path | None, _DATA] = None,
    method: Annotated[list[str] | None, typer.Option(help=_METHODS + " [default: pf_ld]")] = None,
    epsilon: Annotated[list[str] | None, _EPSILON] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds 0 … N − 1.")] = 1,
    rounds: Annotated[int | None, typer.Option(min=1, help="Joint rounds.")] = None,
    warm_rounds: Annotated[
        int | None, typer.Option(min=0, help="Rounds of the company alone before that.")
    ] = None,
    ways: Annotated[int | None, typer.Option(min=2, help="Classes of a task.")] = None,
    shots: Annotated[int | None, typer.Option(min=1, help="K: support samples a class.")] = None,
    queries: Annotated[int | None, typer.Option(min=1, help="Query samples a class.")] = None,
    regulator_tasks: Annotated[
        int | None, typer.Option(min=1, help="The regulator's tasks in a round.")
    ] = None,
    save: Annotated[
        Path | None, typer.Option(help="New folder for the last run's initialisation.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for results.json, results.csv, tables, figures.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON on stdout, nothing else.")] = False,
) -> None:
    """Train both sides in one process, before a real budget is spent.

    Example: isonomy few-shot rehearse --method dp_sgd,pf_ld --epsilon 2,8 --seeds 3
    """
    from isonomy.company.few_shot import report
    from isonomy.company.few_shot.data import load
    from isonomy.company.few_shot.experiments import cells, recipe_for
    from isonomy.company.few_shot.model import FewShotModel
    from isonomy.company.few_shot.rehearse import rehearse as run
    from isonomy.company.few_shot.rehearse import warm_start

    with _errors():
        pools = load(dataset, 0, data_dir)
        recipe = recipe_for(dataset, pools.regulator.inputs.shape[1:])
        if warm_rounds is not None:
            recipe = replace(recipe, warm_rounds=warm_rounds)
        given = {"rounds": rounds, "ways": ways, "shots": shots, "queries": queries}
        given |= {"regulator_tasks": regulator_tasks}
        changes = {name: value for name, value in given.items() if value is not None}
        recipe = replace(recipe, base={**recipe.base, **changes})
        listed = cells(dataset, _words(method or ["pf_ld"]), _numbers(epsilon or ["8"]),
                       range(seeds))  # fmt: skip
        if save is not None and save.exists():
            raise ConfigError(f"{save} exists; give a new folder")
        records, outcome, held = [], None, -1
        with progress_bar() as progress:
            bar = progress.add_task(dataset, total=len(listed))
            for cell in listed:
                progress.update(bar, description=str(cell))
                if held != cell.seed:
                    pools = load(dataset, cell.seed, data_dir) if cell.seed else pools
                    start = warm_start(pools, recipe, cell.seed)
                    held = cell.seed
                outcome = run(pools, recipe, cell.method, cell.epsilon, cell.seed, start=start)
                line = {"key": cell.key, "status": "ok", "cell": {"dataset": dataset}}
                records.append({**line, **outcome.to_json()})
                progress.advance(bar)
        lines = report.summarise(records)
        written = []
        if out is not None:
            written = report.write(records, out)
            (out / "results.json").write_text(json.dumps(records, ensure_ascii=False) + "\n")
            written.append(out / "results.json")
        if save is not None and outcome is not None:
            notes = {"data set": dataset, "method": outcome.method, "seed": outcome.seed}
            written.append(FewShotModel(outcome.settings, outcome.theta, notes).save(save))
    if as_json:
        typer.echo(json.dumps(records, ensure_ascii=False))
    else:
        Console().print(report.rich_table(lines, f"{dataset}, {report.reading_of(dataset)}"))
    for path in written:
        typer.echo(f"wrote {path}", err=True)


@app.command()
def adapt(
    model: Annotated[Path, typer.Option(help="Folder of a saved initialisation.")],
    task: Annotated[
        Path, typer.Option(help=".npz with inputs and labels (K per class) and queries.")
    ],
    out: Annotated[
        Path | None, typer.Option(help=".npz for classes, probabilities and predictions.")
    ] = None,
) -> None:
    """Adapt a trained initialisation to a new task and predict its queries.

    Prints a line per query: its number, the class, the class's probability. Example:
    isonomy few-shot adapt --model initialisation --task task.npz --out answers.npz
    """
    import numpy as np

    from isonomy.common.few_shot.learning.pool_file import read_arrays
    from isonomy.company.few_shot.model import FewShotModel

    with _errors():
        arrays = read_arrays(task)
        lacking = [name for name in ("inputs", "labels", "queries") if name not in arrays]
        if lacking:
            raise ConfigError(f"{task} lacks {', '.join(lacking)}")
        classifier = FewShotModel.load(model).adapt(arrays["inputs"], arrays["labels"])
        probabilities = classifier.predict_proba(arrays["queries"])
        predictions = classifier.classes[probabilities.argmax(axis=1)]
        if out is not None:
            with out.open("wb") as file:
                np.savez(file, classes=classifier.classes, probabilities=probabilities,
                         predictions=predictions)  # fmt: skip
            typer.echo(f"wrote {out}", err=True)
    for number, (label, row) in enumerate(zip(predictions, probabilities, strict=True)):
        typer.echo(f"{number}\t{label}\t{row.max():.4f}")


@app.command()
def experiment(
    name: Annotated[str, typer.Argument(help="table, figure3, bar or digits.")],
    out: Annotated[Path, typer.Option(help="Folder for results and figures; go on there later.")],
    data_dir: Annotated[Path | None, _DATA] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds 0 … N − 1.")] = 5,
    epsilon: Annotated[list[str] | None, _EPSILON] = None,
    figures_only: Annotated[
        bool, typer.Option("--figures-only", help="Run nothing; draw what is there.")
    ] = False,
) -> None:
    """The experiments of the paper: table, figure3, bar or digits (the last takes seconds).

    Interrupt at any time: the same command goes on.

    Example: isonomy few-shot experiment table --data-dir data --out few-shot-table
    """
    from isonomy.company.compare.benchmark.store import read_records
    from isonomy.company.few_shot import report
    from isonomy.company.few_shot.experiments import EPSILONS, Runner
    from isonomy.company.few_shot.experiments import experiment as listed_in

    failed: list[tuple[object, str]] = []
    with _errors():
        listed = listed_in(name, seeds, _numbers(epsilon) if epsilon else EPSILONS)
        if not figures_only:
            with progress_bar() as progress:
                bar = progress.add_task(name, total=len(listed))
                made, found, problems = Runner(out, data_dir).run(
                    listed, lambda cell: progress.update(bar, advance=1, description=str(cell))
                )
            failed += problems
            typer.echo(f"{made} cells run, {found} found, {len(problems)} failed")
        records = read_records(out, f"isonomy few-shot experiment {name}")
        lines = report.summarise(records)
        for path in report.write(records, out):
            typer.echo(f"wrote {path}", err=True)
    Console().print(report.rich_table(lines, f"{name}, query sets in both colours"))
    for which, reason in failed:
        typer.echo(f"failed: {which}: {reason}", err=True)
    if failed:
        raise typer.Exit(1)


def _words(given: list[str]) -> tuple[str, ...]:
    return tuple(part.strip() for text in given for part in text.split(","))


def _numbers(given: list[str]) -> tuple[float, ...]:
    try:
        values = tuple(float(part) for text in given for part in text.split(","))
    except ValueError:
        raise ConfigError(f"--epsilon takes numbers; got {', '.join(given)}") from None
    if not all(0 < value < 1000 for value in values):
        raise ConfigError(
            f"--epsilon must be above 0 and below 1000, got {', '.join(given)}: without a budget "
            "nothing can be learned, and a huge one protects nobody"
        )
    return values
