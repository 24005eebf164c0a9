"""What an audit counts: people by (label, decision), and how an audit is named in the ledger.

One open group sum of one-hot rows answers every question at once. A person's row has norm 1
whatever the number of cells, so all rates cost as much privacy as one count would.

| cells | columns, in this order | rates |
|---|---|---|
| `yd` | y=0 d=0, y=0 d=1, y=1 d=0, y=1 d=1 | all |
| `d` (no labels) | d=0, d=1 | selection rate |

The query declares itself as an audit (privacy.declarations.Audit), so that the regulator builds the
audit again from its own ledger. The last group of a release is the total minus the others, so the
declaration carries the totals per cell.
"""

from __future__ import annotations

from dataclasses import dataclass

from isonomy.common.privacy.declarations import CELL_NAMES, Cells


@dataclass(frozen=True)
class Measure:
    """A rate: people in the cells `hits` out of those in the cells `among` (hits ⊂ among)."""

    name: str
    hits: tuple[int, ...]
    among: tuple[int, ...]


MEASURES: dict[Cells, tuple[Measure, ...]] = {
    "yd": (
        Measure("selection_rate", (1, 3), (0, 1, 2, 3)),
        Measure("true_positive_rate", (3,), (2, 3)),
        Measure("false_positive_rate", (1,), (0, 1)),
        Measure("accuracy", (0, 3), (0, 1, 2, 3)),
    ),
    "d": (Measure("selection_rate", (1,), (0, 1)),),
}

# Fairness notion -> the rates whose largest difference between groups it is.
NOTION_RATES: dict[str, tuple[str, ...]] = {
    "demographic_parity": ("selection_rate",),
    "equal_opportunity": ("true_positive_rate",),
    "equal_fpr": ("false_positive_rate",),
    "equalized_odds": ("true_positive_rate", "false_positive_rate"),
    "accuracy_parity": ("accuracy",),
}


def notions_of(cells: Cells) -> dict[str, tuple[str, ...]]:
    """The notions that these cells can tell about."""
    rates = {measure.name for measure in MEASURES[cells]}
    return {notion: names for notion, names in NOTION_RATES.items() if rates.issuperset(names)}


__all__ = ["CELL_NAMES", "MEASURES", "NOTION_RATES", "Cells", "Measure", "notions_of"]
