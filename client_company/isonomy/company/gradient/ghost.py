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
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from isonomy.common.errors import CapacityError, ConfigError, DataError
from isonomy.company.gradient.per_sample import Factors, Pairs, add_pairs
from isonomy.company.gradient.tracing import factors_of, plan_of, trace

_COARSE = 1e-2  # error of a combination, relative, from which it is made in double precision
MAX_CELLS = 1 << 27  # of a Gram matrix or of materialised rows: 1 GB of float64
Scalar = Callable[[Tensor], Tensor]  # outputs (b, classes) -> (b,), each from its own row


@dataclass(eq=False)
class ChunkGradients:
    """Per-person gradients g_i of a scalar of the outputs, for one chunk.

    Without `people_of_row` every row is a person, in the order given. With it, rows of one person
    are added up (privacy is per person), and people are in ascending order, as in `people`.

    `outputs` keeps the graph of the forward pass: a loss of the same outputs may be
    back-propagated from it, which saves the loss step a forward pass of its own.
    """

    outputs: Tensor  # (rows, classes)
    upstream: Tensor  # (rows, classes) ∂h_i/∂outputs_i
    values: Tensor  # (rows,) the scalar itself, detached
    parameters: list[nn.Parameter]
    factors: Sequence[Factors]
    people: NDArray[np.int64] | None  # (b,) distinct, ascending
    person_of_row: Tensor | None  # (rows,) numbers 0..b−1; None: row i is person i

    @classmethod
    def of(
        cls,
        model: nn.Module,
        scalar: Scalar,
        inputs: Tensor,
        people_of_row: ArrayLike | None = None,
    ) -> ChunkGradients:
        """Run the model once forward and once backward. Nothing is asked of anybody."""
        if len(inputs) == 0:
            raise DataError("a chunk needs at least one row")
        parameters = list(model.parameters())
        plan = plan_of(model, parameters, inputs)
        traced = trace(model, plan.layers, inputs)
        with torch.enable_grad():
            values = scalar(traced.outputs)
        if values.shape != (len(inputs),):
            raise ConfigError(
                f"a scalar gives one number per row: ({len(inputs)},), not {tuple(values.shape)}"
            )
        total = values.sum()
        if not total.requires_grad:
            raise ConfigError("the scalar does not depend on the model's parameters")
        if not torch.isfinite(total.detach()):  # a NaN or an infinity shows in the sum
            raise DataError(
                "the model's outputs are NaN or infinite: training diverged. Nothing was asked; "
                "lower the learning rate, or scale the inputs."
            )
        people, person = _persons(people_of_row, len(inputs), inputs.device)
        factors, upstream = factors_of(model, plan, traced, inputs, total)
        return cls(
            outputs=traced.outputs,
            upstream=upstream,
            values=values.detach(),
            parameters=[p for p in parameters if p.requires_grad],
            factors=factors,
            people=people,
            person_of_row=person,
        )

    def __len__(self) -> int:
        return len(self.values) if self.people is None else len(self.people)

    @property
    def size(self) -> int:
        """d, the number of trainable parameters."""
        return sum(p.numel() for p in self.parameters)

    @cached_property
    def gram(self) -> Tensor:
        """K = G Gᵀ, (b, b) float64; its products in the model's precision."""
        return self.gram_in(self.outputs.dtype)

    @property
    def gram_floor(self) -> Tensor:
        """(b,) how far rounding reaches on K's diagonal: directions below it are not real."""
        return rounding_of(self.outputs.dtype) * self.gram.diagonal().clamp(min=0)

    def gram_in(self, dtype: torch.dtype) -> Tensor:
        """K with products in another precision: for differences of nearly equal gradients."""
        self._check_cells()
        count = len(self.values)
        total = torch.zeros(count, count, dtype=dtype, device=self.values.device)
        for factors in self.factors:
            total += factors.gram(dtype)
        total = total.double()
        if self.person_of_row is not None:
            total = self._by_person(self._by_person(total).T)
        return _finite(total)

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

    @cached_property
    def norms(self) -> Tensor:
        """|g_i|, (b,) float64. Without the Gram matrix, unless a person has several rows."""
        if self.person_of_row is not None:
            return self.gram.diagonal().clamp(min=0).sqrt()
        squares = sum(
            (factors.squares() for factors in self.factors),
            start=torch.zeros(len(self.values), dtype=torch.float64, device=self.values.device),
        )
        return _finite(squares).sqrt()

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
        made = {
            id(parameter): value
            for factors in self.factors
            for parameter, value in zip(factors.parameters, factors.combine(own), strict=True)
        }
        return [made[id(p)].to(p.dtype) for p in self.parameters]

    def per_row(self, weights: Tensor) -> Tensor:
        """(rows,) each row its person's weight, on the model's device."""
        own = weights.to(self.outputs.device)
        return own if self.person_of_row is None else own[self.person_of_row]

    def _cancels(self, weights: Tensor) -> bool:
        """Do large weights of nearly equal gradients cancel? Then single precision is too coarse.

        Rounding reaches about Σ|w_i||g_i|·2^-24; the result is √(wᵀKw) long.
        """
        if self.outputs.dtype == torch.float64 or "gram" not in self.__dict__:
            return False
        own = weights.to(self.gram)
        reach = own.abs() @ self.gram.diagonal().clamp(min=0).sqrt()
        return too_coarse(self.outputs.dtype, reach, own @ self.gram @ own)

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


def rounding_of(dtype: torch.dtype) -> float:
    """Rounding of a Gram matrix of gradients in this precision, relative to squared lengths."""
    return 1e-13 if dtype == torch.float64 else 1e-6


def too_coarse(dtype: torch.dtype, reach: Tensor, square: Tensor | float) -> bool:
    """Does rounding over terms of total length `reach` matter in a sum of this squared length?"""
    length = math.sqrt(max(float(square), 0.0))
    return rounding_of(dtype) * float(reach) > _COARSE * length


def _persons(
    people_of_row: ArrayLike | None, count: int, device: torch.device
) -> tuple[NDArray[np.int64] | None, Tensor | None]:
    if people_of_row is None:
        return None, None
    people = np.asarray(people_of_row)
    if people.shape != (count,) or not np.issubdtype(people.dtype, np.integer):
        raise DataError(f"people_of_row must be {count} positions in the cohort, one per row")
    if (people[1:] > people[:-1]).all():
        return people.astype(np.int64), None
    distinct, inverse = np.unique(people, return_inverse=True)
    return distinct.astype(np.int64), torch.as_tensor(inverse, device=device)


def _finite(values: Tensor) -> Tensor:
    if not torch.isfinite(values.sum()):  # a NaN or an infinity shows in the sum
        raise DataError(
            "gradients are NaN or infinite: training diverged. Nothing was asked; lower the "
            "learning rate, or scale the inputs."
        )
    return values


__all__ = ["ChunkGradients", "Scalar", "rounding_of", "too_coarse"]
