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
no bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.utils.validation import check_is_fitted

from isonomy.common.errors import ConfigError, DataError
from isonomy.common.oracle import GroupOracle
from isonomy.company.jagielski.game import Auditor, paper_rounds, paper_step
from isonomy.company.jagielski.rule import LABELS_OF

COUNT_SHARE, AUDIT_SHARE = 0.05, 0.35  # of the budget; the rest is the learner's
NORM_QUANTILE = 0.9  # rows beyond it are clipped; the company's own data, so free to look at
RIDGE = 1e-6  # of the mean diagonal: one-hot columns are linearly dependent


class OracleLearner(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A mixture of linear threshold rules with nearly equal error rates by group.

    | parameter | meaning |
    |---|---|
    | encoder | transformer from the table to numbers; None: `X` is numbers already |
    | notion | `equalized_odds`, `equal_fpr` or `equal_opportunity` |
    | tolerance | γ |
    | rounds | T; None: the paper's formula, at least 1 |
    | bound | B, the most that the multipliers add up to |
    | step | η; None: the paper's formula |
    | oracle, attribute | whom to ask, and about which attribute |
    | share | of the plan's budget |
    | random_state | for drawing from the mixture; None: fresh |
    """

    def __init__(
        self,
        encoder: Any = None,
        *,
        notion: str = "equalized_odds",
        tolerance: float = 0.01,
        rounds: int | None = 20,
        bound: float = 2.0,
        step: float | None = None,
        oracle: GroupOracle | None = None,
        attribute: str | None = None,
        share: float = 1.0,
        random_state: int | None = None,
    ) -> None:
        self.encoder, self.notion, self.tolerance = encoder, notion, tolerance
        self.rounds, self.bound, self.step = rounds, bound, step
        self.oracle, self.attribute, self.share = oracle, attribute, share
        self.random_state = random_state

    def fit(self, X: Any, y: ArrayLike, *, ids: Sequence[object]) -> Self:
        """Play the game; the mixture is in `rules_` (T, features + 1)."""
        oracle = self._checked()
        target = np.asarray(y)
        self.classes_ = np.unique(target)
        if len(self.classes_) != 2:
            raise DataError(f"this learner needs two classes; got {len(self.classes_)}")
        label = (target == self.classes_[1]).astype(np.int64)
        people = oracle.cohort.positions(ids)
        if len(np.unique(people)) != len(people):
            raise DataError("this learner counts people: each must have one row")
        self.encoder_ = None if self.encoder is None else clone(self.encoder).fit(X, target)
        rows = self._rows(X)
        labels, groups = LABELS_OF[self.notion], len(oracle.labels(self.attribute))
        rounds = self.rounds or paper_rounds(
            len(rows),
            groups,
            rows.shape[1] - 1,
            epsilon=oracle.budget.cap_epsilon,
            delta=oracle.budget.delta,
            bound=self.bound,
        )
        game = _Game(oracle, self.attribute, rows, label, people, labels, self.share, rounds)
        auditor = Auditor(
            groups,
            labels,
            gamma=self.tolerance,
            bound=self.bound,
            step=self.step or paper_step(rounds, groups),
        )
        rules = []
        for _ in range(rounds):
            rules.append(game.best_response(auditor.costs(game.shares)))
            auditor.learn(game.rates(rules[-1]))
        self.rules_ = np.array(rules)
        self.multipliers_ = auditor.multipliers()
        self.epsilon_spent_ = oracle.budget.spent_epsilon
        return self

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """P[decide 1] over the mixture."""
        check_is_fitted(self, "rules_")
        ones = (self._rows(X) @ self.rules_.T < 0).mean(axis=1)
        return np.stack([1 - ones, ones], axis=1)

    def predict(self, X: Any) -> NDArray[Any]:
        """A decision of one rule of the mixture, drawn for each row."""
        chances = self.predict_proba(X)[:, 1]
        draws = np.random.default_rng(self.random_state).random(len(chances))
        return np.asarray(self.classes_[(draws < chances).astype(np.int64)])

    def _rows(self, X: Any) -> NDArray[np.float64]:
        table = X if self.encoder_ is None else self.encoder_.transform(X)
        numbers = np.asarray(table, dtype=np.float64)
        if not np.isfinite(numbers).all():
            raise DataError("features hold NaN or infinite values after encoding")
        return np.column_stack([np.ones(len(numbers)), numbers])

    def _checked(self) -> GroupOracle:
        if self.oracle is None:
            raise ConfigError("give an oracle")
        if self.notion not in LABELS_OF:
            raise ConfigError(f"this learner knows {', '.join(LABELS_OF)}; got {self.notion!r}")
        if self.rounds is not None and self.rounds < 1:
            raise ConfigError(f"rounds must be at least 1; got {self.rounds}")
        if not (self.bound > 0 and 0 < self.share <= 1 and 0 <= self.tolerance < 1):
            raise ConfigError("bound must be above 0, share in (0, 1], tolerance in [0, 1)")
        return self.oracle


class _Game:
    """What the learner and the auditor ask of the regulator."""

    def __init__(
        self,
        oracle: GroupOracle,
        attribute: str | None,
        rows: NDArray[np.float64],
        label: NDArray[np.int64],
        people: NDArray[np.int64],
        labels: tuple[int, ...],
        share: float,
        rounds: int,
    ) -> None:
        self._oracle, self._attribute = oracle, attribute
        self._rows, self._label, self._people, self._labels = rows, label, people, labels
        self._audit = share * AUDIT_SHARE / rounds
        # The first best response answers λ that favour nobody: it asks nothing, and is free.
        self._learn = share * (1 - COUNT_SHARE - AUDIT_SHARE) / max(rounds - 1, 1)
        self._norm = float(np.quantile(np.linalg.norm(rows, axis=1), NORM_QUANTILE))
        gram = rows.T @ rows  # public to the company
        ridge = RIDGE * float(np.trace(gram)) / len(gram)
        self._inverse = np.linalg.inv(gram + ridge * np.eye(len(gram)))
        released = oracle.counts(
            label,
            attribute=attribute,
            people=people,
            share=share * COUNT_SHARE,
            purpose="group sizes by label",
        )
        sizes = np.zeros((released.values.shape[0], 2))
        sizes[:, : released.values.shape[1]] = released.values
        self._counts = np.maximum(sizes.T[list(labels)], _least(released.deviation))
        self.shares = self._counts / len(rows)  # (labels, groups)

    def best_response(self, costs: NDArray[np.float64]) -> NDArray[np.float64]:
        """θ¹ − θ⁰ for added costs (labels, groups) of deciding 1."""
        total = (1 - 2 * self._label) @ self._rows  # Xᵀ(1[y ≠ 1] − 1[y ≠ 0]), public
        for number, label in enumerate(self._labels):
            mine = self._label == label
            released = self._oracle.weighted_sum(
                self._rows[mine],
                costs[number],
                norm=self._norm,
                attribute=self._attribute,
                people=self._people[mine],
                share=self._learn,
                purpose=f"costs of deciding 1, label {label}",
            )
            total = total + released.values
        return np.asarray(self._inverse @ total)

    def rates(self, rule: NDArray[np.float64]) -> NDArray[np.float64]:
        """(labels, groups) noisy shares of positive decisions."""
        decided = (self._rows @ rule < 0).astype(np.float64)
        cells = np.stack([decided * (self._label == label) for label in self._labels], axis=1)
        released = self._oracle.open_sum(
            cells,
            norm=1.0,
            attribute=self._attribute,
            people=self._people,
            share=self._audit,
            purpose="rates of this round's rule",
        )
        return np.clip(released.values.T / self._counts, 0.0, 1.0)


def _least(deviation: NDArray[np.float64]) -> float:
    """No released count is believed below its own noise: it stands in a denominator."""
    return float(max(1.0, deviation.max()))


__all__ = ["OracleLearner"]
