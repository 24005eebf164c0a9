"""`isonomy few-shot`: rehearse, adapt and measure few-shot collaboration."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from isonomy.common.base.command_line import CommandLine
from isonomy.common.base.errors import ConfigError
from isonomy.common.base.exit_codes import code_of
from isonomy.common.base.output import emit, say
from isonomy.common.base.private_files import new_file, write_whole
from isonomy.common.base.progress import progress_bar
from isonomy.company.cli import few_shot_run

app = CommandLine(help="Few-shot collaboration: both parties hold tasks and meta-train one model.")

_DATA = typer.Option(envvar="ISONOMY_DATA_DIR", help="Folder with mnist/ and omniglot/.")
_EPSILON = typer.Option(help="Privacy budgets, by repeating the option or with commas.")
_METHODS = "alone, none, fair, dp_sgd, irdp, l_d, pf_ld or sc_reptile; repeat or use commas."


@app.callback()
def main() -> None:
    """Few-shot collaboration: both parties hold tasks and meta-train one model."""


app.command("run")(few_shot_run.run)


@app.command()
def rehearse(
    dataset: Annotated[
        str,
        typer.Option(
            help="digits, mnist, omniglot, or a folder with company.npz, regulator.npz, test.npz."
        ),
    ] = "digits",
    data_dir: Annotated[Path | None, _DATA] = None,
    method: Annotated[list[str] | None, typer.Option(help=_METHODS + " Default: pf_ld.")] = None,
    epsilon: Annotated[list[str] | None, _EPSILON] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds 0 … N − 1.")] = 1,
    rounds: Annotated[int | None, typer.Option(min=1, help="Rounds of both sides.")] = None,
    warm_rounds: Annotated[
        int | None, typer.Option(min=0, help="Rounds of the company alone before those.")
    ] = None,
    ways: Annotated[int | None, typer.Option(min=2, help="Classes per task.")] = None,
    shots: Annotated[int | None, typer.Option(min=1, help="K: support samples per class.")] = None,
    queries: Annotated[int | None, typer.Option(min=1, help="Query samples per class.")] = None,
    regulator_tasks: Annotated[
        int | None, typer.Option(min=1, help="The regulator's tasks per round.")
    ] = None,
    save: Annotated[
        Path | None, typer.Option(help="New folder for the last run's initialisation.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for results.json, results.csv, tables, figures.")
    ] = None,
) -> None:
    """Train both sides in one process, before a real budget is spent.

    Example: isonomy few-shot rehearse --method dp_sgd,pf_ld --epsilon 2,8 --seeds 3
    """
    from isonomy.company.few_shot import summaries
    from isonomy.company.few_shot.experiments import Rehearsals, cells, recipe_for
    from isonomy.company.few_shot.model import FewShotModel

    listed = cells(dataset, _words(method or ["pf_ld"]), _numbers(epsilon or ["8"]), range(seeds))
    if save is not None and save.exists():
        raise ConfigError(f"{save} exists; name a new folder")
    recipe = recipe_for(dataset, data_dir)
    if warm_rounds is not None:
        recipe = replace(recipe, warm_rounds=warm_rounds)
    options = {"rounds": rounds, "ways": ways, "shots": shots, "queries": queries}
    options |= {"regulator_tasks": regulator_tasks}
    changes = {name: value for name, value in options.items() if value is not None}
    rehearsals = Rehearsals(replace(recipe, base={**recipe.base, **changes}), data_dir)
    records, files = [], []
    with progress_bar() as progress:
        bar = progress.add_task(dataset, total=len(listed))
        for cell in listed:
            progress.update(bar, description=cell.key)
            outcome = rehearsals.outcome(cell)
            records.append(outcome.to_json())
            progress.advance(bar)
    if out is not None:
        files = summaries.write(records, out)
        write_whole(out / "results.json", f"{json.dumps(records, ensure_ascii=False)}\n".encode())
        files.append(out / "results.json")
    if save is not None:
        notes = {"data set": dataset, "method": outcome.cell.method, "seed": outcome.cell.seed}
        files.append(FewShotModel(outcome.settings, outcome.theta, notes).save(save))
    title = f"{dataset}, {summaries.reading_of(dataset)}"
    emit({"records": records}, summaries.rich_table(summaries.summarise(records), title))
    for path in files:
        say(f"wrote {path}")


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

    from isonomy.common.base.arrays import read_arrays
    from isonomy.company.few_shot.model import FewShotModel

    arrays = read_arrays(task)
    lacking = [name for name in ("inputs", "labels", "queries") if name not in arrays]
    if lacking:
        raise ConfigError(f"{task} lacks {', '.join(lacking)}")
    classifier = FewShotModel.load(model).adapt(arrays["inputs"], arrays["labels"])
    probabilities = classifier.predict_proba(arrays["queries"])
    predictions = classifier.classes[probabilities.argmax(axis=1)]
    if out is not None:
        answers = {"classes": classifier.classes, "predictions": predictions}
        with new_file(out, 0o666) as file:
            np.savez(file, probabilities=probabilities, **answers)
        say(f"wrote {out}")
    chances = probabilities.max(axis=1)
    lines = [
        f"{n}\t{p}\t{c:.4f}" for n, (p, c) in enumerate(zip(predictions, chances, strict=True))
    ]
    facts = {"predictions": predictions.tolist(), "probabilities": chances.tolist()}
    emit(facts, "\n".join(lines))


@app.command()
def experiment(
    name: Annotated[str, typer.Argument(help="table, wide, figure3, bar or digits.")],
    out: Annotated[Path, typer.Option(help="Folder for results and figures.")],
    data_dir: Annotated[Path | None, _DATA] = None,
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds, from 20 on.")] = 5,
    epsilon: Annotated[list[str] | None, _EPSILON] = None,
    figures_only: Annotated[
        bool, typer.Option("--figures-only", help="Run nothing; draw what is there.")
    ] = False,
) -> None:
    """Run an experiment of the paper: table, wide, figure3, bar or digits (which takes seconds).

    Interrupt it at any time: the same command goes on where it stopped.

    Example: isonomy few-shot experiment table --data-dir data --out few-shot-table
    """
    from isonomy.company.compare.benchmark.store import read_records
    from isonomy.company.few_shot import summaries
    from isonomy.company.few_shot.experiments import RECIPES, Rehearsals, run_cells
    from isonomy.company.few_shot.experiments import experiment as cells_of

    failed: list[tuple[Any, str]] = []
    dataset, listed = cells_of(name, seeds, _numbers(epsilon) if epsilon else None)
    if not figures_only:
        rehearsals = Rehearsals(RECIPES[dataset], data_dir, same_noise=True)
        with progress_bar() as progress:
            bar = progress.add_task(name, total=len(listed))
            try:
                run, stored, failed = run_cells(
                    listed,
                    rehearsals,
                    out,
                    lambda cell: progress.update(bar, advance=1, description=cell.key),
                )
            except KeyboardInterrupt as error:
                say(f"interrupted; the same command goes on in {out}")
                raise typer.Exit(code_of(error)) from None
        say(f"{run} cells run, {stored} were there already, {len(failed)} failed")
    records = read_records(out, f"isonomy few-shot experiment {name}")
    for path in summaries.write(records, out):
        say(f"wrote {path}")
    title = f"{name}, query sets in both colours"
    reasons = [{"cell": cell.key, "reason": reason} for cell, reason in failed]
    facts = {"records": records, "failed": reasons}
    emit(facts, summaries.rich_table(summaries.summarise(records), title))
    for cell, reason in failed:
        say(f"failed: {cell.key}: {reason}")
    if failed:
        raise typer.Exit(1)


def _words(options: list[str]) -> tuple[str, ...]:
    return tuple(part.strip() for text in options for part in text.split(","))


def _numbers(options: list[str]) -> tuple[float, ...]:
    try:
        values = tuple(float(word) for word in _words(options))
    except ValueError:
        raise ConfigError(f"--epsilon takes numbers; got {', '.join(options)}") from None
    if not all(0 < value < 1000 for value in values):
        raise ConfigError(
            f"--epsilon must be above 0 and below 1000, got {', '.join(options)}: without a budget "
            "nothing can be learned, and a huge one protects nobody"
        )
    return values
