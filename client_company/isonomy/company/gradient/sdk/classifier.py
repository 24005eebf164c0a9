"""scikit-learn's interface around the trainer.

    clf = GradientFairClassifier("logistic", oracle=oracle, notion="demographic_parity")
    clf.fit(X, y, ids=ids)
    print(clf.report_)
    clf.predict(X_new); clf.history_.table()

| module | network |
|---|---|
| "logistic" | one linear layer |
| "mlp" | two hidden layers of 64 |
| a function (inputs, outputs) -> nn.Module | yours, built anew at each fit |
| an nn.Module | a copy of it is trained; its outputs are logits |

Outputs are in the order of `classes_`, but `pos_label` comes last; one logit alone is its own.

Tables are coded by `ColumnCoder` (text and gaps are fine), or by `encoder`, any transformer of
scikit-learn. Arrays with more than two axes (images) and torch tensors go to the module as they
are.

Under `record_privacy` nothing may be fitted to the table, for means and rare values tell about
records: `encoder` is then "passthrough" or a ready `ColumnCoder`, made from a data dictionary
(`ColumnCoder.public`) or fitted to other people.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.utils.validation import _num_samples, check_is_fitted, validate_data
from torch import Tensor, nn

from isonomy.common.base.errors import ConfigError, DataError
from isonomy.common.sums.oracle import GroupOracle
from isonomy.company.fair.inputs.checks import (
    Classes,
    checked_attributes,
    checked_oracle,
    class_numbers,
    for_any_table,
    in_listed_order,
    one_column,
    warn_of_attributes,
)
from isonomy.company.fair.inputs.columns import ColumnCoder
from isonomy.company.fair.inputs.copies import WithoutOracle
from isonomy.company.fair.onnx_export import Schema, export
from isonomy.company.fair.tilt.notions import checked_tolerance
from isonomy.company.fair.torch_states import PlainModules
from isonomy.company.gradient.fermi.fermi import DpFermi, DpSgda
from isonomy.company.gradient.pf_ld.f_ld import FLD
from isonomy.company.gradient.pf_ld.pf_ld import PFLD
from isonomy.company.gradient.record.privacy import RecordPrivacy
from isonomy.company.gradient.run.notions import Notion
from isonomy.company.gradient.run.strategy import Strategy, logits_of
from isonomy.company.gradient.sdk.gradient_report import GradientReport
from isonomy.company.gradient.training.checks import needs_of
from isonomy.company.gradient.training.trainer import Trainer

Floats = NDArray[np.float64]
_HIDDEN = 64


def logistic(inputs: int, outputs: int) -> nn.Module:
    """Logistic regression; two classes take one logit."""
    return nn.Linear(inputs, 1 if outputs == 2 else outputs)


def mlp(inputs: int, outputs: int) -> nn.Module:
    """Two hidden layers of 64."""
    return nn.Sequential(
        nn.Linear(inputs, _HIDDEN),
        nn.ReLU(),
        nn.Linear(_HIDDEN, _HIDDEN),
        nn.ReLU(),
        nn.Linear(_HIDDEN, 1 if outputs == 2 else outputs),
    )


_MODULES: dict[str, Callable[[int, int], nn.Module]] = {"logistic": logistic, "mlp": mlp}
_TRAINER: dict[str, dict[str, Any]] = {
    "logistic": {"rounds": 15, "local_steps": 10, "warmup_steps": 200, "average": 0.3},
    "mlp": {"rounds": 15, "local_steps": 1, "warmup_steps": 200, "average": 0.3},
}
_STEP = 1.5  # dual, "logistic": with 1, λ does not arrive in 15 rounds (docs/lab/gradient.md)
_LOOPS: dict[str, dict[str, Any]] = {  # where a strategy needs another loop
    "f_ld": {"rounds": 150, "local_steps": 1},  # asks nobody: many short rounds
    "dp_sgda": {"rounds": 60, "local_steps": 1},  # Algorithm 2: one step per release
}
_RATES = {"logistic": 0.02, "mlp": 2e-3}
_SGD_RATES = {"logistic": 0.5, "mlp": 0.1}


@dataclass(frozen=True, eq=False)
class WeightedLoss:
    """1/b Σ_i c_{y_i}·(cross-entropy of row i). Not a weighted mean: that would give a row alone,
    as under record privacy, the weight 1."""

    weights: Tensor  # (classes,)

    @classmethod
    def of(cls, weights: Mapping[Any, float], classes: NDArray[Any]) -> WeightedLoss:
        labels = classes.tolist()
        for label, weight in weights.items():
            if label not in labels or not 0 < weight < float("inf"):
                raise ConfigError(
                    f"class_weight takes positive numbers for {labels}; got {label!r}: {weight!r}"
                )
        return cls(torch.tensor([float(weights.get(label, 1.0)) for label in labels]))

    def __call__(self, logits: Tensor, target: Tensor) -> Tensor:
        each = nn.functional.cross_entropy(logits, target, reduction="none")
        return (each * self.weights.to(each)[target]).mean()


GRADIENT_STRATEGIES: dict[str, type[Any]] = {
    "pf_ld": PFLD,
    "f_ld": FLD,
    "dp_fermi": DpFermi,
    "dp_sgda": DpSgda,
}


class GradientFairClassifier(PlainModules, WithoutOracle, ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A torch classifier trained fair to groups whose members it never sees.

    | parameter | meaning |
    |---|---|
    | module | what is trained, see above |
    | strategy | a name (GRADIENT_STRATEGIES), or a `Strategy` |
    | notion | a name of notions.NAMES, or your own `Notion` |
    | tolerance | largest accepted gap: judged by in `report_` and a `GapWarning` |
    | oracle, attribute | the handle to the regulator's attributes (copies have none), and which |
    | pos_label | the favourable decision; None: 1, for classes 0/1, -1/1 and booleans |
    | learning_rate, weight_decay | of Adam (dp_sgda: of SGD); None: by module |
    | class_weight | what a row of a class counts in the loss, {class: weight}; others count 1 |
    | encoder | None: `ColumnCoder`; "passthrough"; a ready `ColumnCoder`; or a transformer |
    | record_privacy | `RecordPrivacy(epsilon=…)`: protect whole records from who sees the model |
    | strategy_options | further arguments of the strategy (epsilon, step, …) |
    | trainer_options | further arguments of `Trainer` (rounds, chunk_size, checkpoint, …) |

    After `fit`: `module_`, `report_` (what it did, in words), `history_`, `stopped_` ("rounds",
    "budget" or "callback"), `classes_`, `pos_label_`, `epsilons_` (cap, spent, as in the papers).
    """

    def __init__(
        self,
        module: str | nn.Module | Callable[[int, int], nn.Module] = "logistic",
        *,
        strategy: str | Strategy = "pf_ld",
        notion: str | Notion = "demographic_parity",
        tolerance: float = 0.01,
        oracle: GroupOracle | None = None,
        attribute: str | Sequence[str] | None = None,
        pos_label: Any = None,
        learning_rate: float | None = None,
        weight_decay: float = 0.0,
        class_weight: Mapping[Any, float] | None = None,
        encoder: Any = None,
        record_privacy: RecordPrivacy | None = None,
        strategy_options: Mapping[str, Any] | None = None,
        trainer_options: Mapping[str, Any] | None = None,
        random_state: int = 0,
    ) -> None:
        self.module = module
        self.strategy = strategy
        self.notion = notion
        self.tolerance = tolerance
        self.oracle = oracle
        self.attribute = attribute
        self.pos_label = pos_label
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.class_weight = class_weight
        self.encoder = encoder
        self.record_privacy = record_privacy
        self.strategy_options = strategy_options
        self.trainer_options = trainer_options
        self.random_state = random_state

    def fit(
        self,
        X: Any,
        y: Any,
        *,
        ids: Sequence[object] | None = None,
        resume: Any = None,
    ) -> GradientFairClassifier:
        """Train; all that can be wrong with the input is found before anything is spent."""
        strategy, tolerance = self._strategy(), checked_tolerance(self.tolerance)
        needs = needs_of(strategy, records=self.record_privacy is not None)
        oracle = checked_oracle(self.oracle, needs)
        if "record_privacy" in (self.trainer_options or {}):
            raise ConfigError("give record_privacy to the classifier, not among trainer_options")
        if ids is None:
            oracle.people_of(None, _num_samples(X), X, y)  # the trainer sees neither table
        warn_of_attributes(oracle, list(getattr(X, "columns", ())))
        if not _is_raw(X):
            validate_data(self, X, y, skip_check_array=True)
        self.coder_ = self._fitted_coder(X)
        inputs = self._inputs(X)
        classes = class_numbers(one_column(y), len(inputs), self.pos_label)
        self.classes_, labels = classes.listed, classes.numbers
        self.class_order_, self.pos_label_ = classes.order, classes.pos_label
        self.schema_ = None if _is_raw(X) else Schema.of(X)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.random_state)
            self.module_ = self._module(int(np.prod(inputs.shape[1:])))
        kind = self.module if isinstance(self.module, str) else "mlp"
        settings = {**_TRAINER[kind], "seed": self.random_state}
        settings |= _LOOPS.get(strategy.name, {}) | dict(self.trainer_options or {})
        unknown = set(settings) - set(inspect.signature(Trainer).parameters)
        if unknown:
            raise ConfigError(f"the trainer has no option {', '.join(sorted(unknown))}")
        plain = strategy.name == "dp_sgda"
        optimiser = torch.optim.SGD if plain else torch.optim.Adam
        rates = _SGD_RATES if plain else _RATES
        rate = rates[kind] if self.learning_rate is None else self.learning_rate
        settings.setdefault(
            "optimiser", partial(optimiser, lr=rate, weight_decay=self.weight_decay)
        )
        if self.class_weight is not None:
            settings.setdefault(
                "loss", WeightedLoss.of(self.class_weight, self.classes_[self.class_order_])
            )
        settings["record_privacy"] = self.record_privacy
        trainer = Trainer(self.module_, strategy, oracle, self.attribute, **settings)
        result = trainer.fit(inputs, torch.from_numpy(labels), ids=ids, resume=resume)
        self.history_, self.stopped_ = result.history, result.stopped
        self.epsilons_ = result.epsilons
        self.report_ = self._report(strategy, tolerance, oracle, X, classes)
        self.report_.warn()
        return self

    def _report(
        self, strategy: Strategy, tolerance: float, oracle: GroupOracle, X: Any, classes: Classes
    ) -> GradientReport:
        """The account of the run that has just ended."""
        notion, last = getattr(strategy, "notion", ""), self.history_.records[-1:]
        gap = (last[0].violation, last[0].deviation) if last else (math.nan, math.nan)
        violation, deviation = (None, None) if any(map(math.isnan, gap)) else gap
        error = rate = None
        if self.record_privacy is None:
            decided = self.predict(X)
            error = float(np.mean(decided != self.classes_[self.class_order_[classes.numbers]]))
            rate = float(np.mean(decided == self.pos_label_))
        return GradientReport(
            strategy=strategy.name,
            notion=notion if isinstance(notion, str) else notion.name,
            pos_label=str(self.pos_label_),
            tolerance=tolerance,
            attributes=checked_attributes(oracle, self.attribute),
            rounds=len(self.history_),
            stopped=self.stopped_,
            violation=violation,
            deviation=deviation,
            error=error,
            selection_rate=rate,
            private=not getattr(strategy, "reads_attributes", False),
            epsilon_spent=self.epsilons_.spent,
            epsilon_cap=self.epsilons_.cap,
            delta=self.epsilons_.delta,
        )

    def predict_proba(self, X: Any) -> Floats:
        """(n, classes) softmax of the logits, in the order of `classes_`."""
        check_is_fitted(self, "module_")
        if not _is_raw(X):
            validate_data(self, X, skip_check_array=True, reset=False)
        inputs = self._inputs(X)
        device = next(self.module_.parameters()).device
        self.module_.eval()
        with torch.no_grad():
            parts = [
                logits_of(self.module_(part.to(device)), len(self.classes_)).double().cpu()
                for part in torch.split(inputs, 65_536)
            ]
        proba = np.asarray(torch.softmax(torch.cat(parts), dim=1).numpy())
        return in_listed_order(proba, self.class_order_)

    def predict(self, X: Any) -> NDArray[Any]:
        check_is_fitted(self, "module_")
        return np.asarray(self.classes_[self.predict_proba(X).argmax(axis=1)])

    def to_onnx(self, path: str | Path, X: Any = None) -> Path:
        """Write columns, coding and network as one ONNX file; X: rows to check it on.

        Needs the extra `isonomy[onnx]`. Nothing is written unless the file decides as this model.
        """
        return export(self, path, X)

    def __sklearn_tags__(self) -> Any:
        return for_any_table(super().__sklearn_tags__())

    # --- Parts ---------------------------------------------------------------------------------

    def _strategy(self) -> Strategy:
        options = dict(self.strategy_options or {})
        if not isinstance(self.strategy, str):
            if options:
                raise ConfigError("strategy_options go with a strategy's name, not with an object")
            return copy.deepcopy(self.strategy)  # a strategy keeps state; a refit starts anew
        if self.strategy not in GRADIENT_STRATEGIES:
            raise ConfigError(
                f"unknown strategy {self.strategy!r}; there are {', '.join(GRADIENT_STRATEGIES)}"
            )
        if (self.strategy, self.module) == ("pf_ld", "logistic"):
            options.setdefault("step", _STEP)
        try:
            strategy: Strategy = GRADIENT_STRATEGIES[self.strategy](self.notion, **options)
            return strategy
        except TypeError as error:
            raise ConfigError(f"{self.strategy} does not take these options: {error}") from None

    def _module(self, inputs: int) -> nn.Module:
        if isinstance(self.module, nn.Module):
            return copy.deepcopy(self.module)
        if isinstance(self.module, str):
            if self.module not in _MODULES:
                raise ConfigError(
                    f"unknown module {self.module!r}; there are {', '.join(_MODULES)}"
                )
            return _MODULES[self.module](inputs, len(self.classes_))
        return self.module(inputs, len(self.classes_))

    def _fitted_coder(self, X: Any) -> Any:
        if _is_raw(X) or (isinstance(self.encoder, str) and self.encoder == "passthrough"):
            return None
        if isinstance(self.encoder, ColumnCoder):
            return self.encoder
        if self.record_privacy is not None:
            raise ConfigError(
                "under record privacy the coding of the columns may not be fitted to the records "
                'it protects. Give encoder="passthrough", or a ColumnCoder made without them: '
                "ColumnCoder.public(ranges, levels) from a data dictionary, or one fitted to other "
                "people."
            )
        return ColumnCoder.fit(X) if self.encoder is None else clone(self.encoder).fit(X)

    def _inputs(self, X: Any) -> Tensor:
        if isinstance(X, Tensor):
            return X
        if self.coder_ is None:
            try:
                return torch.as_tensor(np.asarray(X, dtype=np.float32))
            except (TypeError, ValueError) as error:
                raise DataError(
                    f'encoder="passthrough" takes numbers only: {error}. Leave encoder out to code '
                    "text."
                ) from None
        is_coder = isinstance(self.coder_, ColumnCoder)
        coded = self.coder_.code(X) if is_coder else self.coder_.transform(X)
        return torch.as_tensor(np.asarray(coded, dtype=np.float32))


def _is_raw(X: Any) -> bool:
    return isinstance(X, Tensor) or (isinstance(X, np.ndarray) and X.ndim > 2)
