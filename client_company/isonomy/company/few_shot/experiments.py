"""The experiments of the paper's §4.2 and §4.3 as cells: resumable, one line each when finished.

    table    Omniglot in colour, 5-way 5-shot: every method at every ε       Table 5 and Figure 5
    figure3  MNIST in colour: DP-SGD against IRDP                            Figure 3
    bar      Omniglot in colour without privacy, larger and longer
    digits   all methods on scikit-learn's digits, in a minute

Settings were chosen on Omniglot classes that are not reported (`reserve` in data.py); MNIST and
digits take them as they are.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isonomy.common.base.canonical import hash_bytes
from isonomy.common.base.errors import ConfigError, IsonomyError
from isonomy.common.few_shot.learning.pool_file import read_arrays
from isonomy.company.compare.benchmark.store import Store
from isonomy.company.few_shot.data import Pools, load
from isonomy.company.few_shot.plan import VARIANTS
from isonomy.company.few_shot.rehearse import Recipe, rehearse, warm_start

EPSILONS = (2.0, 4.0, 6.0, 8.0, 10.0)
PRIVATE = ("dp_sgd", "irdp", "l_d", "pf_ld", "sc_reptile")

_IMAGES: dict[str, Any] = {
    "model": "conv4",
    "width": 8,
    "company_tasks": 4,
    "regulator_tasks": 10,
    "rounds": 36,
    "inner_rate": 400_000,
    "inner_steps": 3,
    "outer_rate": 3_000,
    "query_norm": 20_000_000,
    "inner_norm": 4_000_000,
    "regulator_weight": 5_000_000,
}
RECIPES = {
    "omniglot": Recipe({**_IMAGES, "input_shape": (3, 28, 28)}, warm_rounds=400, thrift=0.8),
    "omniglot_large": Recipe(
        {
            **_IMAGES,
            "input_shape": (3, 28, 28),
            "width": 32,
            "company_tasks": 4,
            "regulator_tasks": 8,
            "rounds": 600,
            "outer_rate": 1_000,
            "regulator_weight": 1_000_000,
        },
        warm_rounds=2_000,
        test_tasks=300,
        test_steps=10,
    ),
    "mnist": Recipe(
        {**_IMAGES, "input_shape": (3, 32, 32), "rounds": 24}, warm_rounds=100, thrift=0.8
    ),
    "digits": Recipe(
        {**_IMAGES, "model": "mlp", "width": 32, "input_shape": (3, 8, 8), "rounds": 10},
        warm_rounds=50,
        test_tasks=40,
        thrift=0.8,
    ),
}


def recipe_for(dataset: str, shape: tuple[int, ...]) -> Recipe:
    """The recipe of a named set, or one for your own: Conv-4 for images, else the MLP."""
    if dataset in RECIPES:
        return RECIPES[dataset]
    images = len(shape) == 3 and min(shape[1:]) >= 16
    kind = {"model": "conv4"} if images else {"model": "mlp", "width": 32}
    return Recipe({**_IMAGES, **kind, "input_shape": shape}, warm_rounds=100, thrift=0.8)


@dataclass(frozen=True)
class Cell:
    """One run. ε is 0 where nothing is private."""

    dataset: str
    method: str
    epsilon: float
    seed: int

    @property
    def key(self) -> str:
        return f"{self.dataset}/{self.method}/{self.epsilon:g}/{self.seed}"

    def __str__(self) -> str:
        return self.key


def cells(
    dataset: str, methods: Sequence[str], epsilons: Iterable[float], seeds: Iterable[int]
) -> list[Cell]:
    """All combinations, seed by seed, so that a run cut short has whole seeds."""
    for method in methods:
        if method not in VARIANTS:
            raise ConfigError(f"unknown method {method!r}; there are {', '.join(VARIANTS)}")
    listed, budgets = [], tuple(epsilons)
    for seed in seeds:
        for method in methods:
            private = VARIANTS[method].method not in ("none", "fair")
            listed += [Cell(dataset, method, e, seed) for e in (budgets if private else (0.0,))]
    return listed


def experiment(name: str, seeds: int, epsilons: Sequence[float] = EPSILONS) -> list[Cell]:
    """The cells of a named experiment."""
    if name == "table":
        return cells("omniglot", ("alone", "none", "fair", *PRIVATE), epsilons, range(seeds))
    if name == "figure3":
        return cells("mnist", ("alone", "none", "dp_sgd", "irdp"), epsilons, range(seeds))
    if name == "bar":
        return cells("omniglot_large", ("none",), epsilons, range(seeds))
    if name == "digits":
        return cells("digits", ("alone", "none", "fair", *PRIVATE), epsilons, range(seeds))
    raise ConfigError(f"unknown experiment {name!r}; there are table, figure3, bar and digits")


class Runner:
    """Runs cells that are not finished yet; keeps one seed's data and warm start at a time."""

    def __init__(
        self,
        folder: Path,
        data_dir: Path | None,
        *,
        recipes: dict[str, Recipe] | None = None,
        reserve: bool = False,
    ) -> None:
        self._folder, self._data_dir, self._reserve = folder, data_dir, reserve
        self._recipes = recipes or RECIPES
        self._held: tuple[tuple[str, int], Pools, NDArray[np.float32]] | None = None

    def run(
        self, listed: Sequence[Cell], on_cell: Callable[[Cell], None] | None = None
    ) -> tuple[int, int, list[tuple[Cell, str]]]:
        """(made, found, failed)."""
        made, found, failed = 0, 0, []
        with Store(self._folder) as store:
            for cell in listed:
                if store.finished(cell.key):
                    found += 1
                else:
                    line = self._line(cell)
                    store.add(line)
                    made += line["status"] == "ok"
                    if line["status"] != "ok":
                        failed.append((cell, str(line["reason"])))
                if on_cell is not None:
                    on_cell(cell)
        return made, found, failed

    def outcome(self, cell: Cell) -> Any:
        """Run one cell and return its Outcome, θ included."""
        pools, start = self._prepared(cell)
        recipe = self._recipes[cell.dataset]
        return rehearse(pools, recipe, cell.method, cell.epsilon, cell.seed, start=start)

    def _line(self, cell: Cell) -> dict[str, Any]:
        line: dict[str, Any] = {"key": cell.key, "cell": asdict(cell), "status": "failed"}
        try:
            return {**line, "status": "ok", **self.outcome(cell).to_json()}
        except IsonomyError as error:
            return {**line, "reason": str(error)}
        except ArithmeticError:
            return {**line, "reason": traceback.format_exc(limit=1)}

    def _prepared(self, cell: Cell) -> tuple[Pools, NDArray[np.float32]]:
        wanted = (cell.dataset, cell.seed)
        if self._held is None or self._held[0] != wanted:
            pools = load(cell.dataset, cell.seed, self._data_dir, reserve=self._reserve)
            self._held = wanted, pools, self._warm(pools, cell)
        return self._held[1], self._held[2]

    def _warm(self, pools: Pools, cell: Cell) -> NDArray[np.float32]:
        """The warm start of a seed, made once and kept beside the results."""
        recipe = self._recipes[cell.dataset]
        what = repr((sorted(recipe.base.items()), recipe.warm_rounds, recipe.warm_rate,
                     recipe.warm_tasks, self._reserve))  # fmt: skip
        tag = hash_bytes("isonomy/few-shot/warm", what.encode()).hex()[:12]
        path = self._folder / f"warm-{cell.dataset}-{cell.seed}-{tag}.npz"
        if path.is_file():
            return np.asarray(read_arrays(path)["theta"], np.float32)
        theta = warm_start(pools, recipe, cell.seed)
        self._folder.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        with partial.open("wb") as file:
            np.savez(file, theta=theta)
        partial.replace(path)
        return theta


__all__ = ["EPSILONS", "RECIPES", "Cell", "Runner", "cells", "experiment", "recipe_for"]
