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

`attribute_aware` (§4.1) puts the group among the features. Then **every decision needs the
attribute of the person decided about**, as with DP-postprocessing, and shows it in part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone

from isonomy.common.base.errors import ConfigError, DataError
from isonomy.common.sums.oracle import GroupOracle
from isonomy.company.compare.jagielski._players import AwareGame, BlindGame, Training
from isonomy.company.compare.jagielski._postprocess import group_numbers, two_classes
from isonomy.company.compare.jagielski._rule import LABELS_OF
from isonomy.company.compare.jagielski.game import Auditor, paper_rounds, paper_step


@dataclass(kw_only=True)
class OracleLearner:
    """A mixture of linear threshold rules with nearly equal error rates by group.

    The defaults of rounds, bound and step were chosen on the lending generator at ε = 1 (26
    settings with two seeds, then eight with five); no benchmark's data were looked at for them.
    """

    encoder: Any = None  # transformer from the table to numbers; None: `X` is numbers already
    notion: str = "equalized_odds"  # or equal_fpr, equal_opportunity
    tolerance: float = 0.01  # γ
    rounds: int | None = 15  # T; None: the paper's formula, at least 1
    bound: float = 1.0  # B, the most that the multipliers add up to
    step: float | None = 1.0  # η; None: the paper's formula
    oracle: GroupOracle | None = None
    attribute: str | None = None
    share: float = 1.0  # of the plan's budget
    attribute_aware: bool = False  # rules see the group: predictions need `sensitive_features`
    random_state: int | None = None  # for drawing from the mixture; None: fresh

    def fit(self, X: Any, y: ArrayLike, *, ids: Sequence[object]) -> Self:
        """Play the game; the mixture is in `rules_` (T, features + 1, or + groups if aware)."""
        oracle = self._checked()
        self.classes_, label, people = two_classes(oracle, y, ids)
        self.encoder_ = None if self.encoder is None else clone(self.encoder).fit(X, label)
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
        table = Training(rows, label, people, labels)
        play = AwareGame if self.attribute_aware else BlindGame
        game = play(oracle, self.attribute, table, self.share, rounds)
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
        self.groups_ = oracle.labels(self.attribute)
        return self

    def predict_proba(
        self, X: Any, *, sensitive_features: ArrayLike | None = None
    ) -> NDArray[np.float64]:
        """P[decide 1] over the mixture; the attribute-aware variant needs the groups, and warns."""
        rows = self._rows(X)
        scores = rows @ self.rules_[:, : rows.shape[1]].T  # (n, T)
        if self.attribute_aware:
            groups = group_numbers(sensitive_features, self.groups_)
            bonus = np.insert(self.rules_[:, rows.shape[1] :], 0, 0.0, axis=1)  # (T, groups)
            scores = scores + bonus.T[groups]
        elif sensitive_features is not None:
            raise ConfigError("these rules do not see the attribute; leave sensitive_features out")
        ones = (scores < 0).mean(axis=1)
        return np.stack([1 - ones, ones], axis=1)

    def predict(self, X: Any, *, sensitive_features: ArrayLike | None = None) -> NDArray[Any]:
        """A decision of one rule of the mixture, drawn for each row."""
        chances = self.predict_proba(X, sensitive_features=sensitive_features)[:, 1]
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
