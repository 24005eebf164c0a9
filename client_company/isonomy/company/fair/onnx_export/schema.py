"""Which columns a model takes: names and kinds, without keeping a single value.

ONNX inputs have types, so an export must know which columns hold text. `FairClassifier.fit` notes
it, and a saved model keeps it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from isonomy.common.base.errors import DataError

Kind = Literal["number", "text", "other"]

MISSING_TEXT = ""  # ONNX has no missing text
MATRIX = "X"  # the one input of a model that was fitted on an array of numbers

_NUMBERS = {"integer", "floating", "mixed-integer-float", "boolean", "decimal"}


@dataclass(frozen=True)
class Schema:
    """Columns in order. `named`: fitted on a table with column names."""

    names: tuple[str, ...]
    kinds: tuple[Kind, ...]
    named: bool

    @classmethod
    def of(cls, X: Any) -> Schema:
        if hasattr(X, "toarray"):  # a sparse matrix holds numbers: no need to spread it out
            return cls(tuple(map(str, range(X.shape[1]))), ("number",) * X.shape[1], named=False)
        frame = _frame(X)
        names = tuple(str(name) for name in frame.columns)
        kinds = tuple(_kind(frame.iloc[:, i]) for i in range(frame.shape[1]))
        named = isinstance(X, pd.DataFrame) and all(isinstance(n, str) for n in frame.columns)
        return cls(names, kinds, named)

    @property
    def one_matrix(self) -> bool:
        """Whether there is one input: numbers only, in columns 0, 1, 2, …"""
        counted = self.names == tuple(map(str, range(len(self.names))))
        return not self.named and counted and all(kind == "number" for kind in self.kinds)

    def inputs(self, X: Any) -> dict[str, NDArray[Any]]:
        """What onnxruntime is fed for X: numbers as double, text with "" for what is missing."""
        frame = _frame(X)
        if frame.shape[1] != len(self.names):
            raise DataError(f"X has {frame.shape[1]} columns; the model takes {len(self.names)}")
        if self.one_matrix:
            return {MATRIX: frame.to_numpy(dtype=np.float64, na_value=np.nan)}
        feeds: dict[str, NDArray[Any]] = {}
        for i, (name, kind) in enumerate(zip(self.names, self.kinds, strict=True)):
            series = frame[name] if self.named else frame.iloc[:, i]
            if kind == "text":
                text = series.astype(object).map(str).to_numpy(dtype=object)
                text[series.isna().to_numpy(dtype=bool)] = MISSING_TEXT
                feeds[name] = text.reshape(-1, 1)
            else:
                numbers = series.to_numpy(dtype=np.float64, na_value=np.nan)
                feeds[name] = numbers.reshape(-1, 1)
        return feeds


def inputs_of(X: Any) -> dict[str, NDArray[Any]]:
    """The inputs of an exported model for a table, by the types of its columns."""
    return Schema.of(X).inputs(X)


def _frame(X: Any) -> pd.DataFrame:
    if hasattr(X, "toarray"):
        X = X.toarray()
    return X if isinstance(X, pd.DataFrame) else pd.DataFrame(np.asarray(X))


def _kind(series: pd.Series[Any]) -> Kind:
    if pd.api.types.is_bool_dtype(series) or pd.api.types.is_numeric_dtype(series):
        return "number"
    values = series
    if isinstance(series.dtype, pd.CategoricalDtype):
        values = pd.Series(series.dtype.categories)
    content = pd.api.types.infer_dtype(values, skipna=True)
    if content in ("string", "empty"):
        return "text"
    is_object = pd.api.types.is_object_dtype(series)
    return "number" if is_object and content in _NUMBERS else "other"
