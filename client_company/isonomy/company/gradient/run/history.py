"""What happened in each round, as a table. Every fairness figure in it is a noised release."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from isonomy.common.figures.figure import Figure
from isonomy.common.figures.panels import Level, Panel, Series
from isonomy.common.figures.style import GREEN, MARKS, SERIES
from isonomy.company.gradient.run.paper_epsilon import GUARANTEE, NOT_A_GUARANTEE
from isonomy.company.gradient.run.strategy import RoundRecord

_VIOLATION = "released violation ± 2 deviations of its noise"
_EPSILONS = {
    "epsilon_spent": "ε spent",
    "epsilon_as_in_papers": f"ε {NOT_A_GUARANTEE}",
    "epsilon_records": f"ε {GUARANTEE}",
}
_MOST_NAMES = 8


@dataclass
class History:
    """One record per round, oldest first."""

    records: list[RoundRecord] = field(default_factory=list)
    groups: tuple[str, ...] = ()
    events: tuple[str, ...] = ()
    symbol: str = "λ"  # what the strategy's multipliers are called

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[RoundRecord]:
        return iter(self.records)

    def __getitem__(self, index: int) -> RoundRecord:
        return self.records[index]

    def append(self, record: RoundRecord) -> None:
        self.records.append(record)

    def table(self) -> pd.DataFrame:
        """Round, loss, released violation, ε spent, seconds, and one column per multiplier."""
        rows = []
        for record in self.records:
            row: dict[str, Any] = {
                "round": record.round,
                "loss": record.loss,
                "violation": record.violation,
                "deviation": record.deviation,
                "epsilon_spent": record.epsilon_spent,
                "seconds": record.seconds,
                **record.extra,
            }
            for group, multipliers in enumerate(np.atleast_2d(record.multipliers)):
                for event, value in enumerate(multipliers):
                    row[f"{self.symbol}[{self._group(group)}, {self._event(event)}]"] = float(value)
            rows.append(row)
        return pd.DataFrame(rows)

    def plot(self, *, cap_epsilon: float | None = None, tolerance: float | None = None) -> Figure:
        """Loss, released violation, multipliers and ε over the rounds.

        `tolerance` and `cap_epsilon` are lines to compare the violation and ε with.
        """
        table = self.table()
        multipliers = [name for name in table.columns if name.startswith(f"{self.symbol}[")]
        aim = [Level(tolerance, f"tolerance {tolerance:g}", "y", colour=GREEN)] if tolerance else []
        cap = [Level(cap_epsilon, f"ε certified: {cap_epsilon:.3g}", "y")] if cap_epsilon else []
        panels = [
            _panel("loss", "loss", table, {"loss": "loss"}),
            _panel(_VIOLATION, "violation", table, {"violation": "released violation"}, aim),
            _panel(
                f"multipliers {self.symbol}",
                self.symbol,
                table,
                dict(zip(multipliers, multipliers, strict=True)),
            ),
            _panel("privacy", "ε", table, _EPSILONS, cap),
        ]
        return Figure(f"{len(self)} rounds of training", panels)

    def to_json(self) -> list[dict[str, Any]]:
        """Plain numbers, for checkpoints."""
        return [
            asdict(record) | {"multipliers": record.multipliers.tolist()} for record in self.records
        ]

    @classmethod
    def from_json(
        cls, rows: Sequence[dict[str, Any]], groups: Sequence[str] = (), events: Sequence[str] = ()
    ) -> History:
        records = [
            RoundRecord(**{**row, "multipliers": np.array(row["multipliers"], dtype=np.float64)})
            for row in rows
        ]
        return cls(records, tuple(groups), tuple(events))

    def _group(self, index: int) -> str:
        return self.groups[index] if index < len(self.groups) else str(index)

    def _event(self, index: int) -> str:
        return self.events[index] if index < len(self.events) else str(index)


def _panel(
    title: str,
    y_label: str,
    table: pd.DataFrame,
    names: Mapping[str, str],
    levels: Sequence[Level] = (),
) -> Panel:
    """Columns of the table over the rounds: name of the column → label."""
    present = {name: label for name, label in names.items() if name in table}
    series = []
    for number, (name, label) in enumerate(present.items()):
        values = [float(value) for value in table[name]]
        noise = [2 * float(d) for d in table["deviation"]] if name == "violation" else []
        limits = [
            (value - margin, value + margin) if np.isfinite(margin) else None
            for value, margin in zip(values, noise, strict=False)
        ]
        texts = [
            f"{label}, round {r}: {v:.4g}" for r, v in zip(table["round"], values, strict=True)
        ]
        points = list(zip(table["round"], values, strict=True))
        # One line is named by its panel; of many, a name shows under the mouse.
        shown = label if 1 < len(present) <= _MOST_NAMES else ""
        place = ~number if names is _EPSILONS else number  # other colours than the multipliers'
        colour, mark = SERIES[place % len(SERIES)], MARKS[place % len(MARKS)]
        series.append(Series(shown, colour, mark, points, texts, line=True, y_limits=limits))
    empty = not any(np.isfinite(y) for one in series for _, y in one.points)
    # Under record privacy a loss would tell about records.
    message = ("not released" if len(table) else "no round yet") if empty else ""
    return Panel(title, "round", y_label, series, levels=levels, message=message)
