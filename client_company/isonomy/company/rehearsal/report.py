"""A simulation on paper: a table for the terminal, CSV, JSON, and plots that need no network."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import tempfile
from pathlib import Path
from typing import Any

from rich.table import Table

from isonomy.common.base.errors import ConfigError, StorageError
from isonomy.company.rehearsal.simulate import Result, Run, Simulation

FILES = ("results.json", "results.csv", "plots.html")
_COLUMNS = (
    "ε", "error", "violation", "floor", "selected", "ε spent", "ε papers", "returned", "s",
)  # fmt: skip
_INK, _BASE, _FLOOR = "#1f4e79", "#b5482f", "#7a7a7a"


def table(simulation: Simulation) -> Table:
    """Means over seeds, one line per ε, the base model first."""
    first = simulation.results[0]
    settings = first.settings
    shown = Table(
        title=f"{first.dataset}, {first.attribute}: {settings.strategy} for "
        f"{settings.notion.replace('_', ' ')}{_aim(first)} on "
        f"{settings.base}, {_seeds(first)}, δ = {settings.delta:g}",
        collapse_padding=True,  # nine columns fit into 80
        caption="means on test people; floor: violation expected from sampling alone"
        + "".join(f"\n{note}" for note in _notes(first)),
    )
    for name in _COLUMNS:
        shown.add_column(name, justify="left" if name == "returned" else "right")
    shown.add_row(
        "base",
        f"{first.average('base_error'):.4f}",
        f"{first.average('base_violation'):.4f}",
        "",
        f"{first.average('base_selection_rate'):.3f}",
        *("", "", "", ""),
    )
    for result in simulation.results:
        shown.add_row(
            f"{result.epsilon:g}",
            f"{result.average('test_error'):.4f}",
            f"{result.average('test_violation'):.4f}",
            f"{result.noise_floor:.4f}",
            f"{result.average('selection_rate'):.3f}",
            f"{result.average('epsilon_spent'):.3f}",
            _papers(result),
            _returned(result),
            f"{result.average('seconds'):.1f}",
        )
    return shown


def _aim(result: Result) -> str:
    return "" if result.settings.aim is None else f" (tolerance {result.settings.aim:g})"


def _seeds(result: Result) -> str:
    """`8 seeds`, or `seeds 100 to 107` where they do not begin at 0."""
    seeds = result.settings.seed_range
    return f"seeds {seeds[0]} to {seeds[-1]}" if seeds[0] else f"{len(seeds)} seeds"


def _papers(result: Result) -> str:
    found = result.average("epsilon_as_in_papers")
    return "" if math.isnan(found) else f"{found:.3f}"


def _notes(result: Result) -> list[str]:
    """What the figures are worth, and what must stand beside them."""
    notes = [f"accounting: {result.accounting}"] if result.accounting else []
    if not result.accounting:
        notes.append("ε: guaranteed for attributes (cap); ε spent: of it, company's view, exact")
    if result.as_in_papers:
        notes.append(f"ε papers: {result.as_in_papers}")
    if result.settings.record_epsilon is not None:
        notes.append("columns coded by other people's features, which stand for public knowledge")
    if result.settings.stretch is not None:
        notes.append(
            f"individual filter, stretch {result.settings.stretch:g}: "
            f"{result.average('dropped'):.0f} people dropped on average"
        )
    if result.attribute_at_prediction:
        notes.append("decisions need, and reveal, the attribute of the person decided about")
    return notes


def _returned(result: Result) -> str:
    kinds = [run.returned for run in result.runs]
    return ", ".join(f"{kinds.count(kind)} × {kind}" for kind in sorted(set(kinds)))


# --- Files ---------------------------------------------------------------------------------------


def check_folder(out: Path) -> None:
    """Could results be written here? Asked before the work, not after it."""
    if out.exists() and not out.is_dir():
        raise ConfigError(f"--out {out} is a file; name a folder")
    place = next(folder for folder in (out, *out.absolute().parents) if folder.exists())
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        raise ConfigError(f"--out {out}: {place} cannot be written to")


def write_folder(simulation: Simulation, out: Path) -> tuple[Path, ...]:
    """results.json, results.csv and plots.html: all of them, or none."""
    contents = {
        "results.json": json.dumps(simulation.to_json(), indent=2) + "\n",
        "results.csv": _csv(simulation),
        "plots.html": _plots(simulation),
    }
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=out.parent, prefix=".simulate-") as staged:
            for name, text in contents.items():
                (Path(staged) / name).write_text(text, encoding="utf-8")
            out.mkdir(exist_ok=True)
            for name in contents:
                (Path(staged) / name).replace(out / name)
    except OSError as error:
        raise StorageError(f"results could not be written to {out}: {error.strerror}") from None
    return tuple(out / name for name in contents)


def _csv(simulation: Simulation) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["epsilon", *Run.__dataclass_fields__])
    for result in simulation.results:
        writer.writerows([result.epsilon, *vars(run).values()] for run in result.runs)
    return text.getvalue()


# --- Plots ---------------------------------------------------------------------------------------


def _plots(simulation: Simulation) -> str:
    """One HTML page with both plots; the plotting code is inside, so it opens anywhere."""
    from plotly.graph_objects import Figure
    from plotly.subplots import make_subplots

    first = simulation.results[0]
    figure: Figure = make_subplots(
        rows=1, cols=2, subplot_titles=("Trade-off on test people", "Violation against ε")
    )
    for trace in _trade_off(simulation):
        figure.add_trace(trace, row=1, col=1)
    for trace in _sweep(simulation):
        figure.add_trace(trace, row=1, col=2)
    floor = sum(result.noise_floor for result in simulation.results) / len(simulation.results)
    figure.add_vline(
        floor, line={"dash": "dash", "color": _FLOOR, "width": 1.5}, row=1, col=1,
        annotation={"text": "noise floor", "font": {"color": _FLOOR}},
        annotation_position="top right",
    )  # fmt: skip
    figure.update_xaxes(title_text="violation", rangemode="tozero", row=1, col=1)
    figure.update_yaxes(title_text="error", row=1, col=1)
    figure.update_xaxes(title_text="ε (log scale)", type="log", row=1, col=2)
    figure.update_yaxes(title_text="violation", rangemode="tozero", row=1, col=2)
    figure.update_layout(
        template="simple_white",
        title=f"{first.dataset}, {first.attribute}: {first.settings.strategy}, "
        f"{first.settings.notion.replace('_', ' ')}, base {first.settings.base}"
        + "".join(f"<br><sub>{note}</sub>" for note in _notes(first)),
        margin={"t": 90 + 25 * len(_notes(first))},  # the notes stand above the panels
        legend={"orientation": "h", "y": -0.18},
    )
    return str(figure.to_html(include_plotlyjs=True, full_html=True))


def _trade_off(simulation: Simulation) -> list[Any]:
    from plotly.graph_objects import Scatter

    first = simulation.results[0]
    base = Scatter(
        x=[first.average("base_violation")],
        y=[first.average("base_error")],
        mode="markers+text",
        text=["base"],
        textposition="top center",
        marker={"color": _BASE, "size": 12, "symbol": "diamond"},
        name="base model, mean",
    )
    runs = Scatter(
        x=[run.test_violation for result in simulation.results for run in result.runs],
        y=[run.test_error for result in simulation.results for run in result.runs],
        text=[
            f"ε = {result.epsilon:g}, seed {run.seed}, {run.returned}"
            for result in simulation.results
            for run in result.runs
        ],
        mode="markers",
        marker={"color": _INK, "size": 5, "opacity": 0.35},
        name="single runs",
    )
    means = Scatter(
        x=[result.average("test_violation") for result in simulation.results],
        y=[result.average("test_error") for result in simulation.results],
        text=[f"ε = {result.epsilon:g}" for result in simulation.results],
        textposition="top center",
        mode="markers+text",
        marker={"color": _INK, "size": 12},
        name=f"{first.settings.strategy}, mean",
    )
    return [base, runs, means]


def _sweep(simulation: Simulation) -> list[Any]:
    from plotly.graph_objects import Scatter

    results = sorted(simulation.results, key=lambda result: result.epsilon)
    epsilons = [result.epsilon for result in results]
    seen = [[run.test_violation for run in result.runs] for result in results]
    mean = [result.average("test_violation") for result in results]
    spread = {
        "type": "data",
        "symmetric": False,
        "array": [max(own) - centre for own, centre in zip(seen, mean, strict=True)],
        "arrayminus": [centre - min(own) for own, centre in zip(seen, mean, strict=True)],
    }
    floor = [result.noise_floor for result in results]
    base = [result.average("base_violation") for result in results]
    return [
        Scatter(
            x=epsilons, y=mean, error_y=spread, mode="lines+markers", marker={"color": _INK},
            name="violation: mean, least and largest",
        ),
        Scatter(x=epsilons, y=base, mode="lines+markers", marker={"color": _BASE}, name="base"),
        Scatter(
            x=epsilons, y=floor, mode="lines+markers", line={"dash": "dash", "color": _FLOOR},
            name="noise floor",
        ),
    ]  # fmt: skip


__all__ = ["FILES", "check_folder", "table", "write_folder"]
