"""Gradients of one scalar per person, never materialised.

For a chunk of b samples and a scalar h of each sample's outputs (a fairness notion's h, or one
entry of FERMI's F_j), let g_i = ∇_θ h(z_i) and G the b × d matrix of them. Private training needs

    K = G Gᵀ                 who points where, and how far: lengths for clipping, a basis (subspace)
    Gᵀ w = Σ_i w_i g_i       the way back from an answer to a gradient

Both come layer by layer from what entered the layer and the back-propagated signal (per_sample).
Memory grows with b² and with one layer's width, not with b·d, as long as the layers have a rule
there; the gradients of other layers' parameters are materialised.

Privacy does not rest on K: the oracle clips the rows that it is sent, in integers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from isonomy.common.base.errors import CapacityError, ConfigError, DataError
from isonomy.company.gradient.per_sample._per_sample import Factors
from isonomy.company.gradient.per_sample.tracing import factors_of, plan_of, trace

MAX_CELLS = 1 << 27  # of a Gram matrix or of materialised rows: 1 GB of float64
_DIVERGED = (
    "gradients are NaN or infinite: training diverged. Nothing was asked; lower the learning rate, "
    "or scale the inputs."
)
Scalar = Callable[[Tensor], Tensor]  # outputs (b, classes) -> (b,), each from its own row
Slope = Callable[[Tensor], tuple[Tensor, Tensor]]
"""outputs -> (b,) values, and their gradients: (b, classes), or (b,) along the line of two"""


@dataclass(eq=False)
class ChunkGradients:
    """Per-person gradients g_i of a scalar of the outputs, for one chunk.

    Without `people_of_row` every row is a person, in the order given. With it, rows of one person
    are added up (privacy is per person), and people are in ascending order, as in `people`.

    A loss of the same outputs may be back-propagated from here (`pull_back`, `outputs_again`),
    which saves the loss step a forward pass of its own.
    """

    outputs: Tensor  # (rows, classes); see tracing.Trace
    gradient: Tensor  # (rows, classes) ∂h_i/∂outputs_i, or (rows,) along the line of two classes
    values: Tensor  # (rows,) the scalar itself, detached
    parameters: list[nn.Parameter]
    parts: Sequence[Factors]  # of upstream · outputs, or (with `scale`) of the line's coordinate
    people: NDArray[np.int64] | None  # (b,) distinct, ascending
    person_of_row: Tensor | None  # (rows,) numbers 0..b−1; None: row i is person i
    scale: Tensor | None = None  # (rows,) where the outputs' gradients lie on one line
    again: Callable[[], Tensor] | None = None  # the forward pass once more, with its graph

    @classmethod
    def of(
        cls,
        model: nn.Module,
        scalar: Scalar,
        inputs: Tensor,
        people_of_row: ArrayLike | None = None,
        slope: Slope | None = None,
    ) -> ChunkGradients:
        """Run the model once forward and once backward. The oracle is not asked anything.

        `slope`: the scalar together with its gradient, where that is known in closed form.
        """
        if len(inputs) == 0:
            raise DataError("a chunk needs at least one row")
        parameters = list(model.parameters())
        plan = plan_of(model, parameters, inputs)
        traced = trace(model, plan.layers, inputs)
        if not traced.depends:
            raise ConfigError("the number of a row must depend on the model's outputs")
        with torch.no_grad():
            values, gradient = (slope or _slope_of(scalar))(traced.outputs)
        if not math.isfinite(values.sum().item()):  # a NaN or an infinity shows in the sum
            raise DataError(
                "the model's outputs are NaN or infinite: training diverged. Nothing was asked; "
                "lower the learning rate, or scale the inputs."
            )
        people, person = _persons(people_of_row, len(inputs), inputs.device)
        line = _line_of(traced.outputs.shape, traced.outputs.dtype, traced.outputs.device)
        scale = None if plan.generic else along_line(gradient)
        seed = line if scale is not None else _sent_back(gradient, line)
        return cls(
            outputs=traced.outputs,
            gradient=gradient,
            values=values,
            parameters=[p for p in parameters if p.requires_grad],
            parts=factors_of(model, plan, traced, inputs, seed),
            people=people,
            person_of_row=person,
            scale=scale,
            again=lambda: model(inputs),
        )

    def __len__(self) -> int:
        return len(self.values) if self.people is None else len(self.people)

    @property
    def upstream(self) -> Tensor:
        """(rows, classes) ∂h_i/∂outputs_i."""
        outputs = self.outputs
        return _sent_back(self.gradient, _line_of(outputs.shape, outputs.dtype, outputs.device))

    @property
    def size(self) -> int:
        """d, the number of trainable parameters."""
        return sum(p.numel() for p in self.parameters)

    def gram(self, dtype: torch.dtype = torch.float64, *, first: bool = False) -> Tensor:
        """K = G Gᵀ, (b, b) in this precision; `first`: the first layer's part of it alone."""
        count = len(self.values)
        if count * count > MAX_CELLS:
            raise CapacityError(
                f"a Gram matrix of {count} rows does not fit; take chunks of at most "
                f"{int(MAX_CELLS**0.5)} rows"
            )
        parts = self.parts[:1] if first else self.parts
        grams = (self._scaled(part).gram(dtype) for part in parts)
        total = next(grams)
        for gram in grams:
            total += gram
        total = self.fold(self.fold(total).T)
        if not math.isfinite(total.diagonal().sum().item()):  # |g_i|²; no other entry is larger
            raise DataError(_DIVERGED)
        return total

    @cached_property
    def lengths(self) -> NDArray[np.float64]:
        """(b,) |g_i|. Without the Gram matrix, unless a person has several rows."""
        if self.person_of_row is not None:
            return self.gram().diagonal().clamp(min=0.0).sqrt().cpu().numpy()
        with np.errstate(over="ignore", invalid="ignore"):
            squares = sum(part.squares() for part in self.parts)
            lengths: NDArray[np.float64] = np.sqrt(squares, dtype=np.float64)
            if self.scale is not None:
                lengths *= np.abs(self.scale.detach().cpu().numpy())
        if not math.isfinite(lengths.sum()):
            raise DataError(_DIVERGED)
        return lengths

    def rows(self) -> Tensor:
        """G itself, (b, d) float64, parameters in order: for models smaller than the chunk."""
        if len(self.values) * self.size > MAX_CELLS:
            raise CapacityError(
                f"{len(self.values)} gradients of {self.size} numbers do not fit in memory; take "
                "smaller chunks, or the Gram matrix"
            )
        by_parameter = {
            id(parameter): row
            for part in map(self._scaled, self.parts)
            for parameter, row in zip(part.parameters, part.rows(), strict=True)
        }
        flat = [by_parameter[id(p)].reshape(len(self.values), -1).double() for p in self.parameters]
        rows = self.fold(torch.cat(flat, dim=1))
        if not math.isfinite(rows.sum().item()):
            raise DataError(_DIVERGED)
        return rows

    def combine(self, weights: Tensor, *, double: bool = False) -> list[Tensor]:
        """Σ_i w_i g_i for `weights` (b,): one tensor per trainable parameter, in their order.

        `double`: make the products in double precision, for weights that nearly cancel.
        """
        if weights.shape != (len(self),):
            raise ConfigError(f"one weight per person: ({len(self)},), not {tuple(weights.shape)}")
        by_row = self.per_row(weights).to(torch.float64 if double else self.outputs.dtype)
        return self.pull_back(by_row if self.scale is None else by_row * self.scale)

    def outputs_again(self) -> Tensor:
        """The outputs with their graph; by another forward pass, if they had none."""
        if self.outputs.requires_grad or self.again is None:
            return self.outputs
        with torch.enable_grad():
            return self.again()

    def pull_back(self, weights: Tensor) -> list[Tensor]:
        """Σ_i w_i times the gradients that `parts` stand for: with `scale`, those of the line.

        Signals are linear in what the outputs send back, so this is the gradient of whatever sends
        back w_i·(−1, 1), without a backward pass.
        """
        sums = {
            id(parameter): value
            for part in self.parts
            for parameter, value in zip(part.parameters, part.combine(weights), strict=True)
        }
        return [sums[id(p)].to(p.dtype) for p in self.parameters]

    def per_row(self, weights: Tensor) -> Tensor:
        """(rows,) each row its person's weight, on the model's device."""
        weights = weights.to(self.outputs.device)
        return weights if self.person_of_row is None else weights[self.person_of_row]

    def fold(self, rows: Tensor) -> Tensor:
        """Add up the rows of each person: (rows, …) -> (b, …)."""
        if self.person_of_row is None:
            return rows
        total = torch.zeros(len(self), *rows.shape[1:], dtype=rows.dtype, device=rows.device)
        return total.index_add_(0, self.person_of_row.to(rows.device), rows)

    def split(self, flat: ArrayLike) -> list[Tensor]:
        """A vector of d numbers, one tensor per trainable parameter."""
        vector = torch.as_tensor(np.asarray(flat, dtype=np.float64))
        if vector.shape != (self.size,):
            raise ConfigError(f"expected {self.size} numbers, got shape {tuple(vector.shape)}")
        parts = torch.split(vector, [p.numel() for p in self.parameters])
        return [
            part.reshape(p.shape).to(p.device, p.dtype)
            for part, p in zip(parts, self.parameters, strict=True)
        ]

    def _scaled(self, part: Factors) -> Factors:
        return part if self.scale is None else part.times(self.scale)


