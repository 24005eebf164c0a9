"""DP-oracle-learner (Jagielski et al. 2019, Algorithm 3): a private game of learner and auditor.

Each of T rounds, with costs C⁰ = 1[y ≠ 0] and C¹ = 1[y ≠ 1] + w(A, y) (`game.py`):

    learner   h_t(x) = 1[x·(θ¹ − θ⁰) < 0],   θᵇ = (XᵀX)⁻¹ XᵀCᵇ    XᵀC¹: weighted blind sum, noisy
    auditor   rates R̃_a,y of h_t                                   open sum, noisy; then θ, λ

The result is the mixture of h_1 … h_T, drawn anew for each decision. XᵀX and C⁰ do not depend on
the attribute: the company computes them alone.

Guarantees: T rounds and the one count together stay within `share` of the plan's budget, by the
exact Gaussian composition of the ledger; people of different labels are asked about in separate
sums, so each pays for their own only.
Differs from the paper: Gaussian instead of Laplace noise (less of it over T rounds), noise that
scales with the spread of the current costs, and shares from released counts where the paper uses
the private min q. Not in the paper: rows are clipped to a norm, because a sum of unclipped rows has
no bound. Its variant whose rules see the attribute is not here, nor are its formulas for T and η.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone

from isonomy.common.base.errors import ConfigError
from isonomy.common.sums.oracle import GroupOracle
from isonomy.company.compare.jagielski.game import Auditor
from isonomy.company.compare.jagielski.postprocess import check_share, labels_of, person_of_row
from isonomy.company.rehearsal.base_models import base_model
from isonomy.company.rehearsal.strategies import Rehearsal, Trained, decider

COUNT_SHARE, AUDIT_SHARE = 0.05, 0.35  # of the budget; the learner has the rest
NORM_QUANTILE = 0.9  # rows beyond it are clipped; the company's own data, so free to look at
RIDGE = 1e-6  # of the mean diagonal: one-hot columns are linearly dependent

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Recipe:
    """Settings of the game.

    The defaults of rounds, bound and step were chosen on the lending generator at ε = 1 (26
    settings with two seeds, then eight with five); no benchmark's data were looked at for them.
    """

    rounds: int = 15  # T
    bound: float = 1.0  # B, the most that the multipliers add up to
    step: float = 1.0  # η
    share: float = 1.0  # of the plan's budget

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not isinstance(value, int | float):
                raise ConfigError(f"option {name} must be a number; got {value!r}")
        if self.rounds < 1 or not self.bound > 0:
            raise ConfigError("rounds must be at least 1, bound above 0")
        check_share(self.share)


def train(rehearsal: Rehearsal) -> Trained:
    """DP-oracle-learner on the logistic base model's encoding, whatever the base model.

    Options: the fields of `Recipe`.
    """
    recipe = Recipe(**rehearsal.options_among(*Recipe.__dataclass_fields__))
    base = clone(rehearsal.estimator).fit(rehearsal.features, rehearsal.target)
    encoder = base_model("logistic", rehearsal.seed)[:-1]
    encoder.fit(rehearsal.features, rehearsal.target)

    def rows_of(features: object) -> Floats:
        numbers = np.asarray(encoder.transform(features), dtype=np.float64)
        return np.column_stack([np.ones(len(numbers)), numbers])

    table = Training(
        rows_of(rehearsal.features),
        rehearsal.target,
        person_of_row(rehearsal.oracle, rehearsal.ids),
        labels_of(rehearsal.notion),
    )
    rules = play(rehearsal.oracle, rehearsal.attribute, table, rehearsal.tolerance, recipe)

    def decide(features: object) -> NDArray[np.int64]:
        chances = mixture(rules, rows_of(features))
        draws = np.random.default_rng(rehearsal.seed).random(len(chances))
        return (draws < chances).astype(np.int64)

    return Trained(decide, decider(base), "dp_oracle")


@dataclass(frozen=True)
class Training:
    """The company's side: encoded rows with a leading 1, labels, who they are."""

    rows: Floats  # (n, features + 1)
    label: NDArray[np.int64]
    people: NDArray[np.int64]
    labels: tuple[int, ...]  # those that the notion compares


