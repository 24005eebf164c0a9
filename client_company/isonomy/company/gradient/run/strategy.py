"""What a gradient strategy is, and what it works with.

The trainer owns the loop and the loss; a strategy adds the fairness part of the gradient:

    prepare(run)                                      checks, counts, noise levels; once
    for each round:
        for each chunk, in shuffled order:
            g = constraint_gradient(run, chunk)       one private release (or none)
            local steps:  θ ← optimiser(∇J(θ) + g)    the company's own data, free
        end_round(run)                                dual step; what was released about fairness

Everything that a strategy learns about groups comes from `run.oracle`, so every touch is in the
ledger. `run.generator` orders chunks and initialises models; privacy noise never comes from it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from isonomy.common.base.errors import DataError
from isonomy.common.sums.oracle import GroupOracle

if TYPE_CHECKING:
    from isonomy.company.gradient.record.privacy import RecordRun

State = dict[str, Any]  # tensors, and whatever JSON can hold
Loss = Callable[[Tensor, Tensor], Tensor]  # (logits (b, classes), target (b,)) -> mean loss
# Layers whose outputs are the same in training and in evaluation.
_MODELESS: frozenset[type[nn.Module]] = frozenset(
    {nn.Sequential, nn.Linear, nn.Conv1d, nn.Conv2d, nn.LayerNorm, nn.GroupNorm, nn.Flatten}
    | {nn.Identity, nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid}
    | {nn.Softplus, nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d}
)


@dataclass(frozen=True)
class Chunk:
    """A fixed part of the people, with all of their rows. `people` runs along `rows`."""

    index: int
    rows: Tensor  # (b,) int64 row numbers
    people: NDArray[np.int64]  # (b,) cohort position of each row; a person may repeat

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def persons(self) -> int:
        """Distinct people in the chunk."""
        return len(np.unique(self.people))


@dataclass(frozen=True)
class Persons:
    """Who the rows of a query belong to: (rows,) number of the person, and the people in order."""

    index: Tensor  # (b,) int64
    people: NDArray[np.int64]  # (p,) cohort positions, ascending

    @classmethod
    def of(cls, people_of_row: NDArray[np.int64]) -> Persons:
        people, index = np.unique(people_of_row, return_inverse=True)
        return cls(torch.from_numpy(index.astype(np.int64)), people)

    def __len__(self) -> int:
        return len(self.people)

    def fold(self, rows: Tensor) -> Tensor:
        """(p, …) sums of each person's rows."""
        total = torch.zeros(len(self.people), *rows.shape[1:], dtype=rows.dtype)
        return total.index_add_(0, self.index, rows)


@dataclass
class Run:
    """One training run as a strategy sees it.

    | name | meaning |
    |---|---|
    | attribute | the (first) attribute or intersection; `attributes` lists them all |
    | people | (n,) cohort position of each row |
    | weight | (n,) 1 / number of rows of the same person: rates are rates among persons |
    | rounds | how often every person is asked about, as planned |
    | round | rounds finished so far |
    | record | set if whole records are protected as well (record/privacy) |
    """

    model: nn.Module
    oracle: GroupOracle
    attribute: str
    inputs: Tensor
    target: Tensor
    classes: int
    people: NDArray[np.int64]
    chunks: Sequence[Chunk]
    rounds: int
    generator: torch.Generator
    attributes: tuple[str, ...] = ()
    weight: Tensor = field(default_factory=lambda: torch.zeros(0))
    round: int = 0
    record: RecordRun | None = None
    _gathered: tuple[Tensor, Tensor] | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        if not self.attributes:
            self.attributes = (self.attribute,)
        if len(self.weight) != len(self.people):
            _, person, times = np.unique(self.people, return_inverse=True, return_counts=True)
            self.weight = torch.tensor(1.0 / times[person], dtype=torch.float64)

    @property
    def persons(self) -> int:
        """Distinct people in the run."""
        return len(np.unique(self.people))

    @cached_property
    def modeless(self) -> bool:
        """Are the model's outputs the same in training and in evaluation?

        Exact types only: a subclass may do anything.
        """
        return all(type(layer) in _MODELESS for layer in self.model.modules())

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @cached_property
    def fingerprint(self) -> str:
        """A hash of all rows, labels and people: a resumed run must have the same."""
        data = hashlib.sha256()
        for part in (self.inputs, self.target, torch.from_numpy(self.people)):
            data.update(part.detach().cpu().contiguous().numpy().tobytes())
        return data.hexdigest()

    def inputs_of(self, rows: Tensor) -> Tensor:
        """(b, …) inputs of some rows on the model's device.

        The last ones are kept: local steps ask for the same chunk again, and gathering all rows
        takes longer than a small model's step.
        """
        if self._gathered is None or self._gathered[0] is not rows:
            self._gathered = (rows, self.inputs[rows].to(self.device))
        return self._gathered[1]

    def outputs(self, rows: Tensor) -> Tensor:
        """(b, classes) logits of some rows."""
        return logits_of(self.model(self.inputs_of(rows)), self.classes)


@dataclass(frozen=True)
class RoundRecord:
    """What a round's end released. NaN and empty arrays where a strategy releases nothing.

    `violation` is a noised release, never the truth; the trainer fills in `loss`, `round`, the
    budget and the time.
    """

    violation: float = float("nan")
    deviation: float = float("nan")  # of the noise in `violation`, one standard deviation
    multipliers: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 0)))
    round: int = 0
    loss: float = float("nan")
    epsilon_spent: float = 0.0
    seconds: float = 0.0
    extra: Mapping[str, float] = field(default_factory=dict)  # a strategy's own figures


@runtime_checkable
class Strategy(Protocol):
    """The fairness part of a training run."""

    name: str

    def prepare(self, run: Run) -> None:
        """Check all that can be known before spending, release counts once, solve the noise."""

    def constraint_gradient(self, run: Run, chunk: Chunk) -> Sequence[Tensor] | None:
        """One tensor per trainable parameter, to be *added* to the gradient of the mean loss.

        None: nothing for this step. Parameters are those of `trainable(run.model)`, in order.
        """

    def end_round(self, run: Run) -> RoundRecord:
        """The dual (or W) step, and what it released."""

    def state_dict(self) -> State:
        """All that is needed to go on after a break: tensors, and what JSON can hold."""

    def load_state_dict(self, state: State) -> None: ...


def trainable(model: nn.Module) -> list[nn.Parameter]:
    """The parameters that gradients are about, in the model's order."""
    return [p for p in model.parameters() if p.requires_grad]


def logits_of(outputs: Tensor, classes: int) -> Tensor:
    """(b, classes) logits; a binary model may give one logit per row, for class 1."""
    if outputs.ndim == 1:
        outputs = outputs[:, None]
    if outputs.ndim == 2 and outputs.shape[1] == 1 and classes == 2:
        return torch.cat([torch.zeros_like(outputs), outputs], dim=1)
    if outputs.ndim != 2 or outputs.shape[1] != classes:
        raise DataError(
            f"the model must give one logit per class ({classes}), or one for two classes; "
            f"it gave shape {tuple(outputs.shape)}"
        )
    return outputs
