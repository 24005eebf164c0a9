"""Jagielski's two algorithms in a rehearsal: `isonomy simulate --strategy dp_postprocess`."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.base import clone

from isonomy.common.base.errors import ConfigError
from isonomy.company.compare.jagielski._oracle_learner import OracleLearner
from isonomy.company.compare.jagielski._postprocess import (
    AttributeNeededWarning,
    PostprocessedClassifier,
)
from isonomy.company.rehearsal.base_models import base_model
from isonomy.company.rehearsal.strategies import DecideByGroup, Rehearsal, Trained, decider

PURE = "pure ε of one Laplace release, stronger than (ε, δ); it needs no δ"


def postprocess(rehearsal: Rehearsal) -> Trained:
    """DP-postprocessing. Decisions of test people use their true groups, and say so."""
    model = PostprocessedClassifier(
        estimator=rehearsal.estimator,
        notion=rehearsal.notion,
        tolerance=rehearsal.tolerance,
        oracle=rehearsal.oracle,
        attribute=rehearsal.attribute,
        random_state=rehearsal.seed,
        **rehearsal.options_among("share"),
    ).fit(rehearsal.features, rehearsal.target, ids=rehearsal.ids)
    return Trained(
        _refuse,
        decider(model.estimator_),
        "dp_postprocess",
        decide_by_group=_by_group(model),
        epsilon_spent=model.pure_epsilon_,
        accounting=PURE,
    )


def oracle_learner(rehearsal: Rehearsal) -> Trained:
    """DP-oracle-learner on the logistic base model's encoding, whatever the base model.

    Options `rounds=paper` and `step=paper` take the paper's formulas.
    """
    options = rehearsal.options_among("rounds", "bound", "step", "share", "attribute_aware")
    for name, value in options.items():
        if value == "paper" and name in ("rounds", "step"):
            options[name] = None
        elif not isinstance(value, int | float):
            raise ConfigError(f"option {name} must be a number; got {value!r}")
    model = OracleLearner(
        encoder=base_model("logistic", rehearsal.features, rehearsal.seed)[:-1],
        notion=rehearsal.notion,
        tolerance=rehearsal.tolerance,
        oracle=rehearsal.oracle,
        attribute=rehearsal.attribute,
        random_state=rehearsal.seed,
        **options,
    ).fit(rehearsal.features, rehearsal.target, ids=rehearsal.ids)
    base = clone(rehearsal.estimator).fit(rehearsal.features, rehearsal.target)
    if model.attribute_aware:
        return Trained(_refuse, decider(base), "dp_oracle", decide_by_group=_by_group(model))
    return Trained(decider(model), decider(base), "dp_oracle")


def _by_group(model: Any) -> DecideByGroup:
    def decide(features: pd.DataFrame, codes: NDArray[np.int64]) -> NDArray[np.int64]:
        labels = np.asarray(model.groups_, dtype=object)[codes]
        with warnings.catch_warnings():  # the result says it once, for all runs
            warnings.simplefilter("ignore", AttributeNeededWarning)
            return np.asarray(model.predict(features, sensitive_features=labels), dtype=np.int64)

    return decide


def _refuse(_: pd.DataFrame) -> NDArray[np.int64]:
    raise ConfigError("this strategy decides by the attribute: use decide_by_group")
