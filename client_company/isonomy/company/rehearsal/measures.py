"""How unfair hard decisions are, exactly as the papers measure it, and how much of it is chance.

With ŷ the decision, y the label, s the group, both classes 0 or 1 (Lowy et al. 2023, App. F.1):

| notion | violation | where |
|---|---|---|
| `demographic_parity` | max over s₁, s₂ of abs(P[ŷ=1 given s₁] − P[ŷ=1 given s₂]) | (10) |
| `equalized_odds` | the same given (s, y = 1), and given (s, y = 0); the larger | (11) |
| `equal_opportunity` | the half of (11) with y = 1: true positive rates | – |
| `equal_fpr` | the half of (11) with y = 0: false positive rates | – |
| `accuracy_parity` | max over s₁, s₂ of abs(P[ŷ≠y given s₁] − P[ŷ≠y given s₂]) | – |

Tran et al. (2021) measure "the maximal difference between any two protected groups": these maxima.

A **cell** is one event (whom we look at, what we count) in one group. A cell without people has no
rate: it takes no part in the comparison and is NaN in `rates`, never zero.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from isonomy.common.base.errors import DataError
from isonomy.company.fair.tilt.notions import events_of

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

DRAWS = 4_000  # Monte Carlo error of a floor: below 1 % of it
PERMUTATIONS = 2_000
FLOOR_SEED = 20_230_501


@dataclass(frozen=True)
class _Cells:
    """Checked input. members, hits: (events, rows) whom an event looks at, and whom it counts."""

    members: NDArray[np.bool_]
    hits: NDArray[np.bool_]
    groups: Ints
    n_groups: int

    @classmethod
    def of(
        cls, notion: str, target: ArrayLike, decisions: ArrayLike, groups: ArrayLike, n_groups: int
    ) -> _Cells:
        truth, decided, group = _checked(target, decisions, groups, n_groups)
        # The label 1 first: the floor's draws follow this order.
        events = sorted(events_of(notion, (0, 1)), key=lambda event: event.labels, reverse=True)
        members = np.stack([event.members(truth) for event in events])
        hits = np.stack([event.happened(decided, truth) > 0 for event in events])
        return cls(members, members & hits, group, n_groups)

    def per_group(self, rows: NDArray[np.bool_]) -> Ints:
        """(events, groups) number of these rows in each cell."""
        counts = [np.bincount(self.groups[each], minlength=self.n_groups) for each in rows]
        return np.stack(counts)


def rates(
    notion: str, target: ArrayLike, decisions: ArrayLike, groups: ArrayLike, n_groups: int
) -> Floats:
    """(events, groups) rates of the groups 0 … n_groups − 1; NaN where a cell is empty."""
    cells = _Cells.of(notion, target, decisions, groups, n_groups)
    counts = cells.per_group(cells.members)
    return np.asarray(cells.per_group(cells.hits) / np.where(counts, counts, np.nan))


def violation(
    notion: str, target: ArrayLike, decisions: ArrayLike, groups: ArrayLike, n_groups: int
) -> float:
    """The violation of `decisions` between the groups 0 … n_groups − 1."""
    cells = _Cells.of(notion, target, decisions, groups, n_groups)
    hits, counts = cells.per_group(cells.hits), cells.per_group(cells.members)
    value = float(_largest_gap(hits[None], counts[None])[0])
    if np.isnan(value):
        raise DataError(
            f"{notion} cannot be measured: no event has people in two groups (of {n_groups})"
        )
    return value


def group_fairness(decisions: ArrayLike, groups: ArrayLike) -> float:
    """GF of Wang et al. 2024, for two groups; 1 is fair, NaN if nobody of group 1 is selected.

        GF = P[ŷ=1 given A=0] / P[ŷ=1 given A=1]                                            (24)

    It depends on which group is 0 and which label is 1.
    """
    first, second = rates("demographic_parity", decisions, decisions, groups, 2)[0]
    return float(first / second) if second > 0 else float("nan")


def equalized_odds_sum(target: ArrayLike, decisions: ArrayLike, groups: ArrayLike) -> float:
    """EO of Wang et al. 2024, for two groups; 0 is fair, NaN if a (group, label) cell is empty.

        EO = TPR_0 − TPR_1 + FPR_0 − FPR_1                                                  (26)

    Differs from the print, which has y=0 in the second term, P[ŷ=1 given A=1, y=0]: that would not
    be 0 for equal rates. The two differences may cancel: (11) is the stricter measure.
    """
    by_event = rates("equalized_odds", target, decisions, groups, 2)
    return float((by_event[:, 0] - by_event[:, 1]).sum())


def noise_floor(
    notion: str,
    target: ArrayLike,
    decisions: ArrayLike,
    groups: ArrayLike,
    n_groups: int,
    *,
    people: ArrayLike | None = None,
) -> float:
    """E[violation] from sampling alone, were the true rates of all groups equal.

        k_{e,s} ~ Binomial(n_{e,s}, pooled rate of e),   E max_{e, s₁, s₂} |k/n − k'/n'|

    by Monte Carlo with a fixed seed, cell sizes as they are. A model cannot be shown to be fairer
    than this on this test set. Where people have several rows (`people`: whose each row is), rows
    are no independent draws: groups are then permuted among people instead.
    """
    cells = _Cells.of(notion, target, decisions, groups, n_groups)
    rng = np.random.default_rng(FLOOR_SEED)
    if people is not None:
        return _permuted_floor(cells, np.asarray(people), rng)
    counts = cells.per_group(cells.members)
    pooled = cells.hits.sum(axis=1) / np.maximum(cells.members.sum(axis=1), 1)
    hits = rng.binomial(counts, pooled[:, None], size=(DRAWS, *counts.shape))
    return float(np.nanmean(_largest_gap(hits, counts[None])))


def _permuted_floor(cells: _Cells, people: Ints, rng: np.random.Generator) -> float:
    """Groups dealt out anew among people; the rows of a person stay together."""
    persons, first, whose = np.unique(people, return_index=True, return_inverse=True)

    def per_person(rows: NDArray[np.bool_]) -> Ints:  # (events, persons)
        return np.stack([np.bincount(whose[each], minlength=len(persons)) for each in rows])

    members, hits = per_person(cells.members), per_person(cells.hits)
    group_of, gaps = cells.groups[first], []
    for _ in range(PERMUTATIONS):
        one_hot = np.eye(cells.n_groups, dtype=np.int64)[rng.permutation(group_of)]
        gaps.append(_largest_gap((hits @ one_hot)[None], (members @ one_hot)[None])[0])
    return float(np.nanmean(gaps))


def _largest_gap(hits: Ints, counts: Ints) -> Floats:
    """(draws,) largest difference of rates within an event; empty cells take no part.

    NaN where no event has people in two groups.
    """
    present = np.broadcast_to(counts > 0, hits.shape)
    shares = hits / np.maximum(counts, 1)  # (draws, events, groups)
    high = np.where(present, shares, -np.inf).max(axis=2)
    low = np.where(present, shares, np.inf).min(axis=2)
    comparable = present.sum(axis=2) >= 2
    gaps = np.where(comparable, np.where(comparable, high, 0) - np.where(comparable, low, 0), -1.0)
    largest = gaps.max(axis=1)
    return np.where(largest < 0, np.nan, largest)


def _checked(
    target: ArrayLike, decisions: ArrayLike, groups: ArrayLike, n_groups: int
) -> tuple[Ints, Ints, Ints]:
    """The three arrays as integers, or a DataError that says what is wrong with them."""
    truth, decided, group = (np.asarray(a) for a in (target, decisions, groups))
    if truth.ndim != 1 or truth.shape != decided.shape or truth.shape != group.shape:
        raise DataError("target, decisions and groups must be three lists of one length")
    if not truth.size:
        raise DataError("there is nobody to measure")
    for name, array in (("target", truth), ("decisions", decided), ("groups", group)):
        if not (np.issubdtype(array.dtype, np.integer) or array.dtype == bool):
            raise DataError(f"{name} must be integers; decisions are hard, not probabilities")
    if not np.isin(np.concatenate([truth, decided]), (0, 1)).all():
        raise DataError("target and decisions must be 0 or 1")
    if n_groups < 2:
        raise DataError(f"a violation compares at least two groups; got {n_groups}")
    if group.min() < 0 or group.max() >= n_groups:
        raise DataError(f"group numbers lie between 0 and {n_groups - 1}")
    return truth.astype(np.int64), decided.astype(np.int64), group.astype(np.int64)
