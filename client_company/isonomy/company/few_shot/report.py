"""Results of many runs as a table, as CSV and as figures, with standard errors over the seeds."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from rich.table import Table

from isonomy.common.base.errors import StorageError
from isonomy.company.compare.benchmark import methods as palette
from isonomy.company.compare.benchmark.svg import Panel, Series, figure
from isonomy.company.few_shot.data import NAMES as DATASETS
from isonomy.company.few_shot.variants import VARIANTS

MEASURES = ("accuracy", "gf", "eo")
NAMES = {"accuracy": "accuracy", "gf": "GF (1 is fair)", "eo": "EO (0 is fair)"}
_STYLE = {
    "alone": (palette.BROWN, "cross"),
    "none": (palette.INK, "circle"),
    "fair": (palette.GREY, "plus"),
    "dp_sgd": (palette.ORANGE, "square"),
    "irdp": (palette.BLUE, "diamond"),
    "l_d": (palette.RED, "triangle"),
    "pf_ld": (palette.GREEN, "star"),
    "sc_reptile": (palette.PURPLE, "down"),
}


@dataclass(frozen=True)
class Line:
    """One method at one ε: means and standard errors over seeds."""

    dataset: str
    method: str
    epsilon: float
    seeds: int
    means: Mapping[str, float]
    errors: Mapping[str, float]  # 0 with one seed

    def show(self, name: str) -> str:
        digits = 4 if name == "accuracy" else 3
        text = f"{self.means[name]:.{digits}f}"
        return f"{text} ± {self.errors[name]:.{digits}f}" if self.seeds > 1 else text


def summarise(records: Iterable[Mapping[str, Any]], reading: str = "balanced") -> list[Line]:
    """Finished records by data set, ε and method. `reading`: "balanced" or "natural"."""
    grouped: dict[tuple[str, float, str], list[Mapping[str, Any]]] = {}
    for record in records:
        if record.get("status") == "ok":
            key = (record["cell"]["dataset"], float(record["epsilon"]), record["method"])
            grouped.setdefault(key, []).append(record)
    lines = []
    for (dataset, epsilon, method), group in grouped.items():
        values = {name: [float(r[reading][name]) for r in group] for name in MEASURES}
        errors = {n: stdev(v) / math.sqrt(len(v)) if len(v) > 1 else 0.0 for n, v in values.items()}
        means = {name: mean(v) for name, v in values.items()}
        lines.append(Line(dataset, method, epsilon, len(group), means, errors))
    order = list(VARIANTS)
    return sorted(lines, key=lambda one: (one.dataset, one.epsilon, order.index(one.method)))


def reading_of(dataset: str) -> str:
    """Which query sets the figures are about. Only the named sets have both colours."""
    return "query sets in both colours" if dataset in DATASETS else "query sets of test.npz"


def rich_table(lines: Sequence[Line], title: str) -> Table:
    """For a terminal."""
    table = Table(title=title)
    for column in ("ε", "method", "seeds", *(NAMES[name] for name in MEASURES)):
        table.add_column(column, justify="left" if column == "method" else "right")
    for one in lines:
        table.add_row(*_cells(one))
    return table


def markdown(lines: Sequence[Line]) -> str:
    """The form of Table 5."""
    head = "| ε | method | seeds | " + " | ".join(NAMES[name] for name in MEASURES) + " |\n"
    body = "".join(f"| {' | '.join(_cells(one))} |\n" for one in lines)
    return head + "|---|---|---|---|---|---|\n" + body


def _cells(one: Line) -> list[str]:
    epsilon = f"{one.epsilon:g}" if one.epsilon else "–"
    label = VARIANTS[one.method].label
    return [epsilon, label, str(one.seeds), *(one.show(name) for name in MEASURES)]


PAIRS = (
    ("irdp", "dp_sgd"),
    ("pf_ld", "irdp"),
    ("pf_ld", "dp_sgd"),
    ("pf_ld", "l_d"),
    ("pf_ld", "sc_reptile"),
)


def differences(records: Iterable[Mapping[str, Any]], reading: str = "balanced") -> str:
    """Paired by seed, because seeds differ more than methods: first minus second, mean ± SE.

    Accuracy as it is; unfairness as distances |GF − 1| and |EO|, so that below 0 is fairer.
    """
    by_seed: dict[tuple[float, str], dict[int, Mapping[str, float]]] = {}
    for record in records:
        if record.get("status") == "ok":
            cell = by_seed.setdefault((float(record["epsilon"]), record["method"]), {})
            cell[int(record["seed"])] = record[reading]
    rows = [
        "| ε | methods | seeds | accuracy | \\|GF − 1\\| | \\|EO\\| |\n|---|---|---|---|---|---|\n"
    ]
    for epsilon in sorted({epsilon for epsilon, _ in by_seed if epsilon}):
        for first, second in PAIRS:
            one, two = by_seed.get((epsilon, first), {}), by_seed.get((epsilon, second), {})
            seeds = sorted(one.keys() & two.keys())
            if len(seeds) < 2:
                continue
            pairs = [(_distances(one[seed]), _distances(two[seed])) for seed in seeds]
            cells = [[x[k] - y[k] for x, y in pairs] for k in range(3)]
            texts = [f"{mean(v):+.3f} ± {stdev(v) / math.sqrt(len(v)):.3f}" for v in cells]
            names = f"{VARIANTS[first].label} − {VARIANTS[second].label}"
            rows.append(f"| {epsilon:g} | {names} | {len(seeds)} | {' | '.join(texts)} |\n")
    return "".join(rows)


def _distances(figures: Mapping[str, float]) -> tuple[float, float, float]:
    return figures["accuracy"], abs(figures["gf"] - 1), abs(figures["eo"])


def to_csv(lines: Sequence[Line]) -> str:
    """One line per method and ε."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    errors = [f"{name}_se" for name in MEASURES]
    writer.writerow(["dataset", "epsilon", "method", "seeds", *MEASURES, *errors])
    for one in lines:
        values = [f"{one.means[n]:.6f}" for n in MEASURES]
        values += [f"{one.errors[n]:.6f}" for n in MEASURES]
        writer.writerow([one.dataset, f"{one.epsilon:g}", one.method, one.seeds, *values])
    return out.getvalue()


