"""An ONNX graph under construction, and the tables and matrices that flow through it.

Everything is in double precision, as scikit-learn computes: the same operations in the same
precision give the same decisions. Text has no missing value in ONNX, so the empty text stands for
one; a category that *is* the empty text cannot be told from it and is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from isonomy.common.base.errors import ConfigError
from isonomy.company.fair.onnx_export.schema import Kind

OPSET = 18
ML_OPSET = 3
ML_OPSET_TREES = 5  # TreeEnsemble: trees in double precision
IR_VERSION = 9
ML = "ai.onnx.ml"
DOUBLE, INT32, INT64, STRING, BOOL = (
    onnx.TensorProto.DOUBLE,
    onnx.TensorProto.INT32,
    onnx.TensorProto.INT64,
    onnx.TensorProto.STRING,
    onnx.TensorProto.BOOL,
)


class CannotConvert(ConfigError):  # noqa: N818  (reads as the event it is)
    """This part of the model has no ONNX form that decides as it does."""


@dataclass(frozen=True)
class Column:
    """One column of a table: (n, 1), double or text."""

    name: str
    kind: Kind
    tensor: str


@dataclass(frozen=True)
class Matrix:
    """(n, width) doubles."""

    tensor: str
    width: int


@dataclass(frozen=True)
class Table:
    """Columns of both kinds, in the order of fit."""

    columns: tuple[Column, ...]

    @property
    def width(self) -> int:
        return len(self.columns)


class Graph:
    """Nodes and constants in the order in which they were added."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.inputs: list[Any] = []
        self.ml_opset = ML_OPSET
        self._names = 0

    def name(self, what: str) -> str:
        """A name that no column has: columns become inputs under their own names."""
        self._names += 1
        return f"/isonomy/{what}{self._names}"

    def constant(self, value: Any) -> str:
        array = np.asarray(value)
        if array.dtype.kind in "OU":
            array = array.astype(object)
        else:
            kinds = {"f": np.float64, "i": np.int64, "u": np.int64, "b": np.bool_}
            array = np.asarray(array, dtype=kinds[array.dtype.kind], order="C")
        tensor = numpy_helper.from_array(array, self.name("constant"))
        self.constants.append(tensor)
        return str(tensor.name)

    def op(self, kind: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        """Add one operator with one output; its name."""
        out = self.name(kind)
        self.nodes.append(
            helper.make_node(kind, list(inputs), [out], name=out, domain=domain, **attributes)
        )
        return out

    def input(self, name: str, kind: Kind, width: int = 1) -> str:
        element = STRING if kind == "text" else DOUBLE
        self.inputs.append(helper.make_tensor_value_info(name, element, [None, width]))
        return name

    # --- Small phrases -------------------------------------------------------------------------

    def cast(self, tensor: str, to: int) -> str:
        return self.op("Cast", tensor, to=to)

    def pick(self, tensor: str, columns: Sequence[int]) -> str:
        """(n, len(columns)) in this order."""
        return self.op("Gather", tensor, self.constant(np.array(columns, dtype=np.int64)), axis=1)

    def concat(self, tensors: Sequence[str]) -> str:
        return tensors[0] if len(tensors) == 1 else self.op("Concat", *tensors, axis=1)

    def affine(self, tensor: str, weight: Any, bias: Any) -> str:
        """tensor @ weight + bias."""
        product = self.op("MatMul", tensor, self.constant(np.asarray(weight, dtype=np.float64)))
        return self.op("Add", product, self.constant(np.asarray(bias, dtype=np.float64)))

    def row_sum(self, tensor: str) -> str:
        """(n, w) -> (n, 1)."""
        return self.op("ReduceSum", tensor, self.constant(np.array([1], dtype=np.int64)))

    def sorted_rows(self, tensor: str, width: int) -> str:
        """(n, width) with each row's largest first."""
        out = self.name("sorted")
        inputs = [tensor, self.constant(np.array([width]))]
        self.nodes.append(helper.make_node("TopK", inputs, [out, self.name("order")], axis=1))
        return out

    def rows_by_number(self, numbers: str, rows: NDArray[np.float64]) -> str:
        """(n, 1) row numbers -> (n, width); a number beyond the table is an error when run."""
        flat = self.op("Reshape", numbers, self.constant(np.array([-1], dtype=np.int64)))
        return self.op("Gather", self.constant(rows), flat, axis=0)

    def text_numbers(
        self, tensor: str, keys: Sequence[str], values: Sequence[int], other: int
    ) -> str:
        """(n, 1) text -> its number; `other` for any text that is not among the keys."""
        return self.op(
            "LabelEncoder",
            tensor,
            domain=ML,
            keys_strings=list(keys),
            values_int64s=list(values),
            default_int64=other,
        )

    def model(
        self, outputs: Sequence[tuple[str, str, int, list[Any]]], facts: dict[str, str]
    ) -> Any:
        """The finished model. outputs: (name, tensor, element type, shape)."""
        infos = []
        for name, tensor, element, shape in outputs:
            self.nodes.append(helper.make_node("Identity", [tensor], [name]))
            infos.append(helper.make_tensor_value_info(name, element, shape))
        graph = helper.make_graph(
            self.nodes, "isonomy", self.inputs, infos, initializer=self.constants
        )
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(ML, self.ml_opset)]
        model = helper.make_model(graph, opset_imports=opsets, producer_name="isonomy")
        model.ir_version = IR_VERSION
        helper.set_model_props(model, facts)
        return model


def as_matrix(graph: Graph, value: Table | Matrix, for_whom: object) -> Matrix:
    """Number columns side by side."""
    if isinstance(value, Matrix):
        return value
    text = [column.name for column in value.columns if column.kind != "number"]
    if text:
        raise CannotConvert(
            f"column {text[0]!r} holds text and reaches {type(for_whom).__name__}, which needs "
            "numbers; encode it in the base model's pipeline"
        )
    return Matrix(graph.concat([column.tensor for column in value.columns]), value.width)


def columns_of(graph: Graph, value: Table | Matrix) -> tuple[Column, ...]:
    """Column by column."""
    if isinstance(value, Table):
        return value.columns
    return tuple(
        Column(str(i), "number", graph.pick(value.tensor, [i])) for i in range(value.width)
    )
