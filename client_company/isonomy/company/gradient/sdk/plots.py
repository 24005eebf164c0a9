"""A run's history as one figure: loss, released violation, multipliers, and the three ε."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from isonomy.company.gradient.run.history import History
from isonomy.company.gradient.run.paper_epsilon import GUARANTEE, NOT_A_GUARANTEE

_TITLES = ("loss", "released violation (± 2 deviations of its noise)", "multipliers λ", "ε")
_OTHERS = {
    "epsilon_as_in_papers": f"ε {NOT_A_GUARANTEE}",
    "epsilon_records": f"ε {GUARANTEE}",
}
_MOST_NAMES = 16  # multipliers in the legend; of more, a name shows under the mouse


def history_figure(history: History, *, cap_epsilon: float | None = None) -> Any:
    """Four panels over the rounds; with `cap_epsilon` the guarantee's line."""
    table = history.table()
    titles = [title.replace("λ", history.symbol) for title in _TITLES]
    figure = make_subplots(rows=2, cols=2, subplot_titles=titles, vertical_spacing=0.18)
    rounds = table["round"]
    figure.add_trace(_line(rounds, table["loss"], "loss"), 1, 1)
    if table["loss"].isna().all():
        figure.add_annotation(
            text="not released: it would tell about records",
            showarrow=False,
            **{"xref": "x domain", "yref": "y domain", "x": 0.5, "y": 0.5},
        )
    figure.add_trace(
        go.Scatter(
            x=rounds,
            y=table["violation"],
            name="violation",
            mode="lines+markers",
            error_y={"type": "data", "array": 2 * table["deviation"]},
            showlegend=False,
        ),
        1,
        2,
    )
    multipliers = [name for name in table.columns if name.startswith(f"{history.symbol}[")]
    group = titles[2] if len(multipliers) <= _MOST_NAMES else None
    for name in multipliers:
        figure.add_trace(_line(rounds, table[name], name, group), 2, 1)
    figure.add_trace(_line(rounds, table["epsilon_spent"], "ε spent", "ε"), 2, 2)
    for name, label in _OTHERS.items():
        if name in table:
            figure.add_trace(_line(rounds, table[name], label, "ε", dash="dot"), 2, 2)
    if cap_epsilon is not None:
        figure.add_hline(
            cap_epsilon,
            row=2,
            col=2,
            line_dash="dash",
            annotation_text="certified ε",
            annotation_position="top left",
        )
    figure.update_xaxes(title_text="round")
    figure.update_layout(height=680, template="plotly_white", legend={"groupclick": "toggleitem"})
    return figure


def _line(x: Any, y: Any, name: str, group: str | None = None, dash: str = "solid") -> Any:
    """A line, named in the legend under its panel's title where it has one."""
    return go.Scatter(
        x=x,
        y=y,
        name=name,
        mode="lines+markers",
        line={"dash": dash},
        showlegend=group is not None,
        legendgroup=group,
        legendgrouptitle_text=group,
    )


__all__ = ["history_figure"]
