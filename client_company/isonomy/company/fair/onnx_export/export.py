"""Write a fitted fair classifier as one ONNX file: preprocessing, model, and proxy and tilt if any.

    clf.to_onnx("model.onnx")
    session = onnxruntime.InferenceSession("model.onnx")
    decision, probabilities = session.run(None, inputs_of(X))

| output | type | is |
|---|---|---|
| decision | (n,) the classes' own type | `clf.predict(X)` |
| probabilities | (n, classes) double | `clf.predict_proba(X)` |

Guarantees: the file is run on check rows before it is written, and is not written unless it
decides as the classifier does. It appears whole or not at all, readable by its owner only: the
model's constants are means and quantiles of the company's data.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from isonomy.common.base.errors import ConfigError, VerificationError
from isonomy.common.base.private_files import write_private
from isonomy.company.fair.inputs.columns import REST, ColumnCoder
from isonomy.company.fair.onnx_export.schema import MATRIX, Schema
from isonomy.company.fair.tilt.rule import HALF

if TYPE_CHECKING:
    from isonomy.company.fair.onnx_export._graph import Graph

CHECK_ROWS = 200
AGREE = 1e-5  # of probabilities; doubles agree to 1e-12, parts in single precision to 1e-6
OUTPUTS = ("decision", "probabilities")


def export(classifier: Any, path: str | Path, X: Any = None) -> Path:
    """Write `classifier` to `path`; an older file there is replaced in one step.

    X: rows to check the file on (labels and attributes are not needed). Without them, rows are
    made up from the columns' means, deviations and levels.
    """
    write_private(Path(path), onnx_bytes(classifier, X))
    return Path(path)


def onnx_bytes(classifier: Any, X: Any = None) -> bytes:
    """The checked model, serialised."""
    _require_onnx()
    check_is_fitted(classifier)
    schema = _schema(classifier, X)
    model = _build(classifier, schema)
    content: bytes = model.SerializeToString()
    _check(classifier, schema, content, X)
    return content


def _require_onnx() -> None:
    try:
        import onnx  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            "ONNX export needs packages that are not installed: pip install 'isonomy[onnx]'"
        ) from error


def _schema(classifier: Any, X: Any) -> Schema:
    """The columns of the model; refuses those that ONNX cannot hold, and another table as X."""
    schema: Schema | None = classifier.schema_
    if schema is None:
        raise ConfigError(
            "this model takes tensors or arrays with more than two axes; export its network: "
            "torch.onnx.export(model.module_, …)"
        )
    if X is not None and Schema.of(X).names != schema.names:
        raise ConfigError("X has other columns than the model was fitted on")
    for name, kind in zip(schema.names, schema.kinds, strict=True):
        if kind == "other":
            raise ConfigError(
                f"column {name!r} holds neither numbers nor text only; ONNX has no such input"
            )
        if name in OUTPUTS and not schema.one_matrix:
            raise ConfigError(f"a column is called {name!r}, as an output is; rename it")
    return schema


def _build(classifier: Any, schema: Schema) -> Any:
    """The ONNX model: columns → model → decision and probabilities."""
    from isonomy.company.fair.onnx_export._graph import DOUBLE, Column, Graph, Matrix, Table

    graph = Graph()
    value: Table | Matrix
    if schema.one_matrix:
        value = Matrix(graph.input(MATRIX, "number", len(schema.names)), len(schema.names))
    else:
        value = Table(
            tuple(
                Column(name, kind, graph.input(name, kind))
                for name, kind in zip(schema.names, schema.kinds, strict=True)
            )
        )
    decision, proba, facts = (
        _tilted(graph, classifier, value)
        if hasattr(classifier, "model_")
        else _trained(graph, classifier, value)
    )
    names, element = _class_names(classifier.classes_)
    decision = graph.op("Gather", graph.constant(names), decision, axis=0)
    return graph.model(
        [
            (OUTPUTS[0], decision, element, [None]),
            (OUTPUTS[1], proba, DOUBLE, [None, len(names)]),
        ],
        {f"isonomy.{name}": str(value) for name, value in facts.items()},
    )


def _tilted(graph: Graph, classifier: Any, value: Any) -> tuple[str, str, dict[str, Any]]:
    """(n,) positions in `classes_`, (n, classes) probabilities, facts, of a `FairClassifier`."""
    from isonomy.company.fair.onnx_export._classifiers import class_probabilities
    from isonomy.company.fair.onnx_export._rule import decided, tilted_margins, tilted_probabilities

    rule, classes = classifier.model_, len(classifier.classes_)
    order = classifier.class_order_  # rules number the favourable class last

    def by_number(model: Any) -> str:
        return graph.pick(class_probabilities(graph, model, value), order.tolist())

    base = by_number(classifier.base_estimator_)
    score = graph.pick(base, [classes - 1])
    proba = fair = by_number(classifier.fair_estimator_) if rule.retrained else base
    margin = tilted_margins(graph, rule, value, fair, score, classes)
    if rule.tilt.size:
        proba = tilted_probabilities(graph, fair, margin, classes, rule.cut)
    listed = graph.op("Gather", graph.constant(order), decided(graph, margin, classes), axis=0)
    report = classifier.report_
    facts = {
        "notion": report.notion,
        "pos_label": report.pos_label,
        "tolerance": report.tolerance,
        "returned": report.returned,
    }
    return listed, graph.pick(proba, np.argsort(order).tolist()), facts


def _trained(graph: Graph, classifier: Any, value: Any) -> tuple[str, str, dict[str, Any]]:
    """The same of a `GradientFairClassifier`."""
    from isonomy.company.fair.onnx_export._classifiers import network_probabilities

    proba = network_probabilities(graph, classifier, value)
    proba = graph.pick(proba, np.argsort(classifier.class_order_).tolist())
    listed = graph.op("ArgMax", proba, axis=1, keepdims=0)
    return listed, proba, {"pos_label": classifier.pos_label_}


def _class_names(classes: NDArray[Any]) -> tuple[NDArray[Any], int]:
    from isonomy.company.fair.onnx_export._graph import BOOL, DOUBLE, INT64, STRING

    kinds = {"i": INT64, "u": INT64, "f": DOUBLE, "b": BOOL, "U": STRING, "O": STRING, "T": STRING}
    kind = classes.dtype.kind
    text = kind in "OT" and all(isinstance(c, str) for c in classes)
    if kind not in kinds or (kind in "OT" and not text):
        raise ConfigError("only text, integer, float and boolean classes can be exported")
    return (classes.astype(object) if kind in "UOT" else classes), kinds[kind]


# --- Check -------------------------------------------------------------------------------------


def _check(classifier: Any, schema: Schema, content: bytes, X: Any) -> None:
    """Run the file on rows and compare. Decisions may differ only where two classes tie."""
    rows = _some_of(X) if X is not None else _made_up(classifier, schema)
    try:
        expected, decisions = classifier.predict_proba(rows), classifier.predict(rows)
    except Exception as error:
        if X is not None:
            raise
        raise ConfigError(
            "the model refuses made-up check rows; give some real ones as X"
        ) from error
    onnx_decisions, proba = _run(content, schema.inputs(rows))
    if proba.shape != expected.shape or not np.allclose(proba, expected, rtol=0, atol=AGREE):
        raise VerificationError(
            "the ONNX form of this model gives other probabilities than the model, so nothing was "
            "written; save_model keeps the model itself"
        )
    if expected.shape[1] == 2:
        cut = getattr(classifier, "cut_", HALF)
        clear = abs(expected[:, classifier.class_order_[1]] - cut) > 2 * AGREE
    else:
        top = np.sort(expected, axis=1)
        clear = top[:, -1] - top[:, -2] > 4 * AGREE
    if (onnx_decisions[clear] != np.asarray(decisions)[clear]).any():
        raise VerificationError(
            "the ONNX form of this model decides otherwise than the model, so nothing was written; "
            "save_model keeps the model itself"
        )


def _run(content: bytes, feeds: dict[str, NDArray[Any]]) -> tuple[NDArray[Any], NDArray[Any]]:
    """By onnxruntime where it is installed, else by the slow evaluator that comes with onnx."""
    import onnx

    model = onnx.load_from_string(content)
    outputs: Any
    try:
        onnx.checker.check_model(model, full_check=True)
        try:
            from onnxruntime import InferenceSession
        except ImportError:
            from onnx.reference import ReferenceEvaluator

            outputs = ReferenceEvaluator(model).run(None, feeds)
        else:
            session = InferenceSession(content, providers=["CPUExecutionProvider"])
            outputs = session.run(None, feeds)
    except Exception as error:  # a runtime's own kinds
        raise ConfigError(
            f"the ONNX form of this model does not run: {str(error).splitlines()[0]}"
        ) from error
    return np.asarray(outputs[0]), np.asarray(outputs[1])


def _some_of(X: Any) -> Any:
    rows = X.toarray() if hasattr(X, "toarray") else X
    return rows.iloc[:CHECK_ROWS] if hasattr(rows, "iloc") else np.asarray(rows)[:CHECK_ROWS]


def _made_up(classifier: Any, schema: Schema) -> Any:
    """Rows around the columns' means, with their levels: nobody's, so that none is needed."""
    tilted = getattr(classifier, "model_", None)
    coder = tilted.features and tilted.features.coder if tilted else classifier.coder_
    codes = {code.name: code for code in coder.codes} if isinstance(coder, ColumnCoder) else {}
    rng = np.random.default_rng(0)
    columns: dict[str, Any] = {}
    for name, kind in zip(schema.names, schema.kinds, strict=True):
        code = codes.get(name)
        if kind == "text":
            levels = [level for level in (code.levels if code else ()) if level != REST]
            levels = levels or ["made up"]
            columns[name] = pd.Series(rng.choice(np.array(levels, dtype=object), CHECK_ROWS))
        else:
            shift, scale = (code.shift, code.scale) if code else (0.0, 1.0)
            columns[name] = shift + 2 * scale * rng.standard_normal(CHECK_ROWS)
    table = pd.DataFrame(columns)
    for name, code in codes.items():
        if code.missing:
            table.loc[rng.random(CHECK_ROWS) < 0.2, name] = np.nan
    return table if schema.named else table.to_numpy()
