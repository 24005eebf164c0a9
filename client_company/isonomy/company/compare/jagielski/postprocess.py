"""DP-postprocessing (Jagielski et al. 2019, Algorithm 1): one noisy count, then a linear program.

With q̃(ŷ, a, y) = q̂(ŷ, a, y) + Lap(s) the noisy share of people with base decision ŷ, group a and
label y, and p(ŷ, a) = P[decide 1 given ŷ, a]:

    minimise    Σ_{ŷ,a} q(ŷ,a,0)·p(ŷ,a) + q(ŷ,a,1)·(1 − p(ŷ,a))                         LP (1)
    subject to  abs(FP_a(p) − FP_0(p)) ≤ γ,  abs(TP_a(p) − TP_0(p)) ≤ γ   for all a ≠ 0
                0 ≤ p ≤ 1,   FP_a(p) = Σ_ŷ q(ŷ,a,0)·p(ŷ,a) / q(a,0),   TP_a alike with y = 1

One open count query; everything after it is post-processing. The paper adds noise of scale
2/(mε) to shares; ours has scale 1/ε on counts for two groups (replacing an attribute moves one
person between two cells of which one is released) and 2/ε for more: the same guarantee.

Guarantees: a result always exists (deciding alike for all meets every γ ≥ 0), whatever the noise.
Differs from the paper: noisy counts below zero are set to zero, and a rate whose (group, label)
cell has no people left then is not constrained, because it cannot be estimated.

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
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import linprog
from sklearn.base import clone

from isonomy.common.base.errors import ConfigError, DataError
from isonomy.common.privacy.accounting import laplace_scale_for
from isonomy.common.privacy.queries import cost_of
from isonomy.common.sums.oracle import GroupOracle
from isonomy.company.rehearsal.strategies import Rehearsal, Trained, decider

LABELS_OF = {"equalized_odds": (0, 1), "equal_fpr": (0,), "equal_opportunity": (1,)}


class AttributeNeededWarning(UserWarning):
    """Decisions depend on the sensitive attribute, and so reveal it in part."""


def train(rehearsal: Rehearsal) -> Trained:
    """Decisions of test people use their true groups, and the result says so. Option: `share`."""
    model = PostprocessedClassifier(
        estimator=rehearsal.estimator,
        notion=rehearsal.notion,
        tolerance=rehearsal.tolerance,
        oracle=rehearsal.oracle,
        attribute=rehearsal.attribute,
        random_state=rehearsal.seed,
        **rehearsal.options_among("share"),
    ).fit(rehearsal.features, rehearsal.target, ids=rehearsal.ids)

    def refuse(_: pd.DataFrame) -> NDArray[np.int64]:
        raise ConfigError("this strategy decides by the attribute: use decide_by_group")

    return Trained(
        refuse,
        decider(model.estimator_),
        "dp_postprocess",
        decide_by_group=model.decide,
        epsilon_spent=model.pure_epsilon_,
        accounting="pure ε of one Laplace release, stronger than (ε, δ); it needs no δ",
    )


@dataclass(kw_only=True)
class PostprocessedClassifier:
    """A base classifier whose decisions are flipped at random, at rates that differ by group."""

    estimator: Any  # any binary classifier; fitted on the company's data
    oracle: GroupOracle
    notion: str = "equalized_odds"  # or equal_fpr, equal_opportunity
    tolerance: float = 0.01  # γ of the linear program
    attribute: str | None = None
    share: float = 1.0  # of the plan's budget
    random_state: int | None = None  # for the rule's coin tosses; None: fresh ones

    def fit(self, X: Any, y: ArrayLike, *, ids: Sequence[object]) -> Self:
        """Fit the base model, release the counts once, solve for the rule."""
        labels_of(self.notion)
        check_share(self.share)
        oracle, people = self.oracle, person_of_row(self.oracle, ids)
        self.classes_, label = np.unique(np.asarray(y), return_inverse=True)
        if len(self.classes_) != 2:
            raise DataError(f"this method needs two classes; got {len(self.classes_)}")
        self.estimator_ = clone(self.estimator).fit(X, y)
        cost = cost_of("groups", (len(oracle.labels(self.attribute)),), oracle.params)
        units = int(oracle.budget.cap_units * self.share)
        self.pure_epsilon_ = cost.l1 / laplace_scale_for(units, cost.l1)
        released = oracle.counts(
            self._base(X) * 2 + label,
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
        return self

    def predict(self, X: Any, *, sensitive_features: ArrayLike | None = None) -> NDArray[Any]:
        """Randomised decisions; `sensitive_features` holds each row's group label."""
        if sensitive_features is None:
            raise ConfigError(
                "this rule needs the sensitive attribute of every person it decides about; pass "
                "sensitive_features=…, or use a strategy that does without (tilt)"
            )
        warnings.warn(
            "decisions now depend on the sensitive attribute: whoever sees them learns about it, "
            "outside the (ε, δ) guarantee, and treating groups differently may be unlawful",
            AttributeNeededWarning,
            stacklevel=2,
        )
        codes = pd.Index(self.groups_).get_indexer(pd.Index(np.asarray(sensitive_features)))
        unknown = int((codes < 0).sum())
        if unknown:
            raise DataError(f"{unknown} values are no group; groups are {', '.join(self.groups_)}")
        return np.asarray(self.classes_[self.decide(X, codes)])

    def decide(self, X: Any, groups: NDArray[Any]) -> NDArray[np.int64]:
        """(n,) class numbers from the base decisions and group numbers."""
        draws = np.random.default_rng(self.random_state).random(len(groups))
        return np.asarray(draws < self.rule_[self._base(X), groups], dtype=np.int64)

    def _base(self, X: Any) -> NDArray[np.int64]:
        return np.asarray(self.estimator_.predict(X) == self.classes_[1], dtype=np.int64)


