"""How unfair hard decisions are, exactly as the papers measure it, and how much of it is chance.

With ŷ the decision, y the label, s the group (Lowy et al. 2023, App. F.1):

| notion | violation | where |
|---|---|---|
| `demographic_parity` | max over y', s₁, s₂ of abs(P[ŷ=y' given s₁] − P[ŷ=y' given s₂]) | (10) |
| `equalized_odds` | the same given (s, y = y'), and given (s, y ≠ y'); the larger | (11) |
| `equal_opportunity` | the half of (11) with y' = 1, y = 1: true positive rates | – |
| `equal_fpr` | the half of (11) with y' = 1, y ≠ 1: false positive rates | – |
| `accuracy_parity` | max over s₁, s₂ of abs(P[ŷ≠y given s₁] − P[ŷ≠y given s₂]) | DESIGN.md §8 |

Tran et al. (2021) measure "the maximal difference between any two protected groups": these maxima.

A **cell** is one event (whom we look at, what we count) in one group. A cell without people has no
rate: it is left out of the comparison and listed in `Violation.empty`, never counted as zero.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from isonomy.common.base.errors import ConfigError, DataError

DRAWS = 4_000  # Monte Carlo error of a floor: below 1 % of it
FLOOR_SEED = 20_230_501

# Per event: who is looked at (rows,), and what is counted of them (rows,).
_Event = tuple[str, NDArray[np.bool_], NDArray[np.bool_]]


@dataclass(frozen=True)
class Violation:
    """A violation and the (events, groups) rates behind it; NaN where a cell is empty."""

    notion: str
    value: float
    events: tuple[str, ...]
    rates: NDArray[np.float64]
    counts: NDArray[np.int64]

    @property
    def empty(self) -> tuple[tuple[str, int], ...]:
        """(event, group number) of every cell without people."""
        return tuple((self.events[e], int(g)) for e, g in np.argwhere(self.counts == 0))


def measure(
    notion: str, target: ArrayLike, decisions: ArrayLike, groups: ArrayLike, n_groups: int
) -> Violation:
    """The violation of `decisions` between the groups 0 … n_groups − 1."""
    truth, chosen, group = _checked(target, decisions, groups, n_groups)
    events = _events(notion, truth, chosen)
    counts = np.stack([np.bincount(group[who], minlength=n_groups) for _, who, _ in events])
    hits = np.stack([np.bincount(group[who & hit], minlength=n_groups) for _, who, hit in events])
    value = float(_largest_gap(hits[None], counts[None])[0])
    if np.isnan(value):
        raise DataError(
            f"{notion} cannot be measured: no event has people in two groups (of {n_groups})"
        )
    with np.errstate(invalid="ignore"):
        rates = hits / np.where(counts, counts, np.nan)
    return Violation(notion, value, tuple(name for name, _, _ in events), rates, counts)


def violation(
    notion: str, target: ArrayLike, decisions: ArrayLike, groups: ArrayLike, n_groups: int
) -> float:
    """`measure(…).value`: the number that results tables hold."""
    return measure(notion, target, decisions, groups, n_groups).value


def group_fairness(decisions: ArrayLike, groups: ArrayLike) -> float:
    """GF of Wang et al. 2024, for two groups; 1 is fair, NaN if nobody of group 1 is selected.

        GF = P[ŷ=1 given A=0] / P[ŷ=1 given A=1]                                            (24)

    It depends on which group is 0 and which label is 1.
    """
    own, other = measure("demographic_parity", decisions, decisions, groups, 2).rates[0]
    return float(own / other) if other > 0 else float("nan")


def equalized_odds_sum(target: ArrayLike, decisions: ArrayLike, groups: ArrayLike) -> float:
    """EO of Wang et al. 2024, for two groups; 0 is fair, NaN if a (group, label) cell is empty.

        EO = TPR_0 − TPR_1 + FPR_0 − FPR_1                                                  (26)

    Differs from the print, which has y=0 in the second term, P[ŷ=1 given A=1, y=0]: that would not
    be 0 for equal rates. The two differences may cancel: (11) is the stricter measure.
    """
    found = measure("equalized_odds", target, decisions, groups, 2)
    return float((found.rates[:, 0] - found.rates[:, 1]).sum())


def noise_floor(
    notion: str,
    target: ArrayLike,
    decisions: ArrayLike,
    groups: ArrayLike,
    n_groups: int,
    *,
    people: ArrayLike | None = None,
    draws: int = DRAWS,
    seed: int = FLOOR_SEED,
) -> float:
    """E[violation] from sampling alone, were the true rates of all groups equal.

        k_{e,s} ~ Binomial(n_{e,s}, pooled rate of e),   E max_{e, s₁, s₂} |k/n − k'/n'|

    by Monte Carlo with a fixed seed, cell sizes as they are. A model cannot be shown to be fairer
    than this on this test set. Where people have several rows (`people`: whose each row is), rows
    are no independent draws: groups are then permuted among people instead.
    """
    truth, chosen, group = _checked(target, decisions, groups, n_groups)
    events = _events(notion, truth, chosen)
    rng = np.random.default_rng(seed)
    if people is not None:
        return _permuted_floor(events, group, np.asarray(people), n_groups, draws, rng)
    counts = np.stack([np.bincount(group[who], minlength=n_groups) for _, who, _ in events])
    pooled = np.array([hit[who].mean() if who.any() else 0.0 for _, who, hit in events])
    hits = rng.binomial(counts, pooled[:, None], size=(draws, *counts.shape))
    return float(np.nanmean(_largest_gap(hits, counts[None])))


def _permuted_floor(
    events: list[_Event],
    group: NDArray[np.int64],
    people: NDArray[np.int64],
    n_groups: int,
    draws: int,
    rng: np.random.Generator,
) -> float:
    """Groups dealt out anew among people, each person's rows kept together."""
    persons, first, whose = np.unique(people, return_index=True, return_inverse=True)
    size = len(persons)
    seen = np.stack([np.bincount(whose[who], minlength=size) for _, who, _ in events])  # (e, p)
    hit = np.stack([np.bincount(whose[who & h], minlength=size) for _, who, h in events])
    own, gaps = group[first], []
    for _ in range(min(draws, 2_000)):
        member = np.eye(n_groups, dtype=np.int64)[rng.permutation(own)]  # (p, groups)
        gaps.append(_largest_gap((hit @ member)[None], (seen @ member)[None])[0])
    return float(np.nanmean(gaps))


