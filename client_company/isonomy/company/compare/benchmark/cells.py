"""What a benchmark runs: a declarative list, unfolded to cells.

    [[experiment]]
    datasets   = ["adult/sex", "bank/age"]      set/attribute
    notions    = ["demographic_parity"]
    strategies = ["tilt", "pf_ld"]
    bases      = ["logistic"]
    epsilons   = [0.5, 1.0]                     no meaning for a strategy that is not private
    tolerances = [0.01]
    seeds      = 5
    [experiment.options]                        of the strategy, one value or a list to sweep
    primal_norm = [1, 10]

A **cell** is one choice of each, at one seed: one rehearsal. Its key is a hash of its settings and
of Isonomy's version, so a finished cell is never run again and a changed one is never mistaken for
it. Cells come in the list's order with seeds outermost: an interrupted run has every method at a
few seeds, rather than a few methods at every seed.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from isonomy.common.agreements.notions import SCORE_NOTIONS
from isonomy.common.base.documents import parse_toml
from isonomy.common.base.errors import ConfigError
from isonomy.common.people.cohort import INTERSECTION
from isonomy.company.compare.benchmark.methods import method
from isonomy.company.rehearsal.datasets import attribute_names
from isonomy.company.rehearsal.settings import Settings
from isonomy.company.rehearsal.strategies import GRADIENT

SCHEMA = 1  # of a result line; part of the key
BUILT_IN = ("quick", "bar", "groups", "full")
Value = bool | int | float | str


class Experiment(BaseModel):
    """One block of a list; every combination of its entries is run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    datasets: tuple[str, ...] = Field(min_length=1)
    notions: tuple[str, ...] = ("demographic_parity",)
    strategies: tuple[str, ...] = Field(min_length=1)
    bases: tuple[str, ...] = ("logistic",)
    epsilons: tuple[float, ...] = (1.0,)
    tolerances: tuple[float, ...] = (0.01,)
    delta: float = 1e-5
    seeds: int = Field(default=3, ge=1)
    options: dict[str, Value | tuple[Value, ...]] = Field(default_factory=dict)

    def cells(self, seed: int) -> Iterable[Cell]:
        """Every combination at one seed, in the order written."""
        sweeps = [
            [(name, value) for value in (values if isinstance(values, tuple) else (values,))]
            for name, values in self.options.items()
        ]
        for dataset, base, notion, strategy in itertools.product(
            self.datasets, self.bases, self.notions, self.strategies
        ):
            name, _, attribute = dataset.partition("/")
            epsilons: tuple[float | None, ...] = self.epsilons
            if not method(strategy).private:
                epsilons = (None,)
            for epsilon, tolerance, options in itertools.product(
                epsilons, self.tolerances, itertools.product(*sweeps)
            ):
                yield Cell(
                    dataset=name,
                    attribute=attribute or attribute_names(name)[0],
                    notion=notion,
                    strategy=strategy,
                    base=base,
                    epsilon=epsilon,
                    delta=self.delta,
                    tolerance=tolerance,
                    seed=seed,
                    options=tuple(options),
                )


@dataclass(frozen=True)
class Cell:
    """One rehearsal. `epsilon` None: the strategy is not private and has no budget."""

    dataset: str
    attribute: str
    notion: str
    strategy: str
    base: str
    epsilon: float | None
    delta: float
    tolerance: float
    seed: int
    options: tuple[tuple[str, Value], ...] = ()

    @property
    def key(self) -> str:
        """SHA-256 over the settings, the version and the schema of a result."""
        content = {**self.to_json(), "version": version(), "schema": SCHEMA}
        text = json.dumps(content, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def settings(self) -> Settings:
        """As `isonomy simulate` takes them; raises ConfigError for what does not exist."""
        if self.notion in SCORE_NOTIONS:
            raise ConfigError(f"a benchmark compares decisions; {self.notion} is about scores")
        return Settings(
            attribute=self.attribute,
            strategy=self.strategy,
            notion=self.notion,
            epsilons=(1.0 if self.epsilon is None else self.epsilon,),  # 1: never asked for
            delta=self.delta,
            base=self.base,
            tolerance=None if self.strategy in GRADIENT else self.tolerance,  # all their rounds
            seeds=self.seed + 1,
            options=dict(self.options),
        )

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "options": dict(self.options)}

    def __str__(self) -> str:
        budget = "" if self.epsilon is None else f", ε = {self.epsilon:g}"
        return f"{self.dataset}/{self.attribute}, {self.strategy}{budget}, seed {self.seed}"


@functools.cache
def version() -> str:
    """Of the package that makes the results."""
    return installed_version("isonomy")


def unfold(experiments: Iterable[Experiment], seeds: int | None = None) -> list[Cell]:
    """Every cell once, seeds outermost; all of them checked before any of them is run.

    `seeds`: at most so many of each experiment.
    """
    listed = list(experiments)
    last = max((experiment.seeds for experiment in listed), default=0)
    cells: dict[Cell, None] = {}
    for seed in range(last if seeds is None else min(last, seeds)):
        for experiment in listed:
            if seed < experiment.seeds:
                cells.update(dict.fromkeys(experiment.cells(seed)))
    for cell in cells:
        cell.settings()
        known = attribute_names(cell.dataset)
        if not set(cell.attribute.split(INTERSECTION)) <= set(known):
            raise ConfigError(
                f"{cell.dataset} has no attribute {cell.attribute!r}; it has {', '.join(known)}"
            )
    return list(cells)


# --- Lists on disk ---------------------------------------------------------------------------


def built_in(name: str) -> list[Experiment]:
    """One of the lists in `BUILT_IN`."""
    folder = resources.files("isonomy.company.compare.benchmark") / "lists"
    return parse((folder / f"{name}.toml").read_text(encoding="utf-8"), f"the list {name}")


def read_list(path: Path) -> list[Experiment]:
    """A list of your own."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the list {path} cannot be read ({type(error).__name__})") from None
    return parse(text, str(path))


def parse(text: str, where: str) -> list[Experiment]:
    """TOML with one [[experiment]] per block."""
    content = parse_toml(text.encode(), where)
    blocks = content.get("experiment")
    if set(content) != {"experiment"} or not isinstance(blocks, list) or not blocks:
        raise ConfigError(f"{where} must hold [[experiment]] blocks and nothing else")
    try:
        return [Experiment.model_validate(block) for block in blocks]
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"{where}: {place}: {first['msg']}") from None
