"""From single cells to what is compared: means, fronts, dominance, paired tests.

**Dominance**, the bar of the benchmark. A competitor's point (error e, violation v, budget ε) is

| verdict | there is a point of tilt with budget at most ε and |
|---|---|
| `both` | error < e and violation < v − floor |
| `error` | error < e and violation within one floor of v: nobody can tell them apart |
| `no` | neither |

`floor` is the violation expected from sampling alone at tilt's point: smaller differences mean
nothing on that test set.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from isonomy.company.compare.benchmark._published import Rival
from isonomy.company.compare.benchmark.cells import Cell
from isonomy.company.compare.benchmark.methods import method

_MEASURES = (
    "test_error", "test_violation", "base_error", "base_violation", "noise_floor", "epsilon_spent",
    "selection_rate", "base_selection_rate", "group_fairness", "equalized_odds_sum", "seconds",
)  # fmt: skip
_LAST = ("returned", "attribute_at_prediction", "accounting", "wall_seconds", "version", "key")
_SETTINGS = [
    "dataset", "attribute", "notion", "strategy", "base", "epsilon", "tolerance", "options",
]  # fmt: skip
_AVERAGED = {  # field of a mean → measure of its cells
    "error": "test_error",
    "violation": "test_violation",
    "floor": "noise_floor",
    "group_fairness": "group_fairness",
    "odds_sum": "equalized_odds_sum",
    "seconds": "seconds",
}


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
    seconds: float
    by_seed: tuple[tuple[int, float, float], ...]  # (seed, error, violation)

    @property
    def seeds(self) -> int:
        return len(self.by_seed)

    @property
    def where(self) -> tuple[str, str, str]:
        return (self.dataset, self.attribute, self.notion)

    @property
    def is_tilt(self) -> bool:
        """The method designed here; every other private one is a competitor, also in our code."""
        return method(self.strategy).designed_here


def means(frame: pd.DataFrame) -> list[Mean]:
    """Cells that differ in the seed only become one; order of first appearance."""
    result = []
    for _, cells in frame.groupby(_SETTINGS, sort=False, dropna=False):
        fields: dict[str, Any] = {name: cells.iloc[0][name] for name in _SETTINGS}
        fields["epsilon"] = None if np.isnan(fields["epsilon"]) else float(fields["epsilon"])
        fields |= {name: float(cells[measure].mean()) for name, measure in _AVERAGED.items()}
        by_seed = zip(cells["seed"], cells["test_error"], cells["test_violation"], strict=True)
        fields["by_seed"] = tuple(sorted((int(s), float(e), float(v)) for s, e, v in by_seed))
        result.append(Mean(**fields))
    return result


def front(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The (violation, error) points that no other one beats in both, from left to right."""
    best: list[tuple[float, float]] = []
    for violation, error in sorted(set(points)):
        if not best or error < best[-1][1]:
            best.append((violation, error))
    return best


# --- Dominance -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Verdict:
    """`both`, `error` or `no`, and tilt's point that earned it (None: tilt was not run there)."""

    rival: Rival
    verdict: str
    by: Mean | None


def verdict(rival: Rival, tilts: Iterable[Mean]) -> Verdict:
    """The best verdict that any of tilt's points earns, and by which.

    Of several the one with the least error; if none earns any, the one nearest in violation.
    """
    kinds = ("both", "error", "no")
    judged = []
    for number, mean in enumerate(tilts):
        if mean.where != rival.where or mean.epsilon is None or mean.epsilon > rival.epsilon:
            continue
        rank = kinds.index(_judge(rival, mean))
        distance = abs(mean.violation - rival.violation)
        judged.append((rank, distance if kinds[rank] == "no" else mean.error, number, mean))
    if not judged:
        return Verdict(rival, "no", None)
    rank, _, _, best = min(judged)
    return Verdict(rival, kinds[rank], best)


def _judge(rival: Rival, mean: Mean) -> str:
    if mean.error >= rival.error:
        return "no"
    if mean.violation < rival.violation - mean.floor:
        return "both"
    return "error" if mean.violation <= rival.violation + mean.floor else "no"


def rerun_rivals(means: Iterable[Mean]) -> list[Rival]:
    """The private competitors that were run here."""
    return [
        Rival(
            f"{method(mean.strategy).label}, {mean.base}",
            mean.where, mean.epsilon, mean.error, mean.violation,
        )
        for mean in means
        if mean.epsilon is not None and method(mean.strategy).private and not mean.is_tilt
    ]  # fmt: skip


# --- Paired tests ----------------------------------------------------------------------------


def paired(tilt: Mean, other: Mean) -> tuple[int, pd.DataFrame]:
    """Common seeds, and a row each for error and violation: mean of tilt − other, two p-values.

    Tran et al. use a paired t-test over 100 runs; Wilcoxon's test needs no normal errors. Splits
    are the same by seed, so runs pair. With n seeds Wilcoxon's p is at least 2^(1 − n); p is NaN
    where there are too few seeds or no difference.
    """
    from scipy.stats import ttest_rel, wilcoxon

    columns = ["seed", "error", "violation"]
    first, second = (
        pd.DataFrame(m.by_seed, columns=columns).set_index("seed") for m in (tilt, other)
    )
    common = first.index.intersection(second.index)
    rows = {}
    for measure in columns[1:]:
        pair = first.loc[common, measure], second.loc[common, measure]
        gap = pair[0] - pair[1]
        tests = (ttest_rel, wilcoxon) if len(gap) > 1 and gap.std() > 0 else ()
        p_values = [float(test(*pair).pvalue) for test in tests] or [np.nan, np.nan]
        rows[measure] = [float(gap.mean()), *p_values]
    return len(common), pd.DataFrame.from_dict(rows, "index", columns=["mean", "t", "wilcoxon"])
