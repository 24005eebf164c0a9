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
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isonomy.common.base.parallel import each
from isonomy.common.people.cohort import split_expression
from isonomy.common.sums.oracle import GroupOracle
from isonomy.company.gradient.run.paper_epsilon import as_in_papers
from isonomy.company.rehearsal.base_models import Fits, Remembered, base_model
from isonomy.company.rehearsal.datasets import Dataset, attribute_names, load
from isonomy.company.rehearsal.datasets.file import is_file_name
from isonomy.company.rehearsal.measures import (
    equalized_odds_sum,
    group_fairness,
    noise_floor,
    violation,
)
from isonomy.company.rehearsal.results import Result, Run, Simulation
from isonomy.company.rehearsal.scores import score_figures
from isonomy.company.rehearsal.settings import Settings
from isonomy.company.rehearsal.strategies import (
    PURE,
    STRATEGIES,
    Rehearsal,
    Trained,
    rehearsal_oracle,
)

Ints = NDArray[np.int64]

TRAINING_SHARE = 0.75


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
    """Rehearse `settings` on a data set, by name or as an object; `on_run` hears of every run."""
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
    runs_at: dict[float, list[Run]] = {epsilon: [] for epsilon in settings.epsilons}
    for runs_of_seed in each(partial(_seed, dataset, attribute, settings), settings.seed_range):
        for epsilon, run in zip(settings.epsilons, runs_of_seed, strict=True):
            runs_at[epsilon].append(run)
            if on_run is not None:
                on_run(epsilon, run)
    return Simulation(
        tuple(
            Result(dataset.name, settings, attribute, epsilon, tuple(runs))
            for epsilon, runs in runs_at.items()
        )
    )


def _seed(dataset: Dataset, attribute: str, settings: Settings, seed: int) -> list[Run]:
    """The runs of one seed, one per ε."""
    fits = Fits()  # the base model does not depend on ε
    return [
        run_seed(dataset, attribute, settings, epsilon, seed, fits) for epsilon in settings.epsilons
    ]


def split_people(people: int, seed: int) -> tuple[Ints, Ints]:
    """Training and test people, 75 to 25, each sorted."""
    order = np.random.default_rng(seed).permutation(people)
    cut = min(max(round(people * TRAINING_SHARE), 1), people - 1)
    return np.sort(order[:cut]), np.sort(order[cut:])


def run_seed(
    dataset: Dataset, attribute: str, settings: Settings, epsilon: float, seed: int, fits: Fits
) -> Run:
    """One rehearsal at one ε and seed; `fits` keeps base models for the next one."""
    training, test = split_people(len(dataset.ids), seed)
    attributes = {name: [of[p] for p in training] for name, of in dataset.attributes.items()}
    with rehearsal_oracle(
        [dataset.ids[person] for person in training],
        attributes,
        dataset.groups,
        epsilon=epsilon,
        delta=settings.delta,
        encrypted=settings.encrypted,
        pure=settings.strategy in PURE,
        stretch=settings.stretch,
    ) as oracle:
        rehearsal = _company_side(dataset, attribute, settings, oracle, training, test, seed, fits)
        begin = time.perf_counter()
        trained = STRATEGIES[settings.strategy](rehearsal)
        seconds = time.perf_counter() - begin

    spent = oracle.budget.spent_epsilon if trained.epsilon_spent is None else trained.epsilon_spent
    papers = trained.papers
    if papers is None and not trained.accounting:
        papers = as_in_papers(oracle)
    return Run(
        seed=seed,
        epsilon_spent=spent,
        seconds=seconds,
        returned=trained.returned,
        epsilon_cap=oracle.budget.cap_epsilon if math.isfinite(spent) else math.inf,
        epsilon_as_in_papers=math.nan if papers is None else papers.epsilon,
        as_in_papers="" if papers is None else papers.label,
        accounting=trained.accounting,
        stopped=trained.stopped,
        **_measured(dataset, attribute, settings, trained, test),
        **_drops(oracle),
    )


def _company_side(
    dataset: Dataset,
    attribute: str,
    settings: Settings,
    oracle: GroupOracle,
    training: Ints,
    test: Ints,
    seed: int,
    fits: Fits,
) -> Rehearsal:
    """All that the company has in this run: rows of training people, and the oracle."""
    whose = dataset.person_of_row
    inside = np.isin(whose, training)
    features = dataset.features[inside].reset_index(drop=True)
    target = _target(dataset, settings)
    number = target is dataset.score
    return Rehearsal(
        estimator=Remembered(base_model(settings.base, seed, number=number), fits),
        features=features,
        target=target[inside],
        ids=[dataset.ids[person] for person in whose[inside]],
        oracle=oracle,
        attribute=attribute,
        notion=settings.notion,
        tolerance=(
            settings.default_tolerance if settings.tolerance is None else settings.tolerance
        ),
        stop_within=settings.tolerance,
        seed=seed,
        keep_selection_rate=settings.keep_selection_rate,
        options=settings.options,
        record_epsilon=settings.record_epsilon,
        others=dataset.features[np.isin(whose, test)].reset_index(drop=True),
    )


def _target(dataset: Dataset, settings: Settings) -> NDArray[Any]:
    """(rows,) what is learned: the label, or for scores the number that it was cut from, if any."""
    return dataset.score if settings.scores and dataset.score is not None else dataset.target


def _measured(
    dataset: Dataset, attribute: str, settings: Settings, trained: Trained, test: Ints
) -> dict[str, Any]:
    """Error, violation and shares on the test people, with attributes the company never had."""
    whose, notion = dataset.person_of_row, settings.notion
    inside = np.isin(whose, test)
    features = dataset.features[inside].reset_index(drop=True)
    truth, groups = _target(dataset, settings)[inside], dataset.codes(attribute)[inside]
    n_groups = len(dataset.labels(attribute))
    base = trained.base_decide(features)
    if settings.scores:
        return score_figures(truth, base, trained.decide(features), groups, whose[inside])
    by_group = trained.decide_by_group
    decisions = by_group(features, groups) if by_group else trained.decide(features)
    two = n_groups == 2
    return {
        "test_error": float(np.mean(decisions != truth)),
        "test_violation": violation(notion, truth, decisions, groups, n_groups),
        "base_error": float(np.mean(base != truth)),
        "base_violation": violation(notion, truth, base, groups, n_groups),
        "selection_rate": float(np.mean(decisions)),
        "base_selection_rate": float(np.mean(base)),
        "noise_floor": noise_floor(
            notion, truth, decisions, groups, n_groups,
            people=None if dataset.people is None else whose[inside],
        ),
        "group_fairness": group_fairness(decisions, groups) if two else math.nan,
        "equalized_odds_sum": equalized_odds_sum(truth, decisions, groups) if two else math.nan,
        "attribute_at_prediction": by_group is not None,
    }  # fmt: skip


def _drops(oracle: GroupOracle) -> dict[str, Any]:
    """How many people the individual filter left out, and at which query first."""
    if not oracle.capabilities.filtered:
        return {}
    accounts = oracle.accounts
    first = next((drops.query for drops in accounts.drops if drops.dropped), None)
    return {"dropped": accounts.dropped, "first_drop": first}
