"""A few-shot run in containers: both parties have tasks of scikit-learn's digits.

`add_tasks` follows `prepare`: the same parties, another plan. The regulator's image needs torch.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from isonomy.common.few_shot.learning.tasks import Pool
from isonomy.company.demo.layout import Layout
from isonomy.company.demo.processes import Processes
from isonomy.company.demo.results import OFFICER
from isonomy.company.few_shot.data import digits_pools

TASKS, ROUNDS = "digits", 8
SETTINGS = {
    "model": "mlp",
    "width": 16,
    "input_shape": [3, 8, 8],
    "method": "irdp",
    "rounds": ROUNDS,
    "inner_noise": 2_000_000,
    "query_noise": 2_000_000,
    "regulator_tasks": 2,
    "measured_tasks": 8,  # half of the regulator's 800 images
    "regulator_weight": 300_000,
    "outer_rate": 40_000,
    "epsilon": 8_000_000,
    "delta": "1e-5",
}


def add_tasks(layout: Layout, processes: Processes, relay: str) -> None:
    """Hand out the tasks, write the few-shot plan and have both owners approve it."""
    pools, home = digits_pools(0), str(layout.company.folder)
    tasks, settings = layout.regulator / "tasks.npz", layout.company_data / "settings.json"
    ids = np.array([f"image-{number}" for number in range(len(pools.regulator))])
    _write(pools.regulator, tasks, ids=ids)
    _write(pools.company, tasks_file(layout))
    settings.write_text(json.dumps(SETTINGS))
    config, plan = ("-c", str(layout.regulator_config)), str(layout.few_shot_plan)
    add = ["isonomy-regulator", "tasks", "add", TASKS, str(tasks), *config]
    processes.run("regulator-tasks", add)
    tasks.unlink()  # the vault has them now, encrypted
    processes.run(
        "company-few-shot-plan",
        [
            *("isonomy-company", "few-shot-plan", "--home", home, "--relay", relay),
            *("--regulator", str(layout.regulator / "keys" / "card.json")),
            *("--tasks", TASKS, "--samples", str(len(pools.regulator))),
            *("--settings", str(settings), "-o", plan),
        ],
    )
    approve = ["isonomy-company", "approve", plan, "--home", home, "--yes"]
    processes.run("company-approve", approve)
    processes.run("regulator-approve", ["isonomy-regulator", "approve", plan, *config, "--yes"])


def tasks_file(layout: Layout) -> Path:
    """Where the company's tasks are."""
    return layout.company_data / "tasks.npz"


def train(layout: Layout) -> None:
    """The company's part: meta-train through the session, and save the model."""
    os.execvp(  # noqa: S606
        "isonomy",
        [
            *("isonomy", "few-shot", "run", str(layout.few_shot_plan)),
            *("--tasks", str(tasks_file(layout)), "--home", str(layout.company.folder)),
            *("-o", str(layout.company.folder / "few-shot-model")),
            *("--group", os.environ.get("ISONOMY_SOCKET_GROUP", "")),
        ],
    )


def _write(pool: Pool, path: Path, **more: Any) -> None:
    names = ("inputs", "labels", "groups", "positive")
    arrays = {name: getattr(pool, name) for name in names if getattr(pool, name) is not None}
    path.touch(0o600)
    np.savez(path, **arrays, **more)


def write_report(layout: Layout, folder: Path) -> None:
    """Write the regulator's signed report of the run, and have it verified."""
    folder.mkdir(parents=True, exist_ok=True)
    with Processes(folder / "logs") as processes:
        processes.run(
            "regulator-report",
            [
                *("isonomy-regulator", "report", str(layout.few_shot_plan), "--out", str(folder)),
                *("-c", str(layout.regulator_config), *OFFICER),
            ],
        )
        plan = ("--plan", str(layout.few_shot_plan))
        processes.run("verify", ["isonomy-regulator", "verify", str(folder), *plan])