def plot(lines: Sequence[Line], title: str, measures: Sequence[str] = MEASURES) -> str:
    """One panel per measure over ε; bars are one standard error; no privacy: a dashed line."""
    epsilons = sorted({one.epsilon for one in lines if one.epsilon})
    panels = [_panel(lines, name, epsilons) for name in measures]
    seeds = max((one.seeds for one in lines), default=0)
    kind = {reading_of(one.dataset) for one in lines}
    note = f"Mean over {seeds} seed{'s' if seeds != 1 else ''}, bars ± one standard error"
    note += "".join(f"; {text}" for text in sorted(kind)) + "."
    return figure(title, panels, note=note, columns=len(panels))


def _panel(lines: Sequence[Line], name: str, epsilons: Sequence[float]) -> Panel:
    """One measure: a series per method, and a bar per point."""
    series: list[Series] = []
    present = [method for method in VARIANTS if any(one.method == method for one in lines)]
    for number, method in enumerate(present):
        method_lines = [one for one in lines if one.method == method]
        colour, mark = _STYLE[method]
        label = VARIANTS[method].label
        if not method_lines[0].epsilon:
            level = method_lines[0].means[name]
            margin = 0.0 if len(epsilons) > 1 else 0.5  # a line needs two ends
            span = (epsilons[0] - margin, epsilons[-1] + margin) if epsilons else (0.0, 1.0)
            ends = [(e, level) for e in span]
            series.append(Series(label, colour, "", ends, dash=True))
            continue
        shift = 0.08 * (number - len(present) / 2)  # so that bars do not hide each other
        points = [(one.epsilon + shift, one.means[name]) for one in method_lines]
        texts = [f"{label}, ε = {one.epsilon:g}: {one.show(name)}" for one in method_lines]
        for (x, y), one in zip(points, method_lines, strict=True):
            error = one.errors[name]
            if error:
                series.append(Series("", colour, "", [(x, y - error), (x, y + error)], line=True))
        series.append(Series(label, colour, mark, points, texts, line=True))
    return Panel(NAMES[name], "ε", NAMES[name], series, y_span=0.05, x_ticks=epsilons)


def write(records: Sequence[Mapping[str, Any]], folder: Path) -> list[Path]:
    """results.csv, tables, and one figure per data set."""
    lines = summarise(records)
    files = {"results.csv": to_csv(lines), "table.md": markdown(lines)}
    files["table-natural.md"] = markdown(summarise(records, "natural"))
    files["differences.md"] = differences(records)
    for dataset in sorted({one.dataset for one in lines}):
        selected = [one for one in lines if one.dataset == dataset]
        short = Path(dataset).name or "data"  # a user's folder: never a path out of `folder`
        files[f"{short}.svg"] = plot(selected, f"{short}: {reading_of(dataset)}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (folder / name).write_text(content)
    except OSError as error:
        raise StorageError(f"{folder} could not be written: {error.strerror}") from None
    return [folder / name for name in files]


__all__ = ["Line", "differences", "markdown", "plot", "rich_table", "summarise", "to_csv", "write"]
