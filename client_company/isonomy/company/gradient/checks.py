"""Bad input to a gradient run, found before any budget is spent."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from isonomy.common.errors import ConfigError, DataError
from isonomy.common.oracle import GroupOracle, RepeatedPeopleWarning
from isonomy.company.gradient.chunks import chunk_size_for, make_chunks
from isonomy.company.gradient.filters import FilteredOracle
from isonomy.company.gradient.record_privacy import RecordRun, RecordStrategy
from isonomy.company.gradient.strategy import Run, Strategy, logits_of, trainable
from isonomy.company.tilt.checks import checked_attributes, checked_oracle, positions_of

if TYPE_CHECKING:
    from isonomy.company.gradient.trainer import Trainer


def check_model(model: object) -> None:
    """A module with something to train and no layer that mixes people."""
    if not isinstance(model, nn.Module):
        raise ConfigError(f"model must be a torch nn.Module, got {type(model).__name__}")
    if not trainable(model):
        raise ConfigError("the model has no trainable parameters")
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm):
            raise ConfigError(
                f"layer {name or type(module).__name__!r} is a BatchNorm: its output for one "
                "person depends on the others in the batch, so nobody has a gradient of their own "
                "and clipping bounds nothing. Replace it by nn.GroupNorm or nn.LayerNorm."
            )


def check_finite_loss(loss: Tensor | float) -> float:
    """The loss as a number; NaN and infinity end the run before the model is spoiled."""
    value = float(loss.detach()) if isinstance(loss, Tensor) else loss
    if not math.isfinite(value):
        raise ConfigError(
            "the loss is NaN or infinite. Scale the inputs, lower the learning rate, or look for "
            "NaN in the model; the model is left as it was before this step."
        )
    return value


def check_finite_parameters(model: nn.Module) -> None:
    """Noised steps show no loss; a model that ran away shows in its parameters."""
    if not all(bool(torch.isfinite(p).all()) for p in trainable(model)):
        raise ConfigError("the model's parameters are NaN or infinite: lower the learning rate")


def check_record(strategy: Strategy, oracle: GroupOracle) -> None:
    """Can this strategy, on this oracle, protect whole records?"""
    from isonomy.common.joint_oracle import JointOracle  # brings the session with it

    if not isinstance(strategy, RecordStrategy):
        raise ConfigError(
            f"{strategy.name} cannot run under record privacy; PF-LD and DP-FERMI can"
        )
    if isinstance(oracle, FilteredOracle):
        raise ConfigError(
            "record privacy and the individual filter do not go together: the filter lets the "
            "noise of a query be smaller than what records are promised"
        )
    if isinstance(oracle, JointOracle):
        raise ConfigError(
            "record privacy needs one company: with several, exact totals of the others come with "
            "each answer"
        )


def plan_record(run: Run, strategy: Strategy) -> None:
    """Solve all noise that records need, before anything is asked."""
    if run.record is None or not isinstance(strategy, RecordStrategy):
        raise ConfigError(f"{strategy.name} cannot run under record privacy")
    run.record.plan(*strategy.record_parts(run))


def prepare_run(
    trainer: Trainer,
    inputs: Any,
    target: Any,
    ids: Sequence[object] | None,
    generator: torch.Generator,
) -> Run:
    """The run, with everything checked that needs no attribute."""
    oracle = checked_oracle(trainer.oracle, records=trainer.record_privacy is not None)
    attributes = checked_attributes(oracle, trainer.attribute)
    x, y, classes = checked_data(inputs, target)
    people = positions_of(oracle, ids, len(y))
    persons = len(np.unique(people))
    for attribute in attributes:
        groups = len(oracle.labels(attribute))
        if groups > persons:
            raise DataError(f"{attribute!r} has {groups} groups, but there are {persons} people")
    if persons < len(people):
        warnings.warn(
            f"{len(people)} rows belong to {persons} people: rates are rates among persons, and "
            "the rows of one person are clipped together",
            RepeatedPeopleWarning,
            stacklevel=4,
        )
    size = trainer.chunk_size
    if size is None:
        size = chunk_size_for(persons, sum(p.numel() for p in trainable(trainer.model)))
    run = Run(
        model=trainer.model,
        oracle=oracle,
        attribute=attributes[0],
        inputs=x,
        target=y,
        classes=classes,
        people=people,
        chunks=make_chunks(people, size, generator),
        rounds=trainer.rounds,
        generator=generator,
        attributes=attributes,
    )
    _check_outputs(run)
    if trainer.record_privacy is not None:
        check_record(trainer.strategy, oracle)
        steps = trainer.rounds * len(run.chunks) * trainer.passes * trainer.local_steps
        run.record = RecordRun.of(
            trainer.record_privacy,
            run,
            loss_steps=trainer.warmup_steps + steps,
            loss_batch=trainer.loss_batch,
        )
    return run


def checked_data(inputs: Any, target: Any) -> tuple[Tensor, Tensor, int]:
    """Finite inputs, class numbers 0..K−1 that all occur, and K."""
    x = inputs if isinstance(inputs, Tensor) else torch.as_tensor(np.asarray(inputs))
    y = target if isinstance(target, Tensor) else torch.as_tensor(np.asarray(target))
    if x.dtype == torch.float64:
        x = x.float()
    if y.ndim != 1 or y.dtype.is_floating_point or y.dtype == torch.bool:
        raise DataError("target must be one class number (integer) per row")
    if len(x) != len(y) or not len(y):
        raise DataError(f"inputs have {len(x)} rows, target {len(y)}; both must be equal, above 0")
    if x.dtype.is_floating_point and not torch.isfinite(x).all():
        bad = (~torch.isfinite(x).reshape(len(x), -1).all(dim=1)).sum()
        raise DataError(f"{int(bad)} rows of the inputs hold NaN or infinity; clean them first")
    found = torch.unique(y).tolist()
    if len(found) < 2:
        raise DataError("the target holds one class only; there is nothing to decide")
    if found != list(range(len(found))):
        raise DataError("classes must be numbered 0, 1, … without gaps, each with at least one row")
    return x, y.long(), len(found)


def _check_outputs(run: Run) -> None:
    """Shape of the outputs, on two rows; the model's own error is a caller's error."""
    run.model.eval()
    with torch.no_grad():
        first = run.inputs[:2].to(run.device)
        try:
            outputs = run.model(first)
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            raise ConfigError(f"the model does not take these inputs: {error}") from error
    logits_of(outputs, run.classes)


__all__ = [
    "check_finite_loss",
    "check_finite_parameters",
    "check_model",
    "check_record",
    "checked_data",
    "plan_record",
    "prepare_run",
]
