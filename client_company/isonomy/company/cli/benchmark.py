"""`isonomy benchmark`: every method on every set, resumable, as one table and a set of figures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from isonomy.common.base.errors import ConfigError
from isonomy.common.base.exit_codes import code_of
from isonomy.common.base.output import emit, say
from isonomy.common.base.progress import progress_bar
from isonomy.company.cli.options import DataFolder, Jobs, spread

if TYPE_CHECKING:
    from isonomy.company.compare.benchmark.cells import Cell
    from isonomy.company.compare.benchmark.runner import Tally

_LIST_HELP = "quick, bar, groups, full, or the path of a TOML list of your own."


def benchmark(
    out: Annotated[Path, typer.Option(help="Folder for results and figures.")],
    data_dir: DataFolder = None,
    experiments: Annotated[str | None, typer.Option("--list", help=_LIST_HELP)] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="About five minutes on two cores.")
    ] = False,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="At most this many seeds of each experiment.")
    ] = None,
    jobs: Jobs = 2,
    steps: Annotated[
        Path | None, typer.Option(help="Output of `isonomy bench step --json`, to be drawn too.")
    ] = None,
    figures_only: Annotated[
        bool, typer.Option("--figures-only", help="Run nothing; draw what is there.")
    ] = False,
) -> None:
    """Run a list of experiments and redraw every comparison.

    Interrupt it at any time: the same command goes on where it stopped.
    Example: isonomy benchmark --quick --data-dir data --out bench
    """
    # Here, not above: `isonomy --help` need not wait for scikit-learn.
    from isonomy.company.compare.benchmark.cells import BUILT_IN, built_in, read_list, unfold
    from isonomy.company.compare.benchmark.output import read_steps, restore, write
    from isonomy.company.compare.benchmark.store import read_records

    try:
        if quick and experiments is not None:
            raise ConfigError("give --quick or --list, not both")
        name = "quick" if quick else experiments or "full"
        drawn_steps = None if steps is None else read_steps(steps)
        restore(out)
        tally = None
        if not figures_only:
            listed = built_in(name) if name in BUILT_IN else read_list(Path(name))
            tally = _run(unfold(listed, seeds), out, data_dir, jobs)
        paths = write(read_records(out), out, data_dir=data_dir, steps=drawn_steps)
    except KeyboardInterrupt as error:
        say(f"interrupted; finished cells are in {out}: the same command goes on")
        raise typer.Exit(code_of(error)) from None
    for path in paths:
        say(f"wrote {path}")
    if tally is None:
        emit({"files": paths}, f"drew {len(paths)} files")
        return
    failed = [{"cell": str(cell), "reason": reason} for cell, reason in tally.failed]
    counts = {"ran": tally.ran, "found": tally.finished, "failed": failed}
    text = f"{tally.ran} cells run, {tally.finished} found, {len(failed)} failed"
    emit({**counts, "files": paths}, text)
    for cell, reason in tally.failed:
        say(f"failed: {cell}: {reason}")
    if failed:
        raise typer.Exit(1)


def _run(cells: list[Cell], out: Path, data_dir: Path | None, jobs: int) -> Tally:
    """Run the cells that are not finished; returns what was done."""
    from isonomy.company.compare.benchmark.runner import check_data, pending, run
    from isonomy.company.compare.benchmark.store import Store

    with Store(out) as store:
        todo = pending(cells, store)
        check_data(todo, data_dir)
        with progress_bar() as progress, spread(jobs):
            bar = progress.add_task("starting", total=len(cells), completed=len(cells) - len(todo))
            return run(
                cells,
                store,
                data_dir=data_dir,
                on_cell=lambda cell, _line: progress.update(bar, advance=1, description=str(cell)),
            )
