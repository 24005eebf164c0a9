"""From single cells to what is compared: means, fronts, dominance, paired tests.

**Dominance**, the bar of the benchmark. A competitor's point (error e, violation v, budget ε) is

| verdict | there is a point of ours with budget at most ε and |
|---|---|
| `both` | error < e and violation < v − floor |
| `error` | error < e and violation within one floor of v: nobody can tell them apart |
| `no` | neither |

`floor` is the violation expected from sampling alone at our point: smaller differences mean nothing
on that test set.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from isonomy.company.compare.benchmark.cells import Cell
from isonomy.company.compare.benchmark.methods import method

_MEASURES = (
    "test_error", "test_violation", "base_error", "base_violation", "noise_floor", "epsilon_spent",
    "selection_rate", "base_selection_rate", "group_fairness", "equalized_odds_sum", "seconds",
)  # fmt: skip
_LAST = ("returned", "attribute_at_prediction", "accounting", "wall_seconds", "version", "key")


def tidy(records: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """One row per finished cell: every setting, then every measure."""
    rows = []
    for record in records:
        if record["status"] != "ok":
            continue
        cell = dict(record["cell"])
        options = " ".join(f"{name}={value}" for name, value in cell.pop("options").items())
        measured = {name: record.get(name) for name in (*_MEASURES, *_LAST)}
        rows.append({**cell, "options": options, **measured})
    names = [name for name in Cell.__dataclass_fields__ if name != "options"]
    frame = pd.DataFrame(rows, columns=[*names, "options", *_MEASURES, *_LAST])
    return frame.astype(dict.fromkeys(("epsilon", *_MEASURES), float))


@dataclass(frozen=True)
class Mean:
    """One method at one setting: means over its seeds."""

    dataset: str
    attribute: str
    notion: str
    strategy: str
    base: str
    epsilon: float | None
    tolerance: float
    options: str
    error: float
    violation: float
    floor: float
    group_fairness: float
    odds_sum: float
    spent: float
    seconds: float
    error_spread: float  # standard deviation over seeds; NaN for one
    violation_spread: float
    by_seed: tuple[tuple[int, float, float], ...]  # (seed, error, violation)

    @property
    def seeds(self) -> int:
        return len(self.by_seed)

    @property
    def where(self) -> tuple[str, str, str]:
        return (self.dataset, self.attribute, self.notion)


def means(frame: pd.DataFrame) -> list[Mean]:
    """Cells that differ in the seed only become one; order of first appearance."""
    keys = ["dataset", "attribute", "notion", "strategy", "base", "epsilon", "tolerance", "options"]
    found = []
    for _, own in frame.groupby(keys, sort=False, dropna=False):
        setting = own.iloc[0]
        by_seed = sorted(zip(own["seed"], own["test_error"], own["test_violation"], strict=True))
        average = own[list(_MEASURES)].mean()
        found.append(
            Mean(
                dataset=str(setting["dataset"]),
                attribute=str(setting["attribute"]),
                notion=str(setting["notion"]),
                strategy=str(setting["strategy"]),
                base=str(setting["base"]),
                epsilon=None if np.isnan(setting["epsilon"]) else float(setting["epsilon"]),
                tolerance=float(setting["tolerance"]),
                options=str(setting["options"]),
                error=float(average["test_error"]),
                violation=float(average["test_violation"]),
                floor=float(average["noise_floor"]),
                group_fairness=float(average["group_fairness"]),
                odds_sum=float(average["equalized_odds_sum"]),
                spent=float(average["epsilon_spent"]),
                seconds=float(average["seconds"]),
                error_spread=float(own["test_error"].std()),
                violation_spread=float(own["test_violation"].std()),
                by_seed=tuple((int(s), float(e), float(v)) for s, e, v in by_seed),
            )
        )
    return found


def front(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The (violation, error) points that no other one beats in both, from left to right."""
    best: list[tuple[float, float]] = []
    for violation, error in sorted(set(points)):
        if not best or error < best[-1][1]:
            best.append((violation, error))
    return best


# --- Dominance -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rival:
    """A competitor's point, published or run again."""

    label: str
    where: tuple[str, str, str]
    epsilon: float
    error: float
    violation: float


@dataclass(frozen=True)
class Verdict:
    """`both`, `error` or `no`, and the point of ours that earned it (None: nothing of ours ran)."""

    rival: Rival
    verdict: str
    by: Mean | None


def verdict(rival: Rival, ours: Iterable[Mean]) -> Verdict:
    """The best verdict that any of our points earns, and by which.

    Of several the one with the least error; if none earns any, the one nearest in violation.
    """
    rank = {"both": 0, "error": 1, "no": 2}
    judged = [
        (
            kind := rank[_judge(rival, own)],
            _distance(rival, own) if kind == 2 else own.error,
            number,
            own,
        )
        for number, own in enumerate(ours)
        if own.where == rival.where and own.epsilon is not None and own.epsilon <= rival.epsilon
    ]
    if not judged:
        return Verdict(rival, "no", None)
    best, _, _, own = min(judged)
    return Verdict(rival, ("both", "error", "no")[best], own)


def _distance(rival: Rival, own: Mean) -> float:
    return abs(own.violation - rival.violation)


def _judge(rival: Rival, own: Mean) -> str:
    if own.error >= rival.error:
        return "no"
    if own.violation < rival.violation - own.floor:
        return "both"
    return "error" if own.violation <= rival.violation + own.floor else "no"


def is_ours(mean: Mean) -> bool:
    """Designed here; everything else private is a competitor, in our code or not."""
    return method(mean.strategy).ours


def rerun_rivals(found: Iterable[Mean]) -> list[Rival]:
    """The private competitors that were run here."""
    return [
        Rival(
            f"{method(own.strategy).label}, {own.base}",
            own.where, own.epsilon, own.error, own.violation,
        )
        for own in found
        if own.epsilon is not None and method(own.strategy).private and not is_ours(own)
    ]  # fmt: skip


# --- Paired tests ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Paired:
    """Differences `ours − theirs` by seed, with two-sided p-values (NaN: too few seeds)."""

    seeds: int
    error: float
    violation: float
    error_t: float
    violation_t: float
    error_wilcoxon: float
    violation_wilcoxon: float


def paired(ours: Mean, theirs: Mean) -> Paired:
    """Tran et al. use a paired t-test over 100 runs; Wilcoxon's test needs no normal errors.

    Splits are the same by seed, so runs pair. With n seeds Wilcoxon's p is at least 2^(1 − n).
    """
    from scipy.stats import ttest_rel, wilcoxon

    left = {seed: (error, violation) for seed, error, violation in ours.by_seed}
    right = {seed: (error, violation) for seed, error, violation in theirs.by_seed}
    common = sorted(set(left) & set(right))
    gaps = np.array([np.subtract(left[seed], right[seed]) for seed in common]).reshape(-1, 2)
    mean = gaps.mean(axis=0) if len(common) else np.full(2, np.nan)
    p_t, p_w = np.full(2, np.nan), np.full(2, np.nan)
    for column in range(2):
        if len(common) >= 2 and gaps[:, column].std() > 0:
            a = [left[seed][column] for seed in common]
            b = [right[seed][column] for seed in common]
            p_t[column], p_w[column] = ttest_rel(a, b).pvalue, wilcoxon(a, b).pvalue
    return Paired(len(common), *mean, *p_t, *p_w)


__all__ = [
    "Mean",
    "Paired",
    "Rival",
    "Verdict",
    "front",
    "is_ours",
    "means",
    "paired",
    "rerun_rivals",
    "tidy",
    "verdict",
]
