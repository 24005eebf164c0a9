"""What an audit counts: people by (label, decision), and how an audit is named in the ledger.

One open group sum of one-hot rows answers every question at once. A person's row has norm 1
whatever the number of cells, so all rates cost as much privacy as one count would.

| cells | columns, in this order | rates |
|---|---|---|
| `yd` | y=0 d=0, y=0 d=1, y=1 d=0, y=1 d=1 | all |
| `d` (no labels) | d=0, d=1 | selection rate |

The query's purpose says what it is, so that the regulator rebuilds the audit from its own ledger:

    audit:v1:NAME:CELLS:TOTALS:SELECTED       e.g.  audit:v1:before:yd:9012/688/2420/2880:1

TOTALS are the people per cell over all groups. They are the company's word (labels and decisions
are its data), given *before* it sees the answer and bound by the request's hash. The last group of
a release is the total minus the others, so the regulator needs them. SELECTED names the decision
that counts as d = 1.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from isonomy.common.base.errors import ConfigError

Cells = Literal["yd", "d"]
PREFIX = "audit:v1:"
UNKNOWN_TOTALS = "-"  # several companies: nobody knows the joint totals before the answer
CELL_NAMES: dict[Cells, tuple[str, ...]] = {
    "yd": ("y=0 d=0", "y=0 d=1", "y=1 d=0", "y=1 d=1"),
    "d": ("d=0", "d=1"),
}
_NAME = re.compile(r"[a-z0-9][a-z0-9 ._-]{0,23}")
_SELECTED = re.compile(r"[^:\x00-\x1f\x7f]{1,32}")
_TOTAL = re.compile(r"(?:0|[1-9][0-9]{0,8})(?:\.[0-9]{3})?")  # up to a thousand million people


@dataclass(frozen=True)
class Measure:
    """A rate: people in the cells `hits` out of those in the cells `among` (hits ⊂ among)."""

    name: str
    words: str
    hits: tuple[int, ...]
    among: tuple[int, ...]


MEASURES: dict[Cells, tuple[Measure, ...]] = {
    "yd": (
        Measure("selection_rate", "selected", (1, 3), (0, 1, 2, 3)),
        Measure("true_positive_rate", "selected, of those with label 1", (3,), (2, 3)),
        Measure("false_positive_rate", "selected, of those with label 0", (1,), (0, 1)),
        Measure("accuracy", "decided as labelled", (0, 3), (0, 1, 2, 3)),
    ),
    "d": (Measure("selection_rate", "selected", (1,), (0, 1)),),
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
    known = {measure.name for measure in MEASURES[cells]}
    return {notion: names for notion, names in NOTION_RATES.items() if known.issuperset(names)}


@dataclass(frozen=True)
class AuditPurpose:
    """The structured purpose of an audit's query."""

    name: str
    cells: Cells
    totals: tuple[float, ...] | None
    selected: str

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ConfigError(
                f"an audit's name has 1 to 24 lower-case letters, digits, blanks, dots or dashes; "
                f"got {self.name!r}"
            )
        if not _SELECTED.fullmatch(self.selected) or not self.selected.isprintable():
            raise ConfigError(
                f"the selected class must be printed in at most 32 characters without ':', got "
                f"{self.selected!r}; rename it"
            )
        if self.totals is not None and len(self.totals) != len(CELL_NAMES[self.cells]):
            raise ConfigError(f"cells {self.cells!r} need {len(CELL_NAMES[self.cells])} totals")

    def __str__(self) -> str:
        totals = UNKNOWN_TOTALS
        if self.totals is not None:
            totals = "/".join(_number(total) for total in self.totals)
        return f"{PREFIX}{self.name}:{self.cells}:{totals}:{self.selected}"

    @classmethod
    def parse(cls, purpose: str) -> AuditPurpose | None:
        """Read a purpose; None for what is not an audit. Total: anything odd is not an audit."""
        if not purpose.startswith(PREFIX):
            return None
        fields = purpose[len(PREFIX) :].split(":")
        if len(fields) != 4:
            return None
        name, cells, totals, selected = fields
        if cells not in ("yd", "d"):
            return None
        kind: Cells = "yd" if cells == "yd" else "d"
        numbers = None
        if totals != UNKNOWN_TOTALS:
            parts = totals.split("/")
            if not all(_TOTAL.fullmatch(part) for part in parts):
                return None
            numbers = tuple(float(part) for part in parts)
        try:
            found = cls(name, kind, numbers, selected)
        except ConfigError:
            return None
        return found if str(found) == purpose else None


def _number(total: float) -> str:
    """A count; people with several rows make it a fraction, written to thousandths."""
    return str(int(total)) if float(total).is_integer() else f"{total:.3f}"
