"""The demonstration's training without other parties, in a process like the company's own.

    python -m isonomy.company.speed._local_training RUN_FOLDER FRESH_FOLDER

RUN_FOLDER is a demonstration that was run; model and papers go to FRESH_FOLDER. Prints the seconds
of the training as JSON.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path

from isonomy.common.agreements.plan import Plan
from isonomy.common.sums.local import LocalOracle
from isonomy.company.demo.layout import DemoSettings, Layout
from isonomy.company.demo.population import Population
from isonomy.company.demo.worker import train


def main(run: Path, fresh: Path) -> None:
    layout, local = Layout(run), Layout(fresh)
    settings, plan = DemoSettings.load(layout.settings), Plan.load(layout.plan)
    population = Population.of(settings)
    shutil.copytree(layout.company_data, local.company_data)
    values = population.data.attributes[population.attribute]
    value_of = dict(zip(population.data.ids, values, strict=True))
    ids = population.training_ids
    oracle = LocalOracle.rehearse(
        ids,
        {population.attribute: [value_of[person] for person in ids]},
        epsilon=float(settings.epsilon),
        delta=float(settings.delta),
        groups=plan.groups,
    )
    began = time.monotonic()
    train(oracle, local, plan, settings)
    print(json.dumps({"seconds": time.monotonic() - began}))  # noqa: T201


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
