"""What happened in each round, as a table. Every fairness figure in it is a noised release."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from isonomy.company.gradient.run.strategy import RoundRecord


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


__all__ = ["History"]
