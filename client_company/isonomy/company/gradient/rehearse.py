"""Gradient strategies in a rehearsal: `isonomy simulate --strategy pf_ld --base logistic`.

The torch model is the twin of the base model (logistic, mlp) on the base model's own encoding, so
that base and result differ in training only. Options of the command go to the trainer if it has
one of that name, else to the strategy.
"""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import Pipeline

from isonomy.common.errors import ConfigError
from isonomy.company.gradient.classifier import GradientFairClassifier
from isonomy.company.gradient.trainer import Trainer
from isonomy.company.rehearsal import Decide, Rehearsal, Trained

_TWINS = {LogisticRegression: "logistic", MLPClassifier: "mlp"}
_OWN = ("learning_rate", "weight_decay")


def train(strategy: str, rehearsal: Rehearsal) -> Trained:
    """Fit base model and fair twin; both decide on raw features."""
    pipeline = getattr(rehearsal.estimator, "estimator", rehearsal.estimator)
    twin = _TWINS.get(type(pipeline[-1])) if isinstance(pipeline, Pipeline) else None
    if twin is None:
        raise ConfigError(f"{strategy} trains torch models: take --base logistic or --base mlp")
    trainer_names = set(inspect.signature(Trainer).parameters)
    own: dict[str, Any] = {}
    trainer_options: dict[str, Any] = {}
    strategy_options: dict[str, Any] = {}
    for name, value in rehearsal.options.items():
        home = own if name in _OWN else strategy_options
        (trainer_options if name in trainer_names else home)[name] = value
    model = GradientFairClassifier(
        twin,
        strategy=strategy,
        notion=rehearsal.notion,
        oracle=rehearsal.oracle,
        attribute=rehearsal.attribute,
        encoder=pipeline[:-1],
        random_state=rehearsal.seed,
        strategy_options=strategy_options,
        trainer_options=trainer_options,
        **own,
    )
    model.fit(rehearsal.features, rehearsal.target, ids=rehearsal.ids)
    base = clone(rehearsal.estimator).fit(rehearsal.features, rehearsal.target)
    return Trained(_decider(model), _decider(base), strategy)


def _decider(model: Any) -> Decide:
    def decide(features: pd.DataFrame) -> NDArray[np.int64]:
        return np.asarray(model.predict(features), dtype=np.int64)

    return decide


__all__ = ["train"]