def _largest_gap(hits: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """(draws,) largest difference of rates within an event; empty cells take no part.

    NaN where no event has people in two groups.
    """
    present = np.broadcast_to(counts > 0, hits.shape)
    rates = hits / np.maximum(counts, 1)  # (draws, events, groups)
    high = np.where(present, rates, -np.inf).max(axis=2)
    low = np.where(present, rates, np.inf).min(axis=2)
    comparable = present.sum(axis=2) >= 2
    gaps = np.where(comparable, np.where(comparable, high, 0) - np.where(comparable, low, 0), -1.0)
    largest = gaps.max(axis=1)
    return np.where(largest < 0, np.nan, largest)


# --- Events: whom a notion looks at, and what it counts ------------------------------------------


def _demographic_parity(truth: NDArray[np.int64], chosen: NDArray[np.int64]) -> list[_Event]:
    everyone = np.ones(len(truth), dtype=bool)
    return [(f"ŷ={y}", everyone, chosen == y) for y in _classes(truth, chosen)]


def _equalized_odds(truth: NDArray[np.int64], chosen: NDArray[np.int64]) -> list[_Event]:
    classes = _classes(truth, chosen)
    same = [(f"ŷ={y}, y={y}", truth == y, chosen == y) for y in classes]
    return same + [(f"ŷ={y}, y≠{y}", truth != y, chosen == y) for y in classes]


def _equal_opportunity(truth: NDArray[np.int64], chosen: NDArray[np.int64]) -> list[_Event]:
    return [("ŷ=1, y=1", truth == 1, chosen == 1)]


def _equal_fpr(truth: NDArray[np.int64], chosen: NDArray[np.int64]) -> list[_Event]:
    return [("ŷ=1, y≠1", truth != 1, chosen == 1)]


def _accuracy_parity(truth: NDArray[np.int64], chosen: NDArray[np.int64]) -> list[_Event]:
    return [("ŷ≠y", np.ones(len(truth), dtype=bool), chosen != truth)]


NOTIONS: dict[str, Callable[[NDArray[np.int64], NDArray[np.int64]], list[_Event]]] = {
    "demographic_parity": _demographic_parity,
    "equalized_odds": _equalized_odds,
    "equal_opportunity": _equal_opportunity,
    "equal_fpr": _equal_fpr,
    "accuracy_parity": _accuracy_parity,
}


def _classes(truth: NDArray[np.int64], chosen: NDArray[np.int64]) -> list[int]:
    """The output classes; of two, one is enough, since the other's rate is one minus it."""
    found = [int(y) for y in np.union1d(truth, chosen)]
    return [1] if set(found) <= {0, 1} else found


def _events(notion: str, truth: NDArray[np.int64], chosen: NDArray[np.int64]) -> list[_Event]:
    if notion not in NOTIONS:
        raise ConfigError(f"unknown notion {notion!r}; there are {', '.join(NOTIONS)}")
    return NOTIONS[notion](truth, chosen)


def _checked(
    target: ArrayLike, decisions: ArrayLike, groups: ArrayLike, n_groups: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    truth, chosen, group = (np.asarray(a) for a in (target, decisions, groups))
    if truth.ndim != 1 or truth.shape != chosen.shape or truth.shape != group.shape:
        raise DataError("target, decisions and groups must be three lists of one length")
    if not truth.size:
        raise DataError("there is nobody to measure")
    for name, array in (("target", truth), ("decisions", chosen), ("groups", group)):
        if not (np.issubdtype(array.dtype, np.integer) or array.dtype == bool):
            raise DataError(f"{name} must be integers; decisions are hard, not probabilities")
    if n_groups < 2:
        raise DataError(f"a violation compares at least two groups; got {n_groups}")
    if group.min() < 0 or group.max() >= n_groups:
        raise DataError(f"group numbers lie between 0 and {n_groups - 1}")
    return truth.astype(np.int64), chosen.astype(np.int64), group.astype(np.int64)


__all__ = [
    "NOTIONS",
    "Violation",
    "equalized_odds_sum",
    "group_fairness",
    "measure",
    "noise_floor",
    "violation",
]
