"""Preprocessing steps in double precision: what a pipeline does before its last step.

| step | as in ONNX |
|---|---|
| Pipeline, ColumnTransformer, passthrough | followed |
| OneHotEncoder | value -> its number -> a row of a constant table that the encoder itself made |
| SimpleImputer | where(isnan(x), statistic, x) |
| StandardScaler | (x − mean) / scale |
| any other on numbers | skl2onnx's converter (single precision; foreign.py) |
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler

from isonomy.company.fair.onnx_export._foreign import foreign_transformer
from isonomy.company.fair.onnx_export._graph import (
    BOOL,
    INT32,
    CannotConvert,
    Column,
    Graph,
    Matrix,
    Table,
    as_matrix,
    columns_of,
)
from isonomy.company.fair.onnx_export.schema import MISSING_TEXT


def transformed(graph: Graph, step: Any, value: Table | Matrix) -> Table | Matrix:
    """`step.transform(value)` as nodes of the graph."""
    if step is None or isinstance(step, str):
        if step == "drop":
            raise CannotConvert(
                "a step 'drop' of a pipeline has no ONNX form here; leave the step out"
            )
        return value
    if isinstance(step, FunctionTransformer) and step.func is None:
        return value
    if isinstance(step, Pipeline):
        for _, inner in step.steps:
            value = transformed(graph, inner, value)
        return value
    if isinstance(step, ColumnTransformer):
        return _columns(graph, step, value)
    if type(step) is OneHotEncoder:
        return _one_hot(graph, step, value)
    matrix = as_matrix(graph, value, step)
    if type(step) is SimpleImputer:
        return _filled(graph, step, matrix)
    if type(step) is StandardScaler:
        return _scaled(graph, step, matrix)
    return foreign_transformer(graph, step, matrix)


def _columns(graph: Graph, step: ColumnTransformer, value: Table | Matrix) -> Table | Matrix:
    columns = columns_of(graph, value)
    if any(weight != 1 for weight in (step.transformer_weights or {}).values()):
        raise CannotConvert("ColumnTransformer with transformer_weights")
    parts: list[Table | Matrix] = []
    for name, inner, _ in step.transformers_:
        # resolved by scikit-learn from names, numbers, masks or functions
        inputs = tuple(columns[i] for i in step._transformer_to_input_indices[name])
        if inputs and not (isinstance(inner, str) and inner == "drop"):
            parts.append(transformed(graph, inner, Table(inputs)))
    if not parts:
        raise CannotConvert("the ColumnTransformer keeps no column")
    matrices = [as_matrix(graph, part, step) for part in parts]
    return Matrix(graph.concat([m.tensor for m in matrices]), sum(m.width for m in matrices))


def _filled(graph: Graph, step: SimpleImputer, matrix: Matrix) -> Matrix:
    statistics = np.asarray(step.statistics_, dtype=np.float64)
    nan = isinstance(step.missing_values, float) and np.isnan(step.missing_values)
    if not nan or step.add_indicator or np.isnan(statistics).any():
        raise CannotConvert(
            "SimpleImputer with add_indicator, missing_values other than NaN or an empty column "
            "has no ONNX form here"
        )
    filled = graph.op(
        "Where", graph.op("IsNaN", matrix.tensor), graph.constant(statistics), matrix.tensor
    )
    return Matrix(filled, matrix.width)


def _scaled(graph: Graph, step: StandardScaler, matrix: Matrix) -> Matrix:
    tensor = matrix.tensor
    if step.with_mean:
        tensor = graph.op("Sub", tensor, graph.constant(step.mean_))
    if step.with_std:
        tensor = graph.op("Div", tensor, graph.constant(step.scale_))
    return Matrix(tensor, matrix.width)


# --- One-hot -----------------------------------------------------------------------------------


def _one_hot(graph: Graph, step: OneHotEncoder, value: Table | Matrix) -> Matrix:
    columns = columns_of(graph, value)
    blocks = _codes(step)
    parts = [
        graph.rows_by_number(_numbers(graph, column, categories, len(categories)), rows)
        for column, categories, rows in zip(columns, step.categories_, blocks, strict=True)
    ]
    return Matrix(graph.concat(parts), sum(rows.shape[1] for rows in blocks))


def _numbers(graph: Graph, column: Column, categories: NDArray[Any], other: int) -> str:
    """(n, 1) number of each value among the categories; `other` if it is none of them."""
    if column.kind == "text":
        keys = [MISSING_TEXT if _is_missing(c) else c for c in categories]
        if not all(isinstance(key, str) for key in keys) or len(set(keys)) != len(keys):
            raise CannotConvert(f"column {column.name!r} mixes text with numbers or empty text")
        if any(c == MISSING_TEXT for c in categories if isinstance(c, str)):
            raise CannotConvert(
                f"column {column.name!r} has the empty text as a category, which in ONNX stands "
                "for a missing value; give it a name"
            )
        return graph.text_numbers(column.tensor, keys, range(len(keys)), other)
    try:
        numbers = np.asarray(categories, dtype=np.float64).reshape(1, -1)
    except (TypeError, ValueError) as error:
        raise CannotConvert(f"column {column.name!r} has categories of another kind") from error
    # NaN is not equal to itself, so a missing number needs a comparison of its own.
    hit = graph.op("Equal", column.tensor, graph.constant(numbers))
    if np.isnan(numbers).any():
        gap = graph.op("And", graph.op("IsNaN", column.tensor), graph.constant(np.isnan(numbers)))
        hit = graph.op("Or", hit, gap)
    hit = graph.cast(hit, INT32)  # ArgMax and ReduceMax both take it
    some = graph.op("ReduceMax", hit, graph.constant(np.array([1])))
    number = graph.op("ArgMax", hit, axis=1, keepdims=1)
    return graph.op("Where", graph.cast(some, BOOL), number, graph.constant(np.array(other)))


def _codes(step: OneHotEncoder) -> list[NDArray[np.float64]]:
    """Per column: (categories + 1, width) the encoder's own rows, the last for unknown values.

    An encoder that refuses unknown values has no last row; the look-up then fails when run, as
    the encoder does.
    """
    first = [categories[0] for categories in step.categories_]
    start, blocks = 0, []
    for i, categories in enumerate(step.categories_):
        width = int(step._n_features_outs[i])
        probes: list[list[Any]] = [[*first[:i], c, *first[i + 1 :]] for c in categories]
        rows = _encoded(step, probes)[:, start : start + width]
        if step.handle_unknown != "error":
            unknown = "\x00unknown" if _holds_text(categories) else _unused_number(categories)
            last = _encoded(step, [[*first[:i], unknown, *first[i + 1 :]]])
            rows = np.vstack([rows, last[:, start : start + width]])
        blocks.append(np.ascontiguousarray(rows, dtype=np.float64))
        start += width
    return blocks


def _encoded(step: OneHotEncoder, rows: list[list[Any]]) -> NDArray[np.float64]:
    names = getattr(step, "feature_names_in_", None)
    table = pd.DataFrame(
        {i: pd.Series([row[i] for row in rows], dtype=object) for i in range(len(rows[0]))}
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a value is unknown is what is being tried
        coded = step.transform(
            table.set_axis(names, axis=1) if names is not None else table.to_numpy()
        )
    return np.asarray(coded.toarray() if hasattr(coded, "toarray") else coded, dtype=np.float64)


def _holds_text(categories: NDArray[Any]) -> bool:
    return any(isinstance(c, str) for c in categories)


def _unused_number(categories: NDArray[Any]) -> float:
    numbers = np.asarray([c for c in categories if not _is_missing(c)], dtype=np.float64)
    return float(numbers.max(initial=0.0)) + 1.5


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and np.isnan(value)) or value is pd.NA
