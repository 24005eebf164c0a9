"""Fairness notions as events: whose rate of what must not depend on the group.

    violation = max over events e, groups a, b of  | r_ae − r_be |,    r_ae = E[ z_e | A = a, M_e ]

| notion | events: members M_e, statistic z_e |
|---|---|
| demographic_parity | everybody, 1[ŷ = c] for each class c (one event when there are two classes) |
| equal_opportunity | y = 1, 1[ŷ = 1] |
| equal_fpr | y = 0, 1[ŷ = 1] |
| equalized_odds | both of these |
| accuracy_parity | everybody, 1[ŷ ≠ y] |

Labels and decisions are class numbers 0..K−1. Several notions at once are just more events, each
with its own tolerance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from isonomy.common.agreements.notions import NOTIONS
from isonomy.common.base.errors import ConfigError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Event:
    """One rate that must be equal across groups, up to a tolerance."""

    name: str
    statistic: Literal["chosen", "wrong"]
    tolerance: float
    label: int | None = None  # members: people with this label; None: everybody
    choice: int = 1  # the class whose choice is counted

    def members(self, y: Ints) -> NDArray[np.bool_]:
        return np.ones(len(y), dtype=bool) if self.label is None else y == self.label

    def happened(self, decided: Ints, y: Ints) -> Floats:
        """(n,) z_e as 0 / 1."""
        z = decided == self.choice if self.statistic == "chosen" else decided != y
        return np.asarray(z, dtype=np.float64)

    @property
    def by_label(self) -> bool:
        """Whether the proxy must know the label, P(A | x, y)."""
        return self.label is not None or self.statistic == "wrong"


def events_of(
    notion: str | Sequence[str], tolerance: float | Mapping[str, float], classes: int
) -> tuple[Event, ...]:
    """The events of one or several notions, each with its notion's tolerance."""
    names = (notion,) if isinstance(notion, str) else tuple(notion)
    unknown = [name for name in names if name not in NOTIONS]
    if unknown or not names or len(set(names)) != len(names):
        raise ConfigError(
            f"notion must be one or several, each once, of {', '.join(NOTIONS)}; got {notion!r}"
        )
    if classes > 2 and set(names) & {"equalized_odds", "equal_opportunity", "equal_fpr"}:
        raise ConfigError(
            f"{classes} classes: these notions need a positive class. demographic_parity and "
            "accuracy_parity work for several classes."
        )
    return tuple(
        event for name in names for event in _events(name, tolerance_of(name, tolerance), classes)
    )


def tolerance_of(notion: str, tolerance: float | Mapping[str, float]) -> float:
    """The tolerance of one notion; 0 means: as small as the audits can tell."""
    if isinstance(tolerance, Mapping):
        if notion not in tolerance:
            raise ConfigError(f"tolerance names no value for {notion!r}")
        tolerance = tolerance[notion]
    try:
        value = float(tolerance)
    except (TypeError, ValueError):
        value = float("nan")
    if not 0 <= value < 1:
        raise ConfigError(
            f"tolerance must be at least 0 and below 1, got {tolerance!r}: it is the largest "
            "difference of two groups' rates that you accept (0.01 = one point)"
        )
    return value


def _events(notion: str, tolerance: float, classes: int) -> tuple[Event, ...]:
    """The events of one notion."""
    if notion == "accuracy_parity":
        return (Event("wrong", "wrong", tolerance),)
    if notion == "demographic_parity":
        if classes == 2:
            return (Event("selected", "chosen", tolerance),)
        return tuple(
            Event(f"class {c} chosen", "chosen", tolerance, choice=c) for c in range(classes)
        )
    opportunity = Event("selected | y = 1", "chosen", tolerance, label=1)
    false_alarm = Event("selected | y = 0", "chosen", tolerance, label=0)
    return {
        "equal_opportunity": (opportunity,),
        "equal_fpr": (false_alarm,),
        "equalized_odds": (false_alarm, opportunity),
    }[notion]


def centred(
    events: Sequence[Event], decided: Ints, y: Ints, weight: Floats
) -> tuple[Floats, Floats]:
    """(n, events) u = M·(z − pooled rate), and the pooled rates (events,). u adds up to 0."""
    columns, rates = [], []
    for event in events:
        members = event.members(y) * weight
        z = event.happened(decided, y)
        rate = float(members @ z / members.sum()) if members.any() else 0.0
        columns.append(np.where(members > 0, z - rate, 0.0))
        rates.append(rate)
    return np.column_stack(columns), np.array(rates)
