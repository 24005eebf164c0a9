"""A run's history as one figure: loss, released violation, multipliers, and the three ε."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from isonomy.company.gradient.history import History
from isonomy.company.gradient.paper_epsilon import GUARANTEE, NOT_A_GUARANTEE

_TITLES = ("loss", "released violation (± 2 deviations of its noise)", "multipliers λ", "ε")
_OTHERS = {
    "epsilon_as_in_papers": f"ε {NOT_A_GUARANTEE}",
    "epsilon_records": f"ε {GUARANTEE}",
}


def history_figure(history: History, *, cap_epsilon: float | None = None) -> Any:
    """Four panels over the rounds; with `cap_epsilon` the guarantee's line."""
    table = history.table()
    titles = [title.replace("λ", history.symbol) for title in _TITLES]
    figure = make_subplots(rows=2, cols=2, subplot_titles=titles, vertical_spacing=0.14)
    rounds = table["round"]
    figure.add_trace(_line(rounds, table["loss"], "loss"), 1, 1)
    figure.add_trace(
        go.Scatter(
            x=rounds,
            y=table["violation"],
            name="violation",
            mode="lines+markers",
            error_y={"type": "data", "array": 2 * table["deviation"]},
        ),
        1,
        2,
    )
    for name in table.columns:
        if name.startswith(f"{history.symbol}["):
            figure.add_trace(_line(rounds, table[name], name), 2, 1)
    figure.add_trace(_line(rounds, table["epsilon_spent"], "ε spent"), 2, 2)
    for name, label in _OTHERS.items():
        if name in table:
            figure.add_trace(_line(rounds, table[name], label), 2, 2)
    if cap_epsilon is not None:
        figure.add_hline(cap_epsilon, row=2, col=2, line_dash="dash", annotation_text="certified ε")
    figure.update_xaxes(title_text="round")
    figure.update_layout(height=640, template="plotly_white", showlegend=False)
    return figure


def _line(x: Any, y: Any, name: str) -> Any:
    return go.Scatter(x=x, y=y, name=name, mode="lines+markers")


__all__ = ["history_figure"]
