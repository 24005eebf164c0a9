"""`predict_proba` of a base model as nodes of the graph, in double precision.

| model | as in ONNX |
|---|---|
| LogisticRegression | expit or softmax of xW + b |
| MLPClassifier | the same, layer by layer |
| HistGradientBoostingClassifier | TreeEnsemble (ai.onnx.ml 5) with double thresholds and leaves |
| TorchClassifier, GradientFairClassifier | column coder in double, module by torch's exporter |
| any other of scikit-learn | skl2onnx's converter (single precision; foreign.py) |
| LightGBM, XGBoost, boosting on sets of categories | refused: converters are not exact |
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import numpy_helper
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import FixedThresholdClassifier, TunedThresholdClassifierCV
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import Pipeline

from isonomy.company.fair.inputs.columns import ColumnCoder
from isonomy.company.fair.onnx_export._encoders import transformed
from isonomy.company.fair.onnx_export._foreign import foreign_classifier, torch_logits
from isonomy.company.fair.onnx_export._graph import (
    ML,
    ML_OPSET_TREES,
    CannotConvert,
    Graph,
    Matrix,
    Table,
    as_matrix,
)
from isonomy.company.fair.onnx_export._rule import coded

_ACTIVATIONS = {"identity": None, "logistic": "Sigmoid", "tanh": "Tanh", "relu": "Relu"}


def class_probabilities(graph: Graph, model: Any, value: Table | Matrix) -> str:
    """(n, classes) doubles."""
    if isinstance(model, Pipeline):
        for _, step in model.steps[:-1]:
            value = transformed(graph, step, value)
        return class_probabilities(graph, model.steps[-1][1], value)
    if isinstance(model, FixedThresholdClassifier | TunedThresholdClassifierCV):
        return class_probabilities(graph, model.estimator_, value)  # the cut is the rule's
    if isinstance(model, FrozenEstimator):
        return class_probabilities(graph, model.estimator, value)
    if _is_torch(model):
        return network_probabilities(graph, model, value)
    _refuse_inexact(model)
    matrix = as_matrix(graph, value, model)
    if type(model) is LogisticRegression:
        raw = graph.affine(matrix.tensor, model.coef_.T, model.intercept_)
        return _from_raw(graph, raw, model.coef_.shape[0])
    if type(model) is MLPClassifier:
        return _network(graph, model, matrix)
    if type(model) is HistGradientBoostingClassifier:
        raw = _trees(graph, model, matrix)
        return _from_raw(graph, raw, model.n_trees_per_iteration_)
    return foreign_classifier(graph, model, matrix)


def _is_torch(model: Any) -> bool:
    """Without importing torch, which takes seconds: who has such a model has imported it."""
    adapter = sys.modules.get("isonomy.company.fair.torch_adapter")
    return adapter is not None and isinstance(model, adapter.TorchClassifier)


def network_probabilities(graph: Graph, model: Any, value: Table | Matrix) -> str:
    """(n, classes) doubles of an estimator with `coder_` and `module_`; one logit: two classes."""
    if model.coder_ is None:
        inputs = as_matrix(graph, value, model)
    elif isinstance(model.coder_, ColumnCoder):
        inputs = coded(graph, model.coder_, value)
    else:
        inputs = as_matrix(graph, transformed(graph, model.coder_, value), model)
    logits = torch_logits(graph, model.module_, inputs)
    return _from_raw(graph, logits.tensor, logits.width)


def _refuse_inexact(model: Any) -> None:
    """Converters compare in single precision where these models do not, or know no categories."""
    home = type(model).__module__.partition(".")[0]
    if home in ("lightgbm", "xgboost", "catboost"):
        raise CannotConvert(
            f"{type(model).__name__} has no ONNX form here that decides as it does. "
            "HistGradientBoostingClassifier has; or serve the model itself: save_model keeps it"
        )
    if isinstance(model, HistGradientBoostingClassifier) and model.is_categorical_ is not None:
        raise CannotConvert(
            "boosted trees that split on sets of categories have no ONNX form here. Encode the "
            "categories before them (OneHotEncoder in a pipeline, categorical_features=None)"
        )


def _from_raw(graph: Graph, raw: str, columns: int) -> str:
    if columns > 1:
        return graph.op("Softmax", raw, axis=1)
    return _two(graph, graph.op("Sigmoid", raw))


def _two(graph: Graph, positive: str) -> str:
    """(n, 1) p -> (n, 2) [1 − p, p]."""
    return graph.concat([graph.op("Sub", graph.constant(np.array(1.0)), positive), positive])


def _network(graph: Graph, model: MLPClassifier, matrix: Matrix) -> str:
    tensor = matrix.tensor
    for layer, (weight, bias) in enumerate(zip(model.coefs_, model.intercepts_, strict=True)):
        tensor = graph.affine(tensor, weight, bias)
        activation = _ACTIVATIONS[model.activation]
        if activation is not None and layer < len(model.coefs_) - 1:
            tensor = graph.op(activation, tensor)
    if model.out_activation_ == "softmax":
        return graph.op("Softmax", tensor, axis=1)
    if model.out_activation_ != "logistic" or model.n_outputs_ != 1:
        raise CannotConvert("MLPClassifier for several labels at once")
    return _two(graph, graph.op("Sigmoid", tensor))


# --- Trees -------------------------------------------------------------------------------------


def _trees(graph: Graph, model: HistGradientBoostingClassifier, matrix: Matrix) -> str:
    """(n, trees per iteration) baseline + Σ leaves."""
    targets = int(model.n_trees_per_iteration_)
    baseline = np.array(model._baseline_prediction, dtype=np.float64).reshape(1, targets)
    inner: dict[str, list[Any]] = {
        key: [] for key in ("feature", "split", "missing", "true", "trueleaf", "false", "falseleaf")
    }
    roots: list[int] = []
    leaves: list[float] = []
    leaf_targets: list[int] = []
    for stage in model._predictors:
        for target, predictor in enumerate(stage):
            nodes = predictor.nodes
            if nodes[0]["is_leaf"]:  # a tree that never splits is a constant
                baseline[0, target] += nodes[0]["value"]
                continue
            roots.append(len(inner["split"]))
            numbers = _node_numbers(nodes, len(inner["split"]), len(leaves))
            for node in nodes:
                if node["is_leaf"]:
                    leaves.append(float(node["value"]))
                    leaf_targets.append(target)
                    continue
                inner["feature"].append(int(node["feature_idx"]))
                inner["split"].append(float(node["num_threshold"]))
                inner["missing"].append(int(node["missing_go_to_left"]))
                for side, child in (("true", "left"), ("false", "right")):
                    inner[side].append(int(numbers[node[child]]))
                    inner[f"{side}leaf"].append(int(nodes[node[child]]["is_leaf"]))
    if not roots:
        nothing = graph.affine(matrix.tensor, np.zeros((matrix.width, targets)), 0.0)
        return graph.op(
            "Where",
            graph.op("IsNaN", nothing),
            graph.constant(baseline),
            graph.op("Add", nothing, graph.constant(baseline)),
        )
    graph.ml_opset = ML_OPSET_TREES
    sums = graph.op(
        "TreeEnsemble",
        matrix.tensor,
        domain=ML,
        aggregate_function=1,  # sum
        post_transform=0,  # none
        n_targets=targets,
        tree_roots=roots,
        nodes_modes=numpy_helper.from_array(np.zeros(len(inner["split"]), dtype=np.uint8)),  # <=
        nodes_featureids=inner["feature"],
        nodes_splits=numpy_helper.from_array(np.array(inner["split"], dtype=np.float64)),
        nodes_missing_value_tracks_true=inner["missing"],
        nodes_truenodeids=inner["true"],
        nodes_trueleafs=inner["trueleaf"],
        nodes_falsenodeids=inner["false"],
        nodes_falseleafs=inner["falseleaf"],
        leaf_targetids=leaf_targets,
        leaf_weights=numpy_helper.from_array(np.array(leaves, dtype=np.float64)),
    )
    return graph.op("Add", sums, graph.constant(baseline))


def _node_numbers(nodes: NDArray[Any], first_inner: int, first_leaf: int) -> NDArray[np.int64]:
    """Where each node of one tree goes: inner nodes and leaves are counted apart."""
    leaf = nodes["is_leaf"].astype(bool)
    return np.where(leaf, first_leaf + np.cumsum(leaf) - 1, first_inner + np.cumsum(~leaf) - 1)
