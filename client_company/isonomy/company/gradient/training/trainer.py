"""The training loop for any torch classifier and any gradient strategy.

    trainer = Trainer(model, PFLD(), oracle=oracle, rounds=15)
    result = trainer.fit(inputs, target, ids=ids)
    result.history.table()

    warm-up: loss steps without constraint                      free: no attribute is touched
    for each round:                                             asks about each person once
        for each chunk:  g ← strategy                           a private release
                         local_steps times  θ ← opt(∇J(θ) + g)  several local steps per release
        strategy.end_round → history, callbacks, checkpoint

With `record_privacy` the company's own steps are releases too: loss steps, warm-up included, are
DP-SGD on Poisson samples, and g is about a fresh Poisson sample instead of a fixed chunk (people in
a chunk on average: `chunk_size`). What that guarantees to whom is in record/privacy.py.

A budget that runs out ends the run with the model as it then is. A break between two rounds, or in
the middle of one, is made good by `fit(..., resume=folder)`: the answers asked for twice are the
stored ones, so the result is the same as without the break.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from isonomy.common.base.errors import BudgetExceeded, ConfigError
from isonomy.common.base.logs import logger
from isonomy.common.base.progress import progress_bar
from isonomy.common.sums.oracle import GroupOracle
from isonomy.company.gradient.record.privacy import RecordPrivacy, RecordStrategy
from isonomy.company.gradient.run.history import History
from isonomy.company.gradient.run.paper_epsilon import PaperEpsilon, as_in_papers
from isonomy.company.gradient.run.strategy import (
    Chunk,
    Loss,
    RoundRecord,
    Run,
    Strategy,
    trainable,
)
from isonomy.company.gradient.sums.deferred import Deferred
from isonomy.company.gradient.training import _checkpoint as checkpoint
from isonomy.company.gradient.training.checks import (
    check_finite_loss,
    check_finite_parameters,
    check_model,
    check_step,
    checked_optimiser,
    move_to_device,
    plan_record,
    prepare_run,
)

Optimiser = Callable[[Iterable[nn.Parameter]], Optimizer]
Callback = Callable[["Trainer", RoundRecord], bool | None]  # True: stop here
ENDS = {
    "rounds": "all rounds are done",
    "budget": "the budget is exhausted",
    "callback": "a callback ended it",
}
_CROSS_ENTROPY = nn.functional.cross_entropy


def adam(parameters: Iterable[nn.Parameter]) -> Optimizer:
    """The default optimiser."""
    return torch.optim.Adam(parameters, lr=0.02)


@dataclass(frozen=True)
class EarlyStopping:
    """A callback: stop when the *released* violation was small enough `patience` times running."""

    violation: float
    patience: int = 2

    def __call__(self, trainer: Trainer, record: RoundRecord) -> bool:
        last = trainer.history.records[-self.patience :]
        return len(last) == self.patience and all(r.violation <= self.violation for r in last)


@dataclass(frozen=True)
class Epsilons:
    """The figures of a run.

    | name | meaning |
    |---|---|
    | cap | guaranteed for attributes, to the company and everybody else |
    | spent | so far, of the cap: company's view, exact; under record privacy the cap |
    | as_in_papers | for comparison with published figures; a guarantee only for whole records |
    """

    cap: float
    spent: float
    delta: float
    as_in_papers: PaperEpsilon


@dataclass(frozen=True)
class TrainingResult:
    """The trained model. `stopped`: "rounds", "budget" or "callback"."""

    model: nn.Module
    history: History
    stopped: str
    epsilons: Epsilons


@dataclass
class Trainer:
    """Trains `model` in place under a strategy.

    | parameter | meaning |
    |---|---|
    | attribute | an attribute, an intersection "sex*race", or several; None: the only one |
    | optimiser | makes an optimiser from parameters |
    | rounds | how often every person is asked about |
    | chunk_size | people per private sum; None: all at once if the model is small, else 1,024 |
    | local_steps | loss steps per constraint gradient |
    | loss_batch | rows per loss step, drawn anew; None: the chunk's own rows |
    | warmup_steps | loss steps before the first question |
    | average | part of the last rounds whose parameters are averaged into the result |
    | device | None: a GPU if there is one |
    | checkpoint | folder written after every round |
    | record_privacy | `RecordPrivacy(epsilon=…)`: protect whole records from who sees the model |
    """

    model: nn.Module
    strategy: Strategy
    oracle: GroupOracle
    attribute: str | Sequence[str] | None = None
    optimiser: Optimiser = adam
    rounds: int = 15
    chunk_size: int | None = None
    local_steps: int = 10
    loss_batch: int | None = None
    warmup_steps: int = 0
    average: float = 0.0
    loss: Loss = _CROSS_ENTROPY
    device: str | torch.device | None = None
    seed: int = 0
    callbacks: Sequence[Callback] = ()
    progress: bool = False
    checkpoint: str | Path | None = None
    record_privacy: RecordPrivacy | None = None
    history: History = field(default_factory=History, init=False)

    def __post_init__(self) -> None:
        for name, least in (("rounds", 1), ("local_steps", 1), ("warmup_steps", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ConfigError(f"{name} must be an integer of at least {least}, got {value!r}")
        if not isinstance(self.average, int | float) or not 0 <= self.average < 1:
            raise ConfigError(f"average is a part of the rounds, 0 to below 1; got {self.average}")
        for name in ("chunk_size", "loss_batch"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise ConfigError(f"{name} must be an integer of at least 1, got {value!r}")
        if not isinstance(self.strategy, Strategy):
            raise ConfigError(f"strategy is an object such as PFLD(), got {self.strategy!r}")
        if not isinstance(self.callbacks, Sequence) or not all(map(callable, self.callbacks)):
            raise ConfigError("callbacks is a list of functions (trainer, record) -> stop or not")
        if self.record_privacy is not None and not isinstance(self.record_privacy, RecordPrivacy):
            raise ConfigError(
                f"record_privacy takes RecordPrivacy(epsilon=…), got {self.record_privacy!r}"
            )
        check_model(self.model)

    def fit(
        self,
        inputs: Any,
        target: Any,
        *,
        ids: Sequence[object] | None = None,
        resume: str | Path | None = None,
    ) -> TrainingResult:
        """Train; `resume` names a checkpoint folder of the same run."""
        generator = torch.Generator().manual_seed(self.seed)
        move_to_device(self.model, self.device)
        run = prepare_run(self, inputs, target, ids, generator)
        check_step(self, run)
        if self.checkpoint is not None:
            checkpoint.check_folder(Path(self.checkpoint))
        optimiser = checked_optimiser(self, self.model)
        self.history = History()
        self._log = logger("company", least="warning").bind(strategy=self.strategy.name)
        notion = getattr(self.strategy, "notion", "")
        notion = notion if isinstance(notion, str) else "custom"
        declared = run.oracle.declared(self.strategy.name, notion)
        with declared, torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            averaged = _Average(self.rounds - math.ceil(self.average * self.rounds))
            if resume is not None:
                self.history = checkpoint.restore(
                    Path(resume), self, run, optimiser, averaged.state
                )
                self._log.info("training resumed", round=run.round)
            else:
                self._log.info("training begun", rounds=self.rounds, chunks=len(run.chunks))
                if run.record is not None:
                    plan_record(run, self.strategy)
                self._warm_up(run, optimiser)
            stopped = self._train(run, optimiser, averaged, fresh=resume is None)
        self.model.eval()
        # A run that ends with its budget has planned too much: its owner should hear of it.
        tell = self._log.warning if stopped == "budget" else self._log.info
        tell("training ended", reason=ENDS[stopped], round=run.round)
        return TrainingResult(self.model, self.history, stopped, epsilons_of(run))

    # --- The loop ------------------------------------------------------------------------------

    def _warm_up(self, run: Run, optimiser: Optimizer) -> None:
        self.model.train()
        for number in range(self.warmup_steps):
            chunk = run.chunks[number % len(run.chunks)]
            self._descend(run, optimiser, chunk, None)
        self.model.eval()
        with torch.no_grad():
            for part in torch.split(torch.arange(len(run.target)), 8192):
                check_finite_loss(self.loss(run.outputs(part), run.target[part].to(run.device)))

    def _train(self, run: Run, optimiser: Optimizer, averaged: _Average, *, fresh: bool) -> str:
        if fresh:
            self.model.eval()
            self.strategy.prepare(run)  # a budget too small for this is an error, not an end
            self._label(run)
            self._save(run, optimiser, averaged)
        with progress_bar(visible=self.progress) as bar:
            task = bar.add_task(self.strategy.name, total=self.rounds, completed=run.round)
            try:
                while run.round < self.rounds:
                    stop = self._round(run, optimiser, averaged)
                    bar.advance(task)
                    self._save(run, optimiser, averaged)
                    if stop:
                        averaged.apply(self.model)
                        return "callback"
            except BudgetExceeded:
                averaged.apply(self.model)
                return "budget"
        return "rounds"

    def _round(self, run: Run, optimiser: Optimizer, averaged: _Average) -> bool:
        begin, losses = time.perf_counter(), []
        self.model.train()
        # Shuffled by the run's generator: the order is public, and no privacy rests on it.
        for index in torch.randperm(len(run.chunks), generator=run.generator).tolist():
            chunk = run.chunks[index]
            if run.record is not None:  # a fresh sample, whose secrecy the accounting relies on
                chunk = run.record.draw_chunk(run, index)
            constraint = self._constraint(run, chunk)
            for _ in range(self.local_steps):
                losses.append(self._descend(run, optimiser, chunk, constraint))
        run.round += 1
        averaged.add(self.model, run.round)
        if run.round == self.rounds:
            averaged.apply(self.model)  # so that the last release is about the result
        self.model.eval()
        released = self.strategy.end_round(run)
        record = replace(
            released,
            round=run.round,
            loss=sum(losses) / len(losses),
            epsilon_spent=_spent(run),
            seconds=time.perf_counter() - begin,
            extra={**released.extra, **_figures(run)},
        )
        self.history.append(record)
        self._log.debug("round ended", round=run.round, seconds=round(record.seconds, 3))
        wishes = [callback(self, record) for callback in self.callbacks]  # every one is called
        return any(wishes)

    def _constraint(self, run: Run, chunk: Chunk) -> Sequence[Tensor] | None:
        """The strategy's gradient, in evaluation mode where that makes a difference."""
        if run.modeless:
            return self.strategy.constraint_gradient(run, chunk)
        self.model.eval()
        constraint = self.strategy.constraint_gradient(run, chunk)
        self.model.train()
        return constraint

    def _loss_rows(self, run: Run, chunk: Chunk) -> Tensor:
        if self.loss_batch is None:
            return chunk.rows
        return torch.randint(len(run.target), (self.loss_batch,), generator=run.generator)

    def _descend(
        self, run: Run, optimiser: Optimizer, chunk: Chunk, constraint: Sequence[Tensor] | None
    ) -> float:
        """One step, private or not; the loss, where it may be told."""
        if run.record is not None:
            return self._private_step(run, optimiser, constraint)
        return self._step(run, optimiser, self._loss_rows(run, chunk), constraint)

    def _step(
        self, run: Run, optimiser: Optimizer, rows: Tensor, constraint: Sequence[Tensor] | None
    ) -> float:
        """One optimiser step on ∇J + constraint; the model stays finite or the run ends.

        In one pass with the constraint where its own forward pass can be shared (deferred.py).
        """
        target = run.target[rows].to(run.device)
        shared = None
        if isinstance(constraint, Deferred) and run.modeless:
            shared = constraint.take_pass(rows)
        if shared is not None:
            shared_loss = shared.loss(self.loss, target, run.classes)
            value = check_finite_loss(shared_loss)
            optimiser.zero_grad()
            shared.back_propagate(shared_loss)
            optimiser.step()
            return value
        loss = self.loss(run.outputs(rows), target)
        value = check_finite_loss(loss)
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        if constraint is not None:
            for parameter, extra in zip(trainable(self.model), constraint, strict=True):
                extra = extra.to(parameter)
                parameter.grad = extra if parameter.grad is None else parameter.grad + extra
        optimiser.step()
        return value

    def _private_step(
        self, run: Run, optimiser: Optimizer, constraint: Sequence[Tensor] | None
    ) -> float:
        """The same by DP-SGD. What the loss was is not released, so nobody is told: NaN."""
        if run.record is None or not isinstance(self.strategy, RecordStrategy):
            raise ConfigError(f"{self.strategy.name} cannot run under record privacy")
        self.model.eval()
        terms = self.strategy.free_terms(run)
        gradient = run.record.loss_gradient(run, self.loss, terms)
        optimiser.zero_grad()
        for number, parameter in enumerate(trainable(self.model)):
            extra = 0.0 if constraint is None else constraint[number].to(parameter)
            parameter.grad = gradient[number] + extra
        optimiser.step()
        check_finite_parameters(self.model)
        return math.nan

    def _label(self, run: Run) -> None:
        """Names for the history's columns, where the strategy has them."""
        describe = getattr(self.strategy, "describe", None)
        if describe is not None:
            self.history.groups, self.history.events = describe(run)
            self.history.symbol = getattr(self.strategy, "symbol", "λ")

    def _save(self, run: Run, optimiser: Optimizer, averaged: _Average) -> None:
        if self.checkpoint is not None:
            checkpoint.save(Path(self.checkpoint), self, run, optimiser, averaged.state)
            self._log.debug("checkpoint written", round=run.round)


