"""φ, proxy, tilt and decision as nodes of the graph: `TiltedModel`, line by line.

    margin_j = f_j − f_0 − Σ_s [P(A = ·, Y = s | x)] · V_sj + offset

V (strata, groups, classes − 1) is λ through `rule.cost_weights`: one definition of the costs.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from isonomy.company.fair.inputs.columns import REST, Code, ColumnCoder
from isonomy.company.fair.inputs.features import CONSTANT, FeatureMap, wave_height
from isonomy.company.fair.onnx_export._graph import (
    DOUBLE,
    INT64,
    CannotConvert,
    Column,
    Graph,
    Matrix,
    Table,
    columns_of,
)
from isonomy.company.fair.onnx_export.schema import MISSING_TEXT
from isonomy.company.fair.tilt.analysis import Proxy, with_last
from isonomy.company.fair.tilt.model import TiltedModel
from isonomy.company.fair.tilt.rule import HALF, cost_weights

Floats = NDArray[np.float64]


# --- Columns -----------------------------------------------------------------------------------


def coded(graph: Graph, coder: ColumnCoder, value: Table | Matrix) -> Matrix:
    """`coder.code(X)`: all number columns at once, text columns one by one, then into order."""
    numbers = [code for code in coder.codes if code.numeric]
    parts: list[str] = []
    order: list[tuple[str, int]] = []  # (column, position within its code) as in the parts
    if numbers:
        raw = _number_columns(graph, numbers, value)
        parts.append(_z_scores(graph, numbers, raw))
        order += [(code.name, 0) for code in numbers]
        gaps = [i for i, code in enumerate(numbers) if code.missing]
        if gaps:
            parts.append(graph.cast(graph.pick(_no_number(graph, raw), gaps), DOUBLE))
            order += [(numbers[i].name, 1) for i in gaps]
    texts = [code for code in coder.codes if not code.numeric]
    if texts:
        columns = {column.name: column for column in columns_of(graph, value)}
        for code in texts:
            parts.append(_levels(graph, code, columns[code.name]))
            order += [(code.name, i) for i in range(code.width)]
    final = [(code.name, i) for code in coder.codes for i in range(code.width)]
    together = graph.concat(parts)
    if final != order:
        place = {key: i for i, key in enumerate(order)}
        together = graph.pick(together, [place[key] for key in final])
    return Matrix(together, coder.width)


def _number_columns(graph: Graph, codes: list[Code], value: Table | Matrix) -> str:
    if isinstance(value, Matrix):
        return graph.pick(value.tensor, [int(code.name) for code in codes])
    columns = {column.name: column for column in value.columns}
    for code in codes:
        if columns[code.name].kind != "number":
            raise CannotConvert(f"column {code.name!r} holds numbers as text; make them numbers")
    return graph.concat([columns[code.name].tensor for code in codes])


def _no_number(graph: Graph, raw: str) -> str:
    return graph.op("Or", graph.op("IsNaN", raw), graph.op("IsInf", raw))


def _z_scores(graph: Graph, codes: list[Code], raw: str) -> str:
    shift, scale, limit = (
        np.array([getattr(code, name) for code in codes]) for name in ("shift", "scale", "limit")
    )
    scaled = graph.op("Div", graph.op("Sub", raw, graph.constant(shift)), graph.constant(scale))
    filled = graph.op("Where", _no_number(graph, raw), graph.constant(np.array(0.0)), scaled)
    above = graph.op("Max", filled, graph.constant(-limit))
    return graph.op("Min", above, graph.constant(limit))


def _levels(graph: Graph, code: Code, column: Column) -> str:
    """A row per level, then one for other texts and one for missing values."""
    if column.kind != "text":
        raise CannotConvert(f"column {code.name!r} held text in fit and is a number now")
    if MISSING_TEXT in code.levels:
        raise CannotConvert(
            f"column {code.name!r} has the empty text as a value, which in ONNX stands for a "
            "missing value; give it a name"
        )
    keys = [level for level in code.levels if level != REST]
    rows = np.zeros((len(keys) + 2, code.width))
    rows[: len(keys), : len(keys)] = np.eye(len(keys))
    if REST in code.levels:
        rows[-2, code.levels.index(REST)] = 1.0
    if code.missing:
        rows[-1, -1] = 1.0
    numbers = graph.text_numbers(
        column.tensor,
        [*keys, MISSING_TEXT],
        [*range(len(keys)), len(keys) + 1],
        len(keys),
    )
    return graph.rows_by_number(numbers, rows)


# --- φ and proxy -------------------------------------------------------------------------------


def _phi(graph: Graph, features: FeatureMap, value: Table | Matrix, score: str) -> str:
    """(n, d) `features.rows(X, score)` times `features.norm`; score: (n, 1).

    The norm is divided out of β instead: onnxruntime fuses a scalar factor beside a MatMul into
    one operator whose factor is in single precision.
    """
    table = coded(graph, features.coder, value).tensor
    centred = graph.op("Sub", table, graph.constant(features.centre))
    linear = graph.op("Mul", centred, graph.constant(features.stretch))
    if features.basis.size:
        linear = graph.op("MatMul", linear, graph.constant(features.basis))
    one = graph.affine(table, np.zeros((len(features.centre), 1)), np.array([CONSTANT]))
    parts = [one, linear]
    if len(features.phase):
        waves = graph.op("Cos", graph.affine(table, features.omega, features.phase))
        waves = graph.op("Mul", waves, graph.constant(np.array(wave_height(len(features.phase)))))
        parts.append(graph.op("Sub", waves, graph.constant(features.fourier_centre)))
    inner = graph.concat(parts)
    norm = graph.op("Sqrt", graph.row_sum(graph.op("Mul", inner, inner)))
    factor = graph.op("Div", graph.constant(np.array(features.limit)), norm)
    inner = graph.op("Mul", inner, graph.op("Min", factor, graph.constant(np.array(1.0))))
    if features.bins:
        inner = graph.concat([inner, _bins(graph, features, score)])
    return inner


def _bins(graph: Graph, features: FeatureMap, score: str) -> str:
    """One-hot of searchsorted(edges, score), the number of edges below the score, less shares."""
    rows = np.eye(len(features.shares)) - features.shares
    if not len(features.edges):
        return graph.affine(score, np.zeros((1, 1)), rows[0])
    below = graph.op("Greater", score, graph.constant(features.edges.reshape(1, -1)))
    return graph.rows_by_number(graph.row_sum(graph.cast(below, INT64)), rows)


def _memberships(graph: Graph, proxy: Proxy, phi: str, norm: float, stratum: int) -> str:
    """(n, groups) `proxy(rows)[stratum]` for rows φ / norm."""
    bias, groups = proxy.intercepts[stratum], proxy.shares.shape[1]
    # the last group of an attribute is 1 minus the others: affine in the free groups
    constant = with_last(np.zeros((1, len(bias))), proxy.blocks)[0]
    linear = with_last(np.eye(len(bias)), proxy.blocks) - constant  # (free, groups)
    free = graph.affine(phi, proxy.beta[stratum].T / norm, bias)
    g = graph.affine(free, linear, constant)
    low, high = graph.constant(np.array(0.0)), graph.constant(np.array(1.0))
    g = graph.op("Min", graph.op("Max", g, low), high)
    same = np.zeros((groups, groups))
    for block in proxy.blocks:
        same[block, block] = 1.0
    return graph.op("Div", g, graph.op("MatMul", g, graph.constant(same)))


# --- Decision ----------------------------------------------------------------------------------


def tilted_margins(
    graph: Graph, model: TiltedModel, value: Table | Matrix, proba: str, score: str, classes: int
) -> str:
    """(n, classes − 1) `model.margins`."""
    margin = _base_margins(graph, proba, classes, model.cut)
    if model.features is None or model.proxy is None or not model.tilt.size:
        return margin
    phi = _phi(graph, model.features, value, score)
    strata, groups = model.proxy.shares.shape
    unit = cost_weights(model.events, model.proxy.shares, classes)
    by_stratum = (unit @ model.tilt.lam.reshape(-1)).reshape(strata, groups, classes - 1)
    for stratum, weights in enumerate(by_stratum):
        joint = _memberships(graph, model.proxy, phi, model.features.norm, stratum)
        if len(model.proxy.beta) > 1:
            joint = graph.op("Mul", joint, graph.pick(proba, [stratum]))
        margin = graph.op("Sub", margin, graph.op("MatMul", joint, graph.constant(weights)))
    if model.tilt.offset:
        margin = graph.op("Add", margin, graph.constant(np.array(model.tilt.offset)))
    return margin


def _base_margins(graph: Graph, proba: str, classes: int, cut: float) -> str:
    """(n, classes − 1) `rule.base_margins`."""
    if cut == HALF:
        return graph.op("Sub", graph.pick(proba, range(1, classes)), graph.pick(proba, [0]))
    above = graph.op("Sub", graph.pick(proba, [1]), graph.constant(np.array(cut)))
    return graph.op("Add", above, above)


def decided(graph: Graph, margin: str, classes: int) -> str:
    """(n,) class numbers; a tie goes to the lower class."""
    flat = graph.constant(np.array([-1]))
    if classes == 2:
        above = graph.op("Greater", margin, graph.constant(np.array(0.0)))
        return graph.op("Reshape", graph.cast(above, INT64), flat)
    best = graph.op("ArgMax", _with_zero(graph, margin, classes), axis=1, keepdims=0)
    return graph.op("Reshape", best, flat)


def tilted_probabilities(graph: Graph, proba: str, margin: str, classes: int, cut: float) -> str:
    """(n, classes) nearest point of the simplex (`rule.probabilities`)."""
    plain = _base_margins(graph, proba, classes, cut)
    change = _with_zero(graph, graph.op("Sub", margin, plain), classes)
    mean = graph.op("ReduceMean", change, graph.constant(np.array([1])))
    scores = graph.op("Sub", graph.op("Add", proba, change), mean)
    # the largest first: their running sums say how many stay above zero, and at which level
    ordered = graph.sorted_rows(scores, classes)
    total = graph.op("CumSum", ordered, graph.constant(np.array(1)))
    excess = graph.op("Sub", total, graph.constant(np.array(1.0)))
    ranks = graph.constant(np.arange(1, classes + 1, dtype=np.float64))
    levels = graph.op("Div", excess, ranks)
    stays = graph.op("Greater", ordered, levels)
    support = graph.row_sum(graph.cast(stays, INT64))
    last = graph.op("Sub", support, graph.constant(np.array([1])))
    level = graph.op("GatherElements", levels, last, axis=1)
    return graph.op("Max", graph.op("Sub", scores, level), graph.constant(np.array(0.0)))


def _with_zero(graph: Graph, tensor: str, classes: int) -> str:
    """(n, classes − 1) -> (n, classes) with 0 for class 0."""
    first = np.hstack([np.zeros((classes - 1, 1)), np.eye(classes - 1)])
    return graph.op("MatMul", tensor, graph.constant(first))
