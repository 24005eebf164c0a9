"""From single cells to what is compared: means over seeds, and fronts.

The tidy table says all that is used of a cell, so cells can be read from it again.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from isonomy.company.compare.benchmark.cells import Cell
from isonomy.company.compare.benchmark.methods import method

_MEASURES = (
    "test_error", "test_violation", "base_error", "base_violation", "noise_floor", "epsilon_spent",
    "selection_rate", "base_selection_rate", "group_fairness", "equalized_odds_sum", "seconds",
)  # fmt: skip
_LAST = ("returned", "attribute_at_prediction", "accounting", "wall_seconds", "version", "key")
_DIGITS = 6  # of a measure in the table: far below what a seed moves
_SETTINGS = [
    "dataset", "attribute", "notion", "strategy", "base", "epsilon", "tolerance", "options",
]  # fmt: skip
_AVERAGED = {  # field of a mean → measure of its cells
    "error": "test_error",
    "violation": "test_violation",
    "floor": "noise_floor",
    "group_fairness": "group_fairness",
    "odds_sum": "equalized_odds_sum",
    "seconds": "seconds",
}


def tidy(records: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """One row per finished cell: every setting, then every measure."""
    rows = []
    for record in records:
        if record["status"] != "ok":
            continue
        cell = dict(record["cell"])
        options = " ".join(f"{name}={value}" for name, value in cell.pop("options").items())
        measured = {name: record.get(name) for name in (*_MEASURES, *_LAST)}
        rows.append({**cell, "options": options, **measured})
    names = [name for name in Cell.__dataclass_fields__ if name != "options"]
    frame = pd.DataFrame(rows, columns=[*names, "options", *_MEASURES, *_LAST])
    frame = frame.astype(dict.fromkeys(("epsilon", *_MEASURES), float))
    return frame.round(dict.fromkeys(_MEASURES, _DIGITS))


def records_of(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The cells of a tidy table, which `tidy` turns into the same table; KeyError: another one."""
    records = []
    for row in frame.replace({np.nan: None}).to_dict("records"):
        options = (option.split("=", 1) for option in (row["options"] or "").split())
        cell = {name: row[name] for name in Cell.__dataclass_fields__}
        cell["options"] = {name: _value(text) for name, text in options}
        measured = {name: row[name] for name in (*_MEASURES, *_LAST)}
        measured["accounting"] = row["accounting"] or ""
        records.append({"status": "ok", "cell": cell, **measured})
    return records


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


@dataclass(frozen=True)
class Mean:
    """One method at one setting: means over its seeds."""

    dataset: str
    attribute: str
    notion: str
    strategy: str
    base: str
    epsilon: float | None
    tolerance: float
    options: str
    error: float
    violation: float
    floor: float
    group_fairness: float
    odds_sum: float
    seconds: float
    by_seed: tuple[tuple[int, float, float], ...]  # (seed, error, violation)

    @property
    def seeds(self) -> int:
        return len(self.by_seed)

    @property
    def where(self) -> tuple[str, str, str]:
        return (self.dataset, self.attribute, self.notion)

    @property
    def is_tilt(self) -> bool:
        """The method designed here; every other private one is a competitor, also in our code."""
        return method(self.strategy).designed_here


def means(frame: pd.DataFrame) -> list[Mean]:
    """Cells that differ in the seed only become one; order of first appearance."""
    result = []
    for _, cells in frame.groupby(_SETTINGS, sort=False, dropna=False):
        fields: dict[str, Any] = {name: cells.iloc[0][name] for name in _SETTINGS}
        fields["epsilon"] = None if np.isnan(fields["epsilon"]) else float(fields["epsilon"])
        fields |= {name: float(cells[measure].mean()) for name, measure in _AVERAGED.items()}
        by_seed = zip(cells["seed"], cells["test_error"], cells["test_violation"], strict=True)
        fields["by_seed"] = tuple(sorted((int(s), float(e), float(v)) for s, e, v in by_seed))
        result.append(Mean(**fields))
    return result


def front(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The (violation, error) points that no other one beats in both, from left to right."""
    best: list[tuple[float, float]] = []
    for violation, error in sorted(set(points)):
        if not best or error < best[-1][1]:
            best.append((violation, error))
    return best
