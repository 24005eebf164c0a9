"""The company's SDK: fair models without ever seeing whose attribute is what.

    from isonomy.company import FairClassifier, join

Names are loaded when they are first used, so that `isonomy --help` need not wait for scikit-learn.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isonomy.common.agreements.notions import NOTIONS
    from isonomy.common.sums.local import LocalOracle
    from isonomy.company.fair.estimator import FairClassifier
    from isonomy.company.fair.inputs.columns import ColumnCoder
    from isonomy.company.fair.save import load as load_model
    from isonomy.company.fair.save import save as save_model
    from isonomy.company.fair.tilt.releases_file import load_releases, save_releases
    from isonomy.company.fair.torch_adapter import TorchClassifier
    from isonomy.company.federation.auditing import audit
    from isonomy.company.federation.joining import join
    from isonomy.company.gradient.fermi.fermi import DpFermi
    from isonomy.company.gradient.pf_ld.f_ld import FLD
    from isonomy.company.gradient.pf_ld.pf_ld import PFLD
    from isonomy.company.gradient.record.privacy import RecordPrivacy
    from isonomy.company.gradient.run.bounds import dual_tradeoff, plot_tradeoff, primal_tradeoff
    from isonomy.company.gradient.run.filters import FilteredOracle
    from isonomy.company.gradient.run.notions import Event
    from isonomy.company.gradient.sdk.classifier import GradientFairClassifier
    from isonomy.company.gradient.sdk.lengths import own_lengths
    from isonomy.company.gradient.sdk.plots import history_figure
    from isonomy.company.gradient.training.trainer import EarlyStopping, Trainer
    from isonomy.company.rehearsal.datasets import Dataset, lending, load

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
    "NOTIONS": ("isonomy.common.agreements.notions", "NOTIONS"),
    "ColumnCoder": ("isonomy.company.fair.inputs.columns", "ColumnCoder"),
    "Dataset": ("isonomy.company.rehearsal.datasets", "Dataset"),
    "EarlyStopping": ("isonomy.company.gradient.training.trainer", "EarlyStopping"),
    "Event": ("isonomy.company.gradient.run.notions", "Event"),
    "FairClassifier": ("isonomy.company.fair.estimator", "FairClassifier"),
    "FLD": ("isonomy.company.gradient.pf_ld.f_ld", "FLD"),
    "GradientFairClassifier": ("isonomy.company.gradient.sdk.classifier", "GradientFairClassifier"),
    "DpFermi": ("isonomy.company.gradient.fermi.fermi", "DpFermi"),
    "FilteredOracle": ("isonomy.company.gradient.run.filters", "FilteredOracle"),
    "PFLD": ("isonomy.company.gradient.pf_ld.pf_ld", "PFLD"),
    "RecordPrivacy": ("isonomy.company.gradient.record.privacy", "RecordPrivacy"),
    "Trainer": ("isonomy.company.gradient.training.trainer", "Trainer"),
    "LocalOracle": ("isonomy.common.sums.local", "LocalOracle"),
    "TorchClassifier": ("isonomy.company.fair.torch_adapter", "TorchClassifier"),
    "audit": ("isonomy.company.federation.auditing", "audit"),
    "dual_tradeoff": ("isonomy.company.gradient.run.bounds", "dual_tradeoff"),
    "history_figure": ("isonomy.company.gradient.sdk.plots", "history_figure"),
    "own_lengths": ("isonomy.company.gradient.sdk.lengths", "own_lengths"),
    "plot_tradeoff": ("isonomy.company.gradient.run.bounds", "plot_tradeoff"),
    "primal_tradeoff": ("isonomy.company.gradient.run.bounds", "primal_tradeoff"),
    "join": ("isonomy.company.federation.joining", "join"),
    "lending": ("isonomy.company.rehearsal.datasets", "lending"),
    "load": ("isonomy.company.rehearsal.datasets", "load"),
    "load_model": ("isonomy.company.fair.save", "load"),
    "load_releases": ("isonomy.company.fair.tilt.releases_file", "load_releases"),
    "save_model": ("isonomy.company.fair.save", "save"),
    "save_releases": ("isonomy.company.fair.tilt.releases_file", "save_releases"),
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _HOMES[name]
    found = globals()[name] = getattr(import_module(module), attribute)
    return found
