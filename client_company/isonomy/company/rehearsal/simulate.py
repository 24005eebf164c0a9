"""Rehearse a strategy on data where both sides are known, before a real budget is spent.

One run, for a seed:

    people → 75 % training, 25 % test, at random by seed (all rows of a person on one side)
    training people's attributes → an oracle with budget (ε, δ), local or encrypted
    strategy(features, labels, oracle) → decisions
    test error and test violation of base and result, with the attributes that the company never had

The seed fixes split and models, never the privacy noise: two runs with one seed differ.

Each run tells three ε: `epsilon_cap`, what is guaranteed for attributes; `epsilon_spent` of it, the
company's view, exact; and `epsilon_as_in_papers`, with a label that says what it is worth: a
guarantee for whole records if these are protected (`record_epsilon`), otherwise none.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isonomy.common.agreements.notions import NOTIONS
from isonomy.common.base.errors import ConfigError
from isonomy.common.people.cohort import split_expression
from isonomy.common.sums.oracle import GroupOracle
from isonomy.company.gradient.run.filters import FilteredOracle
from isonomy.company.gradient.run.paper_epsilon import as_in_papers
from isonomy.company.rehearsal.base_models import BASES, Fits, Remembered, base_model
from isonomy.company.rehearsal.datasets import Dataset, attribute_names, load
from isonomy.company.rehearsal.datasets.file import is_file_name
from isonomy.company.rehearsal.measures import (
    equalized_odds_sum,
    group_fairness,
    noise_floor,
    violation,
)
from isonomy.company.rehearsal.strategies import (
    GRADIENT,
    PRIVATE_GRADIENT,
    STRATEGIES,
    TOLERANCE,
    Rehearsal,
    check_notion,
    is_pure,
    rehearsal_oracle,
)

SCHEMA = 1
TRAINING_SHARE = 0.75
LAST_SEED = 2**32 - 1  # scikit-learn takes no larger one
MEANS = ("test_error", "test_violation", "base_error", "base_violation")


@dataclass(frozen=True)
class Settings:
    """What is rehearsed. Checked on construction, before any data are read."""

    attribute: str | None = None
    strategy: str = "tilt"
    notion: str = "demographic_parity"
    epsilons: tuple[float, ...] = (1.0,)
    delta: float = 1e-5
    base: str = "gbdt"
    tolerance: float | None = None  # None: TOLERANCE for tilt; gradient strategies run to the end
    seeds: int = 3
    first_seed: int = 0  # seeds first_seed … first_seed + seeds − 1
    encrypted: bool = False
    keep_selection_rate: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)  # of the strategy, by name
    record_epsilon: float | None = None  # protect whole records from who sees the model
    stretch: float | None = None  # under an individual filter: how much it stretches the cap

    def __post_init__(self) -> None:
        _one_of("strategy", self.strategy, STRATEGIES)
        _one_of("notion", self.notion, NOTIONS)
        _one_of("base model", self.base, BASES)
        check_notion(self.strategy, self.notion)
        if not self.epsilons:
            raise ConfigError("give at least one epsilon")
        for epsilon in self.epsilons:
            if not (math.isfinite(epsilon) and epsilon > 0):
                raise ConfigError(f"epsilon must be a number above 0; got {epsilon}")
        if len(set(self.epsilons)) != len(self.epsilons):
            raise ConfigError("an epsilon is given twice")
        if not 0 < self.delta < 1:
            raise ConfigError(f"delta must lie between 0 and 1; got {self.delta}")
        if self.tolerance is not None and not 0 <= self.tolerance < 1:
            raise ConfigError(
                f"tolerance must be at least 0 (as small as the audits can tell) and below 1; "
                f"got {self.tolerance}"
            )
        if self.seeds < 1:
            raise ConfigError(f"seeds must be at least 1; got {self.seeds}")
        if not 0 <= self.first_seed <= LAST_SEED - self.seeds + 1:
            raise ConfigError(
                f"the first seed must be at least 0 and the last at most {LAST_SEED}; "
                f"got {self.first_seed} and {self.seeds} seeds"
            )
        self._check_gradient_only()

    def _check_gradient_only(self) -> None:
        """What only PF-LD and DP-FERMI can do."""
        wanted = {
            "record privacy": self.record_epsilon,
            "the individual filter": self.stretch,
        }
        for what, value in wanted.items():
            if value is not None and self.strategy not in PRIVATE_GRADIENT:
                raise ConfigError(f"{what} is for {', '.join(PRIVATE_GRADIENT)}")
        if self.record_epsilon is not None and self.stretch is not None:
            raise ConfigError("record privacy and the individual filter do not go together")
        if self.record_epsilon is not None and not 0 < self.record_epsilon < math.inf:
            raise ConfigError(f"the records' epsilon must be above 0; got {self.record_epsilon}")
        if self.stretch is not None and not 1 <= self.stretch < math.inf:
            raise ConfigError(f"stretch must be a number of at least 1; got {self.stretch}")

    @property
    def seed_range(self) -> range:
        """The seeds to run, in order."""
        return range(self.first_seed, self.first_seed + self.seeds)

    @property
    def aim(self) -> float | None:
        """The violation aimed at; None: the strategy does not look at one."""
        if self.tolerance is None and self.strategy not in GRADIENT:
            return TOLERANCE
        return self.tolerance


@dataclass(frozen=True)
class Run:
    """One seed at one ε, measured on the test people.

    `seconds` holds the base model's fits for the first ε of a seed only; further ones reuse them.
    """

    seed: int
    test_error: float
    test_violation: float
    base_error: float
    base_violation: float
    epsilon_spent: float
    seconds: float
    returned: str
    epsilon_cap: float
    epsilon_as_in_papers: float  # NaN: there is no such figure for this strategy
    as_in_papers: str  # what that figure is worth
    selection_rate: float
    base_selection_rate: float
    noise_floor: float
    group_fairness: float = math.nan  # (24) and (26) of Wang et al.: two groups only
    equalized_odds_sum: float = math.nan
    attribute_at_prediction: bool = False  # were test people decided about by their attribute?
    accounting: str = ""  # what ε means, where it is not the ledger's (ε, δ)
    dropped: int | None = None  # by the individual filter: people, and the first query without them
    first_drop: int | None = None

    def to_json(self) -> dict[str, Any]:
        """The published fields; the others by run are in results.csv."""
        names = list(vars(self))
        shown = {key: getattr(self, key) for key in names[: names.index("as_in_papers") + 1]}
        for name, value in shown.items():  # JSON has neither infinity nor NaN
            if isinstance(value, float) and not math.isfinite(value):
                shown[name] = None
        if self.dropped is not None:
            shown |= {"dropped": self.dropped, "first_drop": self.first_drop}
        return shown


@dataclass(frozen=True)
class Result:
    """All runs at one ε."""

    dataset: str
    settings: Settings
    attribute: str
    epsilon: float
    runs: tuple[Run, ...]

    @property
    def mean(self) -> dict[str, float]:
        return {name: self.average(name) for name in MEANS}

    @property
    def noise_floor(self) -> float:
        """Violation expected from sampling alone at the result's rates, mean over test sets."""
        return self.average("noise_floor")

    @property
    def attribute_at_prediction(self) -> bool:
        """Do decisions depend on the attribute of the person decided about?"""
        return any(run.attribute_at_prediction for run in self.runs)

    @property
    def accounting(self) -> str:
        """What ε means here, if it is not the ledger's (ε, δ)."""
        return self.runs[0].accounting if self.runs else ""

    @property
    def as_in_papers(self) -> str:
        """What the figure as in the papers is worth here."""
        return self.runs[0].as_in_papers if self.runs else ""

    def average(self, field: str) -> float:
        return float(np.mean([getattr(run, field) for run in self.runs]))

    def to_json(self) -> dict[str, Any]:
        settings = self.settings
        shown = {
            "schema": SCHEMA,
            "dataset": self.dataset,
            "attribute": self.attribute,
            "strategy": settings.strategy,
            "notion": settings.notion,
            "epsilon": self.epsilon,
            "delta": settings.delta,
            "base": settings.base,
            "tolerance": settings.aim,
            "first_seed": settings.first_seed,
            "runs": [run.to_json() for run in self.runs],
            "mean": self.mean,
            "noise_floor": self.noise_floor,
        }
        if self.attribute_at_prediction:
            shown["attribute_at_prediction"] = True
        if self.accounting:
            shown["accounting"] = self.accounting
        if settings.record_epsilon is not None:
            shown["record_epsilon"] = settings.record_epsilon
        if settings.stretch is not None:
            shown["stretch"] = settings.stretch
        return shown


