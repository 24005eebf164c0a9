"""A constraint gradient that is computed together with the loss's.

An answer of the oracle comes back as weights of per-person gradients (filled.py), and

    ∇J + Σ_i w_i ∇h_i = ∇(J + Σ_i w_i h_i)

is one backward pass over the outputs of the constraint's own forward pass. So the answer is kept as
weights, and the first loss step on the same rows, with the same parameters, takes both in one pass.
For everything else it is a sequence of tensors like any other, made when it is first looked at.
Two passes of their own would make a PF-LD step of `isonomy bench step` 14 to 42 % longer.

With two classes the constraint and the mean cross-entropy send back along one line
(ghost.along_line). With x the difference of the logits the loss is ln(1 + eˣ) − y·x and its slope
σ(x) − y. That is written out (`_cross_entropy`), because autograd's records of these two lines
cost a small network as much as its products: 3 to 13 % of a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import overload

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import expit
from torch import Tensor, nn

from isonomy.company.gradient.per_sample.ghost import ChunkGradients, along_line
from isonomy.company.gradient.run.strategy import Loss, logits_of
from isonomy.company.gradient.sums.primal import CentredGradients

Floats = NDArray[np.float64]


@dataclass(eq=False)
class Pass:
    """A forward pass that the constraint and the loss share."""

    outputs: Tensor  # with their graph, or (if `grads` lie on a line) a leaf
    weights: Tensor  # (rows,) of the gradients in `grads`
    grads: ChunkGradients
    _slope: Tensor | None = field(default=None, init=False)  # of the loss, along the line

    def loss(self, loss: Loss, target: Tensor, classes: int) -> Tensor | float:
        """The loss of these outputs: a number where it is known in closed form."""
        if loss is nn.functional.cross_entropy and classes == 2 and self.outputs.is_leaf:
            value, self._slope = _cross_entropy(self.outputs.detach(), target)
            return value
        return loss(logits_of(self.outputs, classes), target)

    def back_propagate(self, loss: Tensor | float) -> None:
        """Add the gradients of the loss and of the constraint to those of the parameters.

        Along the line they are put together from the signals of `grads`; else by one backward
        pass. What the loss has of the parameters besides the outputs (a penalty on weights) arrives
        by itself.
        """
        outputs, grads, slope = self.outputs, self.grads, self._slope
        if isinstance(loss, Tensor) and not outputs.is_leaf:
            torch.autograd.backward([loss, outputs], [None, self._upstream])
            return
        if slope is None and isinstance(loss, Tensor):
            outputs.grad = torch.zeros_like(outputs)
            loss.backward()  # type: ignore[no-untyped-call]
            slope = along_line(outputs.grad)
            if slope is None:
                both = self._upstream + outputs.grad
                torch.autograd.backward([grads.outputs_again()], [both])
                return
        weights = self.weights if grads.scale is None else self.weights * grads.scale
        weights = weights if slope is None else weights + slope
        for parameter, sums in zip(grads.parameters, grads.pull_back(weights), strict=True):
            parameter.grad = sums if parameter.grad is None else parameter.grad + sums

    @property
    def _upstream(self) -> Tensor:
        """(rows, classes) what the constraint sends back from the outputs."""
        upstream = self.grads.upstream
        return upstream * self.weights.reshape(-1, *[1] * (upstream.ndim - 1))


class Deferred(Sequence[Tensor]):
    """Σ_p w_p (g_p − m_p ḡ): weights until somebody looks, then one tensor per parameter."""

    def __init__(self, grads: CentredGradients, weights: Floats, rows: Tensor) -> None:
        """`rows` is the chunk's own object: the loss step compares by identity."""
        self._grads, self._weights, self._rows = grads, weights, rows
        self._versions: tuple[int, ...] | None = self._now()

    def plus(self, other: Deferred) -> Deferred | None:
        """The sum, where both weigh the same gradients (answers about several attributes)."""
        if other._grads is not self._grads:
            return None
        return Deferred(self._grads, self._weights + other._weights, self._rows)

    @overload
    def __getitem__(self, index: int) -> Tensor: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Tensor]: ...
    def __getitem__(self, index: int | slice) -> Tensor | Sequence[Tensor]:
        return self._tensors[index]

    def __len__(self) -> int:
        return len(self._grads.inner.parameters)

    @cached_property
    def _tensors(self) -> list[Tensor]:
        return self._grads.combine(self._weights)

    def take_pass(self, rows: Tensor) -> Pass | None:
        """The forward pass, for the loss step on the same rows; once, because the graph is used up.

        None where the loss needs a pass of its own: for other rows, or for parameters that have
        moved since. Only for models that are `modeless`.
        """
        versions, self._versions = self._versions, None
        if rows is not self._rows or versions is None or versions != self._now():
            return None
        inner = self._grads.inner
        weights = self._grads.per_row(self._weights).to(inner.outputs.dtype)
        if inner.scale is not None and not any(map(_watched, inner.parameters)):
            return Pass(inner.outputs.detach().requires_grad_(), weights, inner)
        return Pass(inner.outputs_again(), weights, inner)

    def _now(self) -> tuple[int, ...]:
        """In-place changes of the parameters so far: after one the graph is stale."""
        return tuple(parameter._version for parameter in self._grads.inner.parameters)


def _cross_entropy(outputs: Tensor, target: Tensor) -> tuple[float, Tensor]:
    """The mean cross-entropy of two classes, and its slope along the line, (rows,)."""
    logits, labels = outputs.cpu().numpy(), target.cpu().numpy()
    two = logits.ndim == 2 and logits.shape[1] == 2
    x = logits[:, 1] - logits[:, 0] if two else logits.reshape(len(labels))
    value = float((np.logaddexp(0, x) - labels * x).mean())
    slope = (expit(x) - labels) / len(labels)
    return value, torch.from_numpy(slope).to(outputs)


def _watched(parameter: nn.Parameter) -> bool:
    """Does somebody wait for its gradient to arrive by a backward pass?"""
    return bool(parameter._backward_hooks or parameter._post_accumulate_grad_hooks)
