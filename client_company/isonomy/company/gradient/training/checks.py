"""Bad input to a gradient run, found before any budget is spent."""

from __future__ import annotations

import copy
import inspect
import math
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter
from torch.optim import Optimizer

from isonomy.common.base.errors import ConfigError, DataError
from isonomy.common.sums.channel import Needs
from isonomy.common.sums.oracle import RepeatedPeopleWarning
from isonomy.company.fair.inputs.checks import checked_attributes, checked_oracle
from isonomy.company.gradient.per_sample.tracing import refuse_batch_norm
from isonomy.company.gradient.record.privacy import RecordRun, RecordStrategy
from isonomy.company.gradient.run.chunks import chunk_size_for, make_chunks
from isonomy.company.gradient.run.strategy import Run, Strategy, logits_of, trainable

if TYPE_CHECKING:
    from isonomy.company.gradient.training.trainer import Trainer


def check_model(model: object) -> None:
    """A module with something to train and no layer that mixes people."""
    if not isinstance(model, nn.Module):
        raise ConfigError(f"model must be a torch nn.Module, got {type(model).__name__}")
    if not trainable(model):
        raise ConfigError("the model has no trainable parameters")
    for parameter in model.parameters():
        if isinstance(parameter, UninitializedParameter):
            raise ConfigError(
                "the model has lazy layers whose sizes are not known yet: call it once on a few "
                "rows before it is trained"
            )
        if parameter.dtype in (torch.float16, torch.bfloat16):
            raise ConfigError(
                f"the model's parameters are {parameter.dtype}: lengths of gradients, by which "
                "people are clipped, need 32 bits. Take model.float()."
            )
    refuse_batch_norm(model)


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


def needs_of(strategy: Strategy, *, records: bool) -> Needs:
    """What a gradient strategy can work with; ConfigError if it cannot protect records."""
    if records and not isinstance(strategy, RecordStrategy):
        raise ConfigError(
            f"{strategy.name} cannot run under record privacy; PF-LD and DP-FERMI can"
        )
    true_attributes = bool(getattr(strategy, "reads_attributes", False))
    return Needs(strategy.name, record_private=records, true_attributes=true_attributes)


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
    needs = needs_of(trainer.strategy, records=trainer.record_privacy is not None)
    oracle = checked_oracle(trainer.oracle, needs)
    attributes = checked_attributes(oracle, trainer.attribute)
    x, y, classes = checked_data(inputs, target)
    if x.dtype.is_floating_point:
        x = x.to(next(trainer.model.parameters()).dtype)
    people = oracle.people_of(ids, len(y), inputs, target)
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
        steps = trainer.rounds * len(run.chunks) * trainer.local_steps
        run.record = RecordRun.of(
            trainer.record_privacy,
            run,
            loss_steps=trainer.warmup_steps + steps,
            loss_batch=trainer.loss_batch,
        )
    return run


def checked_data(inputs: Any, target: Any) -> tuple[Tensor, Tensor, int]:
    """Finite inputs, class numbers 0..K−1 that all occur, and K."""
    x = _tensor(inputs, "inputs must be numbers; GradientFairClassifier codes tables with text")
    y = _tensor(target, "target must be class numbers; GradientFairClassifier takes any labels")
    if not x.ndim:
        raise DataError("inputs must have one row per person")
    if y.ndim != 1 or y.dtype.is_floating_point or y.is_complex() or y.dtype == torch.bool:
        raise DataError("target must be one class number (integer) per row")
    if len(x) != len(y) or not len(y):
        raise DataError(f"inputs have {len(x)} rows, target {len(y)}; both must be equal, above 0")
    if x.dtype.is_floating_point and not torch.isfinite(x).all():
        bad = (~torch.isfinite(x).reshape(len(x), -1).all(dim=1)).sum()
        raise DataError(f"{int(bad)} rows of the inputs hold NaN or infinity; clean them first")
    labels = torch.unique(y).tolist()
    if len(labels) < 2:
        raise DataError("the target holds one class only; there is nothing to decide")
    if labels != list(range(len(labels))):
        raise DataError("classes must be numbered 0, 1, … without gaps, each with at least one row")
    return x, y.long(), len(labels)


def check_step(trainer: Trainer, run: Run) -> None:
    """One loss step on a copy of the model: what optimiser or loss cannot do shows here, for free.

    Nothing of it is kept, and the caller's random numbers are not touched.
    """
    rows = run.chunks[0].rows[:8]
    with torch.random.fork_rng(devices=[]):
        try:
            model = copy.deepcopy(run.model).train()
        except (RuntimeError, TypeError):
            return  # cannot be copied; the first real step will tell
        optimiser = checked_optimiser(trainer, model)
        try:
            outputs = logits_of(model(run.inputs[rows].to(run.device)), run.classes)
            loss = trainer.loss(outputs, run.target[rows].to(run.device))
        except (RuntimeError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise ConfigError(
                f"the loss must take (logits (b, {run.classes}), class numbers (b,)): {error}"
            ) from error
        if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.requires_grad:
            raise ConfigError("the loss must be one differentiable number, a mean over its rows")
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        try:
            optimiser.step()
        except (RuntimeError, TypeError, ValueError) as error:
            raise ConfigError(f"the optimiser cannot take a step on this model: {error}") from error


def checked_optimiser(trainer: Trainer, model: nn.Module) -> Optimizer:
    """An optimiser of these parameters that needs nothing but their gradients."""
    if isinstance(trainer.optimiser, Optimizer) or not callable(trainer.optimiser):
        raise ConfigError(
            "optimiser is a function that makes one: lambda parameters: torch.optim.SGD(…)"
        )
    try:
        optimiser = trainer.optimiser(trainable(model))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"the optimiser cannot be made: {error}") from error
    if not isinstance(optimiser, Optimizer):
        raise ConfigError(f"optimiser must make a torch Optimizer, got {type(optimiser).__name__}")
    arguments = inspect.signature(optimiser.step).parameters.values()
    if any(a.default is a.empty and a.kind is a.POSITIONAL_OR_KEYWORD for a in arguments):
        raise ConfigError(
            f"{type(optimiser).__name__} evaluates the loss several times per step (a closure), "
            "but a constraint gradient is released once. Take SGD, Adam or another first-order "
            "optimiser."
        )
    return optimiser


def move_to_device(model: nn.Module, device: str | torch.device | None) -> None:
    """To this device, or to a GPU if there is one."""
    place = device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        model.to(place)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ConfigError(f"the model cannot go to device {str(place)!r}: {error}") from error


def _tensor(data: Any, expected: str) -> Tensor:
    if isinstance(data, Tensor):
        return data
    try:
        return torch.as_tensor(np.require(data, requirements="W"))
    except (TypeError, ValueError):
        raise DataError(f"{expected}; got {_kind(data)}") from None


def _kind(data: Any) -> str:
    return str(getattr(data, "dtype", None) or type(data).__name__)


def _check_outputs(run: Run) -> None:
    """Shape of the outputs, on two rows; the model's own error is a caller's error."""
    run.model.eval()
    with torch.no_grad():
        first = run.inputs[:2].to(run.device)
        try:
            outputs = run.model(first)
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            raise ConfigError(f"the model does not take these inputs: {error}") from error
    if not isinstance(outputs, Tensor) or not outputs.dtype.is_floating_point:
        raise ConfigError(
            f"the model must give one tensor of logits, it gave {_kind(outputs)}. Wrap it in a "
            "module that returns the logits alone."
        )
    if len(logits_of(outputs, run.classes)) != len(first):
        raise DataError(f"the model gave {len(outputs)} outputs for {len(first)} rows")
