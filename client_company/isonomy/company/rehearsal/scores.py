"""How unlike scores are between groups, and what they are worth, on test rows.

`isonomy simulate --notion score_parity` measures these in the place of errors and violations:

| figure | what it is |
|---|---|
| loss | mean squared error over the variance of the test target |
| worst loss | the same among the people of the worst-off group, over the same variance |
| distance | largest difference of two groups' distribution functions (Kolmogorov–Smirnov) |
| floor | the distance that a score alike in all groups would show by chance |

Sets whose label was cut from a number (communities, parkinsons) are scored by that number, others
by the probability of their label.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

PERMUTATIONS = 200  # Monte Carlo error of a floor: about 3 % of it
FLOOR_SEED = 20_261_118


def score_figures(
    truth: Floats, base: Floats, score: Floats, groups: Ints, people: Ints
) -> dict[str, float]:
    """The figures of a base model's scores and of fair ones, named as those of decisions are.

    people: whose each row is, because a floor deals out groups among people.
    """
    return {
        "test_error": loss(truth, score),
        "test_violation": distance(score, groups),
        "base_error": loss(truth, base),
        "base_violation": distance(base, groups),
        "worst_loss": worst_loss(truth, score, groups),
        "base_worst_loss": worst_loss(truth, base, groups),
        "noise_floor": distance_floor(score, groups, people),
        "selection_rate": math.nan,
        "base_selection_rate": math.nan,
    }


def loss(truth: Floats, score: Floats) -> float:
    """Mean squared error as a part of the target's variance."""
    return float(np.mean((truth - score) ** 2) / np.var(truth))


def worst_loss(truth: Floats, score: Floats, groups: Ints) -> float:
    """The largest group's mean squared error, as a part of everybody's variance."""
    squares = (truth - score) ** 2 / np.var(truth)
    return max(float(squares[groups == group].mean()) for group in np.unique(groups))


def distance(score: Floats, groups: Ints) -> float:
    """Kolmogorov–Smirnov: the largest difference of two groups' shares at most any score."""
    cuts = np.unique(score)
    parts = [np.sort(score[groups == group]) for group in np.unique(groups)]
    shares = np.stack([np.searchsorted(part, cuts, "right") / len(part) for part in parts])
    return float(np.ptp(shares, axis=0).max())


def distance_floor(score: Floats, groups: Ints, people: Ints) -> float:
    """The mean distance if people (not rows) were put into groups at random."""
    rng = np.random.default_rng(FLOOR_SEED)
    _, first, row = np.unique(people, return_index=True, return_inverse=True)
    of_person = groups[first]
    draws = [distance(score, rng.permutation(of_person)[row]) for _ in range(PERMUTATIONS)]
    return float(np.mean(draws))
