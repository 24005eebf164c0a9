"""From a table to numbers: z-scores and one-hots of the company's columns.

| column | becomes |
|---|---|
| numbers, more than two values | (x − mean) / deviation, clipped to ±3; missing -> 0 |
| numbers, at most two values | 0 / 1 for the larger value; missing -> its mean |
| text, categories, booleans | one column per value, the 50 most frequent; the rest share one |
| anything with missing values | one more column that says so |

A table that was one-hot coded before passes unchanged, because its columns have two values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from isonomy.common.base.errors import DataError

Floats = NDArray[np.float64]

MAX_LEVELS = 50
Z_LIMIT = 3.0
REST = "\x00rest"


@dataclass(frozen=True)
class Columns:
    """A table as named columns, each all numbers (float) or all text (str, None = missing)."""

    values: dict[str, NDArray[Any]]
    length: int

    @classmethod
    def of(cls, X: Any) -> Columns:
        """From a pandas frame, a numpy array, a sparse matrix or a list of rows."""
        if isinstance(X, Columns):
            return X
        if hasattr(X, "toarray"):
            X = X.toarray()
        frame = X if isinstance(X, pd.DataFrame) else pd.DataFrame(_two_axes(X))
        if frame.shape[1] == 0 or len(frame) == 0:
            raise DataError(
                f"X has {len(frame)} rows and {frame.shape[1]} feature(s) (shape={frame.shape}) "
                "while a minimum of 1 is required."
            )
        names = [str(name) for name in frame.columns]
        if len(set(names)) != len(names):
            raise DataError("two columns of X have the same name; rename one of them")
        values = {name: _column(frame.iloc[:, i]) for i, name in enumerate(names)}
        return cls(values, len(frame))


def _two_axes(X: Any) -> NDArray[Any]:
    array = np.asarray(X)
    if array.ndim != 2:
        raise DataError(
            f"Expected 2D array, got {array.ndim}D array instead. Reshape your data: a row per "
            "person, a column per feature"
        )
    return array


def _column(series: pd.Series[Any]) -> NDArray[Any]:
    if pd.api.types.is_complex_dtype(series):
        raise DataError(f"Complex data not supported: column {series.name!r}")
    if pd.api.types.is_bool_dtype(series) or pd.api.types.is_numeric_dtype(series):
        numbers = series.to_numpy(dtype=np.float64, na_value=np.nan)
        return np.where(np.isfinite(numbers), numbers, np.nan)
    if pd.api.types.is_object_dtype(series):
        try:
            return _column(pd.to_numeric(series))
        except (TypeError, ValueError):
            pass
    missing = series.isna().to_numpy(dtype=bool)
    text = series.astype(object).map(str).to_numpy(dtype=object)
    text[missing] = None
    return text


@dataclass(frozen=True)
class Code:
    """How one column is coded. `levels` is empty for numbers."""

    name: str
    numeric: bool
    shift: float = 0.0
    scale: float = 1.0
    limit: float = Z_LIMIT
    levels: tuple[str, ...] = ()
    missing: bool = False

    @property
    def width(self) -> int:
        return (1 if self.numeric else len(self.levels)) + int(self.missing)


@dataclass(frozen=True)
class ColumnCoder:
    """The codes of all columns; `code(X)` gives (n, width) numbers."""

    codes: tuple[Code, ...]

    @property
    def width(self) -> int:
        return sum(code.width for code in self.codes)

    @classmethod
    def fit(cls, X: Any) -> ColumnCoder:
        columns = Columns.of(X)
        codes = (_fit_code(name, column) for name, column in columns.values.items())
        useful = tuple(code for code in codes if code.width)
        return cls(useful or (Code(next(iter(columns.values)), numeric=True, limit=0.0),))

    @classmethod
    def public(
        cls,
        ranges: Mapping[str, tuple[float, float]],
        levels: Mapping[str, Sequence[str]] | None = None,
    ) -> ColumnCoder:
        """From a data dictionary, without looking at anybody: ranges become ±1, levels columns.

        Numbers outside their range are cut to it, unlisted values are 0 everywhere.
        """
        codes = []
        for name, (low, high) in ranges.items():
            if not (np.isfinite(low) and np.isfinite(high) and low < high):
                raise DataError(f"column {name!r} needs a range (low, high), low < high")
            middle, half = (low + high) / 2, (high - low) / 2
            codes.append(Code(str(name), numeric=True, shift=middle, scale=half, limit=1.0))
        for name, values in (levels or {}).items():
            codes.append(Code(str(name), numeric=False, levels=tuple(map(str, values))))
        if not codes or any(code.width == 0 for code in codes):
            raise DataError("a data dictionary names columns, each with a range or with levels")
        return cls(tuple(codes))

    def code(self, X: Any) -> Floats:
        columns = Columns.of(X)
        unknown = [code.name for code in self.codes if code.name not in columns.values]
        if unknown:
            raise DataError(
                f"X lacks {len(unknown)} columns that were there in fit, e.g. {unknown[0]!r}"
            )
        coded = np.empty((columns.length, self.width))
        start = 0
        for code in self.codes:
            _write(code, columns.values[code.name], coded[:, start : start + code.width])
            start += code.width
        return coded


def _fit_code(name: str, column: NDArray[Any]) -> Code:
    """How this column is coded: by its levels, as 0 and 1, or as z-scores."""
    if column.dtype == object:
        levels, counts = np.unique(column[column != None].astype(str), return_counts=True)  # noqa: E711
        order = np.argsort(-counts, kind="stable")
        frequent = [str(level) for level in levels[order[:MAX_LEVELS]]]
        rest = [REST] if len(levels) > MAX_LEVELS else []
        missing = bool((column == None).any())  # noqa: E711
        return Code(name, numeric=False, levels=tuple(sorted(frequent) + rest), missing=missing)
    numbers = column[~np.isnan(column)]
    missing = len(numbers) < len(column)
    low, high = (float(numbers.min()), float(numbers.max())) if len(numbers) else (0.0, 0.0)
    if low == high:  # says nothing, except perhaps by being missing
        return Code(name, numeric=True, shift=low, limit=0.0, missing=missing)
    if np.isin(numbers, (low, high)).all():
        mean = (float(numbers.mean()) - low) / (high - low)
        shift = low + mean * (high - low)
        return Code(name, numeric=True, shift=shift, scale=high - low, limit=1.0, missing=missing)
    with np.errstate(over="ignore"):
        deviation = float(numbers.std())
    if not np.isfinite(deviation):
        raise DataError(f"column {name!r} holds numbers too large to standardise; scale it down")
    return Code(name, numeric=True, shift=float(numbers.mean()), scale=deviation, missing=missing)


def _write(code: Code, column: NDArray[Any], out: Floats) -> None:
    """Fill `out` (n, code.width) with the coded column."""
    if code.missing:
        is_text = column.dtype == object
        out[:, -1] = [value is None for value in column] if is_text else np.isnan(column)
    if code.numeric:
        if column.dtype == object:
            raise DataError(f"column {code.name!r} held numbers in fit and holds text now")
        scaled = (column - code.shift) / code.scale
        out[:, 0] = np.clip(np.nan_to_num(scaled, nan=0.0), -code.limit, code.limit)
        return
    text = column if column.dtype == object else np.array([str(value) for value in column])
    levels = set(code.levels)
    for position, level in enumerate(code.levels):
        if level == REST:
            out[:, position] = [value is not None and value not in levels for value in text]
        else:
            out[:, position] = text == level
