"""Fairness notions as events: whose rate of what must not depend on the group.

    violation = max over events e, groups a, b of  | r_ae − r_be |,    r_ae = E[ z_e | A = a, M_e ]

| notion | events: members M_e, statistic z_e |
|---|---|
| demographic_parity | everybody, 1[ŷ = c] for each class c |
| equalized_odds | y = l, 1[ŷ = c] for each label l and class c |
| equal_opportunity | y = f, 1[ŷ = f], f the favourable class |
| equal_fpr | y ≠ f, 1[ŷ = f] |
| accuracy_parity | everybody, 1[ŷ ≠ y] |

With two classes the rate of one class is 1 less the rate of the other, so only c = f is an event.
Labels and decisions are class numbers 0..K−1, the favourable class last. Several notions at once
are just more events. Tolerances are a matrix (attributes, events).
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
    statistic: Literal["chosen", "wrong", "above"]
    labels: tuple[int, ...] = ()  # members: people with one of these labels; none: everybody
    choice: int = 1  # the class whose choice is counted, or of "above": which must be exceeded

    def members(self, y: Ints) -> NDArray[np.bool_]:
        return np.isin(y, self.labels) if self.labels else np.ones(len(y), dtype=bool)

    def happened(self, decided: Ints, y: Ints) -> Floats:
        """(n,) z_e as 0 / 1."""
        if self.statistic == "above":
            return np.asarray(decided > self.choice, dtype=np.float64)
        z = decided == self.choice if self.statistic == "chosen" else decided != y
        return np.asarray(z, dtype=np.float64)

    def strata(self, count: int) -> list[int]:
        """The strata of the members, of `count`: one per label, or one for everybody."""
        return list(self.labels) if self.labels and count > 1 else list(range(count))

    @property
    def by_label(self) -> bool:
        """Whether the proxy must know the label, P(A | x, y)."""
        return bool(self.labels) or self.statistic == "wrong"


def events_of(notion: str | Sequence[str], classes: Sequence[object]) -> tuple[Event, ...]:
    """The events of one or several notions; classes: as readers know them, favourable last."""
    return tuple(event for name in _names(notion) for event in _events(name, classes))


def tolerances_of(
    notion: str | Sequence[str],
    tolerance: float | Mapping[str, float],
    classes: Sequence[object],
    attributes: Sequence[str],
) -> Floats:
    """(attributes, events) tolerances, from one value, or one for each notion or attribute."""
    names = _names(notion)
    by_name = {}
    if isinstance(tolerance, Mapping):
        if set(tolerance) not in (set(names), set(attributes)):
            raise ConfigError(
                f"tolerance names {', '.join(map(repr, tolerance)) or 'nothing'}; it needs one "
                f"value for each notion ({', '.join(names)}) or for each attribute "
                f"({', '.join(attributes)})"
            )
        by_name = {name: checked_tolerance(value) for name, value in tolerance.items()}
    else:
        by_name = dict.fromkeys(names, checked_tolerance(tolerance))
    return np.array(
        [
            [
                by_name[name if name in by_name else attribute]
                for name in names
                for _ in _events(name, classes)
            ]
            for attribute in attributes
        ]
    )


def _names(notion: str | Sequence[str]) -> tuple[str, ...]:
    names = (notion,) if isinstance(notion, str) else tuple(notion)
    unknown = [name for name in names if name not in NOTIONS]
    if unknown or not names or len(set(names)) != len(names):
        raise ConfigError(
            f"notion must be one or several, each once, of {', '.join(NOTIONS)}; got {notion!r}"
        )
    return names


def checked_tolerance(tolerance: object) -> float:
    """A tolerance; 0 means: as small as the audits can tell."""
    try:
        value = float(tolerance)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        value = float("nan")
    if not 0 <= value < 1:
        raise ConfigError(
            f"tolerance must be at least 0 and below 1, got {tolerance!r}: it is the largest "
            "difference of two groups' rates that you accept (0.01 = one point)"
        )
    return value


def _events(notion: str, classes: Sequence[object]) -> tuple[Event, ...]:
    """The events of one notion."""
    last = len(classes) - 1
    others = tuple(range(last))
    choices = (last,) if last == 1 else (*others, last)
    if notion == "accuracy_parity":
        return (Event("wrong", "wrong"),)
    if notion == "demographic_parity":
        return tuple(_chosen(c, (), classes) for c in choices)
    if notion == "equal_opportunity":
        return (_chosen(last, (last,), classes),)
    if notion == "equal_fpr":
        return (_chosen(last, others, classes),)
    return tuple(_chosen(c, (label,), classes) for label in (*others, last) for c in choices)


def _chosen(choice: int, labels: tuple[int, ...], classes: Sequence[object]) -> Event:
    name = "selected" if len(classes) == 2 else f"decision = {classes[choice]}"
    if labels:
        name += f" | y = {' or '.join(str(classes[label]) for label in labels)}"
    return Event(name, "chosen", labels, choice)


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
