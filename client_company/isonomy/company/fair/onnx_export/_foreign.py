"""Steps without a converter here: skl2onnx converts scikit-learn's, torch its modules.

These run in single precision between two casts. skl2onnx has no double form of many operators, and
scikit-learn's forests look at single precision themselves.
"""

from __future__ import annotations

import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import compose

from isonomy.company.fair.onnx_export._graph import (
    DOUBLE,
    ML,
    ML_OPSET,
    OPSET,
    CannotConvert,
    Graph,
    Matrix,
)

FLOAT = onnx.TensorProto.FLOAT


def foreign_classifier(graph: Graph, model: Any, matrix: Matrix) -> str:
    """(n, classes) probabilities of a fitted scikit-learn classifier, as double."""
    converted = _by_skl2onnx(model, matrix.width, {"zipmap": False})
    return graph.cast(_graft(graph, converted, graph.cast(matrix.tensor, FLOAT))[1], DOUBLE)


def foreign_transformer(graph: Graph, step: Any, matrix: Matrix) -> Matrix:
    """A fitted scikit-learn transformer of numbers."""
    converted = _by_skl2onnx(step, matrix.width, None)
    shape = converted.graph.output[0].type.tensor_type.shape.dim
    width = shape[1].dim_value if len(shape) == 2 else 0
    if not width:
        raise CannotConvert(f"{type(step).__name__}: the number of its columns is not known")
    out = _graft(graph, converted, graph.cast(matrix.tensor, FLOAT))[0]
    return Matrix(graph.cast(out, DOUBLE), width)


def torch_logits(graph: Graph, module: Any, matrix: Matrix) -> Matrix:
    """(n, logits) of a torch module in single precision, as it computes, then double.

    The exporter is the older, traced one: it needs nothing that is not installed with torch.
    """
    import torch

    module.eval()
    try:
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            path = Path(folder) / "module.onnx"
            warnings.simplefilter("ignore")  # it warns of its own age
            with torch.no_grad():
                width = module(torch.zeros(2, matrix.width)).reshape(2, -1).shape[1]
            torch.onnx.export(
                module,
                (torch.zeros(2, matrix.width),),
                path,
                input_names=["x"],
                output_names=["logits"],
                dynamic_axes={"x": {0: "n"}, "logits": {0: "n"}},
                opset_version=OPSET,
                dynamo=False,
            )
            exported = onnx.load(path)
    except Exception as error:  # whatever a foreign module or the tracer may raise
        raise CannotConvert(f"torch cannot export {type(module).__name__}: {error}") from error
    logits = graph.cast(_graft(graph, exported, graph.cast(matrix.tensor, FLOAT))[0], DOUBLE)
    return Matrix(graph.op("Reshape", logits, graph.constant(np.array([-1, width]))), width)


def _by_skl2onnx(model: Any, width: int, options: dict[str, Any] | None) -> Any:
    """The model in ONNX; CannotConvert where skl2onnx is missing or refuses."""
    try:
        from skl2onnx import convert_sklearn
        from skl2onnx.common.data_types import FloatTensorType
    except ImportError as error:
        raise CannotConvert(
            f"{type(model).__name__} needs skl2onnx, which comes with the extra: "
            "pip install 'isonomy[onnx]'"
        ) from error
    try:
        return convert_sklearn(
            model,
            initial_types=[("X", FloatTensorType([None, width]))],
            options={id(model): options} if options else None,
            target_opset={"": OPSET, ML: ML_OPSET},
        )
    except Exception as error:  # skl2onnx raises many kinds, and so do foreign estimators
        reason = str(error).strip().split("\n")[0]
        raise CannotConvert(f"{type(model).__name__} does not convert to ONNX: {reason}") from error


def _graft(graph: Graph, model: Any, source: str) -> list[str]:
    """Put a whole model into the graph, reading from `source`; the names of its outputs."""
    inner = compose.add_prefix(model, graph.name("part") + "/").graph
    if len(inner.input) != 1 or model.functions:
        raise CannotConvert("the converted part is not a function of one matrix")
    first = inner.input[0].name
    for node in inner.node:
        node.input[:] = [source if name == first else name for name in node.input]
    graph.nodes.extend(inner.node)
    graph.constants.extend(inner.initializer)
    return [output.name for output in inner.output]