def solve(
    counts: NDArray[np.float64], gamma: float, notion: str = "equalized_odds"
) -> NDArray[np.float64]:
    """The best γ-fair p (2, groups) for counts (2 decisions, groups, 2 labels), by HiGHS."""
    if not 0 <= gamma <= 1:
        raise ConfigError(f"the tolerance γ must lie between 0 and 1; got {gamma}")
    q = np.maximum(counts, 0.0)  # (ŷ, a, y)
    if not np.isfinite(q).all() or q.sum() <= 0:
        raise DataError(
            "no released count is above 0: the noise is larger than the data. Take a larger ε."
        )
    q = q / q.sum()
    groups = q.shape[1]
    rows = []  # they act on p flattened as (ŷ, a)
    for label in labels_of(notion):
        sizes = q[:, :, label].sum(axis=0)
        rates = []  # the rate of each group with people, as a function of p
        for group in np.flatnonzero(sizes):
            rate = np.zeros((2, groups))
            rate[:, group] = q[:, group, label] / sizes[group]
            rates.append(rate.ravel())
        for rate in rates[1:]:
            rows += [rate - rates[0], rates[0] - rate]
    solution = linprog(
        (q[:, :, 0] - q[:, :, 1]).ravel(),
        A_ub=np.array(rows) if rows else None,
        b_ub=np.full(len(rows), gamma) if rows else None,
        bounds=(0.0, 1.0),
        method="highs",
    )
    if solution.status != 0:
        raise DataError(f"the linear program was not solved: {solution.message}")
    return np.asarray(np.clip(solution.x, 0.0, 1.0)).reshape(2, groups)


def labels_of(notion: str) -> tuple[int, ...]:
    """The labels whose rates a notion compares."""
    if notion not in LABELS_OF:
        raise ConfigError(
            f"dp_postprocess and dp_oracle take {', '.join(LABELS_OF)}; got {notion!r}"
        )
    return LABELS_OF[notion]


def check_share(share: float) -> None:
    """ConfigError unless it is a part of the budget."""
    if not 0 < share <= 1:
        raise ConfigError(f"share is a part of the budget, above 0 and at most 1: {share}")


def person_of_row(oracle: GroupOracle, ids: Sequence[object]) -> NDArray[np.int64]:
    """(rows,) each row's person; DataError if somebody has two rows."""
    people = oracle.cohort.positions(ids)
    if len(np.unique(people)) != len(people):
        raise DataError("this method counts people: each must have one row")
    return people
