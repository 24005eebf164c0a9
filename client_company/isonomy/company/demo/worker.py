"""The company's process of the demonstration: what a company's own script would look like.

    python -m isonomy.company.demo.worker RUN_FOLDER

It reads the company's files, joins the session, trains the default strategy through the remote
oracle, and writes its decisions on the test people. It has no access to an attribute, and no other
way to one than the oracle. Progress goes to progress.jsonl, one event per line.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from isonomy.common.errors import IsonomyError
from isonomy.common.exit_codes import code_of
from isonomy.common.oracle import GroupOracle
from isonomy.common.plan import MILLION, Plan
from isonomy.company.base_models import base_model
from isonomy.company.demo.layout import Layout, Settings
from isonomy.company.demo.population import read_company
from isonomy.company.estimator import FairClassifier
from isonomy.company.join import Exchange, join


class Progress:
    """Events for the display, one JSON object per line."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", buffering=1)

    def __call__(self, event: str, **fields: object) -> None:
        self._file.write(json.dumps({"event": event, "time": time.time(), **fields}) + "\n")

    def exchange(self, done: Exchange) -> None:
        """Tell about one answer."""
        self(
            "exchange",
            number=done.number,
            purpose=done.purpose,
            seconds=done.seconds,
            bytes=done.bytes,
            epsilon=done.budget.spent_epsilon,
        )


def train(oracle: GroupOracle, layout: Layout, plan: Plan, settings: Settings) -> dict[str, Any]:
    """Train the plan's strategy; decisions of the base model and of the fair one on test people."""
    features, target, ids, test = read_company(layout)
    model = FairClassifier(
        base_model(settings.base, features, settings.seed),
        notion=plan.notion,
        tolerance=plan.tolerance_millionths / MILLION,
        oracle=oracle,
        random_state=settings.seed,
    )
    model.fit(features, target, ids=ids)
    return {
        "before": model.base_estimator_.predict(test).tolist(),
        "after": model.predict(test).tolist(),
        "report": asdict(model.report_),
        "frontier": [asdict(point) for point in model.frontier()],
    }


def main(folder: str) -> int:
    """Run the company's part; the exit code says what went wrong."""
    layout = Layout(Path(folder))
    settings = Settings.load(layout.settings)
    progress = Progress(layout.company.folder / "progress.jsonl")
    plan = Plan.load(layout.plan)
    try:
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
            seconds = time.monotonic() - began
            budget = oracle.budget
    except IsonomyError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return code_of(error)
    layout.outcome.write_text(
        json.dumps(
            {
                **outcome,
                "seconds": seconds,
                "epsilon_cap": budget.cap_epsilon,
                "epsilon_spent": budget.spent_epsilon,
            }
        )
    )
    progress("trained", violation=outcome["report"]["violation"])
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
