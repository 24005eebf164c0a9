"""What the learner and the auditor of DP-oracle-learner ask of the regulator.

`BlindGame` is Algorithm 3 with rules that do not see the attribute: the company computes XᵀX alone.
`AwareGame` is §4.1: group indicators G (n, k − 1) stand among the features. Then

    (X G)ᵀ(X G) = ( XᵀX   XᵀG )      XᵀG: row sums by group, one blind sum for the whole game
                  ( GᵀX   GᵀG )      GᵀG: diagonal, the released counts
    GᵀC = Σ_y n(a,y)·C(a,y)          from the released counts: costs depend on (a, y) only

and the auditor asks for decisions that depend on the group. So that the regulator need not know the
rule, each person's row holds the decisions they would get in *every* group; of group a's sum only
the entry for group a is used.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from isonomy.common.sums.oracle import GroupOracle

COUNT_SHARE, AUDIT_SHARE, CROSS_SHARE = 0.05, 0.35, 0.15  # of the budget; the learner has the rest
NORM_QUANTILE = 0.9  # rows beyond it are clipped; the company's own data, so free to look at
RIDGE = 1e-6  # of the mean diagonal: one-hot columns are linearly dependent

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Training:
    """The company's side: encoded rows with a leading 1, labels, who they are."""

    rows: Floats  # (n, features + 1)
    label: NDArray[np.int64]
    people: NDArray[np.int64]
    labels: tuple[int, ...]  # those that the notion compares


class BlindGame:
    """Best responses and rates of rules on the features alone."""

    cross_share = 0.0

    def __init__(
        self, oracle: GroupOracle, attribute: str | None, table: Training, share: float, rounds: int
    ) -> None:
        self._oracle, self._attribute, self._table = oracle, attribute, table
        self._groups = len(oracle.labels(attribute))
        self._share, self._audit = share, share * AUDIT_SHARE / rounds
        # The first best response answers λ that favour nobody: it asks nothing, and is free.
        learner_share = 1 - COUNT_SHARE - AUDIT_SHARE - self.cross_share
        self._learn = share * learner_share / max(rounds - 1, 1)
        self._norm = float(np.quantile(np.linalg.norm(table.rows, axis=1), NORM_QUANTILE))
        released = oracle.counts(
            table.label,
            attribute=attribute,
            people=table.people,
            share=share * COUNT_SHARE,
            purpose="group sizes by label",
        )
        sizes = np.zeros((self._groups, 2))
        sizes[:, : released.values.shape[1]] = released.values
        self._sizes = np.maximum(sizes.T, _least(released.deviation))  # (both labels, groups)
        self._counts = self._sizes[list(table.labels)]
        self.shares = self._counts / len(table.rows)  # (labels, groups)
        self._inverse = _inverse(self._gram())

    def best_response(self, costs: Floats) -> Floats:
        """θ¹ − θ⁰ for added costs (labels, groups) of deciding 1."""
        return np.asarray(self._inverse @ self._moments(costs))

    def rates(self, rule: Floats) -> Floats:
        """(labels, groups) noisy shares of positive decisions."""
        return self._shares_of((self._table.rows @ rule < 0)[:, None])

    def _gram(self) -> Floats:
        return np.asarray(self._table.rows.T @ self._table.rows)  # public to the company

    def _moments(self, costs: Floats) -> Floats:
        """Xᵀ(C¹ − C⁰), the part that depends on the attribute with noise."""
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
        return np.asarray(total)

    def _shares_of(self, decided: NDArray[np.bool_]) -> Floats:
        """Rates of decisions (n, 1), or (n, groups) with a decision for every group."""
        table, variants = self._table, decided.shape[1]
        cells = np.concatenate([decided * (table.label == y)[:, None] for y in table.labels], 1)
        released = self._oracle.open_sum(
            cells.astype(np.float64),
            norm=float(np.sqrt(variants)),  # a person has one label, so one 1 per variant
            attribute=self._attribute,
            people=table.people,
            share=self._audit,
            purpose="rates of this round's rule",
        )
        sums = released.values.reshape(self._groups, len(table.labels), variants)
        variant = np.arange(self._groups) % variants  # the one that fits the group
        return np.clip(sums[np.arange(self._groups), :, variant].T / self._counts, 0.0, 1.0)


class AwareGame(BlindGame):
    """Rules that see the group: coefficients of x, then one for each group but the first."""

    cross_share = CROSS_SHARE

    def rates(self, rule: Floats) -> Floats:
        scores = self._table.rows @ rule[: self._table.rows.shape[1]]
        bonus = np.append(0.0, rule[self._table.rows.shape[1] :])
        return self._shares_of(scores[:, None] + bonus < 0)

    def _gram(self) -> Floats:
        """(X G)ᵀ(X G) with noise in the blocks that depend on the attribute."""
        features = super()._gram()
        released = self._oracle.blind_sum(
            self._table.rows,
            norm=self._norm,
            attribute=self._attribute,
            people=self._table.people,
            share=self._share * CROSS_SHARE,
            purpose="rows by group",
        )
        cross = released.values[1:]  # (groups − 1, features + 1)
        sizes = self._sizes.sum(axis=0)[1:]
        # Noise of this size may hide every direction of a smaller eigenvalue: one-hot columns have
        # many. Without the ridge the inverse is made of noise.
        ridge = float(released.deviation.max()) * np.sqrt(cross.size)
        gram = np.block([[features, cross.T], [cross, np.diag(sizes)]])
        return np.asarray(gram + ridge * np.eye(len(gram)))

    def _moments(self, costs: Floats) -> Floats:
        by_group = self._sizes[0] - self._sizes[1]  # Σ of 1[y ≠ 1] − 1[y ≠ 0] in each group
        by_group = by_group + (self._counts * costs).sum(axis=0)
        return np.append(super()._moments(costs), by_group[1:])


def _inverse(gram: Floats) -> Floats:
    """The inverse of the nearest matrix that noise has not made indefinite."""
    values, vectors = np.linalg.eigh(gram)
    values = np.maximum(values, RIDGE * float(np.trace(gram)) / len(gram))
    return np.asarray((vectors / values) @ vectors.T)


def _least(deviation: Floats) -> float:
    """No released count is believed below its own noise: it stands in a denominator."""
    return float(max(1.0, deviation.max()))
