"""`isonomy simulate`: rehearse a strategy where both sides are known."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from isonomy.common.base.errors import ConfigError
from isonomy.common.base.exit_codes import code_of
from isonomy.common.base.output import emit, say
from isonomy.common.base.progress import progress_bar
from isonomy.company.cli.options import DataFolder, Jobs, spread

_EPSILON_HELP = "Privacy budget; several: repeat the option or separate by commas. Default: 1."
_DATASET_HELP = (
    "adult, bank, credit, compas, parkinsons, communities, acs_income, lending, or the path of a "
    ".csv, .csv.gz or .parquet file."
)


def simulate(
    dataset: Annotated[str, typer.Option(help=_DATASET_HELP)] = "lending",
    data_dir: DataFolder = None,
    attribute: Annotated[
        str | None, typer.Option(help="Sensitive attribute, or an intersection: 'sex*race'.")
    ] = None,
    target: Annotated[str | None, typer.Option(help="Target column of a file.")] = None,
    positive: Annotated[str | None, typer.Option(help="Favourable label of a file.")] = None,
    id_column: Annotated[
        str | None, typer.Option(help="Column of a file that says whose row it is.")
    ] = None,
    strategy: Annotated[
        str, typer.Option(help="tilt, pf_ld, f_ld, unconstrained, …; a wrong name lists them all.")
    ] = "tilt",
    option: Annotated[
        list[str] | None,
        typer.Option(
            help="An option of the strategy as NAME=VALUE (rounds=20); repeatable; a wrong "
            "name lists them all."
        ),
    ] = None,
    notion: Annotated[
        str,
        typer.Option(
            help="demographic_parity, equalized_odds, equal_opportunity, equal_fpr, "
            "accuracy_parity, or for scores: score_parity."
        ),
    ] = "demographic_parity",
    epsilon: Annotated[list[str] | None, typer.Option(help=_EPSILON_HELP)] = None,
    delta: Annotated[
        float, typer.Option(help="The δ of (ε, δ). `isonomy-company plan` takes 1e-6 if not told.")
    ] = 1e-5,
    base: Annotated[
        str, typer.Option(help="logistic, gbdt or mlp; where the score is a number: ridge, gbdt.")
    ] = "gbdt",
    tolerance: Annotated[
        float | None,
        typer.Option(
            help="The difference between groups to aim at; 0: as small as the audits can tell. "
            "tilt: 0.01 by default, 0.05 for scores. A gradient strategy ends when two released "
            "violations in a row are within it; without this option it uses all its rounds."
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(help="How many random splits, one per seed.")] = 3,
    first_seed: Annotated[
        int, typer.Option(help="The first seed. Report on seeds that no setting was chosen on.")
    ] = 0,
    encrypted: Annotated[bool, typer.Option(help="Use the encrypted exchange.")] = False,
    keep_selection_rate: Annotated[
        bool, typer.Option(help="Keep the base model's overall share of positives.")
    ] = False,
    record_epsilon: Annotated[
        float | None,
        typer.Option(
            help="Protect whole records too, from whoever sees the model, at this ε (pf_ld, "
            "dp_fermi; options loss_clip, totals, accountant)."
        ),
    ] = None,
    individual_filter: Annotated[
        bool,
        typer.Option(
            help="Everybody pays for the length of their own rows and is left out when their "
            "budget is spent (pf_ld, dp_fermi, dp_sgda)."
        ),
    ] = False,
    stretch: Annotated[
        float,
        typer.Option(
            help="With --individual-filter: noise as if the cap were this many times as large."
        ),
    ] = 2.0,
    jobs: Jobs = 1,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for results.json, results.csv and plots.html; replaces an earlier run's."
        ),
    ] = None,
) -> None:
    """Rehearse a strategy on data where both sides are known, before spending a real budget."""
    # Here, not above: `isonomy --help` need not wait for scikit-learn.
    from isonomy.company.rehearsal.settings import Settings
    from isonomy.company.rehearsal.simulate import simulate as rehearse
    from isonomy.company.rehearsal.tables_and_plots import check_folder, table, write_folder

    settings = Settings(
        attribute=attribute,
        strategy=strategy,
        notion=notion,
        epsilons=_numbers(epsilon or ["1"]),
        delta=delta,
        base=base,
        tolerance=tolerance,
        seeds=seeds,
        first_seed=first_seed,
        encrypted=encrypted,
        keep_selection_rate=keep_selection_rate,
        options=_options(option or []),
        record_epsilon=record_epsilon,
        stretch=stretch if individual_filter else None,
    )
    if out is not None:
        check_folder(out)
    with progress_bar() as progress, spread(jobs):
        total = len(settings.epsilons) * settings.seeds
        bar = progress.add_task(f"{dataset}: {strategy}", total=total)
        try:
            simulation = rehearse(
                dataset,
                settings,
                data_dir=data_dir,
                target=target,
                positive=positive,
                id_column=id_column,
                on_run=lambda _epsilon, _run: progress.advance(bar),
            )
        except KeyboardInterrupt as error:
            say("stopped; nothing was written")
            raise typer.Exit(code_of(error)) from None
    paths = write_folder(simulation, out) if out is not None else ()
    fields = simulation.to_json()
    del fields["schema"]  # that of results.json; what is printed has its own
    emit(fields, table(simulation))
    for path in paths:
        say(f"wrote {path}")


def _numbers(texts: list[str]) -> tuple[float, ...]:
    try:
        return tuple(float(part) for text in texts for part in text.split(","))
    except ValueError:
        raise ConfigError(f"--epsilon takes numbers; got {', '.join(texts)}") from None


def _options(texts: list[str]) -> dict[str, int | float | bool | str]:
    """NAME=VALUE pairs; values are read as numbers, `true` and `false` where they can be."""
    options: dict[str, int | float | bool | str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier() or name in options:
            raise ConfigError(f"--option takes NAME=VALUE, each name once; got {text!r}")
        options[name] = _value(value)
    return options


def _value(text: str) -> int | float | bool | str:
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
