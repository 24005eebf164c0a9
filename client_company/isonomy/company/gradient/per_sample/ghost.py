"""Gradients of one scalar per person, never materialised.

For a chunk of b samples and a scalar h of each sample's outputs (a fairness notion's h, or one
entry of FERMI's F_j), let g_i = ∇_θ h(z_i) and G the b × d matrix of them. Private training needs

    K = G Gᵀ                 who points where, and how far: lengths for clipping, a basis (subspace)
    Gᵀ w = Σ_i w_i g_i       the way back from an answer to a gradient

and both come layer by layer from what entered the layer and the back-propagated signal
(per_sample). Memory grows with b² and with one layer's width, not with b·d, as long as the layers
have a rule there; parameters of other layers are held as rows.

K is made in the model's precision and worked with in float64. Privacy does not rest on K
being right: the oracle clips the rows that it is sent, in integers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from isonomy.common.base.errors import CapacityError, ConfigError, DataError
from isonomy.company.gradient.per_sample.chain import parameters_of
from isonomy.company.gradient.per_sample.per_sample import (
    Factors,
    Outer,
    Pairs,
    add_pairs,
    all_squared,
)
from isonomy.company.gradient.per_sample.tracing import factors_of, plan_of, trace
from isonomy.company.gradient.per_sample.triangles import Matrix, mirrored

_COARSE = 1e-2  # error of a combination, relative, from which it is made in double precision
_FAR_FROM_INFINITY = 1e30  # in single precision, which ends at 3e38
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
    scale: Tensor | None = None  # (rows,) where the outputs' gradients stand on one line
    again: Callable[[], Tensor] | None = None  # the forward pass once more, with its graph
    inputs_gram: Tensor | None = None  # `first_inner` of these inputs, from an earlier round
    by_hand: bool = False  # run layer by layer (chain): nothing in it knows training from not

    @classmethod
    def of(
        cls,
        model: nn.Module,
        scalar: Scalar,
        inputs: Tensor,
        people_of_row: ArrayLike | None = None,
        slope: Slope | None = None,
    ) -> ChunkGradients:
        """Run the model once forward and once backward. Nothing is asked of anybody.

        `slope`: the scalar together with its gradient, where that is known in closed form.
        """
        if len(inputs) == 0:
            raise DataError("a chunk needs at least one row")
        parameters = parameters_of(model)
        plan = plan_of(model, parameters, inputs)
        traced = trace(model, plan.layers, inputs)
        if not traced.depends:
            raise ConfigError("the scalar does not depend on the model's parameters")
        with torch.no_grad():
            values, gradient = (slope or _slope_of(scalar))(traced.outputs)
        if not math.isfinite(values.sum().item()):  # a NaN or an infinity shows in the sum
            raise DataError(
                "the model's outputs are NaN or infinite: training diverged. Nothing was asked; "
                "lower the learning rate, or scale the inputs."
            )
        people, person = _persons(people_of_row, len(inputs), inputs.device)
        line = _line_of(traced.outputs.shape, traced.outputs.dtype, traced.outputs.device)
        scale = None
        if not plan.generic:
            scale = gradient if gradient.ndim == 1 else along_line(gradient)
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
            by_hand=traced.chain is not None,
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

    @cached_property
    def gram(self) -> Tensor:
        """K = G Gᵀ, (b, b) float64; its products in the model's precision."""
        return torch.from_numpy(mirrored(self.triangle)).to(self.values.device)

    @cached_property
    def triangle(self) -> Matrix:
        """The lower triangle of K (triangles.py)."""
        return self.triangle_in(self.outputs.dtype)

    @property
    def floor(self) -> NDArray[np.float64]:
        """(b,) how far rounding reaches on K's diagonal: directions below it are not real."""
        return rounding_of(self.outputs.dtype) * self.lengths**2

    @cached_property
    def lengths(self) -> NDArray[np.float64]:
        """|g_i|, (b,), off K's diagonal."""
        squares = np.maximum(self.triangle.diagonal(), 0.0)
        lengths: NDArray[np.float64] = np.sqrt(squares, dtype=np.float64)
        return lengths

    def take_triangle(self) -> Matrix:
        """The triangle, to be written over; who asks for K after that has it made again."""
        lower, _ = self.triangle, self.lengths
        del self.__dict__["triangle"]
        return lower

    def triangle_in(self, dtype: torch.dtype) -> Matrix:
        """Of K with products in another precision: for differences of nearly equal gradients."""
        return self._triangle_of(self.parts, dtype)

    def first_triangle(self) -> Matrix:
        """Of the first layer's part of K alone, to be written over (filled.py says what for)."""
        first, known = self.parts[0], self.inputs_gram
        if known is not None and isinstance(first, Outer):
            first = replace(first, known=known)
        return self._triangle_of([first], self.outputs.dtype)

    def first_inner(self, inputs: Tensor) -> Tensor | None:
        """The part of `first_triangle` that only the inputs decide, where the model begins so."""
        first = self.parts[0]
        if not isinstance(first, Outer) or first.entering is not inputs or first.weight is None:
            return None
        return first.inner(self.outputs.dtype)

    def _triangle_of(self, parts: Sequence[Factors], dtype: torch.dtype) -> Matrix:
        self._check_cells()
        scale = self.scale
        grams = ((own if scale is None else own.times(scale)).gram(dtype) for own in parts)
        total = next(grams)
        for more in grams:
            total += more
        lower = total.cpu().numpy()
        if self.person_of_row is not None:
            whole = torch.from_numpy(mirrored(lower)).to(total.device)
            lower = self._by_person(self._by_person(whole).T).cpu().numpy()
        if not math.isfinite(lower.diagonal().sum()):  # |g_i|²; the others are not longer
            raise DataError(_DIVERGED)
        return lower

    @cached_property
    def factors(self) -> Sequence[Factors]:
        """The g_i themselves, layer by layer."""
        scale = self.scale
        return self.parts if scale is None else [own.times(scale) for own in self.parts]

    def gram_about(self, mass: Tensor) -> Tensor:
        """Inner products of g_i − m_i c, (b, b) float64; made in the model's precision.

        c is near what the gradients have in common (per_sample). Each row is a person here.
        """
        self._check_cells()
        own = mass.to(self.outputs)
        total = torch.zeros(len(own), len(own), dtype=own.dtype, device=own.device)
        rest: Pairs = []
        for factors in self.factors:
            factors.add_about(own, total, rest)
        add_pairs(total, rest)
        return _finite(total.double())

    @property
    def norms(self) -> Tensor:
        """|g_i|, (b,) float64."""
        return torch.from_numpy(self.plain_lengths).to(self.values.device)

    @cached_property
    def plain_lengths(self) -> NDArray[np.float64]:
        """The same in numpy. Without the Gram matrix, unless a person has several rows."""
        if self.person_of_row is not None:
            return self.lengths
        with np.errstate(over="ignore", invalid="ignore"):
            squares = sum(factors.squares() for factors in self.parts)
            lengths: NDArray[np.float64] = np.sqrt(squares, dtype=np.float64)
            if self.scale is not None:
                lengths *= np.abs(self.scale.detach().cpu().numpy())
        if not math.isfinite(lengths.sum()):
            raise DataError(_DIVERGED)
        return lengths

    def check_finite(self) -> None:
        """Raise if somebody's gradient, or its square, is beyond numbers; without a Gram matrix.

        Behind the first layer: that one's lengths are on the diagonal of its Gram matrix.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            scale = 1.0 if self.scale is None else all_squared(self.scale)
            if scale * sum(own.total() for own in self.parts[1:]) < _FAR_FROM_INFINITY:
                return
            squares = sum(factors.reach() for factors in self.parts)
            if self.scale is not None:
                squares = squares * np.square(self.scale.detach().cpu().numpy())
            if not math.isfinite(np.max(squares)):  # in the model's precision, NaN for 0·∞
                raise DataError(_DIVERGED)

    def rows(self) -> Tensor:
        """G itself, (b, d) float64, parameters in order: for models smaller than the chunk."""
        if len(self.values) * self.size > MAX_CELLS:
            raise CapacityError(
                f"{len(self.values)} gradients of {self.size} numbers do not fit in memory; take "
                "smaller chunks, or the Gram matrix"
            )
        held = {
            id(parameter): row
            for factors in self.factors
            for parameter, row in zip(factors.parameters, factors.rows(), strict=True)
        }
        flat = [held[id(p)].reshape(len(self.values), -1).double() for p in self.parameters]
        rows = torch.cat(flat, dim=1)
        return _finite(rows if self.person_of_row is None else self._by_person(rows))

    def combine(self, weights: Tensor, *, double: bool | None = None) -> list[Tensor]:
        """Σ_i w_i g_i for `weights` (b,): one tensor per trainable parameter, in their order.

        `double`: make the products in double precision; None: where the weights ask for it.
        """
        if weights.shape != (len(self),):
            raise ConfigError(f"one weight per person: ({len(self)},), not {tuple(weights.shape)}")
        double = self._cancels(weights) if double is None else double
        own = self.per_row(weights).to(torch.float64 if double else self.outputs.dtype)
        return self.pull_back_line(own if self.scale is None else own * self.scale)

    def outputs_again(self) -> Tensor:
        """The outputs with their graph; by another forward pass, if they had none."""
        if self.outputs.requires_grad or self.again is None:
            return self.outputs
        with torch.enable_grad():
            return self.again()

    def pull_back(self, upstream: Tensor) -> list[Tensor] | None:
        """Gradients of upstream · outputs, without a backward pass: None if that takes one.

        Signals are linear in what is sent back from the outputs, and those of the line are here.
        """
        weights = None if self.scale is None else along_line(upstream)
        return None if weights is None else self.pull_back_line(weights)

    def pull_back_line(self, weights: Tensor) -> list[Tensor]:
        """Σ_i w_i times the gradients that `parts` stand for."""
        made = {
            id(parameter): value
            for factors in self.parts
            for parameter, value in zip(factors.parameters, factors.combine(weights), strict=True)
        }
        found = [made[id(p)] for p in self.parameters]
        if all(own.dtype == p.dtype for own, p in zip(found, self.parameters, strict=True)):
            return found
        return [own.to(p.dtype) for own, p in zip(found, self.parameters, strict=True)]

    def per_row(self, weights: Tensor) -> Tensor:
        """(rows,) each row its person's weight, on the model's device."""
        own = weights.to(self.outputs.device)
        return own if self.person_of_row is None else own[self.person_of_row]

    def _cancels(self, weights: Tensor) -> bool:
        """Do large weights of nearly equal gradients cancel? Then single precision is too coarse.

        Rounding reaches about Σ|w_i||g_i|·2^-24; the result is √(wᵀKw) long.
        """
        if self.outputs.dtype == torch.float64 or "lengths" not in self.__dict__:
            return False
        own = weights.to(self.gram)
        reach = float(np.abs(own.cpu().numpy()) @ self.lengths)
        return too_coarse(self.outputs.dtype, reach, float(own @ self.gram @ own))

    def _check_cells(self) -> None:
        count = len(self.values)
        if count * count > MAX_CELLS:
            raise CapacityError(
                f"a Gram matrix of {count} rows does not fit; take chunks of at most "
                f"{int(MAX_CELLS**0.5)} rows"
            )

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

    def _by_person(self, rows: Tensor) -> Tensor:
        """Add up the rows of each person: (rows, m) -> (b, m)."""
        if self.person_of_row is None:
            return rows
        total = torch.zeros(len(self), rows.shape[1], dtype=rows.dtype, device=rows.device)
        return total.index_add_(0, self.person_of_row, rows)


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
            raise ConfigError("the scalar does not depend on the model's parameters")
        (found,) = torch.autograd.grad(total, leaf, allow_unused=True)
        return values.detach(), torch.zeros_like(leaf) if found is None else found

    return slope


def along_line(upstream: Tensor) -> Tensor | None:
    """(b,) c with upstream_i = c_i·(−1, 1) up to rounding, or c_i·(1,) for one output; else None.

    With two classes all that is a function of the probabilities is one: softmax does not see what
    is added to both logits. Then one backward pass serves every such function.
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
    """(rows, classes), also where it was given along the line."""
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


