"""The demonstration's results on paper: a table, summary.json, plots, and the regulator's report.

report.html is written and signed by the regulator's own command from the regulator's ledger; the
company countersigns it, and it is verified before the demonstration ends. What only a demonstration
can know, exact rates of people who were not trained on, stands in the report's appendix.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from rich.table import Table

from isonomy.common.agreements.plan import Plan
from isonomy.common.keys.party import Card
from isonomy.common.report.verify import ReportPaths, Verification, require
from isonomy.company.demo.appendix import appendix_of
from isonomy.company.demo.layout import Layout
from isonomy.company.demo.processes import Processes
from isonomy.company.demo.run import Result

_BEFORE, _AFTER, _LINE = "#b5482f", "#1f4e79", "#7a7a7a"


def write_report(folder: Path, result: Result, layout: Layout) -> None:
    """Write summary.json, plots/ and the signed report into a folder."""
    (folder / "plots").mkdir(parents=True, exist_ok=True)
    (folder / "summary.json").write_text(json.dumps(result.summary, indent=2) + "\n")
    for name, (_, figure) in _figures(result).items():
        figure.write_html(folder / "plots" / f"{name}.html", include_plotlyjs="directory")
    appendix = folder / "plots" / "appendix.json"
    appendix.write_text(json.dumps(appendix_of(result)))
    with Processes(folder / "logs") as processes:
        signed = processes.start(
            "regulator-report",
            [
                *("isonomy-regulator", "report", str(layout.plan), "--out", str(folder)),
                *("-c", str(layout.regulator_config), "--statement", str(layout.statement)),
                *("--appendix", str(appendix)),
            ],
        )
        processes.finish(signed)
        countersigned = processes.start(
            "company-countersign",
            [
                *("isonomy-company", "countersign", str(folder), "--yes"),
                *("--home", str(layout.company.folder)),
            ],
        )
        processes.finish(countersigned)
    checks = Verification(
        ReportPaths.of(folder),
        card=Card.load(layout.regulator / "keys" / "card.json"),
        plan=Plan.load(layout.plan),
        ledger=layout.ledger,
    )
    require(checks.run())


def table(result: Result) -> Table:
    """The result in a few lines for the terminal."""
    found = result.summary
    shown = Table(
        title=f"{found['strategy']} for {found['notion'].replace('_', ' ')} by "
        f"{found['attribute']}, {found['people']:,} people",
        caption=f"accuracy and violation on {found['tested']:,} people who were not trained on",
    )
    for name in ("", "before", "after"):
        shown.add_column(name, justify="right" if name else "left")
    shown.add_row("accuracy", f"{found['accuracy_before']:.4f}", f"{found['accuracy_after']:.4f}")
    shown.add_row(
        "violation", f"{found['violation_before']:.4f}", f"{found['violation_after']:.4f}"
    )
    shown.add_section()
    shown.add_row("ε cap (guaranteed)", "", f"{found['epsilon_cap']:g}")
    shown.add_row("ε spent", "", f"{found['epsilon_spent']:.4g} at δ = {found['delta']:g}")
    shown.add_row("exchanges", "", str(found["exchanges"]))
    shown.add_row("bytes through the relay", "", f"{found['bytes'] / 1e6:.1f} MB")
    shown.add_row("seconds", "", f"{found['seconds']:.1f}")
    return shown


def _figures(result: Result) -> dict[str, tuple[str, Any]]:
    return {
        "rates": (
            "Share of positive decisions by group, on people who were not trained on.",
            _rates(result),
        ),
        "frontier": (
            "What other tolerances would cost, from what was released: no privacy is spent on "
            "this curve. Violations are estimates with 95 % intervals.",
            _frontier(result),
        ),
        "budget": (
            "Privacy spent after each exchange (exact Gaussian composition; the company is the "
            "adversary and knows its rows, so no subsampling figure is used).",
            _budget(result),
        ),
        "traffic": ("Megabytes and seconds of each exchange.", _traffic(result)),
    }


def _rates(result: Result) -> Any:
    figure = go.Figure(layout=_style("share of positive decisions"))
    for name, score, colour in (
        ("before", result.before, _BEFORE),
        ("after", result.after, _AFTER),
    ):
        labels = list(score.rates)
        figure.add_bar(name=name, x=labels, y=list(score.rates.values()), marker_color=colour)
    return figure


def _frontier(result: Result) -> Any:
    figure = go.Figure(layout=_style("error", x="violation (estimate)"))
    points = result.frontier
    figure.add_scatter(
        x=[point["violation"] for point in points],
        y=[point["error"] for point in points],
        error_x={"array": [1.96 * point["deviation"] for point in points], "color": _LINE},
        text=[f"tolerance {point['tolerance']:g}" for point in points],
        mode="lines+markers",
        marker_color=_AFTER,
        name="tolerances",
    )
    base = result.report
    figure.add_scatter(
        x=[base["base_violation"]],
        y=[base["base_error"]],
        mode="markers",
        marker={"color": _BEFORE, "size": 11},
        name="base model",
    )
    return figure


def _budget(result: Result) -> Any:
    figure = go.Figure(layout=_style("ε spent"))
    spent = [own["epsilon"] for own in result.exchanges]
    figure.add_scatter(
        x=[f"{own['number']}: {own['purpose']}" for own in result.exchanges],
        y=spent,
        line_shape="hv",
        mode="lines+markers",
        marker_color=_AFTER,
        name="spent",
    )
    figure.add_hline(y=result.summary["epsilon_cap"], line_dash="dash", line_color=_LINE)
    return figure


def _traffic(result: Result) -> Any:
    figure = go.Figure(layout=_style("MB"))
    names = [f"{own['number']}: {own['purpose']}" for own in result.exchanges]
    figure.add_bar(
        x=names,
        y=[own["bytes"] / 1e6 for own in result.exchanges],
        text=[f"{own['seconds']:.2f} s" for own in result.exchanges],
        marker_color=_AFTER,
    )
    return figure


def _style(y: str, x: str = "") -> dict[str, Any]:
    return {
        "template": "simple_white",
        "height": 360,
        "margin": {"l": 60, "r": 20, "t": 20, "b": 50},
        "yaxis": {"title": y, "rangemode": "tozero"},
        "xaxis": {"title": x},
        "font": {"family": "system-ui, sans-serif"},
    }
