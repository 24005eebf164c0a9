"""The table "Several classes, several attributes" of docs/tilt.md, from Adult.

python tests/company/fair/many_figures.py DATA_DIR

The four classes are kinds of jobs, read off the column `occupation`. Base model logistic, tolerance
.01, δ = 1e-5, three splits of 75 to 25. Prints mean test error / violation of each attribute.
"""

from __future__ import annotations

import sys
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from isonomy.common.sums.local import LocalOracle
from isonomy.company.fair.estimator import FairClassifier
from isonomy.company.fair.tilt.notions import events_of
from isonomy.company.rehearsal.base_models import base_model
from isonomy.company.rehearsal.datasets import Dataset, load
from isonomy.company.rehearsal.simulate import split_people

EPSILONS, SEEDS, PERMUTATIONS = (1.0, 3.0), (0, 1, 2), 200
JOBS = {
    "professional": ("Exec-managerial", "Prof-specialty"),
    "office": ("Adm-clerical", "Sales", "Tech-support"),
    "manual": (
        "Craft-repair", "Farming-fishing", "Handlers-cleaners", "Machine-op-inspct",
        "Transport-moving",
    ),
    "service": ("Other-service", "Priv-house-serv", "Protective-serv"),
}  # fmt: skip
JOB_OF = {occupation: job for job, each in JOBS.items() for occupation in each}


@dataclass(frozen=True)
class Task:
    """What to predict, from what, and by which attributes to be fair."""

    name: str
    X: pd.DataFrame
    y: Any
    pos_label: Any
    attributes: dict[str, Any]  # (rows,) of each
    notion: str


def tasks(adult: Dataset) -> list[Task]:
    groups = {name: np.array(adult.labels(name))[adult.codes(name)] for name in ("sex", "race")}
    jobs = adult.features["occupation"].map(JOB_OF)
    known = jobs.notna().to_numpy()
    X = adult.features[known].drop(columns="occupation").reset_index(drop=True)
    sex = {"sex": groups["sex"][known]}
    job = (X, jobs[known].to_numpy().astype(str), "professional", sex)
    income = (adult.features, adult.target, 1, groups)
    return [
        Task("job, 4 classes", *job, "equalized_odds"),
        Task("income", *income, "demographic_parity"),
    ]


def violation(notion: str, names: list[Any], decided: Any, y: Any, groups: Any) -> float:
    """Exactly, with the groups in hand."""
    number = {name: n for n, name in enumerate(names)}
    h, t = (np.array([number[each] for each in of]) for of in (decided, y))
    gaps = []
    for event in events_of(notion, names):
        members, z = event.members(t), event.happened(h, t)
        rates = [z[members & (groups == group)].mean() for group in np.unique(groups)]
        gaps.append(max(rates) - min(rates))
    return float(np.max(gaps))


def run(task: Task, epsilon: float, seed: int) -> dict[str, list[float]]:
    """Test error, then the violation of each attribute: without, with, and the floor."""
    training, test = split_people(len(task.y), seed)
    ids = [str(person) for person in training]
    columns = {name: of[training].tolist() for name, of in task.attributes.items()}
    oracle = LocalOracle.rehearse(ids, columns, epsilon=epsilon, delta=1e-5)
    model = FairClassifier(
        base_model("logistic", seed),
        notion=task.notion,
        oracle=oracle,
        attribute=list(columns),
        pos_label=task.pos_label,
        random_state=seed,
    )
    model.fit(task.X.iloc[training], task.y[training], ids=ids)
    names, X, y = list(model.classes_[model.class_order_]), task.X.iloc[test], task.y[test]
    groups = [of[test] for of in task.attributes.values()]
    before, after = model.base_estimator_.predict(X), model.predict(X)
    rng = np.random.default_rng(seed)

    def gaps(decided: Any, *, shuffled: bool = False) -> list[float]:
        each = [rng.permutation(of) if shuffled else of for of in groups]
        return [violation(task.notion, names, decided, y, of) for of in each]

    floor = np.mean([gaps(after, shuffled=True) for _ in range(PERMUTATIONS)], axis=0)
    return {
        "without": [float(np.mean(before != y)), *gaps(before)],
        f"ε = {epsilon:g}": [float(np.mean(after != y)), *gaps(after)],
        "floor": floor.tolist(),
    }


def main(data_dir: str) -> None:
    warnings.simplefilter("ignore")
    adult = load("adult", data_dir, "sex*race")
    for task in tasks(adult):
        columns: dict[str, list[list[float]]] = {}
        for epsilon in EPSILONS:
            for seed in SEEDS:
                for name, numbers in run(task, epsilon, seed).items():
                    columns.setdefault(name, []).append(numbers)
        means = {
            name: " / ".join(f"{value:.3f}"[1:] for value in np.mean(rows, axis=0))
            for name, rows in columns.items()
        }
        shown = [means[name] for name in ("without", *(f"ε = {e:g}" for e in EPSILONS), "floor")]
        what = f"{task.name}, {task.notion.replace('_', ' ')}, {' + '.join(task.attributes)}"
        print(f"| {what} | " + " | ".join(shown) + " |", flush=True)  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1])
