"""A plain torch module as a classifier with `predict_proba`.

    model = TorchClassifier(lambda inputs, outputs: nn.Sequential(nn.Linear(inputs, 64), nn.ReLU(),
                                                                  nn.Linear(64, outputs)))
    FairClassifier(model, oracle=oracle, in_training=True).fit(X, y)

Tables are coded as the proxy's features are (columns.py), so text and missing values are fine. The
module gives one logit per class, in the order of `classes_`; a ready module is copied. Training is
minibatch Adam on

    L(θ) = cross-entropy + penalty(θ)          penalty: none, or the twin's (tilt/torch_twin.py)
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted
from torch import nn

from isonomy.common.base.errors import ConfigError
from isonomy.company.fair.inputs.columns import ColumnCoder
from isonomy.company.fair.torch_states import PlainModules

Floats = NDArray[np.float64]
Penalty = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # (logits, row numbers) -> scalar


def small_network(inputs: int, outputs: int) -> nn.Module:
    """The default: one hidden layer of 64."""
    return nn.Sequential(nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, outputs))


class TorchClassifier(PlainModules, ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """scikit-learn's interface around a module, or a function (inputs, outputs) -> nn.Module."""

    def __init__(
        self,
        module: nn.Module | Callable[[int, int], nn.Module] = small_network,
        *,
        epochs: int = 15,
        batch_size: int = 256,
        learning_rate: float = 2e-3,
        weight_decay: float = 1e-4,
        random_state: int = 0,
    ) -> None:
        self.module = module
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.random_state = random_state

    def fit(
        self,
        X: Any,
        y: Any,
        *,
        penalty: Penalty | None = None,
        after_epoch: Callable[[TorchClassifier], None] | None = None,
    ) -> TorchClassifier:
        """Train; `penalty` is added to each batch's loss, `after_epoch` sees the model so far."""
        self.classes_, labels = np.unique(np.asarray(y), return_inverse=True)
        self.coder_ = ColumnCoder.fit(X)
        coded = self.coder_.code(X)
        self.n_features_in_ = coded.shape[1]
        inputs = torch.tensor(coded, dtype=torch.float32)
        target = torch.tensor(labels, dtype=torch.long)
        generator = torch.Generator().manual_seed(self.random_state)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.random_state)
            self.module_ = self._fresh_module(inputs[:2], len(self.classes_))
            adam = torch.optim.Adam(
                self.module_.parameters(), lr=self.learning_rate, weight_decay=self.weight_decay
            )
            for _ in range(self.epochs):
                self.module_.train()
                order = torch.randperm(len(target), generator=generator)
                for start in range(0, len(target), self.batch_size):
                    batch = order[start : start + self.batch_size]
                    logits = self.module_(inputs[batch])
                    loss = nn.functional.cross_entropy(logits, target[batch])
                    if penalty is not None:
                        loss = loss + penalty(logits, batch)
                    adam.zero_grad()
                    loss.backward()  # type: ignore[no-untyped-call]
                    adam.step()
                if after_epoch is not None:
                    after_epoch(self)
        if not all(torch.isfinite(p).all() for p in self.module_.parameters()):
            raise ConfigError("training diverged; lower learning_rate")
        return self

    def _fresh_module(self, rows: torch.Tensor, classes: int) -> nn.Module:
        """A fresh module, or an error if it does not turn these rows into one logit per class."""
        width = rows.shape[1]
        if isinstance(self.module, nn.Module):
            module = copy.deepcopy(self.module)  # a refit starts from the same weights
        else:
            module = self.module(width, classes)
        try:
            shape = tuple(module.eval()(rows).shape)
        except RuntimeError as error:
            raise ConfigError(
                f"the module does not take rows of {width} numbers, the coded columns: {error}"
            ) from None
        if shape != (len(rows), classes):
            raise ConfigError(
                f"the module turns {len(rows)} rows into {shape}; one logit for each of the "
                f"{classes} classes is needed"
            )
        return module

    def predict_proba(self, X: Any) -> Floats:
        check_is_fitted(self, "module_")
        self.module_.eval()
        with torch.no_grad():
            logits = self.module_(torch.tensor(self.coder_.code(X), dtype=torch.float32))
        return np.asarray(torch.softmax(logits.double(), dim=1).numpy(), dtype=np.float64)

    def predict(self, X: Any) -> NDArray[Any]:
        return np.asarray(self.classes_[self.predict_proba(X).argmax(axis=1)])
