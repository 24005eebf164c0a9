"""Results of many runs as a table, as CSV and as figures, with standard errors over the seeds.

A summary is a data frame with one row per data set, ε and method: `seeds`, the mean of each measure
and its standard error (`accuracy_se`, …; 0 with one seed).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from rich.table import Table

from isonomy.common.base.errors import StorageError
from isonomy.common.base.private_files import write_whole
from isonomy.common.figures import style
from isonomy.common.figures.figure import Figure
from isonomy.common.figures.panels import Panel, Series
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


def differences(records: Iterable[Mapping[str, Any]], reading: str = "balanced") -> str:
    """Paired by seed, because seeds differ more than methods: first minus second, mean ± SE.

    Accuracy as it is; unfairness as distances |GF − 1| and |EO|, so that below 0 is fairer.
    Returns a table in Markdown, of the pairs that share two seeds or more.
    """
    frame = _frame(records, reading)
    frame = frame.assign(gf=(frame["gf"] - 1).abs(), eo=frame["eo"].abs())
    rows = [["ε", "methods", "seeds", "accuracy", "\\|GF − 1\\|", "\\|EO\\|"]]
    for _, runs in frame[frame["epsilon"] > 0].groupby(["dataset", "epsilon"]):
        epsilon = f"{runs['epsilon'].iloc[0]:g}"
        by_method = {name: run.set_index("seed")[MEASURES] for name, run in runs.groupby("method")}
        for first, second in PAIRS:
            if first not in by_method or second not in by_method:
                continue
            gaps = (by_method[first] - by_method[second]).dropna()
            if len(gaps) > 1:
                means, errors = gaps.mean(), gaps.sem()
                texts = [f"{means[name]:+.3f} ± {errors[name]:.3f}" for name in MEASURES]
                names = f"{VARIANTS[first].label} − {VARIANTS[second].label}"
                rows.append([epsilon, names, str(len(gaps)), *texts])
    return _markdown(rows)


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
    files["differences.md"] = differences(records)
    for dataset, rows in summary.groupby("dataset"):
        short = Path(str(dataset)).name or "data"  # a user's folder: never a path out of `folder`
        files[f"{short}.svg"] = plot(rows, f"{short}: {reading_of(str(dataset))}").svg()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            write_whole(folder / name, content.encode())
    except OSError as error:
        raise StorageError(f"{folder} could not be written: {error.strerror}") from None
    return [folder / name for name in files]
