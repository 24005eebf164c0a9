"""The table "Bounded group loss" of docs/lab/scores.md: do weights lower the worst-off loss?

python tests/company/fair/group_loss_figures.py DATA_DIR

    minimise over f   max over groups a of  E[ (y − f(x))² | A = a ]

The model is trained with weights λ_a / p_a, where λ grows by exponentiated gradient in the groups
that do worst among a fifth of the training people, which are held out; the λ with the least worst
loss there is taken, and the model is trained once more on everybody. The weights know every true
group. So this is what a private method without attributes could reach at best. fairlearn's
reductions for `BoundedGroupLoss` are beside it where the target is a number.

Splits from seed 900 on. Prints means on test rows, with the 95 % interval of the paired difference
of the worst loss. Losses are parts of the target's variance.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
from fairlearn.reductions import BoundedGroupLoss, ExponentiatedGradient, GridSearch, SquareLoss
from scipy.stats import t as student
from sklearn.base import clone

from isonomy.company.fair.scores.base import score_of
from isonomy.company.rehearsal.base_models import base_model
from isonomy.company.rehearsal.datasets import Dataset, load
from isonomy.company.rehearsal.scores import loss, worst_loss
from isonomy.company.rehearsal.simulate import split_people

FIRST_SEED, ROUNDS, STEP, HELD_OUT = 900, 10, 1.0, 5
TASKS = (  # set, attribute, base model, splits
    ("communities", "race", "ridge", 8),
    ("parkinsons", "sex", "ridge", 8),
    ("compas", "race", "logistic", 8),
    ("bank", "age", "logistic", 4),
)


def reweighted(model: Any, X: Any, y: Any, codes: Any, people: Any) -> Any:
    """The model with the weights of the groups that do best for the worst-off group."""
    held_out = people % HELD_OUT == 0
    seen = ~held_out
    share = np.bincount(codes[seen]) / seen.sum()
    lam, best = share.copy(), (np.inf, share)
    for _ in range(ROUNDS):
        fitted = weighted(model, X[seen], y[seen], (lam / share)[codes[seen]])
        squares = (y[held_out] - score_of(fitted, X[held_out])) ** 2
        losses = np.array([squares[codes[held_out] == code].mean() for code in range(len(share))])
        best = min(best, (losses.max(), lam), key=lambda pair: pair[0])
        lam = lam * np.exp(STEP * losses / losses.max())
        lam = lam / lam.sum()
    return weighted(model, X, y, (best[1] / share)[codes])


def weighted(model: Any, X: Any, y: Any, weight: Any) -> Any:
    return clone(model).fit(X, y, **{f"{model.steps[-1][0]}__sample_weight": weight})


def fairlearn_models(model: Any, X: Any, y: Any, codes: Any) -> Iterator[tuple[str, Any]]:
    """Scores by fairlearn's reductions for the least bound of a group's loss that they reach."""
    low, scale = y.min(), np.ptp(y)  # fairlearn's losses want numbers from 0 to 1
    name = {"sample_weight_name": f"{model.steps[-1][0]}__sample_weight"}
    bound = BoundedGroupLoss(SquareLoss(0, 1), upper_bound=0.0)
    gradient = ExponentiatedGradient(clone(model), bound, eps=1e-3, max_iter=20, **name)
    gradient.fit(X, (y - low) / scale, sensitive_features=codes)
    yield (
        "fairlearn, exponentiated gradient",
        lambda rows: low + scale * gradient.predict(rows, random_state=0),
    )
    grid = GridSearch(clone(model), bound, grid_size=15, **name)
    grid.fit(X, (y - low) / scale, sensitive_features=codes)
    yield "fairlearn, grid search", lambda rows: low + scale * grid.predict(rows)


def run(data: Dataset, attribute: str, base: str, seed: int) -> dict[str, tuple[float, float]]:
    """Loss and worst loss on test rows, by method."""
    number = data.score is not None
    y = data.score if number else data.target
    codes, whose = data.codes(attribute), data.person_of_row
    training, test = (np.isin(whose, part) for part in split_people(len(data.ids), seed))
    X, model = data.features, base_model(base, seed, number=number)
    inside = X[training], y[training], codes[training]
    scores = {"base": clone(model).fit(*inside[:2]), "weights": None}
    scores["weights"] = reweighted(model, *inside, whose[training])
    methods = {name: score_of(fitted, X[test]) for name, fitted in scores.items()}
    if number and base == "ridge":
        methods |= {name: of(X[test]) for name, of in fairlearn_models(model, *inside)}
    return {
        name: (loss(y[test], score), worst_loss(y[test], score, codes[test]))
        for name, score in methods.items()
    }


def main(data_dir: str) -> None:
    warnings.simplefilter("ignore")
    for dataset, attribute, base, splits in TASKS:
        data = load(dataset, data_dir, attribute)
        runs = [run(data, attribute, base, FIRST_SEED + number) for number in range(splits)]
        for name in runs[0]:
            figures = np.array([each[name] for each in runs])
            change = figures[:, 1] - np.array([each["base"][1] for each in runs])
            margin = student.ppf(0.975, splits - 1) * change.std(ddof=1) / np.sqrt(splits)
            overall, worst = figures.mean(axis=0)
            print(  # noqa: T201
                f"| {dataset} {attribute}, {base} | {name} | {overall:.3f} | {worst:.3f} | "
                f"{change.mean():+.3f} ± {margin:.3f} |",
                flush=True,
            )


if __name__ == "__main__":
    main(sys.argv[1])
