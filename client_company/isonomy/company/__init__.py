"""The company's SDK: fair models without ever seeing whose attribute is what.

    from isonomy.company import FairClassifier, join

These names are the SDK's public face; the rooms behind them may move. They are loaded when they are
first used, so that `isonomy --help` need not wait for scikit-learn.

| room | for |
|---|---|
| `federation` | taking part: home folder, plans, sessions, audits of decisions |
| `fair` | `FairClassifier`: the default strategy tilt, model files, ONNX |
| `gradient` | torch models under PF-LD and DP-FERMI |
| `rehearsal` | the same strategies on data where both sides are known |
| `compare` | rivals' methods, and the benchmark that puts all of them side by side |
| `few_shot`, `demo`, `bench`, `cli` | few-shot runs, the demonstration, speed, the commands |
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isonomy.common.agreements.feature_map import PublicFeatures
    from isonomy.common.agreements.notions import NOTIONS
    from isonomy.common.pooled.rehearsal import rehearse_together
    from isonomy.common.sums.local import LocalOracle
    from isonomy.common.sums.oracle import FilteredOracle
    from isonomy.company.fair.estimator import FairClassifier
    from isonomy.company.fair.inputs.columns import ColumnCoder
    from isonomy.company.fair.onnx_export.schema import inputs_of
    from isonomy.company.fair.save import load_model, save_model
    from isonomy.company.fair.scores.regressor import FairRegressor
    from isonomy.company.fair.tilt.releases_file import load_releases, save_releases
    from isonomy.company.fair.torch_adapter import TorchClassifier
    from isonomy.company.federation.align import align_records
    from isonomy.company.federation.auditing import audit, audit_scores
    from isonomy.company.federation.joining import join
    from isonomy.company.federation.statement import add_to_statement
    from isonomy.company.gradient.fermi.fermi import DpFermi, DpSgda
    from isonomy.company.gradient.pf_ld.f_ld import FLD
    from isonomy.company.gradient.pf_ld.pf_ld import PFLD
    from isonomy.company.gradient.record.privacy import RecordPrivacy
    from isonomy.company.gradient.run.bounds import dual_tradeoff, primal_tradeoff
    from isonomy.company.gradient.run.notions import Event
    from isonomy.company.gradient.sdk.classifier import GradientFairClassifier
    from isonomy.company.gradient.sdk.lengths import own_lengths
    from isonomy.company.gradient.training.trainer import EarlyStopping, Trainer
    from isonomy.company.rehearsal.datasets import Dataset, lending, load

__all__ = [
    "FLD",
    "NOTIONS",
    "PFLD",
    "ColumnCoder",
    "Dataset",
    "DpFermi",
    "DpSgda",
    "EarlyStopping",
    "Event",
    "FairClassifier",
    "FairRegressor",
    "FilteredOracle",
    "GradientFairClassifier",
    "LocalOracle",
    "PublicFeatures",
    "RecordPrivacy",
    "TorchClassifier",
    "Trainer",
    "add_to_statement",
    "align_records",
    "audit",
    "audit_scores",
    "dual_tradeoff",
    "inputs_of",
    "join",
    "lending",
    "load",
    "load_model",
    "load_releases",
    "own_lengths",
    "primal_tradeoff",
    "rehearse_together",
    "save_model",
    "save_releases",
]

_MODULES = {
    "common.agreements.notions": "NOTIONS",
    "common.agreements.feature_map": "PublicFeatures",
    "common.pooled.rehearsal": "rehearse_together",
    "common.sums.local": "LocalOracle",
    "company.fair.estimator": "FairClassifier",
    "company.fair.inputs.columns": "ColumnCoder",
    "company.fair.onnx_export.schema": "inputs_of",
    "company.fair.save": "load_model save_model",
    "company.fair.scores.regressor": "FairRegressor",
    "company.fair.tilt.releases_file": "load_releases save_releases",
    "company.fair.torch_adapter": "TorchClassifier",
    "company.federation.align": "align_records",
    "company.federation.statement": "add_to_statement",
    "company.federation.auditing": "audit audit_scores",
    "company.federation.joining": "join",
    "company.gradient.fermi.fermi": "DpFermi DpSgda",
    "company.gradient.pf_ld.f_ld": "FLD",
    "company.gradient.pf_ld.pf_ld": "PFLD",
    "company.gradient.record.privacy": "RecordPrivacy",
    "company.gradient.run.bounds": "dual_tradeoff primal_tradeoff",
    "common.sums.oracle": "FilteredOracle",
    "company.gradient.run.notions": "Event",
    "company.gradient.sdk.classifier": "GradientFairClassifier",
    "company.gradient.sdk.lengths": "own_lengths",
    "company.gradient.training.trainer": "EarlyStopping Trainer",
    "company.rehearsal.datasets": "Dataset lending load",
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"isonomy.{_MODULE_OF[name]}"), name)
    return value
