"""Gradient strategies in a rehearsal: `isonomy simulate --strategy pf_ld --base logistic`.

The torch model is the twin of the base model (logistic, mlp) on the base model's encoding, so that
base and result differ in training only. Options of the command go to the trainer if it has one of
that name, else to the strategy.

A tolerance ends a run early: when two released violations in a row were within it.

Under record privacy nothing may be fitted to the training people but the model. Their columns are
coded by what is known of *other* people: here the test people's features, in real use a data
dictionary or an earlier year. Bounds that no option sets are the constants below. The base model
beside it is the usual one, without privacy.
"""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import Pipeline

from isonomy.common.base.errors import ConfigError
from isonomy.company.fair.inputs.columns import ColumnCoder
from isonomy.company.fair.tilt.verdict import GapWarning
from isonomy.company.gradient.record.privacy import RecordPrivacy
from isonomy.company.gradient.run.schedule import Weights
from isonomy.company.gradient.sdk.classifier import GRADIENT_STRATEGIES, GradientFairClassifier
from isonomy.company.gradient.training.trainer import EarlyStopping, Trainer
from isonomy.company.rehearsal.strategies import Rehearsal, Trained, decider, not_private

_TWINS = {LogisticRegression: "logistic", MLPClassifier: "mlp"}
_OF_CLASSIFIER = ("learning_rate", "weight_decay")
_POSITIVE = "positive_weight"  # what a row with the favourable label counts in the loss
_LOOP = (  # those options of the trainer that a rehearsal does not set itself
    "rounds", "local_steps", "chunk_size", "loss_batch", "warmup_steps", "average", "device",
)  # fmt: skip
_RECORD = {"loss_clip": "clip", "totals": "totals", "accountant": "accountant"}
_BOUNDS: dict[str, tuple[str, float]] = {"pf_ld": ("primal_norm", 0.5), "dp_fermi": ("clip", 0.7)}
_WORDS = ("str", "Literal", "Accountant")  # annotations of options that may be words


def train(strategy: str, rehearsal: Rehearsal) -> Trained:
    """Fit base model and fair twin; both decide on raw features."""
    pipeline = getattr(rehearsal.estimator, "estimator", rehearsal.estimator)
    twin = _TWINS.get(type(pipeline[-1])) if isinstance(pipeline, Pipeline) else None
    if twin is None:
        raise ConfigError(f"{strategy} trains torch models: take --base logistic or --base mlp")
    classifier_options: dict[str, Any] = {"encoder": pipeline[:-1]}
    trainer_options: dict[str, Any] = {}
    strategy_options: dict[str, Any] = {}
    options = _checked(strategy, rehearsal)
    if _POSITIVE in options:
        classifier_options["class_weight"] = {1: options.pop(_POSITIVE)}
    for name, value in options.items():
        if name in _OF_CLASSIFIER:
            classifier_options[name] = value
        else:
            (trainer_options if name in _LOOP else strategy_options)[name] = value
    if strategy != "f_ld":  # all of it: nobody audits a rehearsal
        strategy_options.setdefault("epsilon", rehearsal.oracle.budget.cap_epsilon)
    if rehearsal.stop_within is not None:
        trainer_options["callbacks"] = [EarlyStopping(rehearsal.stop_within)]
    if rehearsal.record_epsilon is not None:
        classifier_options |= _records(rehearsal, strategy_options)
        name, bound = _BOUNDS[strategy]
        strategy_options.setdefault(name, bound)
    model = GradientFairClassifier(
        twin,
        strategy=strategy,
        notion=rehearsal.notion,
        oracle=rehearsal.oracle,
        attribute=rehearsal.attribute,
        random_state=rehearsal.seed,
        strategy_options=strategy_options,
        trainer_options=trainer_options,
        **classifier_options,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GapWarning)  # a rehearsal shows the true gap itself
        model.fit(rehearsal.features, rehearsal.target, ids=rehearsal.ids)
    base = clone(rehearsal.estimator).fit(rehearsal.features, rehearsal.target)
    if strategy == "f_ld":
        return not_private(decider(model), decider(base), strategy)
    return Trained(
        decider(model),
        decider(base),
        strategy,
        papers=model.epsilons_.as_in_papers,
        stopped=model.stopped_,
    )


def _checked(strategy: str, rehearsal: Rehearsal) -> dict[str, Any]:
    """The options, or a ConfigError for an unknown name or a word where a number belongs."""
    fields = dataclasses.fields(GRADIENT_STRATEGIES[strategy])
    kinds = {f.name: str(f.type) for f in fields if f.init and f.name != "notion"}
    kinds |= dict.fromkeys((*_OF_CLASSIFIER, _POSITIVE), "float")
    kinds |= {f.name: str(f.type) for f in dataclasses.fields(Trainer) if f.name in _LOOP}
    if rehearsal.record_epsilon is not None:
        fields_of = {f.name: str(f.type) for f in dataclasses.fields(RecordPrivacy)}
        kinds |= {name: fields_of[field] for name, field in _RECORD.items()}
    options = rehearsal.options_among(*kinds)
    for name, value in options.items():
        if isinstance(value, str) and kinds[name] == "Weights":
            options[name] = _split(name, value)
        elif isinstance(value, str) and not any(word in kinds[name] for word in _WORDS):
            raise ConfigError(f"option {name} takes a number; got {value!r}")
    return options


def _split(name: str, text: str) -> Weights:
    """`0.04,0.3,0.66`: the parts of counts, dual steps (W) and primal steps (θ)."""
    try:
        counts, dual, primal = (float(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(
            f"option {name} takes three parts of the budget, COUNTS,DUAL,PRIMAL; got {text!r}"
        ) from None
    return Weights(counts, dual, primal)


def _records(rehearsal: Rehearsal, options: dict[str, Any]) -> dict[str, Any]:
    """Settings of the classifier under record privacy; takes its options out of the strategy's."""
    if rehearsal.others is None:
        raise ConfigError("record privacy needs other people's features to code the columns by")
    bounds = {field: options.pop(name) for name, field in _RECORD.items() if name in options}
    try:
        settings = RecordPrivacy(
            epsilon=rehearsal.record_epsilon or 0.0, delta=rehearsal.oracle.budget.delta, **bounds
        )
    except TypeError as error:
        raise ConfigError(f"record privacy does not take these options: {error}") from None
    return {"record_privacy": settings, "encoder": ColumnCoder.fit(rehearsal.others)}
