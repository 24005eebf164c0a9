"""`isonomy demo`: three parties on this machine, a whole training, a report."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from isonomy.common.base.output import emit, say, wants_json
from isonomy.company.cli.options import DataFolder


def demo(
    out: Annotated[
        Path | None, typer.Option(help="Run folder (empty or new); default: isonomy-runs/demo-…")
    ] = None,
    dataset: Annotated[
        str, typer.Option(help="lending (made-up people), adult, bank, credit, compas …")
    ] = "lending",
    data_dir: DataFolder = None,
    people: Annotated[int, typer.Option(help="How many people `lending` makes.")] = 20_000,
    epsilon: Annotated[str, typer.Option(help="Privacy budget of every person.")] = "1",
    notion: Annotated[str, typer.Option(help="Fairness notion.")] = "demographic_parity",
    base: Annotated[str, typer.Option(help="logistic, gbdt or mlp.")] = "logistic",
    seed: Annotated[int, typer.Option(help="Fixes people and split; never the noise.")] = 0,
    console: Annotated[
        bool, typer.Option("--console", help="Keep the regulator's console running, until Ctrl-C.")
    ] = False,
) -> None:
    """Run a whole federation on this machine and train a fair model through it.

    Makes keys, certificates and people, starts the server, two Flower nodes, the regulator's
    daemon and the company's script as processes of their own, trains, and takes all of them down
    again. About a minute. At a terminal it then opens the regulator's console for five minutes, and
    prints its one-time address. The attributes are in the run folder's regulator/ and nowhere else.
    """
    # Here, not above: `isonomy --help` need not wait for scikit-learn.
    from isonomy.company.demo.display import Display
    from isonomy.company.demo.layout import DemoSettings, Layout
    from isonomy.company.demo.look_around import file_report, look_around
    from isonomy.company.demo.processes import program
    from isonomy.company.demo.results import table, write_report
    from isonomy.company.demo.run import run_demo

    screen = Console(stderr=True)
    settings = DemoSettings(
        dataset=dataset,
        data_dir=data_dir,
        people=people,
        epsilon=epsilon,
        notion=notion,
        base=base,
        seed=seed,
    )
    layout = Layout.make(out)
    screen.print(f"run folder: {layout.root}", highlight=False, soft_wrap=True)
    with Display(screen, epsilon) as display:
        result = run_demo(layout, settings, display)
        write_report(layout.root, result, layout)
        file_report(layout)
    page = layout.root / "report.html"
    emit(
        {"folder": layout.root, "report": page, **result.summary}, table(result), f"report: {page}"
    )
    proof = f"To act there, paste the content of {layout.regulator_unlock}."
    if not console and (wants_json() or not sys.stdin.isatty()):
        command = f"{program('isonomy-regulator')} console --home {layout.regulator}"
        say(f"To look around as the regulator's officer: {command}\n{proof}")
        return
    end = (
        "It ends with Ctrl-C" if console else "It ends when you press Enter, or after five minutes"
    )
    words = "Look around as the regulator's officer, in a browser on this machine"
    look_around(layout, lambda address: say(f"{words}:\n{address}\n{proof} {end}."), stays=console)
