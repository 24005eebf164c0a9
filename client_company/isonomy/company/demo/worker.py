"""The company's process of the demonstration: what a company's script would look like.

    python -m isonomy.company.demo.worker RUN_FOLDER

It reads the company's files, joins the session, trains the default strategy through the remote
oracle, has its decisions audited before and after, and writes its decisions on the test people. It
sees no attribute: the oracle is its only way to the regulator. Progress goes to progress.jsonl, one
event per line.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from isonomy.common.agreements.plan import MILLION, Plan
from isonomy.common.base.command_line import CommandLine
from isonomy.common.base.errors import BudgetExceeded
from isonomy.common.figures.style import SERIES
from isonomy.common.sums.oracle import GroupOracle
from isonomy.company.demo.layout import COMPANY, DemoSettings, Layout
from isonomy.company.demo.population import read_company
from isonomy.company.fair.estimator import FairClassifier
from isonomy.company.fair.save import MODEL, save_model
from isonomy.company.federation.auditing import AuditResult, audit
from isonomy.company.federation.joining import Exchange, join
from isonomy.company.federation.statement import add_to_statement
from isonomy.company.rehearsal.base_models import base_model

app = CommandLine()


class EventFile:
    """Events for the display, one JSON object per line."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", buffering=1)

    def __call__(self, event: str, **fields: object) -> None:
        self._file.write(json.dumps({"event": event, "time": time.time(), **fields}) + "\n")

    def exchange(self, done: Exchange) -> None:
        """Write down one answer."""
        fields = {name: getattr(done, name) for name in ("number", "purpose", "seconds", "bytes")}
        self("exchange", **fields, epsilon=done.budget.spent_epsilon)


def train(
    oracle: GroupOracle, layout: Layout, plan: Plan, settings: DemoSettings
) -> dict[str, Any]:
    """Train the plan's strategy; decisions of the base model and of the fair one on test people.

    Both models' decisions on the plan's people are audited, for the regulator's report.
    """
    features, target, ids, test = read_company(layout)
    model = FairClassifier(
        base_model(settings.base, settings.seed),
        notion=plan.notion,
        tolerance=plan.tolerance_millionths / MILLION,
        oracle=oracle,
        random_state=settings.seed,
    )
    model.fit(features, target, ids=ids)
    save_model(model, layout.company.folder / "model")
    audits, skipped = list[AuditResult](), ""
    for name, decide in (("before", model.base_estimator_.predict), ("after", model.predict)):
        try:
            decided = decide(features)
            audits.append(audit(oracle, decided, target, ids=ids, name=name, whose="trained on"))
        except BudgetExceeded as error:  # so few people, or so small a budget: the report says so
            skipped = str(error)
    add_to_statement(
        layout.statement,
        plan,
        COMPANY,
        audits,
        model=f"{settings.base}, made fair by {settings.strategy}",
        file=layout.company.folder / "model" / MODEL,
        reason="To measure and correct differences between groups that the model would otherwise "
        "make. Without the attributes they can be neither seen nor mended.",
    )
    return {
        "before": model.base_estimator_.predict(test).tolist(),
        "after": model.predict(test).tolist(),
        "audits_skipped": skipped,
        "report": asdict(model.report_),
        "plots": _plots(model),
    }


def _plots(model: FairClassifier) -> list[dict[str, Any]]:
    """The model's pictures as plain data, for the report's appendix."""
    figures = [model.plot_groups(), *([model.plot_frontier()] if model.releases_ else [])]
    return [
        {
            "kind": "plot",
            "caption": f"{figure.title}. {figure.verdict} {figure.note}",
            "x": panel.x_label,
            "y": panel.y_label,
            "series": [
                {
                    "label": one.label,
                    "colour": SERIES.index(one.colour),
                    "mark": one.mark,
                    "points": one.points,
                    "limits": one.x_limits,
                    "line": one.line,
                }
                for one in panel.series
            ],
            "rows": panel.rows,
            "row_notes": panel.row_notes,
            "tolerance": panel.levels[0].value if panel.levels else None,
        }
        for figure in figures
        for panel in figure.panels
    ]


@app.command()
def main(folder: Path) -> None:
    """Run the company's part of the demonstration in FOLDER."""
    layout = Layout(folder)
    settings = DemoSettings.load(layout.settings)
    progress = EventFile(layout.company.folder / "progress.jsonl")
    plan = Plan.load(layout.plan)
    progress("listening")
    with join(
        plan,
        home=layout.company.folder,
        group=os.environ.get("ISONOMY_SOCKET_GROUP"),
        on_exchange=progress.exchange,
    ) as oracle:
        progress("session")
        began = time.monotonic()
        outcome = train(oracle, layout, plan, settings)
        seconds, spent = time.monotonic() - began, oracle.budget.spent_epsilon
    outcome |= {"seconds": seconds, "epsilon_spent": spent}
    layout.outcome.write_text(json.dumps(outcome))
    progress("trained", violation=outcome["report"]["violation"])


if __name__ == "__main__":
    app()
