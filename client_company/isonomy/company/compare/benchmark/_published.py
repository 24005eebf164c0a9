"""Points and tables of the papers, to be shown beside what runs here.

Curves: `published_results/dp_fermi_iclr2023_curves.csv` in the data folder, read from the figure
files of Lowy et al. (2023). Of the bands only the means are used. Points without a budget (ε = ∞)
and sets that we do not run are left out, and so are points of an experiment for the other notion: a
model trained for equalized odds is no competitor for demographic parity.

The figures' ε are the authors'. They count on amplification by sampling, which fails against a
company that knows whom it asked about, and their code has errors that flatter (docs/design.md §2).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from isonomy.common.base.errors import DataError

FILE = "published_results/dp_fermi_iclr2023_curves.csv"
_SETS = {
    "adult": ("adult", "sex"),
    "credit-card": ("credit", "sex"),
    "parkinsons": ("parkinsons", "sex"),
}
_NOTIONS = {
    "Demographic Parity Experiments": "demographic_parity",
    "Equalized Odds Experiments": "equalized_odds",
}
_COLUMNS = (
    "experiment", "method", "dataset", "epsilon", "misclassification", "fairness_metric",
    "violation_mean",
)  # fmt: skip


@dataclass(frozen=True)
class Rival:
    """A competitor's point, published or run again."""

    method: str  # a paper's name for it, or the label of what was run here
    where: tuple[str, str, str]  # set, attribute, notion
    epsilon: float | None  # None: not private
    error: float
    violation: float
    base: str = "logistic"
    by_seed: tuple[tuple[int, float, float], ...] = ()  # (seed, error, violation); published: none


def curves(data_dir: Path | None) -> list[Rival]:
    """The published points that belong beside ours; none where the file is not given."""
    path = None if data_dir is None else data_dir / FILE
    if path is None or not path.is_file():
        return []
    frame = pd.read_csv(path)
    missing = [name for name in _COLUMNS if name not in frame.columns]
    if missing:
        raise DataError(f"{path} has no column {', '.join(missing)}")
    notion = frame["experiment"].map(_NOTIONS)
    alike = (notion == frame["fairness_metric"]) & frame["dataset"].isin(_SETS)
    rows = frame.loc[alike & (frame["epsilon"] < float("inf")), list(_COLUMNS)]
    return [
        Rival(method, (*_SETS[name], metric), float(epsilon), float(error), float(violation))
        for _, method, name, epsilon, error, metric, violation in rows.itertuples(index=False)
    ]


# --- Tables 1 and 2 of Wang et al. (2024): Adult, (measure, accuracy in per cent) ----------------

RNF, EOR, LD = "RNF", "EOR", "L-D"
GF_TABLE: dict[str, tuple[tuple[float, float], ...]] = {
    RNF: ((0.862, 82.5), (0.891, 81.6), (0.918, 81.5), (0.936, 81.4)),
    EOR: ((0.835, 83.0), (0.836, 82.4), (0.847, 81.8), (0.869, 81.1)),
    LD: ((0.848, 83.1), (0.901, 82.9), (0.936, 82.2), (0.939, 81.7)),
}
EO_TABLE: dict[str, tuple[tuple[float, float], ...]] = {
    RNF: ((-0.096, 82.3), (-0.074, 82.1), (-0.043, 81.9), (-0.036, 80.6)),
    EOR: ((-0.099, 83.4), (-0.071, 82.7), (-0.049, 82.1), (-0.034, 80.8)),
    LD: ((-0.115, 83.5), (-0.083, 83.0), (-0.057, 82.7), (-0.029, 81.7)),
}
