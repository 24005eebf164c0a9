"""The demonstration's results on paper: a table, summary.json and the regulator's report.

report.html is written and signed by the regulator's command from the regulator's ledger; the
company countersigns it, and it is verified before the demonstration ends. What only a demonstration
can know, exact rates of people who were not trained on, stands in the report's appendix.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.table import Table

from isonomy.common.agreements.plan import Plan
from isonomy.common.keys.party import Card
from isonomy.common.report.verify import ReportPaths, Verification, require
from isonomy.company.demo.layout import Layout
from isonomy.company.demo.processes import Processes
from isonomy.company.demo.run import DemoResult

OFFICER = (
    *("--reason", "A demonstration with public data."),
    *("--alternatives", "Not examined: the data are public, and everybody's attribute is in them."),
    *("--access", "Whoever ran the demonstration: all parties ran on one machine."),
    *("--retention", "With the folder of the demonstration, by whoever ran it."),
)


def write_report(folder: Path, result: DemoResult, layout: Layout) -> None:
    """Write summary.json and the signed report into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "summary.json").write_text(json.dumps(result.summary, indent=2) + "\n")
    appendix = folder / "appendix.json"
    appendix.write_text(json.dumps(appendix_of(result)))
    with Processes(folder / "logs") as processes:
        processes.run(
            "regulator-report",
            [
                *("isonomy-regulator", "report", str(layout.plan), "--out", str(folder)),
                *("-c", str(layout.regulator_config), "--statement", str(layout.statement)),
                *("--appendix", str(appendix), *OFFICER),
            ],
        )
        processes.run(
            "company-countersign",
            [
                *("isonomy-company", "countersign", str(folder), "--yes"),
                *("--home", str(layout.company.folder)),
            ],
        )
    checks = Verification(
        ReportPaths.of(folder),
        card=Card.load(layout.regulator / "keys" / "card.json"),
        plan=Plan.load(layout.plan),
        ledger=layout.ledger,
    )
    require(checks.run())


def table(result: DemoResult) -> Table:
    """The result in a few lines for the terminal."""
    summary = result.summary
    rows = Table(
        title=f"{summary['strategy']} for {summary['notion'].replace('_', ' ')} by "
        f"{summary['attribute']}, {summary['people']:,} people",
        caption=f"accuracy and violation on {summary['tested']:,} people who were not trained on",
    )
    for name in ("", "before", "after"):
        rows.add_column(name, justify="right" if name else "left")
    for name in ("accuracy", "violation"):
        before, after = summary[f"{name}_before"], summary[f"{name}_after"]
        rows.add_row(name, f"{before:.4f}", f"{after:.4f}")
    rows.add_section()
    rows.add_row("ε cap (guaranteed)", "", f"{summary['epsilon_cap']:g}")
    rows.add_row("ε spent", "", f"{summary['epsilon_spent']:.4g} at δ = {summary['delta']:g}")
    rows.add_row("exchanges", "", str(summary["exchanges"]))
    rows.add_row("bytes through the relay", "", f"{summary['bytes'] / 1e6:.1f} MB")
    rows.add_row("seconds", "", f"{summary['seconds']:.1f}")
    return rows


# --- The appendix ---------------------------------------------------------------------------------


def appendix_of(result: DemoResult) -> dict[str, Any]:
    """Scores on test people, the company's pictures, and how the exchange went."""
    return {
        "title": "the demonstration's own figures",
        "parts": [
            _scores(result),
            _rates(result),
            *result.plots,
            _budget(result),
            _traffic(result),
            _how(result),
        ],
    }


def _scores(result: DemoResult) -> dict[str, Any]:
    """A table of accuracy and violation on people who were not trained on."""
    summary, report = result.summary, result.report
    return {
        "kind": "table",
        "head": ["on people who were not trained on", "before", "after"],
        "rows": [
            ["accuracy", f"{summary['accuracy_before']:.4f}", f"{summary['accuracy_after']:.4f}"],
            [
                f"violation of {summary['notion'].replace('_', ' ')}",
                f"{summary['violation_before']:.4f}",
                f"{summary['violation_after']:.4f}",
            ],
        ],
        "caption": f"Exact rates of {summary['tested']:,} people whom the plan does not name. Only "
        "a demonstration, which knows everybody, can show them without noise. The company's "
        f"estimate of its violation, from noised answers: {_estimate(report)}.",
    }


def _estimate(report: dict[str, Any]) -> str:
    if report["interval"] is None:
        return "cannot be measured at this budget"
    low, high = report["interval"]
    return f"{report['violation']:.4f} (95 % interval {low:.4f} to {high:.4f})"


def _rates(result: DemoResult) -> dict[str, Any]:
    rows = []
    for label in result.before.rates:
        for name, score in (("before", result.before), ("after", result.after)):
            rate = score.rates[label]
            rows.append([f"{label}, {name}", rate, f"{100 * rate:.1f} %"])
    caption = "Share of positive decisions by group, on the same test people."
    return {"kind": "bars", "rows": rows, "caption": caption}


def _budget(result: DemoResult) -> dict[str, Any]:
    rows = [
        [_purpose(exchange), exchange["epsilon"], f"ε = {exchange['epsilon']:.3f}"]
        for exchange in result.exchanges
    ]
    caption = "Privacy spent after each exchange, against the cap (dashed)."
    limit = result.summary["epsilon_cap"]
    return {"kind": "bars", "rows": rows, "limit": limit, "caption": caption}


def _traffic(result: DemoResult) -> dict[str, Any]:
    rows = [
        [_purpose(exchange), exchange["bytes"] / 1e6, f"{exchange['seconds']:.2f} s"]
        for exchange in result.exchanges
    ]
    return {"kind": "bars", "rows": rows, "caption": "Megabytes and seconds of each exchange."}


def _purpose(exchange: dict[str, Any]) -> str:
    return f"{exchange['number']}: {exchange['purpose']}"


def _how(result: DemoResult) -> dict[str, Any]:
    summary = result.summary
    rows = [
        ["data, base model", f"{summary['dataset']}, {summary['base']}"],
        ["exchanges between company and regulator", str(summary["exchanges"])],
        ["bytes through the relay", f"{summary['bytes']:,}"],
        ["seconds, all processes included", f"{summary['seconds']:.1f}"],
        ["head of the relay's chain", f"{summary['relay_chain_head'][:32]}…"],
    ]
    notes = " ".join(result.report["notes"])
    return {"kind": "table", "head": ["how it ran", ""], "rows": rows, "caption": notes[:2000]}