def play(
    oracle: GroupOracle, attribute: str, table: Training, tolerance: float, recipe: Recipe
) -> Floats:
    """Play the game; returns the rules of all rounds (T, features + 1)."""
    game = Game(oracle, attribute, table, recipe)
    auditor = Auditor(
        len(oracle.labels(attribute)),
        table.labels,
        gamma=tolerance,
        bound=recipe.bound,
        step=recipe.step,
    )
    rules = []
    for _ in range(recipe.rounds):
        rules.append(game.best_response(auditor.costs(game.shares)))
        auditor.learn(game.rates(rules[-1]))
    return np.array(rules)


def mixture(rules: Floats, rows: Floats) -> Floats:
    """(n,) P[decide 1] over the mixture of the rules."""
    return np.asarray((rows @ rules.T < 0).mean(axis=1))


class Game:
    """What the learner and the auditor ask of the regulator: best responses, and rates."""

    def __init__(
        self, oracle: GroupOracle, attribute: str, table: Training, recipe: Recipe
    ) -> None:
        self._oracle, self._attribute, self._table = oracle, attribute, table
        self._audit = recipe.share * AUDIT_SHARE / recipe.rounds
        # The first best response answers λ that favour nobody: it asks nothing, and is free.
        learner_share = recipe.share * (1 - COUNT_SHARE - AUDIT_SHARE)
        self._learn = learner_share / max(recipe.rounds - 1, 1)
        self._norm = float(np.quantile(np.linalg.norm(table.rows, axis=1), NORM_QUANTILE))
        released = oracle.counts(
            table.label,
            attribute=attribute,
            people=table.people,
            share=recipe.share * COUNT_SHARE,
            purpose="group sizes by label",
        )
        # No released count is believed below its own noise: it stands in a denominator.
        sizes = np.maximum(released.values.T, max(1.0, float(released.deviation.max())))
        self._counts = sizes[list(table.labels)]  # (labels, groups)
        self.shares = self._counts / len(table.rows)
        self._inverse = _inverse(table.rows.T @ table.rows)  # public to the company

    def best_response(self, costs: Floats) -> Floats:
        """θ¹ − θ⁰ for added costs (labels, groups) of deciding 1: (XᵀX)⁻¹ Xᵀ(C¹ − C⁰)."""
        table = self._table
        total = (1 - 2 * table.label) @ table.rows  # Xᵀ(1[y ≠ 1] − 1[y ≠ 0]), public
        for number, label in enumerate(table.labels):
            inside = table.label == label
            released = self._oracle.weighted_sum(
                table.rows[inside],
                costs[number],
                norm=self._norm,
                attribute=self._attribute,
                people=table.people[inside],
                share=self._learn,
                purpose=f"costs of deciding 1, label {label}",
            )
            total = total + released.values
        return np.asarray(self._inverse @ total)

    def rates(self, rule: Floats) -> Floats:
        """(labels, groups) noisy shares of positive decisions."""
        table = self._table
        decided = table.rows @ rule < 0
        cells = np.column_stack([decided & (table.label == label) for label in table.labels])
        released = self._oracle.open_sum(
            cells.astype(np.float64),
            norm=1.0,  # a person has one label, so at most one 1
            attribute=self._attribute,
            people=table.people,
            share=self._audit,
            purpose="rates of this round's rule",
        )
        return np.clip(released.values.T / self._counts, 0.0, 1.0)


def _inverse(gram: Floats) -> Floats:
    values, vectors = np.linalg.eigh(gram)
    values = np.maximum(values, RIDGE * float(np.trace(gram)) / len(gram))
    return np.asarray((vectors / values) @ vectors.T)
