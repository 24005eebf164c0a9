"""The demonstration's results on paper: a table, summary.json and the regulator's report.

report.html is written and signed by the regulator's command from the regulator's ledger; the
company countersigns it, and it is verified before the demonstration ends. What only a demonstration
can know, exact rates of people who were not trained on, stands in the report's appendix.
"""

from __future__ import annotations

import json
from pathlib import Path

from rich.table import Table

from isonomy.common.agreements.plan import Plan
from isonomy.common.keys.party import Card
from isonomy.common.report.verify import ReportPaths, Verification, require
from isonomy.company.demo._appendix import appendix_of
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
