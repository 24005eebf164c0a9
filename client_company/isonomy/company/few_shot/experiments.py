"""The experiments of the paper's §4.2 and §4.3 as cells: resumable, one line each when finished.

    table    Omniglot in colour, 5-way 5-shot: every method at every ε       Table 5 and Figure 5
    wide     the same at width 64, ε = 10, with and without individual accounts
    figure3  MNIST in colour: DP-SGD against IRDP                            Figure 3
    bar      Omniglot in colour without privacy, a larger network, trained longer
    digits   all methods on scikit-learn's digits, in a minute

Settings were chosen on Omniglot classes that are not reported (_data.py leaves them out). MNIST and
digits use the same settings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isonomy.common.base.errors import ConfigError, IsonomyError
from isonomy.common.few_shot.learning.tasks import SeededChoice
from isonomy.company.compare.benchmark.store import Store
from isonomy.company.few_shot._rehearse import (
    FewShotCell,
    RehearsalOutcome,
    RehearsalRecipe,
    rehearse,
    warm_start,
)
from isonomy.company.few_shot._variants import VARIANTS
from isonomy.company.few_shot.data import Pools, load

EPSILONS = (2.0, 4.0, 6.0, 8.0, 10.0)
FIRST_SEED = 20  # of an experiment: settings were chosen on lower ones
_NOISE = 2**33  # beside the seeds of everything else
PRIVATE = ("dp_sgd", "irdp", "l_d", "pf_ld", "sc_reptile")

_IMAGES: dict[str, Any] = {
    "width": 8,
    "regulator_tasks": 10,
    "rounds": 36,
    "outer_rate": 3_000,
    "query_norm": 20_000_000,
    "inner_norm": 4_000_000,
    "regulator_weight": 5_000_000,
}
RECIPES = {
    "omniglot": RehearsalRecipe(_IMAGES, warm_rounds=400, test_tasks=200),
    "omniglot_large": RehearsalRecipe(
        {
            **_IMAGES,
            "width": 32,
            "regulator_tasks": 8,
            "rounds": 600,
            "outer_rate": 1_000,
            "regulator_weight": 1_000_000,
        },
        warm_rounds=2_000,
        test_tasks=300,
        test_steps=10,
    ),
    "omniglot_wide": RehearsalRecipe({**_IMAGES, "width": 64, "rounds": 12}, warm_rounds=100),
    "mnist": RehearsalRecipe(
        {**_IMAGES, "input_shape": (3, 32, 32), "rounds": 24}, warm_rounds=100
    ),
    "digits": RehearsalRecipe(
        {**_IMAGES, "model": "mlp", "width": 32, "input_shape": (3, 8, 8), "rounds": 10},
        warm_rounds=50,
        test_tasks=40,
    ),
}


def recipe_for(dataset: str, data_dir: Path | None = None) -> RehearsalRecipe:
    """The recipe of a named set, or one for a folder: Conv-4 for images, else the MLP."""
    if dataset in RECIPES:
        return RECIPES[dataset]
    shape = load(dataset, 0, data_dir).regulator.inputs.shape[1:]
    images = len(shape) == 3 and min(shape[1:]) >= 16
    kind = {} if images else {"model": "mlp", "width": 32}
    return RehearsalRecipe({**_IMAGES, **kind, "input_shape": shape}, warm_rounds=100)


def cells(
    dataset: str, methods: Sequence[str], epsilons: Iterable[float], seeds: Iterable[int]
) -> list[FewShotCell]:
    """All combinations, seed by seed, so that a run cut short has whole seeds."""
    for method in methods:
        if method not in VARIANTS:
            raise ConfigError(f"unknown method {method!r}; there are {', '.join(VARIANTS)}")
    listed, budgets = [], tuple(epsilons)
    for seed in seeds:
        for method in methods:
            private = VARIANTS[method].method not in ("none", "fair")
            each = budgets if private else (0.0,)
            listed += [FewShotCell(dataset, method, epsilon, seed) for epsilon in each]
    return listed


def experiment(
    name: str, seeds: int, epsilons: Sequence[float] | None = None
) -> tuple[str, list[FewShotCell]]:
    """The data set and the cells of a named experiment, by default at its own ε."""
    everything = ("alone", "none", "fair", *PRIVATE)
    experiments: dict[str, tuple[str, tuple[str, ...]]] = {
        "table": ("omniglot", everything),
        "wide": ("omniglot_wide", ("alone", "dp_sgd", "irdp", "l_d", "pf_ld")),
        "figure3": ("mnist", ("alone", "none", "dp_sgd", "irdp")),
        "bar": ("omniglot_large", ("none",)),
        "digits": ("digits", everything),
    }
    if name not in experiments:
        raise ConfigError(f"unknown experiment {name!r}; there are {', '.join(experiments)}")
    dataset, methods = experiments[name]
    usual = (10.0,) if name == "wide" else EPSILONS
    numbers = range(FIRST_SEED, FIRST_SEED + seeds)
    return dataset, cells(dataset, methods, usual if epsilons is None else epsilons, numbers)


class Rehearsals:
    """Runs the cells of one data set; keeps the data and the warm start of one seed at a time.

    `same_noise`: every method of a seed meets the same draws and noise, so that their differences
    are the methods' own. For experiments on public data: a θ made so protects nobody.
    """

    def __init__(
        self, recipe: RehearsalRecipe, data_dir: Path | None, *, same_noise: bool = False
    ) -> None:
        self._recipe, self._data_dir, self._same_noise = recipe, data_dir, same_noise
        self._seed: int | None = None
        self._pools: Pools
        self._start: NDArray[np.float32]

    def outcome(self, cell: FewShotCell) -> RehearsalOutcome:
        """Run one cell."""
        if cell.seed != self._seed:
            self._pools = load(cell.dataset, cell.seed, self._data_dir)
            self._start = warm_start(self._pools, self._recipe, cell.seed)
            self._seed = cell.seed
        noise = SeededChoice(_NOISE, cell.seed) if self._same_noise else None
        return rehearse(self._pools, self._recipe, cell, self._start, noise=noise)


def run_cells(
    listed: Sequence[FewShotCell],
    rehearsals: Rehearsals,
    folder: Path,
    on_cell: Callable[[FewShotCell], None] | None = None,
) -> tuple[int, int, list[tuple[FewShotCell, str]]]:
    """Run the cells that `folder` does not have yet.

    Returns how many were run, how many were there already, and the failed ones with their reasons.
    """
    run, stored, failed = 0, 0, []
    with Store(folder) as store:
        for cell in listed:
            if store.finished(cell.key):
                stored += 1
            else:
                try:
                    record = rehearsals.outcome(cell).to_json()
                    run += 1
                except IsonomyError as error:
                    reason = str(error)
                    record = {"key": cell.key, "cell": asdict(cell), "status": "failed"}
                    record["reason"] = reason
                    failed.append((cell, reason))
                store.add(record)
            if on_cell is not None:
                on_cell(cell)
    return run, stored, failed
