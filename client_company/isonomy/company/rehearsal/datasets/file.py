"""A user's own table: a CSV or Parquet file with a target column and an attribute column."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from isonomy.common.base.errors import DataError
from isonomy.common.people.cohort import INTERSECTION
from isonomy.common.sums.local import MAX_GROUPS
from isonomy.company.rehearsal.datasets._dataset import Dataset, dataset_of
from isonomy.company.rehearsal.datasets._source import read_csv

SUFFIXES = (".csv", ".csv.gz", ".parquet")
# What pandas and pyarrow raise for files that are damaged.
_UNREADABLE = (
    *(OSError, ValueError, EOFError, ImportError, LookupError, TypeError, AttributeError),
    *(ArithmeticError, RuntimeError, MemoryError),
)
# Pairs whose favourable label is obvious; any other pair needs --positive.
KNOWN_PAIRS = (
    {"0", "1"}, {"0.0", "1.0"}, {"false", "true"}, {"no", "yes"}, {"n", "y"},
)  # fmt: skip
POSITIVE_LABELS = ("1", "1.0", "true", "yes", "y")


def is_file_name(name: str) -> bool:
    """Is this a path to a table rather than the name of a data set?"""
    return name.lower().endswith(SUFFIXES)


def from_file(
    path: Path,
    *,
    target: str | None,
    attribute: str | None,
    positive: str | None = None,
    id_column: str | None = None,
) -> Dataset:
    """A table with one row per person, or several if `id_column` names whose row it is.

    `attribute` is a column, or several joined by "*"; it is never a feature. Rows without a target
    are dropped; people without a value of the attribute are its group "not stated".
    """
    frame = _read(path)
    if not target or not attribute:
        raise DataError(f"{path}: name the columns with --target and --attribute")
    names = tuple(attribute.split(INTERSECTION))
    columns = [target, *names, *([id_column] if id_column else [])]
    absent = [name for name in columns if name not in frame.columns]
    if absent:
        raise DataError(
            f"{path} has no column {', '.join(map(repr, absent))}; it has "
            f"{', '.join(map(str, frame.columns[:20]))}"
        )
    if len(set(columns)) != len(columns):
        raise DataError("target, attribute and id must be different columns")
    labelled = frame[frame[target].notna()].reset_index(drop=True)
    if id_column is not None and labelled[id_column].isna().any():
        raise DataError(f"column {id_column!r} has rows without an id")
    dataset = dataset_of(
        name=path.name,
        features=labelled.drop(columns=columns),
        target=_target(labelled[target], positive),
        values={name: labelled[name] for name in names},
        ids=None if id_column is None else labelled[id_column].astype(str).str.strip(),
        notes=f"{len(frame) - len(labelled):,} rows without a target dropped.",
        source=str(path),
    )
    for name, groups in dataset.groups.items():
        if not 2 <= len(groups) <= MAX_GROUPS:
            raise DataError(
                f"attribute {name!r} has {len(groups)} values; groups need 2 to {MAX_GROUPS}: bin "
                "a numeric column first"
            )
    return dataset


def _read(path: Path) -> pd.DataFrame:
    if not path.is_file():
        raise DataError(f"{path} does not exist")
    try:
        if path.suffix.lower() == ".parquet":
            frame = pd.read_parquet(path)
            for _, column in frame.items():
                if column.dtype == object:  # bytes that are no text: now, not in the middle of use
                    column.astype(str)
            return frame
        return read_csv(path)
    except _UNREADABLE as error:
        raise DataError(f"{path} cannot be read as a table ({type(error).__name__})") from None


def _target(column: pd.Series, positive: str | None) -> NDArray[np.int64]:
    """(rows,) 1 for the favourable class, 0 for the other."""
    values = column.astype(str).str.strip()
    classes = sorted(values.unique())
    if len(classes) != 2:
        raise DataError(f"target {column.name!r} needs two classes, it has {len(classes)}")
    if positive is None:
        if {value.lower() for value in classes} not in KNOWN_PAIRS:
            raise DataError(
                f"target {column.name!r} is {classes[0]!r} or {classes[1]!r}: say with --positive "
                "which one is the favourable outcome"
            )
        positive = next(value for value in classes if value.lower() in POSITIVE_LABELS)
    if positive not in classes:
        either = " or ".join(classes)
        raise DataError(f"target {column.name!r} is never {positive!r}; it is {either}")
    return np.asarray((values == positive).to_numpy(), dtype=np.int64)
