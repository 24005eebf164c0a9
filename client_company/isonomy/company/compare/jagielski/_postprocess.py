"""DP-postprocessing (Jagielski et al. 2019, Algorithm 1): one noisy count, then a linear program.

    q̃(ŷ, a, y) = q̂(ŷ, a, y) + Lap(s),   rule p̃ = LP(1) on q̃      (`rule.py`)

One open count query; everything after it is post-processing. The paper adds noise of scale
2/(mε) to shares; ours has scale 1/ε on counts for two groups (replacing an attribute moves one
person between two cells of which one is released) and 2/ε for more: the same guarantee.

**It needs the attribute at prediction.** That is why it is here for comparison, and why `predict`
asks for it and warns: the company usually has none, and a decision that differs by group shows the
group to whoever sees the decision.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone

from isonomy.common.agreements.decision_rule import DecisionRule
from isonomy.common.agreements.plan import MILLION
from isonomy.common.base.errors import ConfigError, DataError
from isonomy.common.privacy.accounting import laplace_scale_for
from isonomy.common.privacy.queries import cost_of
from isonomy.common.sums.oracle import GroupOracle
from isonomy.company.compare.jagielski._rule import LABELS_OF, solve


class AttributeNeededWarning(UserWarning):
    """Decisions depend on the sensitive attribute, and so reveal it in part."""


@dataclass(kw_only=True)
class PostprocessedClassifier:
    """A base classifier whose decisions are flipped at random, at rates that differ by group."""

    estimator: Any = None  # any binary classifier; fitted on the company's data
    notion: str = "equalized_odds"  # or equal_fpr, equal_opportunity
    tolerance: float = 0.01  # γ of the linear program
    oracle: GroupOracle | None = None
    attribute: str | None = None
    share: float = 1.0  # of the plan's budget
    random_state: int | None = None  # for the rule's coin tosses; None: fresh ones

    def fit(self, X: Any, y: ArrayLike, *, ids: Sequence[object]) -> Self:
        """Fit the base model, release the counts once, solve for the rule."""
        oracle = self._checked()
        self.classes_, label, people = two_classes(oracle, y, ids)
        self.estimator_ = clone(self.estimator).fit(X, y)
        decided = self._base(X)
        self.pure_epsilon_ = self._largest_epsilon(oracle)
        released = oracle.counts(
            decided * 2 + label,
            attribute=self.attribute,
            people=people,
            purpose="postprocessing counts",
            epsilon=self.pure_epsilon_,
        )
        counts = np.zeros((len(released.groups), 4))  # cells that nobody is in have no column
        counts[:, : released.values.shape[1]] = released.values
        self.counts_ = counts.reshape(-1, 2, 2).transpose(1, 0, 2)  # (ŷ, a, y)
        self.rule_ = solve(self.counts_, self.tolerance, self.notion)
        self.groups_ = released.groups
        self.attribute_ = self.attribute or next(iter(oracle.groups))
        return self

    def predict(self, X: Any, *, sensitive_features: ArrayLike | None = None) -> NDArray[Any]:
        """Randomised decisions; `sensitive_features` holds each row's group label."""
        groups = group_numbers(sensitive_features, self.groups_)
        draws = np.random.default_rng(self.random_state).random(len(groups))
        return np.asarray(self.classes_[self.rule_.decide(self._base(X), groups, draws)])

    def export_rule(self) -> DecisionRule:
        """The rule for the regulator, who has the attributes: `isonomy-regulator apply-rule`.

        It holds released numbers only; the company sends its base decisions along.
        """
        millionths = np.rint(self.rule_.probabilities * MILLION).astype(int).tolist()
        return DecisionRule(
            attribute=self.attribute_,
            groups=tuple(self.groups_),
            notion=self.notion,
            if_zero=tuple(millionths[0]),
            if_one=tuple(millionths[1]),
        )

    def _base(self, X: Any) -> NDArray[np.int64]:
        return np.asarray(self.estimator_.predict(X) == self.classes_[1], dtype=np.int64)

    def _checked(self) -> GroupOracle:
        if self.oracle is None or self.estimator is None:
            raise ConfigError("give an estimator and an oracle")
        if self.notion not in LABELS_OF:
            raise ConfigError(f"postprocessing knows {', '.join(LABELS_OF)}; got {self.notion!r}")
        if not 0 < self.share <= 1:
            raise ConfigError(f"share is a part of the budget, above 0 and at most 1: {self.share}")
        return self.oracle

    def _largest_epsilon(self, oracle: GroupOracle) -> float:
        """The largest pure ε that the share of the budget buys."""
        cost = cost_of("groups", (len(oracle.labels(self.attribute)),), oracle.params)
        units = int(oracle.budget.cap_units * self.share)
        return cost.l1 / laplace_scale_for(units, cost.l1)


def two_classes(
    oracle: GroupOracle, y: ArrayLike, ids: Sequence[object]
) -> tuple[NDArray[Any], NDArray[np.int64], NDArray[np.int64]]:
    """The two classes, each row's label 0 or 1, and each row's person; DataError if not so."""
    classes, label = np.unique(np.asarray(y), return_inverse=True)
    if len(classes) != 2:
        raise DataError(f"this method needs two classes; got {len(classes)}")
    people = oracle.cohort.positions(ids)
    if len(np.unique(people)) != len(people):
        raise DataError("this method counts people: each must have one row")
    return classes, label.astype(np.int64), people


def group_numbers(values: ArrayLike | None, groups: Sequence[str]) -> NDArray[np.int64]:
    """(n,) group numbers of labels that a decision is to depend on; warns what that means."""
    if values is None:
        raise ConfigError(
            "this rule needs the sensitive attribute of every person it decides about; pass "
            "sensitive_features=…, or use a strategy that does without (tilt)"
        )
    warnings.warn(
        "decisions now depend on the sensitive attribute: whoever sees them learns about it, "
        "outside the (ε, δ) guarantee, and treating groups differently may be unlawful",
        AttributeNeededWarning,
        stacklevel=3,
    )
    code = {label: number for number, label in enumerate(groups)}
    labels = [str(value) for value in np.asarray(values)]
    unknown = sum(value not in code for value in labels)
    if unknown:
        raise DataError(f"{unknown} values are no group; groups are {', '.join(groups)}")
    return np.array([code[value] for value in labels], dtype=np.int64)
