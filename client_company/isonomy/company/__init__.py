"""The company's SDK: fair models without ever seeing whose attribute is what.

    from isonomy.company import FairClassifier, join

Names are loaded when they are first used, so that `isonomy --help` need not wait for scikit-learn.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isonomy.common.local import LocalOracle
    from isonomy.company.auditing import audit
    from isonomy.company.datasets import Dataset, lending, load
    from isonomy.company.estimator import FairClassifier
    from isonomy.company.gradient.bounds import dual_tradeoff, plot_tradeoff, primal_tradeoff
    from isonomy.company.gradient.classifier import GradientFairClassifier
    from isonomy.company.gradient.f_ld import FLD
    from isonomy.company.gradient.fermi import DpFermi
    from isonomy.company.gradient.filters import FilteredOracle
    from isonomy.company.gradient.notions import Event
    from isonomy.company.gradient.own_lengths import own_lengths
    from isonomy.company.gradient.pf_ld import PFLD
    from isonomy.company.gradient.plots import history_figure
    from isonomy.company.gradient.record_privacy import RecordPrivacy
    from isonomy.company.gradient.trainer import EarlyStopping, Trainer
    from isonomy.company.joining import join
    from isonomy.company.save import load as load_model
    from isonomy.company.save import save as save_model
    from isonomy.company.tilt.columns import ColumnCoder
    from isonomy.company.tilt.notions import NOTIONS
    from isonomy.company.tilt.releases_file import load_releases, save_releases
    from isonomy.company.torch_adapter import TorchClassifier

__all__ = [
    "FLD",
    "NOTIONS",
    "PFLD",
    "ColumnCoder",
    "Dataset",
    "DpFermi",
    "EarlyStopping",
    "Event",
    "FairClassifier",
    "FilteredOracle",
    "GradientFairClassifier",
    "LocalOracle",
    "RecordPrivacy",
    "TorchClassifier",
    "Trainer",
    "audit",
    "dual_tradeoff",
    "history_figure",
    "join",
    "lending",
    "load",
    "load_model",
    "load_releases",
    "own_lengths",
    "plot_tradeoff",
    "primal_tradeoff",
    "save_model",
    "save_releases",
]

_HOMES = {
    "NOTIONS": ("isonomy.company.tilt.notions", "NOTIONS"),
    "ColumnCoder": ("isonomy.company.tilt.columns", "ColumnCoder"),
    "Dataset": ("isonomy.company.datasets", "Dataset"),
    "EarlyStopping": ("isonomy.company.gradient.trainer", "EarlyStopping"),
    "Event": ("isonomy.company.gradient.notions", "Event"),
    "FairClassifier": ("isonomy.company.estimator", "FairClassifier"),
    "FLD": ("isonomy.company.gradient.f_ld", "FLD"),
    "GradientFairClassifier": ("isonomy.company.gradient.classifier", "GradientFairClassifier"),
    "DpFermi": ("isonomy.company.gradient.fermi", "DpFermi"),
    "FilteredOracle": ("isonomy.company.gradient.filters", "FilteredOracle"),
    "PFLD": ("isonomy.company.gradient.pf_ld", "PFLD"),
    "RecordPrivacy": ("isonomy.company.gradient.record_privacy", "RecordPrivacy"),
    "Trainer": ("isonomy.company.gradient.trainer", "Trainer"),
    "LocalOracle": ("isonomy.common.local", "LocalOracle"),
    "TorchClassifier": ("isonomy.company.torch_adapter", "TorchClassifier"),
    "audit": ("isonomy.company.auditing", "audit"),
    "dual_tradeoff": ("isonomy.company.gradient.bounds", "dual_tradeoff"),
    "history_figure": ("isonomy.company.gradient.plots", "history_figure"),
    "own_lengths": ("isonomy.company.gradient.own_lengths", "own_lengths"),
    "plot_tradeoff": ("isonomy.company.gradient.bounds", "plot_tradeoff"),
    "primal_tradeoff": ("isonomy.company.gradient.bounds", "primal_tradeoff"),
    "join": ("isonomy.company.joining", "join"),
    "lending": ("isonomy.company.datasets", "lending"),
    "load": ("isonomy.company.datasets", "load"),
    "load_model": ("isonomy.company.save", "load"),
    "load_releases": ("isonomy.company.tilt.releases_file", "load_releases"),
    "save_model": ("isonomy.company.save", "save"),
    "save_releases": ("isonomy.company.tilt.releases_file", "save_releases"),
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _HOMES[name]
    found = globals()[name] = getattr(import_module(module), attribute)
    return found