@dataclass(frozen=True)
class Simulation:
    """One result per ε, in the order given."""

    results: tuple[Result, ...]

    def to_json(self) -> dict[str, Any]:
        if len(self.results) == 1:
            return self.results[0].to_json()
        return {"schema": SCHEMA, "results": [result.to_json() for result in self.results]}


def simulate(
    dataset: str | Dataset,
    settings: Settings | None = None,
    *,
    data_dir: Path | str | None = None,
    target: str | None = None,
    positive: str | None = None,
    id_column: str | None = None,
    on_run: Callable[[float, Run], None] | None = None,
) -> Simulation:
    """Rehearse `settings` on a data set, by name or as an object; `on_run` hears of progress."""
    settings = settings or Settings()
    attribute = settings.attribute
    if isinstance(dataset, str):
        if attribute is None and not is_file_name(dataset):
            attribute = attribute_names(dataset)[0]
        dataset = load(
            dataset, data_dir, attribute, target=target, positive=positive, id_column=id_column
        )
    attribute = attribute or next(iter(dataset.groups))
    split_expression(attribute, dataset.groups)
    found: dict[float, list[Run]] = {epsilon: [] for epsilon in settings.epsilons}
    for seed in settings.seed_range:
        fits = Fits()  # the base model does not depend on ε
        for epsilon, runs in found.items():
            runs.append(run_seed(dataset, attribute, settings, epsilon, seed, fits))
            if on_run is not None:
                on_run(epsilon, runs[-1])
    return Simulation(
        tuple(
            Result(dataset.name, settings, attribute, epsilon, tuple(runs))
            for epsilon, runs in found.items()
        )
    )