def _slope_of(scalar: Scalar) -> Slope:
    """By differentiation."""

    def slope(outputs: Tensor) -> tuple[Tensor, Tensor]:
        leaf = outputs.detach().requires_grad_()
        with torch.enable_grad():
            values = scalar(leaf)
            if values.shape != (len(outputs),):
                raise ConfigError(
                    f"a scalar gives one number per row: ({len(outputs)},), not "
                    f"{tuple(values.shape)}"
                )
            total = values.sum()
        if not total.requires_grad:
            raise ConfigError("the number of a row must depend on the model's outputs")
        (gradient,) = torch.autograd.grad(total, leaf, materialize_grads=True)
        return values.detach(), gradient

    return slope


def along_line(upstream: Tensor) -> Tensor | None:
    """(b,) c with upstream_i = c_i·(−1, 1) up to rounding, or c_i·(1,) for one output; else None.

    With two classes every function of the probabilities sends back along this line: softmax does
    not see what is added to both logits. One backward pass then serves every such function.
    """
    if upstream.ndim == 1 or upstream[0].numel() == 1:
        return upstream.reshape(len(upstream))
    if upstream.ndim != 2 or upstream.shape[1] != 2:
        return None
    first, second = upstream.unbind(dim=1)
    across = torch.linalg.vector_norm(first + second, float("inf")).item()
    most = torch.linalg.vector_norm(second, float("inf")).item()
    coarse = 1e-12 if upstream.dtype == torch.float64 else 1e-5
    return second if across <= coarse * most else None


def _sent_back(gradient: Tensor, line: Tensor) -> Tensor:
    """(rows, classes), also where the gradient is a coordinate along the line."""
    if gradient.shape == line.shape:
        return gradient
    return gradient.reshape(-1, *[1] * (line.ndim - 1)) * line


@lru_cache(maxsize=64)  # chunks come in few sizes
def _line_of(shape: torch.Size, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The line's direction in every row."""
    line = torch.ones(shape, dtype=dtype, device=device)
    if len(shape) == 2 and shape[1] == 2:
        line[:, 0] = -1.0
    return line


def _persons(
    people_of_row: ArrayLike | None, count: int, device: torch.device
) -> tuple[NDArray[np.int64] | None, Tensor | None]:
    """The distinct people, ascending; each row's number among them, or None: row i is person i."""
    if people_of_row is None:
        return None, None
    people = np.asarray(people_of_row)
    if people.shape != (count,) or people.dtype.kind not in "iu":
        raise DataError(f"people_of_row must be {count} positions in the cohort, one per row")
    if (people[1:] > people[:-1]).all():
        return people.astype(np.int64, copy=False), None
    distinct, inverse = np.unique(people, return_inverse=True)
    return distinct.astype(np.int64), torch.as_tensor(inverse, device=device)