class _Average:
    """The mean of the parameters at the ends of the last rounds."""

    def __init__(self, after: int) -> None:
        self.after = after  # rounds that do not enter
        self.state: dict[str, Tensor] = {}

    def add(self, model: nn.Module, number: int) -> None:
        weight = 1.0 / max(number - self.after, 1)
        if number <= self.after:
            return
        for name, parameter in model.named_parameters():
            new = parameter.detach().double()
            old = self.state.get(name, new)
            self.state[name] = old + weight * (new - old)

    def apply(self, model: nn.Module) -> None:
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name in self.state:
                    parameter.copy_(self.state[name])


def epsilons_of(run: Run) -> Epsilons:
    """Cap, spent, and the papers' figure: under record privacy that of the planned run."""
    budget, record = run.oracle.budget, run.record
    papers = as_in_papers(run.oracle) if record is None else record.epsilon()
    return Epsilons(budget.cap_epsilon, _spent(run), budget.delta, papers)


def _spent(run: Run) -> float:
    """ε for attributes so far. What it really is tells who was drawn and who has which label, and
    neither is released: under record privacy it is the cap."""
    budget = run.oracle.budget
    return budget.spent_epsilon if run.record is None else budget.cap_epsilon


def _figures(run: Run) -> dict[str, float]:
    """ε as in the papers so far; under record privacy ε for records so far."""
    if run.record is None:
        return {"epsilon_as_in_papers": as_in_papers(run.oracle).epsilon}
    return {"epsilon_records": run.record.epsilon(run.record.used).epsilon}


__all__ = [
    "Callback",
    "EarlyStopping",
    "Epsilons",
    "Loss",
    "Optimiser",
    "Trainer",
    "TrainingResult",
    "adam",
    "epsilons_of",
]
