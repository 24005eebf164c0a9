"""Results of many runs as a table, as CSV and as figures: means, and differences paired by seed.

A summary is a data frame with one row per data set, ε and method: `seeds`, the mean of each measure
and its standard error (`accuracy_se`, …; 0 with one seed).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
from rich.table import Table

from isonomy.common.base.errors import StorageError
from isonomy.common.base.private_files import write_whole
from isonomy.common.figures import style
from isonomy.common.figures.figure import Figure
from isonomy.common.figures.panels import Level, Panel, Series
from isonomy.company.compare.benchmark.comparison import Difference, difference
from isonomy.company.few_shot._variants import VARIANTS
from isonomy.company.few_shot.data import NAMES as DATASETS

MEASURES = ["accuracy", "gf", "eo"]
NAMES = {"accuracy": "accuracy", "gf": "GF (1 is fair)", "eo": "EO (0 is fair)"}
PAIRS = (
    ("irdp", "dp_sgd"),
    ("pf_ld", "irdp"),
    ("pf_ld", "dp_sgd"),
    ("pf_ld", "l_d"),
    ("pf_ld", "sc_reptile"),
)
DRAWN = (("irdp", "dp_sgd"), ("pf_ld", "l_d"))  # what individual accounts bring, in the figure
_STYLE = {
    "alone": (style.BROWN, "cross"),
    "none": (style.INK, "circle"),
    "fair": (style.GREY, "plus"),
    "dp_sgd": (style.ORANGE, "square"),
    "irdp": (style.BLUE, "diamond"),
    "l_d": (style.RED, "triangle"),
    "pf_ld": (style.GREEN, "star"),
    "sc_reptile": (style.PURPLE, "down"),
}


@dataclass(frozen=True)
class PairedGap:
    """Two methods at one ε ("all": over the budgets): differences by measure."""

    dataset: str
    epsilon: str
    methods: tuple[str, str]
    seeds: int
    gaps: dict[str, Difference]


def _frame(records: Iterable[Mapping[str, Any]], reading: str) -> pd.DataFrame:
    """One row per finished run. `reading` of the query sets: "balanced" or "natural"."""
    done = [{**r["cell"], **r[reading]} for r in records if r["status"] == "ok"]
    return pd.DataFrame(done, columns=["dataset", "epsilon", "method", "seed", *MEASURES])


def summarise(records: Iterable[Mapping[str, Any]], reading: str = "balanced") -> pd.DataFrame:
    """Means and standard errors over the seeds, ordered by data set, ε and method."""
    groups = _frame(records, reading).groupby(["dataset", "epsilon", "method"])
    errors = groups[MEASURES].sem().fillna(0.0).add_suffix("_se")
    summary = groups[MEASURES].mean().join(errors).assign(seeds=groups.size()).reset_index()
    order = summary["method"].map(list(VARIANTS).index)
    return summary.assign(order=order).sort_values(["dataset", "epsilon", "order"])


def reading_of(dataset: str) -> str:
    """Which query sets the figures are about. Only the named sets have both colours."""
    return "query sets in both colours" if dataset in DATASETS else "query sets of test.npz"


def _text(row: pd.Series[Any], name: str) -> str:
    digits = 4 if name == "accuracy" else 3
    mean = f"{row[name]:.{digits}f}"
    return f"{mean} ± {row[f'{name}_se']:.{digits}f}" if row["seeds"] > 1 else mean


def _rows(summary: pd.DataFrame) -> list[list[str]]:
    """A heading and one line per row, as text."""
    lines = [["ε", "method", "seeds", *NAMES.values()]]
    for _, row in summary.iterrows():
        epsilon = f"{row['epsilon']:g}" if row["epsilon"] else "–"
        figures = [_text(row, name) for name in MEASURES]
        lines.append([epsilon, VARIANTS[row["method"]].label, str(row["seeds"]), *figures])
    return lines


def rich_table(summary: pd.DataFrame, title: str) -> Table:
    """For a terminal."""
    (heading, *lines), table = _rows(summary), Table(title=title)
    for column in heading:
        table.add_column(column, justify="left" if column == "method" else "right")
    for line in lines:
        table.add_row(*line)
    return table


def _markdown(rows: Sequence[Sequence[str]]) -> str:
    """The first row is the heading."""
    heading, *lines = ("| " + " | ".join(row) + " |\n" for row in rows)
    return heading + "|---" * len(rows[0]) + "|\n" + "".join(lines)


def paired(records: Iterable[Mapping[str, Any]], reading: str = "balanced") -> list[PairedGap]:
    """First method minus second by seed, because seeds differ more than methods.

    Accuracy as it is; unfairness as distances |GF − 1| and |EO|, so that below 0 is fairer.
    Returns a line per data set, ε and pair of methods that share two seeds or more; last, with
    several ε, one over all of them: the mean over ε of each seed counts once.
    """
    frame = _frame(records, reading)
    frame = frame.assign(gf=(frame["gf"] - 1).abs(), eo=frame["eo"].abs())
    frame = frame[frame["epsilon"] > 0]
    found = []
    for dataset, runs in frame.groupby("dataset"):
        values = runs.pivot_table(MEASURES, ["epsilon", "seed"], "method")
        for first, second in PAIRS:
            if not {first, second} <= set(runs["method"]):
                continue
            gaps = pd.DataFrame(
                {name: values[name][first] - values[name][second] for name in MEASURES}
            ).dropna()
            by_epsilon = list(gaps.groupby("epsilon"))
            parts = [(f"{epsilon:g}", part) for epsilon, part in by_epsilon]
            if len(parts) > 1:
                parts.append(("all", gaps.groupby("seed").mean()))
            found += [
                PairedGap(str(dataset), epsilon, (first, second), len(part), _gaps(part))
                for epsilon, part in parts
                if len(part) > 1
            ]
    return found


def _gaps(part: pd.DataFrame) -> dict[str, Difference]:
    return {name: difference(part[name].to_list()) for name in MEASURES}


def differences(records: Iterable[Mapping[str, Any]], reading: str = "balanced") -> str:
    """`paired` as a table in Markdown: means with 95 % intervals, and a word for each."""
    rows = [["ε", "methods", "seeds", "accuracy", "\\|GF − 1\\|", "\\|EO\\|"]]
    for line in paired(records, reading):
        names = " − ".join(VARIANTS[method].label for method in line.methods)
        texts = [_gap_text(name, line.gaps[name]) for name in MEASURES]
        rows.append([line.epsilon, names, str(line.seeds), *texts])
    return _markdown(rows)


def _gap_text(name: str, gap: Difference) -> str:
    # More accuracy is better; less unfairness is.
    word = replace(gap, mean=-gap.mean).word if name == "accuracy" else gap.word
    return f"{gap.mean:+.3f} ± {gap.half:.3f}, {word}"


def plot_differences(lines: Sequence[PairedGap], title: str) -> Figure:
    """One panel per measure: paired differences over ε with their intervals, and a line at 0."""
    single = [line for line in lines if line.epsilon != "all" and line.methods in DRAWN]
    ticks = sorted({float(line.epsilon) for line in single})
    zero = Level(0.0, "no difference", "y", colour=style.GREY)
    panels = []
    for name, words in {"accuracy": "accuracy", "gf": "|GF − 1|", "eo": "|EO|"}.items():
        series = [
            _gap_series([line for line in single if line.methods == methods], name, shift)
            for methods, shift in zip(DRAWN, (-0.08, 0.08), strict=True)
            if any(line.methods == methods for line in single)
        ]
        panels.append(
            Panel(words, "ε", "difference", series, y_span=0.05, x_ticks=ticks, levels=[zero])
        )
    note = "Mean differences by seed, bars: 95 % intervals"
    return Figure(title, panels, note=note, columns=len(panels))


def _gap_series(lines: Sequence[PairedGap], name: str, shift: float) -> Series:
    """One pair of methods in one measure."""
    label = " − ".join(VARIANTS[method].label for method in lines[0].methods)
    colour, mark = _STYLE[lines[0].methods[0]]
    gaps = [line.gaps[name] for line in lines]
    points = [
        (float(line.epsilon) + shift, gap.mean) for line, gap in zip(lines, gaps, strict=True)
    ]
    limits = [(gap.mean - gap.half, gap.mean + gap.half) for gap in gaps]
    texts = [f"{label}, ε = {line.epsilon}: {_gap_text(name, line.gaps[name])}" for line in lines]
    return Series(label, colour, mark, points, texts, y_limits=limits)


def plot(summary: pd.DataFrame, title: str) -> Figure:
    """One panel per measure over ε; bars are one standard error; no privacy: a dashed line."""
    epsilons = sorted(summary.loc[summary["epsilon"] > 0, "epsilon"].unique())
    panels = [_panel(summary, name, epsilons) for name in MEASURES]
    seeds = int(summary["seeds"].max())
    note = f"Mean over {seeds} seed{'s' if seeds != 1 else ''}, bars ± one standard error"
    note += "".join(f"; {text}" for text in sorted(set(summary["dataset"].map(reading_of)))) + "."
    return Figure(title, panels, note=note, columns=len(panels))


def _panel(summary: pd.DataFrame, name: str, epsilons: Sequence[float]) -> Panel:
    """One measure: a series per method, and a bar per point."""
    series: list[Series] = []
    methods = [method for method in VARIANTS if method in set(summary["method"])]
    for number, method in enumerate(methods):
        rows = summary[summary["method"] == method]
        (colour, mark), label = _STYLE[method], VARIANTS[method].label
        if not rows["epsilon"].iloc[0]:
            level = rows[name].iloc[0]
            margin = 0.0 if len(epsilons) > 1 else 0.5  # a line needs two ends
            span = (epsilons[0] - margin, epsilons[-1] + margin) if epsilons else (0.0, 1.0)
            series.append(Series(label, colour, "", [(e, level) for e in span], dash=True))
            continue
        shift = 0.08 * (number - len(methods) / 2)  # so that bars do not hide each other
        points = list(zip(rows["epsilon"] + shift, rows[name], strict=True))
        errors = zip(rows[name], rows[f"{name}_se"], strict=True)
        bars = [(mean - error, mean + error) if error else None for mean, error in errors]
        texts = [
            f"{label}, ε = {row['epsilon']:g}: {_text(row, name)}" for _, row in rows.iterrows()
        ]
        series.append(Series(label, colour, mark, points, texts, line=True, y_limits=bars))
    return Panel(NAMES[name], "ε", NAMES[name], series, y_span=0.05, x_ticks=epsilons)


def write(records: Sequence[Mapping[str, Any]], folder: Path) -> list[Path]:
    """Write results.csv, tables, and one figure per data set; returns their paths."""
    summary = summarise(records)
    columns = ["dataset", "epsilon", "method", "seeds", *MEASURES, *(f"{n}_se" for n in MEASURES)]
    files = {"results.csv": summary[columns].to_csv(index=False, float_format="%.6g")}
    files["table.md"] = _markdown(_rows(summary))
    files["table-natural.md"] = _markdown(_rows(summarise(records, "natural")))
    files["differences.md"], gaps = differences(records), paired(records)
    for dataset, rows in summary.groupby("dataset"):
        short = Path(str(dataset)).name or "data"  # a user's folder: never a path out of `folder`
        title = f"{short}: {reading_of(str(dataset))}"
        files[f"{short}.svg"] = plot(rows, title).svg()
        lines = [line for line in gaps if line.dataset == dataset and line.methods in DRAWN]
        if lines:
            files[f"{short}-differences.svg"] = plot_differences(lines, title).svg()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            write_whole(folder / name, content.encode())
    except OSError as error:
        raise StorageError(f"{folder} could not be written: {error.strerror}") from None
    return [folder / name for name in files]
