"""A simulation on paper: a table for the terminal, CSV, JSON, and plots that need no network."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from rich.table import Table

from isonomy.common.base.errors import ConfigError
from isonomy.common.base.private_files import write_whole
from isonomy.common.figures.figure import Figure, page
from isonomy.common.figures.panels import Level, Panel, Series
from isonomy.common.figures.style import BLUE, GREEN, RED, SHADE
from isonomy.company.rehearsal.results import Result, Simulation


@dataclass(frozen=True)
class _Words:
    """What figures are called, and the fourth column of the table."""

    error: str
    violation: str
    column: str
    field: str
    caption: str
    gap: str
    accuracy: str
    axis: str


_DECISIONS = _Words(
    "error",
    "violation",
    "selected",
    "selection_rate",
    "means on test people; floor: violation expected from sampling alone",
    "gap between groups",
    "an accuracy of",
    "accuracy",
)
_SCORES = _Words(
    "loss",
    "distance",
    "worst",
    "worst_loss",
    "means on test people; floor: distance expected from sampling alone\n"
    "loss: squared error over the target's variance; worst: of the worst-off group",
    "distance of the groups' scores",
    "an explained variance of",
    "explained variance",
)


def _words(result: Result) -> _Words:
    return _SCORES if result.settings.scores else _DECISIONS


def table(simulation: Simulation) -> Table:
    """Means over seeds, one line per ε, the base model first."""
    first = simulation.results[0]
    settings, words = first.settings, _words(first)
    rows = Table(
        title=f"{first.dataset}, {first.attribute}: {settings.strategy} for "
        f"{settings.notion.replace('_', ' ')}{_aim(first)} on "
        f"{settings.base}, {_seeds(first)}, δ = {settings.delta:g}",
        collapse_padding=True,  # nine columns fit into 80
        caption=words.caption + "".join(f"\n{note}" for note in _notes(simulation.results)),
    )
    figures = (words.error, words.violation, "floor", words.column)
    papers = any(map(_papers, simulation.results))
    for name in ("ε", *figures, "ε spent", *["ε papers"] * papers, "returned", "s"):
        rows.add_column(name, justify="left" if name == "returned" else "right")
    rows.add_row(
        "base",
        f"{first.average('base_error'):.4f}",
        f"{first.average('base_violation'):.4f}",
        "",
        f"{first.average(f'base_{words.field}'):.3f}",
        *[""] * (3 + papers),
    )
    for result in simulation.results:
        rows.add_row(
            f"{result.epsilon:g}",
            f"{result.average('test_error'):.4f}",
            f"{result.average('test_violation'):.4f}",
            f"{result.noise_floor:.4f}",
            f"{result.average(words.field):.3f}",
            f"{result.average('epsilon_spent'):.3f}",
            *[_papers(result)] * papers,
            _returned(result),
            f"{result.average('seconds'):.1f}",
        )
    return rows


def _aim(result: Result) -> str:
    return "" if result.settings.aim is None else f" (tolerance {result.settings.aim:g})"


def _seeds(result: Result) -> str:
    """`8 seeds`, or `seeds 100 to 107` where they do not begin at 0."""
    seeds = result.settings.seed_range
    return f"seeds {seeds[0]} to {seeds[-1]}" if seeds[0] else f"{len(seeds)} seeds"


def _papers(result: Result) -> str:
    epsilon = result.average("epsilon_as_in_papers")
    return "" if math.isnan(epsilon) else f"{epsilon:.3f}"


def _notes(results: tuple[Result, ...]) -> list[str]:
    """What the figures are worth, and what a reader must know about them."""
    result, runs = results[0], [run for result in results for run in result.runs]
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
    if early := sum(run.stopped == "budget" for run in runs):
        notes.append(f"{early} of {len(runs)} runs ended early: the budget was exhausted")
    if result.attribute_at_prediction:
        notes.append("decisions need, and reveal, the attribute of the person decided about")
    return notes


def _returned(result: Result) -> str:
    kinds = [run.returned for run in result.runs]
    return ", ".join(f"{kinds.count(kind)} × {kind}" for kind in sorted(set(kinds)))


# --- Files ---------------------------------------------------------------------------------------


def check_folder(out: Path) -> None:
    """Refuse a place that cannot be written to before the work, not after it."""
    if out.exists() and not out.is_dir():
        raise ConfigError(f"--out {out} is a file; name a folder")
    place = next(folder for folder in (out, *out.absolute().parents) if folder.exists())
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        raise ConfigError(f"--out {out}: {place} cannot be written to")


def write_folder(simulation: Simulation, out: Path) -> tuple[Path, ...]:
    """Write results.json, results.csv and plots.html; returns their paths."""
    contents = {
        "results.json": json.dumps(simulation.to_json(), indent=2) + "\n",
        "results.csv": _csv(simulation),
        "plots.html": _plots(simulation),
    }
    out.mkdir(parents=True, exist_ok=True)
    for name, text in contents.items():
        write_whole(out / name, text.encode())
    return tuple(out / name for name in contents)


def _csv(simulation: Simulation) -> str:
    runs = [(result.epsilon, run) for result in simulation.results for run in result.runs]
    frame = pd.DataFrame([{"epsilon": epsilon, **vars(run)} for epsilon, run in runs])
    return frame.to_csv(index=False, lineterminator="\n")


# --- Plots ---------------------------------------------------------------------------------------


def _plots(simulation: Simulation) -> str:
    """One HTML page with both plots; it needs no script and no network."""
    first = simulation.results[0]
    settings = first.settings
    title = (
        f"{first.dataset}, {first.attribute}: {settings.strategy}, "
        f"{settings.notion.replace('_', ' ')}, base {settings.base}"
    )
    panels = [_trade_off(simulation), _sweep(simulation)]
    note = ". ".join(_notes(simulation.results))
    return page(title, [Figure(title, panels, _verdict(simulation), note)])


def _verdict(simulation: Simulation) -> str:
    """What the largest ε brought, in words: rates of test people, which only a rehearsal knows."""
    best = max(simulation.results, key=lambda result: result.epsilon)
    gap, base = best.average("test_violation"), best.average("base_violation")
    names = _words(best)
    words = (
        f"At ε = {best.epsilon:g} the {names.gap} on test people is {100 * gap:.1f} % "
        f"(base model: {100 * base:.1f} %), with {names.accuracy} "
        f"{100 * (1 - best.average('test_error')):.1f} % "
        f"(base model: {100 * (1 - best.average('base_error')):.1f} %)."
    )
    if best.settings.aim is None:
        return words
    inside = gap <= max(best.settings.aim, best.noise_floor)
    return f"{words} That is {'within' if inside else 'above'} the tolerance" + (
        " or what sampling alone shows." if inside else "."
    )


def _levels(simulation: Simulation, axis: str) -> list[Level]:
    """The violation that sampling alone shows, and the tolerance if there is one."""
    results = simulation.results
    floor = 100 * sum(result.noise_floor for result in results) / len(results)
    aim = results[0].settings.aim
    levels = [Level(floor, "expected from sampling alone", axis, band=True, colour=SHADE)]
    return levels + (
        [Level(100 * aim, f"tolerance {100 * aim:g} %", axis, colour=GREEN)] if aim else []
    )


def _trade_off(simulation: Simulation) -> Panel:
    """Accuracy against violation: the base model, single runs, and their means per ε."""
    results = simulation.results
    first = results[0]
    runs = [(result, run) for result in results for run in result.runs]
    means = [(result.average("test_violation"), result.average("test_error")) for result in results]
    series = [
        Series(
            "base model, mean", RED, "diamond",
            _percent([(first.average("base_violation"), first.average("base_error"))]),
        ),
        Series(
            "single runs", BLUE, "circle",
            _percent([(run.test_violation, run.test_error) for _, run in runs]),
            [f"ε = {result.epsilon:g}, seed {run.seed}, {run.returned}" for result, run in runs],
            hollow=True,
        ),
        Series(
            f"{first.settings.strategy}, mean", BLUE, "circle", _percent(means),
            [f"ε = {result.epsilon:g}" for result in results],
        ),
    ]  # fmt: skip
    words = _words(first)
    return Panel(
        f"{words.axis.capitalize()} against the gap, test people",
        f"{words.gap}, %", f"{words.axis}, %", series,
        x_from_zero=True, y_span=1.0, levels=_levels(simulation, "x"),
    )  # fmt: skip


def _percent(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """(violation, error) → (violation, accuracy) in per cent."""
    return [(100 * violation, 100 * (1 - error)) for violation, error in points]


def _sweep(simulation: Simulation) -> Panel:
    """The gap against ε: means, single runs, and the base model."""
    results = sorted(simulation.results, key=lambda result: result.epsilon)

    def line(measure: str) -> list[tuple[float, float]]:
        return [(result.epsilon, 100 * result.average(measure)) for result in results]

    runs = [(result.epsilon, 100 * run.test_violation) for result in results for run in result.runs]
    series = [
        Series("single runs", BLUE, "circle", runs, hollow=True),
        Series(
            f"{results[0].settings.strategy}, mean",
            BLUE,
            "circle",
            line("test_violation"),
            line=True,
        ),
        Series("base model, mean", RED, "diamond", line("base_violation"), line=True),
    ]
    return Panel(
        "Gap against ε", "ε (log scale)", f"{_words(results[0]).gap}, %", series,
        x_log=True, y_from_zero=True,
        levels=_levels(simulation, "y"), x_ticks=[result.epsilon for result in results],
    )  # fmt: skip
