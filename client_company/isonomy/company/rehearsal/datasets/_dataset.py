"""What a rehearsal needs of a data set: the company's columns, and the regulator's, kept apart.

Rows belong to the company, people to both. Where one person has several rows, `people` says which
row is whose; a split, a privacy guarantee and a noise floor then go by people, not by rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from isonomy.common.base.errors import DataError
from isonomy.common.people.cohort import AttributeTable, Cohort, as_text, group_labels, groups_in


@dataclass(frozen=True, eq=False)
class Dataset:
    """Features and labels by row, sensitive attributes by person.

    | field | indexed by | whose |
    |---|---|---|
    | `features`, `target` (0/1), `people` | row | company |
    | `ids` (unique) | person | both |
    | `attributes` (label or None), `groups` (the labels there are) | person | regulator |

    `people[row]` is a position in `ids`; None means that row i is person i. No attribute is ever a
    column of `features`.
    """

    name: str
    features: pd.DataFrame
    target: NDArray[np.int64]
    attributes: Mapping[str, Sequence[str | None]]
    groups: Mapping[str, tuple[str, ...]]
    ids: tuple[str, ...]
    people: NDArray[np.int64] | None
    notes: str
    source: str
    score: NDArray[np.float64] | None = None  # (rows,) the number that the target was cut from

    def __post_init__(self) -> None:
        rows, persons = len(self.features), len(self.ids)
        if not rows:
            raise DataError(f"{self.name}: no rows are left")
        if self.target.shape != (rows,) or not np.isin(self.target, (0, 1)).all():
            raise DataError(f"{self.name}: the target must be one 0 or 1 per row")
        if len(np.unique(self.target)) < 2:
            raise DataError(
                f"{self.name}: the target has one class only; there is nothing to learn"
            )
        if not len(self.features.columns):
            raise DataError(f"{self.name}: no features are left beside target and attribute")
        if len(set(self.ids)) != persons:
            raise DataError(f"{self.name}: ids must be unique, one per person")
        if set(self.attributes) & set(self.features.columns):
            raise DataError(f"{self.name}: an attribute is among the features")
        if any(len(values) != persons for values in self.attributes.values()):
            raise DataError(f"{self.name}: attributes are given once per person ({persons})")
        whose = self.person_of_row
        if whose.shape != (rows,) or whose.min() < 0 or whose.max() >= persons:
            raise DataError(f"{self.name}: each row needs a person among the {persons} ids")

    def __len__(self) -> int:
        return len(self.features)

    @property
    def person_of_row(self) -> NDArray[np.int64]:
        """(rows,) position in `ids` of each row's person."""
        return np.arange(len(self.features)) if self.people is None else self.people

    def labels(self, expression: str) -> tuple[str, ...]:
        """Group labels of an attribute or an intersection such as "sex*race"."""
        return group_labels(expression, self.groups)

    def codes(self, expression: str) -> NDArray[np.int64]:
        """(rows,) group number of each row, numbered as the oracle numbers groups."""
        table = AttributeTable(Cohort.of(self.ids), self.attributes, self.groups)
        return table.codes(expression)[self.person_of_row]


def dataset_of(
    *,
    name: str,
    features: pd.DataFrame,
    target: Any,
    values: Mapping[str, pd.Series],
    groups: Mapping[str, tuple[str, ...]] | None = None,
    ids: pd.Series | None = None,
    notes: str,
    source: str,
    score: Any = None,
) -> Dataset:
    """A data set from columns by row; returns it with one value of each attribute per person.

    `ids` says whose row it is; without, every row is a person of their own, by number. `groups`:
    the labels there are; without, those that somebody has, and "not stated" if somebody has none.
    """
    if ids is None:
        stem, width = name.split(".")[0], len(str(max(len(features) - 1, 1)))
        persons = tuple(f"{stem}-{number:0{width}d}" for number in range(len(features)))
        first, whose = np.arange(len(features)), None
    else:
        unique, first, people = np.unique(
            ids.to_numpy().astype(str), return_index=True, return_inverse=True
        )
        persons = tuple(map(str, unique))
        whose = None if np.array_equal(people, np.arange(len(persons))) else people
    attributes: dict[str, list[str | None]] = {}
    for attribute, column in values.items():
        labels = as_text(attribute, column)
        attributes[attribute] = [labels[row] for row in first]
        if whose is not None and [attributes[attribute][person] for person in whose] != labels:
            raise DataError(f"rows of one person have different values of {attribute!r}")
    present = {attribute: groups_in(labels) for attribute, labels in attributes.items()}
    return Dataset(
        name=name,
        features=features.reset_index(drop=True),
        target=np.asarray(target).astype(np.int64),
        attributes=attributes,
        groups=groups or present,
        ids=persons,
        people=whose,
        notes=notes,
        source=source,
        score=None if score is None else np.asarray(score, dtype=np.float64),
    )