def split_people(people: int, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Training and test people, 75 to 25, each sorted."""
    order = np.random.default_rng(seed).permutation(people)
    cut = min(max(round(people * TRAINING_SHARE), 1), people - 1)
    return np.sort(order[:cut]), np.sort(order[cut:])


def run_seed(
    dataset: Dataset, attribute: str, settings: Settings, epsilon: float, seed: int, fits: Fits
) -> Run:
    """One rehearsal at one ε and seed; `fits` keeps base models for the next one."""
    whose = dataset.person_of_row
    training, test = split_people(len(dataset.ids), seed)
    here, there = np.isin(whose, training), np.isin(whose, test)
    features = dataset.features[here].reset_index(drop=True)
    test_features = dataset.features[there].reset_index(drop=True)
    attributes = {name: [own[p] for p in training] for name, own in dataset.attributes.items()}
    with rehearsal_oracle(
        [dataset.ids[person] for person in training],
        attributes,
        dataset.groups,
        epsilon=epsilon,
        delta=settings.delta,
        encrypted=settings.encrypted,
        pure=is_pure(settings.strategy, settings.options),
        stretch=settings.stretch,
    ) as oracle:
        rehearsal = Rehearsal(
            estimator=Remembered(base_model(settings.base, features, seed), fits),
            features=features,
            target=dataset.target[here],
            ids=[dataset.ids[person] for person in whose[here]],
            oracle=oracle,
            attribute=attribute,
            notion=settings.notion,
            tolerance=TOLERANCE if settings.tolerance is None else settings.tolerance,
            stop_within=settings.tolerance,
            seed=seed,
            keep_selection_rate=settings.keep_selection_rate,
            options=settings.options,
            record_epsilon=settings.record_epsilon,
            others=test_features,
        )
        begin = time.perf_counter()
        trained = STRATEGIES[settings.strategy](rehearsal)
        seconds = time.perf_counter() - begin

    truth, groups = dataset.target[there], dataset.codes(attribute)[there]
    n_groups = len(dataset.labels(attribute))
    base = trained.base_decide(test_features)
    by_group = trained.decide_by_group
    decisions = by_group(test_features, groups) if by_group else trained.decide(test_features)
    spent = oracle.budget.spent_epsilon if trained.epsilon_spent is None else trained.epsilon_spent
    papers = trained.papers
    if papers is None and not trained.accounting:
        papers = as_in_papers(oracle)
    repeated = None if dataset.people is None else whose[there]
    return Run(
        seed=seed,
        test_error=float(np.mean(decisions != truth)),
        test_violation=violation(settings.notion, truth, decisions, groups, n_groups),
        base_error=float(np.mean(base != truth)),
        base_violation=violation(settings.notion, truth, base, groups, n_groups),
        epsilon_spent=spent,
        seconds=seconds,
        returned=trained.returned,
        epsilon_cap=oracle.budget.cap_epsilon if math.isfinite(spent) else math.inf,
        epsilon_as_in_papers=math.nan if papers is None else papers.epsilon,
        as_in_papers="" if papers is None else papers.label,
        selection_rate=float(np.mean(decisions)),
        base_selection_rate=float(np.mean(base)),
        noise_floor=noise_floor(
            settings.notion, truth, decisions, groups, n_groups, people=repeated
        ),
        group_fairness=group_fairness(decisions, groups) if n_groups == 2 else math.nan,
        equalized_odds_sum=(
            equalized_odds_sum(truth, decisions, groups) if n_groups == 2 else math.nan
        ),
        attribute_at_prediction=by_group is not None,
        accounting=trained.accounting,
        **_drops(oracle),
    )


def _drops(oracle: GroupOracle) -> dict[str, int | None]:
    """How many people the individual filter left out, and at which query first."""
    if not isinstance(oracle, FilteredOracle):
        return {}
    first = next((each.query for each in oracle.drops if each.dropped), None)
    return {"dropped": oracle.dropped, "first_drop": first}


def _one_of(what: str, name: str, known: Iterable[str]) -> None:
    if name not in known:
        raise ConfigError(f"unknown {what} {name!r}; there are {', '.join(known)}")


__all__ = ["Result", "Run", "Settings", "Simulation", "run_seed", "simulate", "split_people"]