def rounding_of(dtype: torch.dtype) -> float:
    """Rounding of a Gram matrix of gradients in this precision, relative to squared lengths."""
    return 1e-13 if dtype == torch.float64 else 1e-6


def too_coarse(dtype: torch.dtype, reach: float, square: float) -> bool:
    """Does rounding over terms of total length `reach` matter in a sum of this squared length?"""
    return rounding_of(dtype) * reach > _COARSE * math.sqrt(max(square, 0.0))


def _persons(
    people_of_row: ArrayLike | None, count: int, device: torch.device
) -> tuple[NDArray[np.int64] | None, Tensor | None]:
    if people_of_row is None:
        return None, None
    people = np.asarray(people_of_row)
    if people.shape != (count,) or people.dtype.kind not in "iu":
        raise DataError(f"people_of_row must be {count} positions in the cohort, one per row")
    if (people[1:] > people[:-1]).all():
        return people.astype(np.int64, copy=False), None
    distinct, inverse = np.unique(people, return_inverse=True)
    return distinct.astype(np.int64), torch.as_tensor(inverse, device=device)


def _finite(values: Tensor) -> Tensor:
    if not math.isfinite(values.sum().item()):  # a NaN or an infinity shows in the sum
        raise DataError(_DIVERGED)
    return values


__all__ = ["ChunkGradients", "Scalar", "Slope", "rounding_of", "too_coarse"]
